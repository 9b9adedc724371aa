//! Chat templates of real models against what Jinja renders (`tests/data/chat/make.py`), and
//! against the prompts of the golden files.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use hob::chat::{
    ChatError, ChatMessage, ChatTemplate, Content, Conversation, JsonObject, named_template,
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

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
    let role = fields.shift_remove("role").unwrap().as_str().unwrap().to_owned();
    let content = match fields.shift_remove("content") {
        None => Content::Absent,
        Some(Value::Null) => Content::Null,
        Some(Value::String(text)) => Content::Text(text),
        Some(parts) => Content::Parts(objects(&parts)),
    };
    ChatMessage { role, content, fields }
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
                variables: None,
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
fn expressions_and_statements_have_jinjas_results() {
    let facts = json(&data().join("expressions.json"));
    let variables = facts["variables"].as_object().unwrap();
    let mut wrong = Vec::new();
    for case in facts["cases"].as_array().unwrap() {
        let source = case[0].as_str().unwrap();
        let found = ChatTemplate::new(source, "", "").and_then(|template| {
            let variables = Some(variables);
            template.render_conversation(&Conversation { variables, ..Conversation::default() })
        });
        let same = match (case[1].as_str(), &found) {
            (Some(wanted), Ok(found)) => wanted == found,
            (None, Err(_)) => true,
            _ => false,
        };
        if !same {
            wrong.push(format!("{source:?}:\n wanted {}\n found  {found:?}", case[1]));
        }
    }
    assert!(wrong.is_empty(), "{}\n{} are wrong", wrong.join("\n"), wrong.len());
}

fn shared() -> PathBuf {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared");
    std::env::var_os("HOB_SHARED").map_or(default, PathBuf::from)
}

/// The text with the dates that a template writes replaced by their formats.
fn without_dates(mut text: String) -> String {
    for format in ["%d %b %Y", "%B %d, %Y", "%Y-%m-%d"] {
        let template = format!("{{{{ strftime_now('{format}') }}}}");
        let now = ChatTemplate::new(&template, "", "").unwrap().render(&[], false).unwrap();
        text = text.replace(&now, format);
    }
    text
}

#[test]
fn published_templates_render_as_jinja_does() {
    let folder = shared().join("clients/chat/templates");
    if !folder.is_dir() {
        eprintln!("skipped: the published templates are not in {}", folder.display());
        return;
    }
    let facts = json(&data().join("real.json"));
    let mut wrong = Vec::new();
    for (file, wanted) in facts["templates"].as_object().unwrap() {
        let source = std::fs::read_to_string(folder.join(file)).unwrap();
        let template = ChatTemplate::new(&source, "<s>", "</s>").unwrap();
        for (name, wanted) in wanted.as_object().unwrap() {
            let mut given = facts["conversations"][name].as_object().unwrap().clone();
            let mut take = |field| given.shift_remove(field).unwrap_or_default();
            let messages: Vec<_> = objects(&take("messages")).into_iter().map(message).collect();
            let (tools, documents) = (objects(&take("tools")), objects(&take("documents")));
            let found = template.render_conversation(&Conversation {
                messages: &messages,
                tools: &tools,
                documents: &documents,
                variables: Some(&given),
                add_generation_prompt: messages.last().unwrap().role != "assistant",
            });
            let found = match found {
                // The same prompt without the tools or documents: hob refuses what Jinja renders.
                Err(ChatError::Unused { .. }) => continue,
                Err(ChatError::Refused { message }) => json!({"refused": message}),
                Err(_) => json!({"failed": true}),
                Ok(text) => {
                    if let Some(out) = std::env::var_os("HOB_TEMPLATES_OUT") {
                        let name = format!("{file}.{}", name.replace(' ', "-"));
                        std::fs::write(Path::new(&out).join(name), &text).unwrap();
                    }
                    let digest = Sha256::digest(without_dates(text).as_bytes());
                    Value::from(digest.iter().map(|b| format!("{b:02x}")).collect::<String>())
                }
            };
            if found != *wanted {
                wrong.push(format!("{file}, {name}: wanted {wanted}, found {found}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}\n{} are wrong", wrong.join("\n"), wrong.len());
}

#[test]
fn published_templates_end_with_their_generation_prompts() {
    let folder = shared().join("clients/chat");
    if !folder.is_dir() {
        eprintln!("skipped: the published templates are not in {}", folder.display());
        return;
    }
    let mut looked_at = 0;
    for case in json(&folder.join("generation_prompts.json")).as_array().unwrap() {
        // What an answer that goes on begins with is more than a template says.
        if !case["continue_final_message"].is_null() {
            continue;
        }
        let file = case["template"].as_str().unwrap();
        let source = std::fs::read_to_string(folder.join("templates").join(file)).unwrap();
        let template = ChatTemplate::new(&source, "<s>", "</s>").unwrap();
        let thinks = case["enable_thinking"].clone();
        let variables =
            [("enable_thinking", thinks.clone()), ("thinking", thinks)].map(|(k, v)| (k.into(), v));
        let variables = JsonObject::from_iter(variables);
        let prompt = template.render_conversation(&Conversation {
            messages: &template.adapted(messages(case)),
            variables: Some(&variables),
            add_generation_prompt: true,
            ..Conversation::default()
        });
        let wanted = case["generation_prompt"].as_str().unwrap();
        assert!(prompt.as_ref().is_ok_and(|p| p.ends_with(wanted)), "{file}: {prompt:?}");
        looked_at += 1;
    }
    assert!(looked_at >= 14, "{looked_at}");
}

#[test]
fn golden_conversations_become_their_prompts() {
    let shared = shared();
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
