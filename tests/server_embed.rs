//! `embed`: what reaches the engine, what comes back, and what is refused; by a server in front of
//! a scripted engine whose vectors are a text's number of tokens and its first token.
#![allow(clippy::unwrap_used)]

mod server_support;

use hob::engine::Priority;
use serde_json::{Value, json};
use server_support::{Bench, PATIENCE, code};
use tokio::time::timeout;

#[tokio::test]
async fn texts_become_vectors_in_order() {
    let bench = Bench::start();
    let mut client = bench.connect();
    let raw = json!({"input": ["abc", "a"], "normalize": false, "pooling": "mean"});
    let result = client.call("embed", raw).await["result"].take();
    let embedding = |vector: [f32; 2], tokens: u32| json!({"embedding": vector, "tokens": tokens, "truncated": false});
    assert_eq!(result["embeddings"], json!([embedding([4.0, 1.0], 4), embedding([2.0, 1.0], 2)]));
    assert_eq!((&result["pooling"], &result["dimensions"]), (&json!("mean"), &json!(2)));
    assert_eq!(result["prompt_tokens"], 6);
    assert_eq!(result["timings"]["steps"], 1);
    // Cut first, then made to have length 1; the model's own pooling; one text alone.
    let short = client.call("embed", json!({"input": "abc", "dimensions": 1})).await;
    assert_eq!(
        short["result"]["embeddings"],
        json!([{"embedding": [1.0], "tokens": 4, "truncated": false}])
    );
    assert_eq!(short["result"]["pooling"], "last");
    let unit = client.call("embed", json!({"input": "ab"})).await["result"].take();
    let values: Vec<f64> =
        serde_json::from_value(unit["embeddings"][0]["embedding"].clone()).unwrap();
    assert!((values[0].hypot(values[1]) - 1.0).abs() < 1e-6, "{values:?}");
}

#[tokio::test]
async fn a_text_past_the_context_is_cut_or_refused() {
    let bench = Bench::start();
    let mut client = bench.connect();
    let long = "x".repeat(3000);
    let cut = client.call("embed", json!({"input": [long, "x"]})).await["result"].take();
    let told = |at: usize| {
        let item = &cut["embeddings"][at];
        (item["tokens"].as_u64().unwrap(), item["truncated"].as_bool().unwrap())
    };
    assert_eq!((told(0), told(1)), ((2048, true), (2, false)));
    let refused = client.call("embed", json!({"input": ["x", long], "truncate": false})).await;
    assert_eq!(code(&refused), -32002);
    assert_eq!(refused["error"]["data"], json!({"prompt_tokens": 3001, "context_tokens": 2048}));
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_by_name() {
    let bench = Bench::start();
    let mut client = bench.connect();
    let many = vec!["x"; 257];
    for (params, told) in [
        (json!({}), "field \"input\" is missing: wanted a string or an array of strings"),
        (json!({"input": 7}), "field \"input\": wanted a string or an array of strings"),
        (json!({"input": []}), "field \"input\": wanted 1 to 256 texts, found 0"),
        (json!({"input": many}), "field \"input\": wanted 1 to 256 texts, found 257"),
        (json!({"input": ["x", ""]}), "found text 1, which is empty"),
        (json!({"input": "x", "dimensions": 3}), "field \"dimensions\": wanted 1 to 2, found 3"),
        (json!({"input": "x", "dimensions": 0}), "field \"dimensions\": wanted 1 to 2, found 0"),
        (json!({"input": "x", "pooling": "max"}), "wanted \"mean\", \"cls\" or \"last\""),
        (json!({"input": "x", "pooling": "cls"}), "llama reads from left to right"),
        (json!({"input": "x", "deadline_ms": 0}), "field \"deadline_ms\""),
        (json!({"input": "x", "inputs": "x"}), "unknown field \"inputs\""),
    ] {
        let refused = client.call("embed", params.clone()).await;
        assert_eq!(code(&refused), -32602, "{params}");
        let message = refused["error"]["message"].as_str().unwrap();
        assert!(message.contains(told), "{params}: {message}");
    }
}

#[tokio::test]
async fn cancelling_and_hanging_up_reach_the_engine() {
    let mut bench = Bench::start();
    let mut client = bench.connect();
    client.ask("held", "embed", json!({"input": "\u{1}"})).await;
    timeout(PATIENCE, bench.mock.to_embed.recv()).await.unwrap().unwrap();
    client.ask("c", "cancel", json!({"id": "held"})).await;
    let mut replies = [client.message().await, client.message().await];
    replies.sort_by_key(|reply| reply["id"] == "held");
    assert_eq!(replies[0]["result"]["cancelled"], true);
    assert_eq!(code(&replies[1]), -32040);
    assert!(timeout(PATIENCE, bench.mock.cancelled.recv()).await.unwrap().is_some());
    client.ask("again", "embed", json!({"input": "\u{1}", "priority": "background"})).await;
    let arrived = timeout(PATIENCE, bench.mock.to_embed.recv()).await.unwrap().unwrap();
    assert_eq!(arrived.priority, Priority::Background);
    drop(client);
    assert!(timeout(PATIENCE, bench.mock.cancelled.recv()).await.unwrap().is_some());
}

#[tokio::test]
async fn large_replies_wait_for_room_rather_than_end_the_connection() {
    // Room for two replies and little more.
    let bench = Bench::with(|options| options.outgoing_bytes_max = 16384);
    let mut client = bench.connect();
    let texts: Vec<String> = (0..64).map(|at| "x".repeat(at + 1)).collect();
    for id in 0..8 {
        client.ask(id, "embed", json!({"input": texts})).await;
    }
    let mut answered: Vec<Value> = Vec::new();
    for _ in 0..8 {
        let reply = client.message().await;
        assert_eq!(reply["result"]["embeddings"].as_array().unwrap().len(), 64);
        answered.push(reply["id"].clone());
    }
    answered.sort_by_key(Value::as_i64);
    assert_eq!(answered, (0..8).map(|id| json!(id)).collect::<Vec<_>>());
}
