//! Holds `config/protocol.md` against the server: its session, its methods, its errors.
#![allow(clippy::unwrap_used)]

mod server_support;

use hob::engine::Owner;
use hob::protocol::{LOGPROBS_MAX, MAX_TOKENS_DEFAULT, STOP_TEXTS_MAX, method};
use serde_json::{Value, json};
use server_support::Bench;

const MANUAL: &str = include_str!("../config/protocol.md");

/// The lines of the block that opens with this fence.
fn block(fence: &str) -> Vec<Value> {
    let (_, rest) = MANUAL.split_once(&format!("```{fence}\n")).unwrap();
    let (lines, _) = rest.split_once("```").unwrap();
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// What a value looks like: the keys of objects in their order, the types of all else. Of an array,
/// its first entry.
fn shape(value: &Value) -> Value {
    match value {
        Value::Null => json!("null"),
        Value::Bool(_) => json!("bool"),
        Value::Number(_) => json!("number"),
        Value::String(_) => json!("string"),
        Value::Array(items) => items.first().map_or_else(|| json!([]), |item| json!([shape(item)])),
        Value::Object(members) => {
            members.iter().map(|(key, value)| (key.clone(), shape(value))).collect()
        }
    }
}

#[tokio::test]
async fn the_session_to_paste_gets_replies_of_the_form_shown() {
    let bench = Bench::start();
    // Some methods are for the daemon's own user.
    let uid = rustix::process::geteuid().as_raw();
    let mut client = bench.connect_as(Owner { uid });
    let mut shown = block("jsonl replies").into_iter();
    for request in block("jsonl requests") {
        client.send(request.clone()).await;
        loop {
            let (reply, shown) = (client.message().await, shown.next().unwrap());
            let keys = |message: &Value| -> Vec<String> {
                message.as_object().unwrap().keys().cloned().collect()
            };
            assert_eq!(keys(&reply), keys(&shown), "{request}");
            assert_eq!(shape(&reply).to_string(), shape(&shown).to_string(), "{request}");
            assert_eq!(reply["id"], shown["id"]);
            if !reply["id"].is_null() {
                assert_eq!(reply["id"], request["id"]);
                // The errors do not depend on the model.
                assert_eq!(reply["error"], shown["error"]);
                break;
            }
        }
    }
    assert_eq!(shown.next(), None);
}

#[test]
fn the_session_shows_every_method_and_the_manual_explains_it() {
    let requests = block("jsonl requests");
    for name in method::ALL {
        // One is answered when the daemon ends, and with it the session to paste.
        let is_shown = requests.iter().any(|request| request["method"] == name);
        assert!(is_shown || name == method::STOP_REPORT, "{name}");
        assert!(MANUAL.contains(&format!("\n### {name}\n")), "{name}");
    }
    assert!(MANUAL.contains(method::GENERATE_TOKEN));
}

#[test]
fn every_error_code_stands_in_the_table() {
    let source = include_str!("../src/protocol/error.rs");
    let mut count = 0;
    for line in source.lines() {
        let Some(rest) = line.trim().strip_prefix("pub const ") else { continue };
        let (name, value) = rest.split_once(": Self = Self(").unwrap();
        let row = format!("\n| {} | `{name}` |", value.trim_end_matches(");"));
        assert!(MANUAL.contains(&row), "{row} is missing");
        count += 1;
    }
    assert_eq!(MANUAL.matches("\n| -32").count(), count, "rows without a code");
}

#[test]
fn limits_stand_in_the_manual_as_they_are() {
    assert!(MANUAL.contains(&format!("at most {MAX_TOKENS_DEFAULT} |")));
    assert!(MANUAL.contains(&format!("or at most {STOP_TEXTS_MAX},")));
    assert!(MANUAL.contains(&format!("| `logprobs?` | 0 to {LOGPROBS_MAX}:")));
    let defaults = hob::engine::SamplingParams::default();
    for (field, value) in [
        ("temperature", defaults.temperature),
        ("top_k", defaults.top_k as f32),
        ("top_p", defaults.top_p),
        ("min_p", defaults.min_p),
        ("repeat_penalty", defaults.repeat_penalty),
        ("presence_penalty", defaults.presence_penalty),
        ("frequency_penalty", defaults.frequency_penalty),
    ] {
        let row = MANUAL.lines().find(|line| line.starts_with(&format!("| `{field}?` |"))).unwrap();
        assert!(row.ends_with(&format!("| {value} |")), "{row}: {value}");
    }
}
