//! Outputs of models against the messages that llama.cpp makes of them: 283 cases of 49 published
//! templates (`../shared/clients/chat`), whole and at every prefix.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use hob::calls::{CallFormat, CallParser, Delta, ParseOptions};
use hob::chat::{ChatMessage, ChatTemplate, Content, Conversation, JsonObject};
use serde_json::Value;

/// Cases that differ: forms that are not known, or where hob means to differ. Their number may only
/// go down.
const DIFFER_MAX: usize = 41;

#[derive(Clone, Debug, Default, PartialEq)]
struct Message {
    content: String,
    reasoning: String,
    calls: Vec<(String, String, String)>,
}

fn add(message: &mut Message, deltas: Vec<Delta>) {
    for delta in deltas {
        match delta {
            Delta::Content(text) => message.content.push_str(&text),
            Delta::Reasoning(text) => message.reasoning.push_str(&text),
            Delta::CallStart { id, name, .. } => message.calls.push((id, name, String::new())),
            Delta::Arguments { index, text } => message.calls[index].2.push_str(&text),
            Delta::CallEnd { .. } => {}
        }
    }
}

fn objects(value: &Value) -> Vec<JsonObject> {
    let all = value.as_array().into_iter().flatten();
    all.map(|object| object.as_object().unwrap().clone()).collect()
}

fn message(mut fields: JsonObject) -> ChatMessage {
    let role = fields.shift_remove("role").unwrap().as_str().unwrap().to_owned();
    let content = match fields.shift_remove("content") {
        None => Content::Absent,
        Some(Value::Null) => Content::Null,
        Some(Value::String(text)) => Content::Text(text),
        Some(parts) => Content::Parts(objects(&parts)),
    };
    ChatMessage { role, content, fields }
}

fn prompt(template: &ChatTemplate, case: &Value, tools: &[JsonObject]) -> String {
    let messages: Vec<_> = objects(&case["messages"]).into_iter().map(message).collect();
    let thinks = case["enable_thinking"].clone();
    let variables =
        JsonObject::from_iter(["enable_thinking", "thinking"].map(|k| (k.into(), thinks.clone())));
    let messages = template.adapted(messages);
    let conversation = Conversation {
        messages: &messages,
        tools,
        variables: Some(&variables),
        add_generation_prompt: true,
        ..Conversation::default()
    };
    let without = Conversation { tools: &[], ..conversation };
    let rendered = template.render_conversation(&conversation);
    rendered.or_else(|_| template.render_conversation(&without)).unwrap_or_default()
}

fn parsed(format: CallFormat, options: &ParseOptions, input: &str, whole: bool) -> Message {
    let mut parser = CallParser::new(format, options, &|_| false);
    let mut message = Message::default();
    if whole {
        add(&mut message, parser.push(input.as_bytes(), false));
    } else {
        for c in input.chars() {
            add(&mut message, parser.push(c.encode_utf8(&mut [0; 4]).as_bytes(), false));
        }
    }
    add(&mut message, parser.finish());
    message
}

/// True if the message is what the case expects, compared as llama.cpp does.
fn fits(message: &Message, case: &Value) -> bool {
    let expected = &case["expected"];
    let text = |name: &str| expected[name].as_str().unwrap_or_default().trim().to_owned();
    let calls = expected["tool_calls"].as_array().unwrap();
    let partial = case["is_partial"].as_bool().unwrap();
    let same_call = |(found, wanted): (&(String, String, String), &Value)| {
        let json = |text: &str| serde_json::from_str::<Value>(text).ok();
        let arguments = wanted["arguments"].as_str().unwrap();
        let id = wanted["id"].as_str().unwrap_or_default();
        found.1 == wanted["name"].as_str().unwrap()
            && (id.is_empty() || found.0 == id)
            && (partial || (json(&found.2).is_some() && json(&found.2) == json(arguments)))
    };
    message.content.trim() == text("content")
        && message.reasoning.trim() == text("reasoning_content")
        && message.calls.len() == calls.len()
        && message.calls.iter().zip(calls).all(same_call)
}

#[test]
fn outputs_of_published_templates_are_taken_apart_as_llama_cpp_does() {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared");
    let folder = std::env::var_os("HOB_SHARED").map_or(default, PathBuf::from).join("clients/chat");
    if !folder.is_dir() {
        eprintln!("skipped: the cases are not in {}", folder.display());
        return;
    }
    let cases: Value =
        serde_json::from_slice(&std::fs::read(folder.join("cases.json")).unwrap()).unwrap();
    let mut differ: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut looked_at = 0;
    for case in cases.as_array().unwrap() {
        // An answer that goes on has its beginning in the prompt.
        if !case["continue_final_message"].is_null() {
            continue;
        }
        looked_at += 1;
        let file = case["template"].as_str().unwrap();
        let source = std::fs::read_to_string(folder.join("templates").join(file)).unwrap();
        let template = ChatTemplate::new(&source, "<s>", "</s>").unwrap();
        let tools = objects(&case["tools"]);
        let prompt = prompt(&template, case, &tools);
        let split_reasoning = case["reasoning_format"] != "none";
        let options = ParseOptions { tools: &tools, prompt: &prompt, split_reasoning };
        let format = CallFormat::find(&template);
        let input = case["input"].as_str().unwrap();
        let message = parsed(format, &options, input, true);
        // The deltas of all prefixes add up to the same message.
        assert_eq!(parsed(format, &options, input, false), message, "{}", case["id"]);
        if !fits(&message, case) {
            let list = differ.entry(file.to_owned()).or_default();
            list.push(format!(
                "{}: {input:?}\n    {message:?}\n    {}",
                case["id"], case["expected"]
            ));
        }
    }
    let count: usize = differ.values().map(Vec::len).sum();
    for (file, list) in &differ {
        eprintln!("{file}: {}\n  {}", list.len(), list.join("\n  "));
    }
    eprintln!("{count} of {looked_at} differ");
    assert!(count <= DIFFER_MAX, "{count} of {looked_at} differ");
}
