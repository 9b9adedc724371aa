//! OpenAI's interfaces but for chat: completions, embeddings, responses.
#![allow(clippy::unwrap_used)]

mod http_support;
mod server_support;

use std::time::Duration;

use hob::http::{Http, Times};
use http_support::HttpClient;
use serde_json::{Value, json};
use server_support::{ADA, BOB, Bench, HOLD, STOP};

fn connect(bench: &Bench) -> HttpClient {
    HttpClient::new(bench.raw_as(ADA))
}

/// The text whose byte is this token, to tell the engine what to do.
fn told(token: u32) -> String {
    char::from_u32(token - 3).unwrap().to_string()
}

#[tokio::test]
async fn completions_take_texts_and_tokens_and_number_their_choices() {
    let mut bench = Bench::start();
    let mut http = connect(&bench);
    for (prompt, arrived) in [
        (json!("b"), vec![vec![1, 101]]),
        (json!(["b", "c"]), vec![vec![1, 101], vec![1, 102]]),
        (json!([1, 101]), vec![vec![1, 101]]),
        (json!([[101], [102, 103]]), vec![vec![101], vec![102, 103]]),
        (json!(["b", [9]]), vec![vec![1, 101], vec![9]]),
    ] {
        let body = json!({"prompt": prompt, "max_tokens": 2, "n": 2, "seed": 5});
        let reply = http.post("/v1/completions", body).await.json();
        assert_eq!(reply["object"], "text_completion", "{reply}");
        let choices = reply["choices"].as_array().unwrap();
        assert_eq!(choices.len(), arrived.len() * 2);
        for (index, choice) in choices.iter().enumerate() {
            assert_eq!((&choice["index"], &choice["text"]), (&json!(index), &json!("aa")));
            assert_eq!(choice["finish_reason"], "length");
            let seen = bench.arrived().await;
            assert_eq!(seen.tokens, arrived[index / 2]);
            assert_eq!(seen.sampling.seed, Some(5 + index as u64 % 2));
        }
        let prompt_tokens: usize = arrived.iter().map(Vec::len).sum();
        assert_eq!(reply["usage"]["prompt_tokens"], prompt_tokens);
        assert_eq!(reply["usage"]["completion_tokens"], 2 * choices.len());
    }
}

#[tokio::test]
async fn completions_refuse_what_they_cannot_do() {
    let bench = Bench::start();
    let mut http = connect(&bench);
    for (body, param) in [
        (json!({}), "prompt"),
        (json!({"prompt": []}), "prompt"),
        (json!({"prompt": {"a": 1}}), "prompt"),
        (json!({"prompt": vec!["x"; 65]}), "prompt"),
        (json!({"prompt": "x", "n": 9}), "n"),
        (json!({"prompt": "x", "n": 2, "best_of": 3}), "best_of"),
        (json!({"prompt": "x", "suffix": "y"}), "suffix"),
        (json!({"prompt": "x", "logprobs": 21}), "top_logprobs"),
    ] {
        let reply = http.post("/v1/completions", body.clone()).await;
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!(param)), "{body}");
    }
}

#[tokio::test]
async fn an_echo_scores_the_prompt() {
    let bench = Bench::start();
    let mut http = connect(&bench);
    let body = json!({"prompt": [101, 102], "max_tokens": 1, "echo": true, "logprobs": 2});
    let reply = http.post("/v1/completions", body).await.json();
    let choice = &reply["choices"][0];
    assert_eq!(choice["text"], "bca");
    let logprobs = &choice["logprobs"];
    // The script scores token 100, an "a", in each place.
    assert_eq!(logprobs["tokens"], json!(["b", "a", "a"]));
    assert_eq!(logprobs["token_logprobs"], json!([null, -0.5, -0.5]));
    assert_eq!(logprobs["text_offset"], json!([0, 1, 2]));
    assert_eq!(logprobs["top_logprobs"][1], json!({"a": -0.5, "b": -1.5}));
    // The begin token that a text gets is not echoed.
    let body = json!({"prompt": "bc", "max_tokens": 1, "echo": true, "logprobs": 0});
    let choice = http.post("/v1/completions", body).await.json()["choices"][0].clone();
    assert_eq!(choice["text"], "bca");
    assert_eq!(choice["logprobs"]["tokens"], json!(["b", "a", "a"]));
    assert_eq!(choice["logprobs"]["token_logprobs"][0], json!(null));
}

#[tokio::test]
async fn completions_stream_one_choice_after_the_other() {
    let bench = Bench::start();
    let mut http = connect(&bench);
    let body = json!({"prompt": ["x", "y"], "max_tokens": 1, "stream": true,
        "stream_options": {"include_usage": true}});
    let mut events = http.post("/v1/completions", body).await.events();
    assert_eq!(events.pop(), Some(json!("[DONE]")));
    assert_eq!(events.pop().unwrap()["usage"]["total_tokens"], 6);
    let seen: Vec<Value> = events
        .iter()
        .map(|event| {
            let choice = &event["choices"][0];
            json!([choice["index"], choice["text"], choice["finish_reason"]])
        })
        .collect();
    let wanted = json!([[0, "a", null], [0, "", "length"], [1, "a", null], [1, "", "length"]]);
    assert_eq!(Value::from(seen), wanted);
}

#[tokio::test]
async fn embeddings_are_numbers_or_base_64() {
    let bench = Bench::start();
    let mut http = connect(&bench);
    let body = json!({"input": ["xy", "z"], "model": "mock"});
    let reply = http.post("/v1/embeddings", body).await.json();
    assert_eq!((&reply["object"], &reply["model"]), (&json!("list"), &json!("mock")));
    assert_eq!(reply["usage"], json!({"prompt_tokens": 5, "total_tokens": 5}));
    // The script's vector is the number of tokens and the first one, here 3 and 1, normalised.
    let first: Vec<f64> = serde_json::from_value(reply["data"][0]["embedding"].clone()).unwrap();
    assert!((first[0] - 3.0 / 10_f64.sqrt()).abs() < 1e-6, "{first:?}");
    assert_eq!(reply["data"][1]["index"], 1);
    let body = json!({"input": [[9, 9], [9]], "encoding_format": "base64", "dimensions": 1});
    let reply = http.post("/v1/embeddings", body).await.json();
    assert_eq!(reply["data"][0]["embedding"], "AACAPw==", "1.0 as four bytes");
    let body = json!({"input": [9, 9, 9]});
    let reply = http.post("/v1/embeddings", body).await.json();
    assert_eq!(reply["data"].as_array().unwrap().len(), 1, "tokens of one text");
}

#[tokio::test]
async fn embeddings_refuse_what_they_cannot_do() {
    let bench = Bench::start();
    let mut http = connect(&bench);
    for (body, param) in [
        (json!({}), "input"),
        (json!({"input": ""}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": [[]]}), "input"),
        (json!({"input": "x", "dimensions": 3}), "dimensions"),
        (json!({"input": "x", "encoding_format": "hex"}), "encoding_format"),
    ] {
        let reply = http.post("/v1/embeddings", body.clone()).await;
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!(param)), "{body}");
    }
    let reply = http.post("/v1/embeddings", json!({"input": "x".repeat(3000)})).await;
    let error = &reply.json()["error"];
    assert_eq!((reply.status, &error["code"]), (400, &json!("context_length_exceeded")));
    assert!(error["message"].as_str().unwrap().contains("too large"), "{error}");
}

#[tokio::test]
async fn a_response_streams_every_event_in_order() {
    let bench = Bench::start();
    let mut http = connect(&bench);
    let body = json!({"input": "hi", "max_output_tokens": 2, "stream": true, "temperature": 0.5});
    let reply = http.post("/v1/responses", body).await;
    assert_eq!(reply.header("content-type"), Some("text/event-stream"));
    let events = reply.events();
    let names = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ];
    assert_eq!(reply.event_names(), names);
    let item = events[2]["item"]["id"].clone();
    for (number, event) in events.iter().enumerate() {
        assert_eq!(
            (&event["type"], &event["sequence_number"]),
            (&json!(names[number]), &json!(number))
        );
        if (3..8).contains(&number) {
            let place = (&event["item_id"], &event["output_index"], &event["content_index"]);
            assert_eq!(place, (&item, &json!(0), &json!(0)), "{event}");
        }
    }
    assert_eq!((&events[4]["delta"], &events[4]["logprobs"]), (&json!("a"), &json!([])));
    assert_eq!(events[6]["text"], "aa");
    let last = &events[9]["response"];
    assert_eq!(last["status"], "incomplete");
    assert_eq!(last["incomplete_details"]["reason"], "max_output_tokens");
    assert_eq!(last["output"][0]["content"][0]["text"], "aa");
    assert_eq!((&last["object"], &last["temperature"]), (&json!("response"), &json!(0.5)));
    assert_eq!(last["usage"]["output_tokens"], 2);
    for field in
        ["tools", "tool_choice", "parallel_tool_calls", "metadata", "instructions", "top_p"]
    {
        assert!(last.get(field).is_some(), "{field}");
    }
}

#[tokio::test]
async fn a_conversation_goes_on_from_a_stored_response_of_ones_own() {
    let mut bench = Bench::start();
    let mut http = connect(&bench);
    let body = json!({"instructions": "be", "input": [
        {"role": "developer", "content": "terse"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "one"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{\"a\": 1}"},
        {"type": "function_call_output", "call_id": "c", "output": "42"},
        {"type": "web_search_call", "id": "w"},
    ], "max_output_tokens": 1});
    let first = http.post("/v1/responses", body).await;
    assert_eq!(first.status, 200, "{}", first.text());
    let first = first.json();
    let prompt = compact(&text(&bench.arrived().await.tokens));
    let call = r#"{"id":"c","type":"function","function":{"name":"f","arguments":{"a":1}}}"#;
    let wanted = format!("[system]be\n\nterse[user]one[assistant]{call}[tool]42[answer]");
    assert_eq!(prompt, wanted);
    let id = first["id"].as_str().unwrap();
    let next = json!({"input": "two", "previous_response_id": id, "max_output_tokens": 1});
    assert_eq!(http.post("/v1/responses", next.clone()).await.status, 200);
    let prompt = compact(&text(&bench.arrived().await.tokens));
    let wanted =
        format!("[system]terse[user]one[assistant]{call}[tool]42[assistant]a[user]two[answer]");
    assert_eq!(prompt, wanted, "the instructions are not inherited");
    // Kept, listed and forgotten, for its owner alone.
    let path = format!("/v1/responses/{id}");
    assert_eq!(http.get(&path).await.json()["id"], id);
    let items = http.get(&format!("{path}/input_items")).await.json();
    assert_eq!(items["data"].as_array().unwrap().len(), 6);
    assert!(items["data"][0]["id"].is_string());
    let mut other = HttpClient::new(bench.raw_as(BOB));
    assert_eq!(other.get(&path).await.status, 404);
    let refused = other.post("/v1/responses", next.clone()).await;
    let code = refused.json()["error"]["code"].clone();
    assert_eq!((refused.status, code), (400, json!("previous_response_not_found")));
    http.send(format!("DELETE {path} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes()).await;
    assert_eq!(http.reply().await.json()["deleted"], true);
    assert_eq!(http.get(&path).await.status, 404);
    assert_eq!(http.post("/v1/responses", next).await.status, 400);
    // And where it was not to be kept.
    let body = json!({"input": "x", "store": false, "max_output_tokens": 1});
    let id = http.post("/v1/responses", body).await.json()["id"].as_str().unwrap().to_owned();
    assert_eq!(http.get(&format!("/v1/responses/{id}")).await.status, 404);
}

/// JSON in templates has spaces, as Python writes it.
fn compact(text: &str) -> String {
    text.replace(": ", ":").replace(", ", ",")
}

/// The text of a prompt behind its first token, in the script's vocabulary of bytes.
fn text(tokens: &[u32]) -> String {
    let bytes: Vec<u8> = tokens[1..].iter().map(|token| (token - 3) as u8).collect();
    String::from_utf8(bytes).unwrap().replace('\u{2581}', " ")
}

#[tokio::test]
async fn the_tokens_of_a_response_are_counted_as_they_are_used() {
    let bench = Bench::start();
    let mut http = connect(&bench);
    let body = json!({"input": "hello", "instructions": "x", "max_output_tokens": 1});
    let counted = http.post("/v1/responses/input_tokens", body.clone()).await.json();
    assert_eq!(counted["object"], "response.input_tokens");
    let used = http.post("/v1/responses", body).await.json();
    assert_eq!(counted["input_tokens"], used["usage"]["input_tokens"]);
}

#[tokio::test]
async fn responses_refuse_what_they_cannot_do_and_skip_tools_of_others() {
    let mut bench = Bench::start();
    let mut http = connect(&bench);
    for (body, param) in [
        (json!({}), "input"),
        (json!({"input": "x", "background": true}), "background"),
        (json!({"input": "x", "conversation": "c"}), "conversation"),
        (json!({"input": "x", "prompt": {"id": "p"}}), "prompt"),
        (json!({"input": [{"type": "item_reference", "id": "i"}]}), "input[0].type"),
        (json!({"input": "x", "truncation": "some"}), "truncation"),
        (json!({"input": "x", "tools": [{"type": "function"}]}), "tools[0].name"),
    ] {
        let reply = http.post("/v1/responses", body.clone()).await;
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!(param)), "{body}");
    }
    let function = json!({"type": "function", "name": "f", "parameters": {"type": "object"}});
    let custom = json!({"type": "custom", "name": "patch", "description": "d"});
    let space = json!({"type": "namespace", "name": "n", "tools": [
        {"type": "function", "name": "g", "parameters": null}]});
    let body = json!({"input": "x", "max_output_tokens": 1,
        "tools": [{"type": "web_search"}, function, custom, space, {"type": "local_shell"}]});
    let reply = http.post("/v1/responses", body).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.json()["tools"].as_array().unwrap().len(), 5, "repeated as they were sent");
    let prompt = text(&bench.arrived().await.tokens);
    for name in ["\"f\"", "\"patch\"", "\"g\""] {
        assert!(prompt.contains(name), "{prompt}");
    }
    assert!(!prompt.contains("web_search") && !prompt.contains("local_shell"), "{prompt}");
}

#[tokio::test]
async fn a_silent_response_says_that_it_is_in_progress() {
    let silence = Duration::from_millis(50);
    let http = Http::with_times(Times { silence, ..Times::default() });
    let bench = Bench::speaking(http, |_| {});
    let mut http = connect(&bench);
    let body = json!({"input": told(HOLD), "stream": true}).to_string();
    http.send(&http_support::request("POST", "/v1/responses", body.as_bytes())).await;
    assert_eq!(http.head().await.status, 200);
    let mut text = String::new();
    while text.matches("event: response.in_progress").count() < 3 {
        text.push_str(std::str::from_utf8(&http.chunk().await).unwrap());
    }
}

#[tokio::test]
async fn an_end_by_a_stop_text_is_a_stop() {
    let bench = Bench::start();
    let mut http = connect(&bench);
    let messages = json!([{"role": "user", "content": told(STOP)}]);
    let body = json!({"messages": messages, "stop": ["end"]});
    let reply = http.post("/v1/chat/completions", body).await.json();
    assert_eq!(reply["choices"][0]["finish_reason"], "stop");
    assert_eq!(reply["choices"][0]["message"]["content"], "aaa");
}
