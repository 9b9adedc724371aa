//! Conversations whose texts spell no special tokens: those of the template stay what they are.

use serde_json::Value;

use super::conversation::Conversation;
use crate::chat::{ChatMessage, Content, JsonObject};
use crate::tokenizer::{Tokenizer, unused_mark};

/// The conversation with marks in the control tokens that its texts spell, and the mark; `None`
/// where the texts have every character that a mark could be.
pub(super) fn marked(
    conversation: &Conversation,
    tokenizer: &Tokenizer,
) -> Option<(Conversation, char)> {
    let mut texts = Vec::new();
    for message in &conversation.messages {
        texts.push(message.role.as_str());
        match &message.content {
            Content::Text(text) => texts.push(text),
            Content::Parts(parts) => {
                parts.iter().for_each(|part| texts_of_object(part, &mut texts));
            }
            Content::Absent | Content::Null => {}
        }
        texts_of_object(&message.fields, &mut texts);
    }
    let objects = conversation.tools.iter().chain(&conversation.documents);
    objects.chain(&conversation.variables).for_each(|object| texts_of_object(object, &mut texts));
    let mark = unused_mark(texts.iter().copied())?;
    let text = |text: &str| tokenizer.mark_specials(text, mark).into_owned();
    let message = |message: &ChatMessage| ChatMessage {
        role: text(&message.role),
        content: marked_content(&message.content, &text),
        fields: marked_object(&message.fields, &text),
    };
    let objects = |all: &[JsonObject]| all.iter().map(|one| marked_object(one, &text)).collect();
    let marked = Conversation {
        messages: conversation.messages.iter().map(message).collect(),
        tools: objects(&conversation.tools),
        documents: objects(&conversation.documents),
        variables: conversation.variables.as_ref().map(|one| marked_object(one, &text)),
    };
    Some((marked, mark))
}

fn marked_content(content: &Content, text: &impl Fn(&str) -> String) -> Content {
    match content {
        Content::Text(own) => Content::Text(text(own)),
        Content::Parts(parts) => {
            Content::Parts(parts.iter().map(|part| marked_object(part, text)).collect())
        }
        Content::Absent | Content::Null => content.clone(),
    }
}

fn texts_of_object<'a>(object: &'a JsonObject, out: &mut Vec<&'a str>) {
    for (name, value) in object {
        out.push(name);
        texts_of(value, out);
    }
}

fn texts_of<'a>(value: &'a Value, out: &mut Vec<&'a str>) {
    match value {
        Value::String(text) => out.push(text),
        Value::Array(values) => values.iter().for_each(|value| texts_of(value, out)),
        Value::Object(object) => texts_of_object(object, out),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn marked_object(object: &JsonObject, text: &impl Fn(&str) -> String) -> JsonObject {
    let marked = |(name, value): (&String, &Value)| (name.clone(), marked_value(value, text));
    object.iter().map(marked).collect()
}

fn marked_value(value: &Value, text: &impl Fn(&str) -> String) -> Value {
    match value {
        Value::String(own) => Value::String(text(own)),
        Value::Array(values) => values.iter().map(|value| marked_value(value, text)).collect(),
        Value::Object(object) => Value::Object(marked_object(object, text)),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}
