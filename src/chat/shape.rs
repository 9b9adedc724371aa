//! The shapes of messages that a template takes, found by rendering small conversations.

use serde_json::{Value as Json, json};

use super::{ChatMessage, ChatTemplate, Content, Conversation, JsonObject};

/// A text that no template has.
const MARK: &str = "hob-8c41f2";

/// What a template does with messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// It writes contents that are texts.
    texts: bool,
    /// It writes contents in parts.
    parts: bool,
    /// It writes arguments of calls that are objects, and not as Python shows them.
    objects: bool,
    /// It writes arguments of calls that are texts of JSON.
    argument_texts: bool,
}

impl Shape {
    pub(super) fn of(template: &ChatTemplate) -> Self {
        let shown = |message: ChatMessage| {
            let messages = [ChatMessage::new("user", "?"), message];
            let from = usize::from(messages[1].role == "user");
            let conversation = Conversation { messages: &messages[from..], ..Default::default() };
            template.render_as_it_is(&conversation, &|| false).unwrap_or_default()
        };
        let says = |content: Content| {
            shown(ChatMessage { role: "user".to_owned(), content, fields: JsonObject::new() })
        };
        let parts = says(Content::Parts(vec![text_part(MARK.to_owned())]));
        let called = |arguments: Json| {
            let function = json!({"name": "f", "arguments": arguments});
            let calls = json!([{"id": "abcdefghi", "type": "function", "function": function}]);
            let fields = JsonObject::from_iter([("tool_calls".to_owned(), calls)]);
            let content = Content::Text(String::new());
            shown(ChatMessage { role: "assistant".to_owned(), content, fields })
        };
        let object = json!({MARK: "v"});
        let text = called(object.to_string().into());
        let called = called(object);
        Self {
            texts: says(MARK.into()).contains(MARK),
            parts: parts.contains(MARK) && !parts.contains("type"),
            objects: called.contains(MARK) && !called.contains(&format!("'{MARK}'")),
            argument_texts: text.contains(MARK),
        }
    }

    pub(super) fn adapted(self, mut message: ChatMessage) -> ChatMessage {
        message.content = match message.content {
            Content::Parts(parts) if !self.parts && parts.iter().all(is_text) => {
                let texts: Vec<&str> = parts.iter().filter_map(|p| p["text"].as_str()).collect();
                Content::Text(texts.join("\n"))
            }
            Content::Text(text) if !self.texts && self.parts => {
                Content::Parts(vec![text_part(text)])
            }
            other => other,
        };
        let calls = message.fields.get_mut("tool_calls").and_then(Json::as_array_mut);
        for call in calls.into_iter().flatten() {
            let holder = if call.get("function").is_some() { &mut call["function"] } else { call };
            let adapted = match holder.get("arguments") {
                Some(Json::String(text)) if self.objects => {
                    serde_json::from_str::<JsonObject>(text).ok().map(Json::Object)
                }
                Some(object @ Json::Object(_)) if !self.objects && self.argument_texts => {
                    Some(object.to_string().into())
                }
                _ => None,
            };
            if let Some(arguments) = adapted {
                holder["arguments"] = arguments;
            }
        }
        message
    }
}

fn text_part(text: String) -> JsonObject {
    JsonObject::from_iter([("type".to_owned(), "text".into()), ("text".to_owned(), text.into())])
}

fn is_text(part: &JsonObject) -> bool {
    let kind = part.get("type").and_then(Json::as_str);
    matches!(kind, None | Some("text" | "input_text" | "output_text" | "refusal"))
        && part.get("text").is_some_and(Json::is_string)
}
