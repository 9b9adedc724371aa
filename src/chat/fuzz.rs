//! The entry point for fuzzers: a template from anywhere, and messages of every shape.

use super::{ChatMessage, ChatTemplate, Content, Conversation, JsonObject};

/// Compiles `data` as a template and renders it: must return, whatever the data.
pub fn fuzz_template(data: &[u8]) {
    let Ok(source) = std::str::from_utf8(data) else { return };
    let Ok(template) = ChatTemplate::new(source, "<s>", "</s>") else { return };
    let said =
        [("system", "Be\nbrief."), ("user", "é {{ x }}"), ("assistant", "<b>"), ("user", "")];
    let mut messages = said.map(|(role, content)| ChatMessage::new(role, content));
    let object =
        |text: &str| -> JsonObject { serde_json::from_str(text).expect("a constant object") };
    messages[2].content = Content::Null;
    messages[2].fields = object(r#"{"tool_calls": [{"name": "f", "arguments": {"a": [1]}}]}"#);
    let conversation = Conversation {
        messages: &messages,
        tools: &[object(r#"{"type": "function", "function": {"name": "f", "parameters": {}}}"#)],
        documents: &[],
        variables: None,
        add_generation_prompt: true,
    };
    let _ = template.render_conversation(&conversation);
}
