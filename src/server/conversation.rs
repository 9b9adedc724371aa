//! A conversation as a client sends it, as the chat template takes it.

use serde_json::Value;

use super::methods::out_of_range;
use crate::chat::{self, ChatMessage, Content, JsonObject};
use crate::protocol::{
    ErrorObject, Message, MessageContent, OBJECTS_WANTED, TEMPLATE_JSON_BYTES_MAX, TemplateJson,
    brief,
};

/// Messages, and what the model may use to answer them.
#[derive(Clone, Debug)]
pub struct Conversation {
    pub(super) messages: Vec<ChatMessage>,
    pub(super) tools: Vec<JsonObject>,
    pub(super) documents: Vec<JsonObject>,
    pub(super) variables: Option<JsonObject>,
}

impl Conversation {
    /// Messages and tools that were checked already.
    #[must_use]
    pub fn new(messages: Vec<ChatMessage>, tools: Vec<JsonObject>) -> Self {
        Self { messages, tools, documents: Vec::new(), variables: None }
    }

    /// The same with further variables of the template.
    #[must_use]
    pub fn with_variables(mut self, variables: JsonObject) -> Self {
        self.variables = Some(variables);
        self
    }

    /// Checks what a client sent.
    pub(super) fn read(
        messages: Vec<Message>,
        tools: Option<TemplateJson>,
        documents: Option<TemplateJson>,
        variables: Option<TemplateJson>,
    ) -> Result<Self, ErrorObject> {
        if messages.is_empty() {
            return Err(out_of_range("messages", "at least one message", "none"));
        }
        check_size(&messages, [&tools, &documents, &variables])?;
        Ok(Self {
            messages: messages.into_iter().map(message).collect::<Result<_, _>>()?,
            tools: objects("tools", tools.as_ref())?,
            documents: objects("documents", documents.as_ref())?,
            variables: variables.as_ref().map(template_variables).transpose()?,
        })
    }

    /// The same with other messages.
    pub(super) fn with(&self, messages: Vec<ChatMessage>) -> Self {
        Self { messages, ..self.clone() }
    }

    /// The same with messages as a template takes them.
    pub(super) fn adapted_to(mut self, template: &chat::ChatTemplate) -> Self {
        self.messages = template.adapted(self.messages);
        self
    }

    /// Bytes of the messages' texts.
    pub(super) fn bytes(&self) -> usize {
        self.messages.iter().map(|message| message.content.bytes()).sum()
    }

    /// Up to where the model answers.
    pub(super) fn as_chat(&self) -> chat::Conversation<'_> {
        chat::Conversation {
            messages: &self.messages,
            tools: &self.tools,
            documents: &self.documents,
            variables: self.variables.as_ref(),
            add_generation_prompt: true,
        }
    }
}

/// Values take many times the memory of their text.
fn check_size(messages: &[Message], others: [&Option<TemplateJson>; 3]) -> Result<(), ErrorObject> {
    let calls = messages.iter().filter_map(|message| message.tool_calls.as_ref());
    let parts = messages.iter().filter_map(|message| match &message.content {
        Some(MessageContent::Parts(parts)) => Some(parts),
        _ => None,
    });
    let all = calls.chain(parts).chain(others.into_iter().flatten());
    let bytes: usize = all.map(|json| json.0.get().len()).sum();
    if bytes <= TEMPLATE_JSON_BYTES_MAX {
        return Ok(());
    }
    let wanted = format!(
        "at most {TEMPLATE_JSON_BYTES_MAX} bytes, with documents, chat_template_kwargs, and in \
         messages tool_calls and contents in parts"
    );
    Err(out_of_range("tools", wanted, format_args!("{bytes} bytes")))
}

fn objects(
    field: &'static str,
    json: Option<&TemplateJson>,
) -> Result<Vec<JsonObject>, ErrorObject> {
    let Some(json) = json else { return Ok(Vec::new()) };
    serde_json::from_str(json.0.get())
        .map_err(|error| out_of_range(field, OBJECTS_WANTED, brief(error)))
}

/// Variables that the template has anyway keep their names to themselves.
fn template_variables(json: &TemplateJson) -> Result<JsonObject, ErrorObject> {
    const FIELD: &str = "chat_template_kwargs";
    let wanted = "an object whose members are variables of the template";
    let variables: JsonObject = serde_json::from_str(json.0.get())
        .map_err(|error| out_of_range(FIELD, wanted, brief(error)))?;
    let taken =
        ["messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"];
    match taken.iter().find(|name| variables.contains_key(**name)) {
        Some(name) => {
            Err(out_of_range(FIELD, wanted, format_args!("`{name}`, which is one already")))
        }
        None => Ok(variables),
    }
}

fn message(message: Message) -> Result<ChatMessage, ErrorObject> {
    let Message { role, content, reasoning_content, tool_calls, tool_call_id, name } = message;
    if !matches!(content, Some(MessageContent::Text(_) | MessageContent::Parts(_)))
        && tool_calls.is_none()
    {
        let wanted = "content in every message that has no tool_calls";
        return Err(out_of_range("messages", wanted, "one without"));
    }
    let mut fields = JsonObject::new();
    if tool_calls.is_some() {
        let calls = objects("tool_calls", tool_calls.as_ref())?;
        fields.insert("tool_calls".to_owned(), calls.into_iter().map(Value::from).collect());
    }
    let content = match content {
        None => Content::Absent,
        Some(MessageContent::Null) => Content::Null,
        Some(MessageContent::Text(text)) => Content::Text(text),
        Some(MessageContent::Parts(parts)) => Content::Parts(objects("messages", Some(&parts))?),
    };
    let texts =
        [("reasoning_content", reasoning_content), ("tool_call_id", tool_call_id), ("name", name)];
    for (field, text) in texts {
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
        Conversation::read(messages, tools, documents, None).expect_err("wrong").message
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
        let read =
            Conversation::read(vec![calling, answering], tools, None, None).expect("in order");
        let chat = read.as_chat();
        assert_eq!(chat.messages[0].content, Content::Absent);
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
        assert!(Conversation::read(vec![calling.clone()], None, None, None).is_ok());
        let message = refusal(vec![calling], None, Some(half));
        assert!(message.contains("at most 1048576 bytes"), "{message}");
    }
}
