//! Anthropic's messages and their count.
#![allow(clippy::unwrap_used)]

mod http_support;
mod server_support;

use http_support::HttpClient;
use serde_json::{Value, json};
use server_support::{ADA, Bench, STOP};

fn connect(bench: &Bench) -> HttpClient {
    HttpClient::new(bench.raw_as(ADA))
}

fn user(text: impl Into<String>) -> Value {
    json!([{"role": "user", "content": text.into()}])
}

/// The text of a prompt behind its first token, in the script's vocabulary of bytes.
fn text(tokens: &[u32]) -> String {
    let bytes: Vec<u8> = tokens[1..].iter().map(|token| (token - 3) as u8).collect();
    String::from_utf8(bytes).unwrap().replace('\u{2581}', " ")
}

#[tokio::test]
async fn a_message_is_answered_whole() {
    let bench = Bench::start();
    let mut http = connect(&bench);
    let body = json!({"messages": user("x"), "max_tokens": 2, "model": "mock"});
    let reply = http.post("/v1/messages?beta=true", body).await;
    assert_eq!(reply.header("request-id"), reply.header("x-request-id"));
    let message = reply.json();
    assert!(message["id"].as_str().unwrap().starts_with("msg_"));
    assert_eq!(message["type"], "message");
    assert_eq!(message["content"], json!([{"type": "text", "text": "aa"}]));
    assert_eq!(
        (&message["stop_reason"], &message["stop_sequence"]),
        (&json!("max_tokens"), &json!(null))
    );
    assert_eq!(message["usage"]["output_tokens"], 2);
    assert_eq!(message["usage"]["cache_read_input_tokens"], 0);
}

#[tokio::test]
async fn the_stop_text_is_named() {
    let bench = Bench::start();
    let mut http = connect(&bench);
    let told = char::from_u32(STOP - 3).unwrap();
    let body = json!({"messages": user(told), "max_tokens": 9, "stop_sequences": ["END"]});
    let message = http.post("/v1/messages", body).await.json();
    assert_eq!(message["stop_reason"], "stop_sequence");
    assert_eq!(message["stop_sequence"], "END");
}

#[tokio::test]
async fn a_stream_goes_by_the_names_of_its_events() {
    let bench = Bench::start();
    let mut http = connect(&bench);
    let body = json!({"messages": user("x"), "max_tokens": 2, "stream": true});
    let reply = http.post("/v1/messages", body).await;
    let names = [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(reply.event_names(), names);
    let events = reply.events();
    for (event, name) in events.iter().zip(names) {
        assert_eq!(event["type"], name);
    }
    let message = &events[0]["message"];
    assert_eq!((&message["content"], &message["stop_reason"]), (&json!([]), &json!(null)));
    assert!(message["usage"]["input_tokens"].as_u64().unwrap() > 0);
    assert_eq!(events[2]["content_block"], json!({"type": "text", "text": ""}));
    assert_eq!(events[3]["delta"], json!({"type": "text_delta", "text": "a"}));
    assert_eq!(events[3]["index"], 0);
    assert_eq!(events[6]["delta"], json!({"stop_reason": "max_tokens", "stop_sequence": null}));
    assert_eq!(events[6]["usage"]["output_tokens"], 2);
}

#[tokio::test]
async fn blocks_become_the_messages_of_a_template() {
    let mut bench = Bench::start();
    let mut http = connect(&bench);
    let body = json!({
        "max_tokens": 1,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=1.2; cch=ab12;"},
            {"type": "text", "text": "be terse", "cache_control": {"type": "ephemeral"}},
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "one"}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "hob"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "calling"},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"b": 1, "a": 2}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "is_error": true, "content": [
                    {"type": "text", "text": "no"},
                    {"type": "image", "source": {}},
                ]},
                {"type": "text", "text": "go on"},
            ]},
        ],
        "tools": [
            {"name": "f", "description": "d", "input_schema": {"type": "object"}},
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
        ],
    });
    let reply = http.post("/v1/messages", body.clone()).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let arrived = bench.arrived().await.tokens;
    let tool = r#"[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"}}}]"#;
    let call = r#"{"id":"t1","type":"function","function":{"name":"f","arguments":{"b":1,"a":2}}}"#;
    let result = "Error: no\n[image left out: this model takes text alone]";
    let wanted = format!(
        "[tools]{tool}[system]be terse[user]one[assistant]calling{call}[tool]{result}[user]go on\
         [answer]"
    );
    let same = |text: &str| text.replace(": ", ":").replace(", ", ",");
    assert_eq!(same(&text(&arrived)), same(&wanted));
    let counted = http.post("/v1/messages/count_tokens", body).await.json();
    assert_eq!(counted["input_tokens"], arrived.len());
}

#[tokio::test]
async fn errors_have_anthropics_shape() {
    let bench = Bench::start();
    let mut http = connect(&bench);
    for (body, said) in [
        (json!({"messages": user("x")}), "max_tokens"),
        (json!({"max_tokens": 1}), "messages"),
        (json!({"messages": user("x"), "max_tokens": "1"}), "max_tokens"),
        (json!({"messages": [{"role": "robot", "content": "x"}], "max_tokens": 1}), "role"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image"}]}], "max_tokens": 1}),
            "image input is not supported",
        ),
        (
            json!({"messages": user("x"), "max_tokens": 1,
                "tool_choice": {"type": "tool", "name": "none"}}),
            "tool_choice",
        ),
    ] {
        let reply = http.post("/v1/messages", body.clone()).await;
        let error = reply.json();
        assert_eq!((reply.status, &error["type"]), (400, &json!("error")), "{body}");
        assert_eq!(error["error"]["type"], "invalid_request_error");
        assert!(error["error"]["message"].as_str().unwrap().contains(said), "{body}: {error}");
        assert_eq!(error["request_id"].as_str(), reply.header("request-id"));
    }
    let body = json!({"messages": user("x"), "max_tokens": 1, "model": "claude"});
    let reply = http.post("/v1/messages", body).await;
    assert_eq!((reply.status, &reply.json()["error"]["type"]), (404, &json!("not_found_error")));
    let body = json!({"messages": user("x".repeat(3000)), "max_tokens": 1, "stream": true});
    let error = http.post("/v1/messages", body).await.json();
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("prompt is too long: 30"), "{message}");
}

#[tokio::test]
async fn models_are_listed_in_anthropics_shape_for_its_clients() {
    let bench = Bench::start();
    let mut http = connect(&bench);
    http.send(b"GET /v1/models HTTP/1.1\r\nHost: h\r\nanthropic-version: 2023-06-01\r\n\r\n").await;
    let list = http.reply().await.json();
    assert_eq!(list["data"][0]["type"], "model");
    assert_eq!((&list["first_id"], &list["has_more"]), (&json!("mock"), &json!(false)));
}
