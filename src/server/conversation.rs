//! A conversation as a client sends it, as the chat template takes it.

use serde_json::Value;

use super::methods::out_of_range;
use crate::chat::{self, ChatMessage, JsonObject};
use crate::protocol::{
    ErrorObject, Message, OBJECTS_WANTED, TEMPLATE_JSON_BYTES_MAX, TemplateJson,
};

/// Messages, and what the model may use to answer them.
#[derive(Clone, Debug)]
pub struct Conversation {
    pub(super) messages: Vec<ChatMessage>,
    tools: Vec<JsonObject>,
    documents: Vec<JsonObject>,
}

impl Conversation {
    /// Messages and tools that were checked already.
    #[must_use]
    pub fn new(messages: Vec<ChatMessage>, tools: Vec<JsonObject>) -> Self {
        Self { messages, tools, documents: Vec::new() }
    }

    /// Checks what a client sent.
    pub(super) fn read(
        messages: Vec<Message>,
        tools: Option<TemplateJson>,
        documents: Option<TemplateJson>,
    ) -> Result<Self, ErrorObject> {
        if messages.is_empty() {
            return Err(out_of_range("messages", "at least one message", "none"));
        }
        check_size(&messages, tools.as_ref(), documents.as_ref())?;
        Ok(Self {
            messages: messages.into_iter().map(message).collect::<Result<_, _>>()?,
            tools: objects("tools", tools.as_ref())?,
            documents: objects("documents", documents.as_ref())?,
        })
    }

    /// The same with other messages.
    pub(super) fn with(&self, messages: Vec<ChatMessage>) -> Self {
        Self { messages, tools: self.tools.clone(), documents: self.documents.clone() }
    }

    /// Up to where the model answers.
    pub(super) fn as_chat(&self) -> chat::Conversation<'_> {
        chat::Conversation {
            messages: &self.messages,
            tools: &self.tools,
            documents: &self.documents,
            add_generation_prompt: true,
        }
    }
}

/// Values take many times the memory of their text.
fn check_size(
    messages: &[Message],
    tools: Option<&TemplateJson>,
    documents: Option<&TemplateJson>,
) -> Result<(), ErrorObject> {
    let calls = messages.iter().filter_map(|message| message.tool_calls.as_ref());
    let all = calls.chain(tools).chain(documents);
    let bytes: usize = all.map(|json| json.0.get().len()).sum();
    if bytes <= TEMPLATE_JSON_BYTES_MAX {
        return Ok(());
    }
    let wanted = format!(
        "at most {TEMPLATE_JSON_BYTES_MAX} bytes, with documents and the tool_calls of messages"
    );
    Err(out_of_range("tools", wanted, format_args!("{bytes} bytes")))
}

fn objects(
    field: &'static str,
    json: Option<&TemplateJson>,
) -> Result<Vec<JsonObject>, ErrorObject> {
    let Some(json) = json else { return Ok(Vec::new()) };
    serde_json::from_str(json.0.get()).map_err(|error| out_of_range(field, OBJECTS_WANTED, error))
}

fn message(message: Message) -> Result<ChatMessage, ErrorObject> {
    let Message { role, content, tool_calls, tool_call_id, name } = message;
    if content.is_none() && tool_calls.is_none() {
        let wanted = "content in every message that has no tool_calls";
        return Err(out_of_range("messages", wanted, "one without"));
    }
    let mut fields = JsonObject::new();
    if tool_calls.is_some() {
        let calls = objects("tool_calls", tool_calls.as_ref())?;
        fields.insert("tool_calls".to_owned(), calls.into_iter().map(Value::from).collect());
    }
    for (field, text) in [("tool_call_id", tool_call_id), ("name", name)] {
        if let Some(text) = text {
            fields.insert(field.to_owned(), text.into());
        }
    }
    Ok(ChatMessage { role, content, fields })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> TemplateJson {
        serde_json::from_str(text).expect("test data is JSON")
    }

    fn refusal(
        messages: Vec<Message>,
        tools: Option<TemplateJson>,
        documents: Option<TemplateJson>,
    ) -> String {
        Conversation::read(messages, tools, documents).expect_err("wrong").message
    }

    #[test]
    fn what_a_client_sends_comes_to_the_template_as_it_was_sent() {
        let call =
            r#"[{"type": "function", "function": {"name": "f", "arguments": {"b": 1, "a": 2}}}]"#;
        let calling =
            Message { content: None, tool_calls: Some(json(call)), ..Message::new("a", "") };
        let answering = Message {
            tool_call_id: Some("7".into()),
            name: Some("f".into()),
            ..Message::new("tool", "3")
        };
        let tools = Some(json(r#"[{"type": "function", "z": 1, "a": 2.50}]"#));
        let read = Conversation::read(vec![calling, answering], tools, None).expect("in order");
        let chat = read.as_chat();
        assert_eq!(chat.messages[0].content, None);
        let same = |found: &JsonObject, wanted: &str| {
            assert_eq!(serde_json::to_string(found).expect("JSON"), wanted);
        };
        same(
            &chat.messages[0].fields,
            r#"{"tool_calls":[{"type":"function","function":{"name":"f","arguments":{"b":1,"a":2}}}]}"#,
        );
        same(&chat.messages[1].fields, r#"{"tool_call_id":"7","name":"f"}"#);
        same(&chat.tools[0], r#"{"type":"function","z":1,"a":2.5}"#);
    }

    #[test]
    fn what_is_no_object_too_large_or_empty_is_refused() {
        let user = || vec![Message::new("user", "x")];
        let message = refusal(user(), Some(json("[1]")), None);
        assert!(message.starts_with("field \"tools\": wanted an array of objects"), "{message}");
        let message = refusal(user(), None, Some(json("{}")));
        assert!(message.starts_with("field \"documents\": wanted an array"), "{message}");
        let silent = Message { content: None, ..Message::new("assistant", "") };
        let message = refusal(vec![silent], None, None);
        assert!(message.contains("content in every message that has no tool_calls"), "{message}");
        let half = json(&format!("[{{\"a\": \"{}\"}}]", "x".repeat(TEMPLATE_JSON_BYTES_MAX / 2)));
        let calling = Message { tool_calls: Some(half.clone()), ..Message::new("assistant", "") };
        assert!(Conversation::read(vec![calling.clone()], None, None).is_ok());
        let message = refusal(vec![calling], None, Some(half));
        assert!(message.contains("at most 1048576 bytes"), "{message}");
    }
}
