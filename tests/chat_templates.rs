//! Chat templates of real models against what Jinja renders (`tests/data/chat/make.py`), and
//! against the prompts of the golden files.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use hob::chat::{ChatError, ChatMessage, ChatTemplate, Conversation, JsonObject, named_template};
use serde_json::Value;

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/chat")
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn messages(case: &Value) -> Vec<ChatMessage> {
    objects(&case["messages"]).into_iter().map(message).collect()
}

fn message(mut fields: JsonObject) -> ChatMessage {
    let mut take = |field| fields.shift_remove(field).unwrap().as_str().map(str::to_owned);
    ChatMessage { role: take("role").unwrap(), content: take("content"), fields }
}

/// Those of an array; none where there is no array.
fn objects(value: &Value) -> Vec<JsonObject> {
    let all = value.as_array().into_iter().flatten();
    all.map(|object| object.as_object().unwrap().clone()).collect()
}

#[test]
fn real_templates_render_as_jinja_does() {
    for name in ["smollm2", "qwen2", "phi-3", "gemma-3", "tools", "calls"] {
        let source = std::fs::read_to_string(data().join(format!("{name}.jinja"))).unwrap();
        let golden = json(&data().join(format!("{name}.json")));
        let (bos, eos) = (golden["bos"].as_str().unwrap(), golden["eos"].as_str().unwrap());
        let template = ChatTemplate::new(&source, bos, eos).unwrap();
        for case in golden["cases"].as_array().unwrap() {
            let found = template.render_conversation(&Conversation {
                messages: &messages(case),
                tools: &objects(&case["tools"]),
                documents: &objects(&case["documents"]),
                add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap(),
            });
            let wanted = match case["refused"].as_str() {
                Some(message) => Err(ChatError::Refused { message: message.to_owned() }),
                None => Ok(case["rendered"].as_str().unwrap().to_owned()),
            };
            assert_eq!(found, wanted, "{name}: {}", case["messages"]);
            if let Ok(prompt) = found {
                let adds_bos = matches!(name, "phi-3" | "gemma-3" | "smollm2");
                assert_eq!(template.template_adds_bos(&prompt), adds_bos, "{name}");
            }
        }
    }
}

#[test]
fn real_templates_that_know_no_tools_say_so() {
    let tool = r#"{"type": "function", "function": {"name": "add", "parameters": {}}}"#;
    let tools = [serde_json::from_str(tool).unwrap()];
    let messages = [ChatMessage::new("user", "1 + 2?")];
    for name in ["smollm2", "qwen2", "phi-3", "gemma-3"] {
        let source = std::fs::read_to_string(data().join(format!("{name}.jinja"))).unwrap();
        let template = ChatTemplate::new(&source, "<s>", "</s>").unwrap();
        let with = |tools| Conversation { messages: &messages, tools, ..Conversation::default() };
        assert!(template.render_conversation(&with(&[])).is_ok());
        let refused = template.render_conversation(&with(&tools));
        assert_eq!(refused, Err(ChatError::Unused { what: "tools" }), "{name}");
    }
}

#[test]
fn golden_conversations_become_their_prompts() {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared");
    let shared = std::env::var_os("HOB_SHARED").map_or(default, PathBuf::from);
    if !shared.join("golden").is_dir() {
        eprintln!("skipped: shared files absent");
        return;
    }
    let smollm2 = std::fs::read_to_string(data().join("smollm2.jinja")).unwrap();
    let chatml = named_template("chatml").unwrap();
    let mut conversations = 0;
    // The file of Gemma's base model has no template: ChatML is taken.
    for (golden, source) in [("smollm2.json", smollm2.as_str()), ("gemma3.json", chatml)] {
        let template = ChatTemplate::new(source, "", "").unwrap();
        for case in json(&shared.join("golden").join(golden)).as_array().unwrap() {
            if case["messages"].is_array() {
                let prompt = template.render(&messages(case), true).unwrap();
                assert_eq!(prompt, case["prompt"].as_str().unwrap(), "{golden}");
                conversations += 1;
            }
        }
    }
    assert_eq!(conversations, 4);
}
