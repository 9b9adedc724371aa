//! HTTP on the daemon's socket: requests, limits, hang-ups, the stop.
#![allow(clippy::unwrap_used)]

mod http_support;
mod server_support;

use std::time::{Duration, Instant};

use hob::http::{Http, Times};
use http_support::{HttpClient, request};
use serde_json::{Value, json};
use server_support::{ADA, Bench, FLOOD, HOLD};
use tokio::io::AsyncWriteExt;

fn connect(bench: &Bench) -> HttpClient {
    HttpClient::new(bench.raw_as(ADA))
}

fn user(text: impl Into<String>) -> Value {
    json!([{"role": "user", "content": text.into()}])
}

/// The text whose byte is this token, to tell the engine what to do.
fn told(token: u32) -> String {
    char::from_u32(token - 3).unwrap().to_string()
}

#[tokio::test]
async fn both_protocols_are_spoken_on_one_socket() {
    let bench = Bench::start();
    let mut http = connect(&bench);
    let mut rpc = bench.connect();
    let reply = http.get("/v1/models").await;
    assert_eq!((reply.status, &reply.json()["data"][0]["id"]), (200, &json!("mock")));
    assert_eq!(reply.header("server"), Some(concat!("hob/", env!("CARGO_PKG_VERSION"))));
    assert!(rpc.call("status", json!({})).await["result"].is_object());
    // The connection is kept.
    assert_eq!(http.get("/models/").await.status, 200);
    let one = http.get("/v1/models/mock").await;
    assert_eq!((one.status, &one.json()["object"]), (200, &json!("model")));
}

#[tokio::test]
async fn unknown_paths_and_methods_are_errors_of_their_interface() {
    let bench = Bench::start();
    let mut http = connect(&bench);
    let reply = http.get("/v1/chat/completion").await;
    assert_eq!(reply.status, 404);
    let error = &reply.json()["error"];
    assert!(error["message"].as_str().unwrap().contains("/v1/chat/completions"), "{error}");
    let reply = http.get("/v1/chat/completions").await;
    assert_eq!((reply.status, reply.header("allow")), (405, Some("POST")));
    let reply = http.get("/v1/models/none/such").await;
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (404, &json!("model_not_found")));
    let ollama = http.get("/api/nothing/of/the/kind").await;
    assert_eq!(ollama.status, 404);
    http.send(b"HEAD /v1/models HTTP/1.1\r\nHost: h\r\n\r\n").await;
    let head = http.head().await;
    assert_eq!(head.status, 200);
    assert!(head.header("content-length").is_some(), "and no body");
    assert_eq!(http.get("/v1/models").await.status, 200);
}

#[tokio::test]
async fn wrong_bodies_are_told_what_is_wrong() {
    let bench = Bench::start();
    let mut http = connect(&bench);
    for (body, param, said) in [
        (json!({}), "messages", "missing"),
        (json!({"messages": []}), "messages", "at least one"),
        (json!({"messages": "x"}), "messages", "an array"),
        (json!({"messages": [{"content": "x"}]}), "messages[0].role", "missing"),
        (json!({"messages": user("x"), "stream": "yes"}), "stream", "true or false"),
        (json!({"messages": user("x"), "temperature": "1"}), "temperature", "a number"),
        (json!({"messages": user("x"), "temperature": 101}), "temperature", "0 to 100"),
        (json!({"messages": user("x"), "stop": [1]}), "stop", "strings"),
        (json!({"messages": user("x"), "top_logprobs": 3}), "top_logprobs", "logprobs"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
            "messages[0].content[0].type",
            "image input is not supported",
        ),
        (json!({"messages": user("x"), "model": "none"}), "model", "there are mock"),
    ] {
        let reply = http.post("/v1/chat/completions", body.clone()).await;
        let error = reply.json()["error"].clone();
        assert_eq!(error["param"], param, "{body}: {error}");
        assert!(error["message"].as_str().unwrap().contains(said), "{body}: {error}");
        assert_eq!(error["type"], "invalid_request_error");
        assert_eq!(reply.status, if param == "model" { 404 } else { 400 });
    }
    for body in ["", "[]", "{", "\u{0}"] {
        http.send(&request("POST", "/v1/chat/completions", body.as_bytes())).await;
        assert_eq!(http.reply().await.status, 400, "{body:?}");
    }
}

#[tokio::test]
async fn unknown_fields_and_nulls_are_passed_over() {
    let mut bench = Bench::start();
    let mut http = connect(&bench);
    let body = json!({"messages": user("x"), "max_tokens": 2, "store": true, "metadata": {"a": 1},
        "temperature": null, "stop": null, "tools": null, "options": {"num_ctx": 1},
        "response_format": {"type": "text"}, "seed": -9_007_199_254_740_991_i64});
    let reply = http.post("/v1/chat/completions", body).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.json()["choices"][0]["message"]["content"], "aa");
    let seen = bench.arrived().await;
    assert_eq!(seen.sampling.seed, Some((-9_007_199_254_740_991_i64).cast_unsigned()));
    assert_eq!(seen.sampling.min_p, 0.25, "the model's own default");
}

#[tokio::test]
async fn without_a_limit_an_answer_goes_to_the_end_of_the_context() {
    let mut bench = Bench::start();
    let mut http = connect(&bench);
    let reply = http.post("/v1/chat/completions", json!({"messages": user("x")})).await;
    assert_eq!(bench.arrived().await.tokens_max, u32::MAX);
    assert_eq!(reply.json()["choices"][0]["finish_reason"], "length");
    assert_eq!(reply.json()["usage"]["total_tokens"], 2048);
}

#[tokio::test]
async fn a_stream_is_exactly_what_openais_clients_want() {
    let bench = Bench::start();
    let mut http = connect(&bench);
    let body = json!({"messages": user("x"), "max_tokens": 2, "stream": true,
        "stream_options": {"include_usage": true}});
    let reply = http.post("/v1/chat/completions", body).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("content-type"), Some("text/event-stream"));
    assert_eq!(reply.header("cache-control"), Some("no-cache"));
    assert_eq!(reply.header("x-accel-buffering"), Some("no"));
    let mut events = reply.events();
    assert_eq!(events.pop(), Some(json!("[DONE]")));
    let usage = events.pop().unwrap();
    assert_eq!((&usage["choices"], &usage["usage"]["completion_tokens"]), (&json!([]), &json!(2)));
    for event in &events {
        assert_eq!(event["object"], "chat.completion.chunk");
        assert_eq!(event["usage"], Value::Null);
        assert_eq!((&event["id"], &event["model"]), (&events[0]["id"], &json!("mock")));
    }
    let of = |name: &str| -> Vec<Value> {
        events.iter().map(|event| event["choices"][0][name].clone()).collect()
    };
    assert_eq!(
        of("delta"),
        [
            json!({"role": "assistant", "content": null}),
            json!({"content": "a"}),
            json!({"content": "a"}),
            json!({}),
        ]
    );
    assert_eq!(of("finish_reason"), [json!(null), json!(null), json!(null), json!("length")]);
}

#[tokio::test]
async fn logprobs_have_the_bytes_of_their_tokens() {
    let bench = Bench::start();
    let mut http = connect(&bench);
    let body = json!({"messages": user("x"), "max_tokens": 1, "logprobs": true, "top_logprobs": 2});
    let reply = http.post("/v1/chat/completions", body).await.json();
    let item = &reply["choices"][0]["logprobs"]["content"][0];
    // Token 100 is the byte 97.
    assert_eq!((&item["token"], &item["bytes"]), (&json!("a"), &json!([97])));
    assert_eq!(item["top_logprobs"][1], json!({"token": "b", "logprob": -1.5, "bytes": [98]}));
}

#[tokio::test]
async fn a_prompt_that_is_too_long_is_a_plain_status_also_for_a_stream() {
    let bench = Bench::start();
    let mut http = connect(&bench);
    let body = json!({"messages": user("x".repeat(3000)), "stream": true});
    let reply = http.post("/v1/chat/completions", body).await;
    assert_eq!((reply.status, reply.header("x-should-retry")), (400, Some("false")));
    let error = &reply.json()["error"];
    assert_eq!(error["code"], "context_length_exceeded");
    assert_eq!(error["n_ctx"], 2048);
}

#[tokio::test]
async fn a_client_that_hangs_up_cancels_its_request() {
    let mut bench = Bench::start();
    for stream in [false, true] {
        let mut http = connect(&bench);
        let body = json!({"messages": user(told(HOLD)), "stream": stream});
        http.send(&request("POST", "/v1/chat/completions", body.to_string().as_bytes())).await;
        bench.arrived().await;
        if stream {
            http.head().await;
        }
        drop(http);
        bench.cancelled().await;
    }
}

#[tokio::test]
async fn a_client_that_only_stops_sending_gets_its_reply() {
    let bench = Bench::start();
    let mut http = connect(&bench);
    let body = json!({"messages": user("x"), "max_tokens": 1}).to_string();
    http.send(&request("POST", "/v1/chat/completions", body.as_bytes())).await;
    http.stream.get_mut().shutdown().await.unwrap();
    assert_eq!(http.reply().await.status, 200);
    assert!(http.rest().await.is_empty());
}

#[tokio::test]
async fn a_reader_that_is_too_slow_is_cut_off_and_cancelled() {
    let mut bench = Bench::with(|options| options.outgoing_bytes_max = 64 * 1024);
    let mut http = connect(&bench);
    let body = json!({"messages": user(told(FLOOD)), "stream": true}).to_string();
    http.send(&request("POST", "/v1/chat/completions", body.as_bytes())).await;
    bench.cancelled().await;
    let rest = String::from_utf8(http.rest().await).unwrap();
    assert!(!rest.ends_with("0\r\n\r\n"), "not as if it were all");
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_their_order() {
    let bench = Bench::start();
    let mut http = connect(&bench);
    let mut bytes = Vec::new();
    for count in 1..=20 {
        let body = json!({"messages": user("x"), "max_tokens": count}).to_string();
        bytes.extend(request("POST", "/v1/chat/completions", body.as_bytes()));
    }
    http.send(&bytes).await;
    for count in 1..=20 {
        assert_eq!(http.reply().await.json()["usage"]["completion_tokens"], count);
    }
}

#[tokio::test]
async fn smuggled_lengths_are_refused_or_close_the_connection() {
    let bench = Bench::start();
    let smuggled = "GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n";
    for head in [
        "Content-Length: 0\r\nContent-Length: 38\r\n",
        "Content-Length: +0\r\n",
        "Content-Length: 0, 38\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Content-Length : 0\r\n",
    ] {
        let mut http = connect(&bench);
        let bytes =
            format!("POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\n{head}\r\n{smuggled}");
        http.send(bytes.as_bytes()).await;
        let text = String::from_utf8(http.rest().await).unwrap();
        assert!(text.starts_with("HTTP/1.1 400"), "{head:?}: {text}");
        assert_eq!(text.matches("HTTP/1.1").count(), 1, "{head:?}: {text}");
    }
    // Both at once: the chunks count, and nothing behind them is read.
    let mut http = connect(&bench);
    let both = "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n";
    let bytes =
        format!("POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\n{both}\r\n0\r\n\r\n{smuggled}");
    http.send(bytes.as_bytes()).await;
    let text = String::from_utf8(http.rest().await).unwrap();
    assert_eq!(text.matches("HTTP/1.1").count(), 1, "{text}");
}

#[tokio::test]
async fn heads_that_are_too_large_are_refused() {
    let bench = Bench::start();
    for head in [format!("X: {}\r\n", "x".repeat(64 * 1024)), "X: y\r\n".repeat(200)] {
        let mut http = connect(&bench);
        let bytes = format!("GET /v1/models HTTP/1.1\r\nHost: h\r\n{head}\r\n");
        // It may be closed before all of it was written.
        let _ = http.stream.get_mut().write_all(bytes.as_bytes()).await;
        let text = String::from_utf8(http.rest().await).unwrap();
        assert!(text.starts_with("HTTP/1.1 431"), "{text}");
    }
}

#[tokio::test]
async fn bodies_that_are_too_large_are_refused_unread() {
    let bench = Bench::start();
    let mut http = connect(&bench);
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 33554433\r\n\r\n";
    http.send(head.as_bytes()).await;
    let reply = http.reply().await;
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (413, &Value::Null));
    assert!(http.rest().await.is_empty(), "and the connection is closed");
    // In chunks nobody knows beforehand.
    let mut http = connect(&bench);
    let head =
        "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
    http.send(head.as_bytes()).await;
    let chunk = [format!("{:x}\r\n", 1 << 20).into_bytes(), vec![b' '; 1 << 20], b"\r\n".to_vec()];
    let chunk = chunk.concat();
    for _ in 0..33 {
        if http.stream.get_mut().write_all(&chunk).await.is_err() {
            break;
        }
    }
    assert_eq!(http.head().await.status, 413);
}

#[tokio::test]
async fn a_body_is_awaited_with_100_continue_and_chunks_are_put_together() {
    let bench = Bench::start();
    let mut http = connect(&bench);
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\
                Expect: 100-continue\r\n\r\n";
    http.send(head.as_bytes()).await;
    assert_eq!(http.head().await.status, 100);
    let body = json!({"messages": user("x"), "max_tokens": 1}).to_string();
    for piece in body.as_bytes().chunks(7) {
        let piece = std::str::from_utf8(piece).unwrap();
        http.send(format!("{:x}\r\n{piece}\r\n", piece.len()).as_bytes()).await;
    }
    http.send(b"0\r\n\r\n").await;
    assert_eq!(http.reply().await.status, 200);
}

#[tokio::test]
async fn encoded_bodies_are_refused() {
    let bench = Bench::start();
    let mut http = connect(&bench);
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Encoding: zstd\r\n\
                Content-Length: 1\r\n\r\nx";
    http.send(head.as_bytes()).await;
    assert_eq!(http.reply().await.status, 415);
}

/// Times that a test can wait for.
fn hasty(change: impl FnOnce(&mut Times)) -> Bench {
    let mut times = Times::default();
    change(&mut times);
    Bench::speaking(Http::with_times(times), |_| {})
}

#[tokio::test]
async fn a_head_that_takes_too_long_ends_the_connection_and_idleness_does_not() {
    const HEAD: Duration = Duration::from_millis(200);
    let bench = hasty(|times| times.head = HEAD);
    let mut idle = connect(&bench);
    assert_eq!(idle.get("/v1/models").await.status, 200);
    let started = Instant::now();
    let mut http = connect(&bench);
    http.send(b"GET /v1/models HTTP/1.1\r\nHost:").await;
    assert!(http.rest().await.is_empty());
    assert!(started.elapsed() >= HEAD, "{:?}", started.elapsed());
    // It has rested for longer than a head may take.
    assert_eq!(idle.get("/v1/models").await.status, 200);
}

#[tokio::test]
async fn a_body_that_takes_too_long_is_refused() {
    const BODY: Duration = Duration::from_millis(200);
    let bench = hasty(|times| times.body = BODY);
    let started = Instant::now();
    let mut http = connect(&bench);
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n{";
    http.send(head.as_bytes()).await;
    let text = String::from_utf8(http.rest().await).unwrap();
    assert!(text.starts_with("HTTP/1.1 408"), "{text}");
    assert!(started.elapsed() >= BODY, "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_silent_stream_sends_comments() {
    let bench = hasty(|times| times.silence = Duration::from_millis(50));
    let mut http = connect(&bench);
    let body = json!({"messages": user(told(HOLD)), "stream": true}).to_string();
    http.send(&request("POST", "/v1/chat/completions", body.as_bytes())).await;
    assert_eq!(http.head().await.status, 200);
    let mut text = String::new();
    while !text.ends_with("\n\n:\n\n:\n\n") {
        text.push_str(std::str::from_utf8(&http.chunk().await).unwrap());
    }
}

#[tokio::test]
async fn ids_of_requests_come_back() {
    let bench = Bench::start();
    let mut http = connect(&bench);
    let own = http.get("/v1/models").await.header("x-request-id").unwrap().to_owned();
    let other = http.get("/v1/models").await.header("x-request-id").unwrap().to_owned();
    assert!(own.starts_with("req_") && own != other, "{own} {other}");
    for (sent, kept) in [("mine-7", true), (&"x".repeat(129)[..], false), ("a b", false)] {
        let head = format!("GET /v1/models HTTP/1.1\r\nHost: h\r\nX-Request-Id: {sent}\r\n\r\n");
        http.send(head.as_bytes()).await;
        let reply = http.reply().await;
        assert_eq!(reply.header("x-request-id") == Some(sent), kept, "{sent}");
    }
}

#[tokio::test]
async fn the_stop_ends_streams_with_an_error_and_closes() {
    let mut bench = Bench::start();
    let mut streaming = connect(&bench);
    let mut idle = connect(&bench);
    assert_eq!(idle.get("/v1/models").await.status, 200);
    let body = json!({"messages": user(told(HOLD)), "stream": true}).to_string();
    streaming.send(&request("POST", "/v1/chat/completions", body.as_bytes())).await;
    bench.arrived().await;
    streaming.head().await;
    bench.stop.cancel();
    let mut text = Vec::new();
    loop {
        let mut chunk = streaming.chunk().await;
        if chunk.is_empty() {
            break;
        }
        text.append(&mut chunk);
    }
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("shutting down") && !text.contains("[DONE]"), "{text}");
    assert!(idle.rest().await.is_empty());
    bench.server.drain().await;
}

#[tokio::test]
async fn http_2_is_closed() {
    let bench = Bench::start();
    let mut http = connect(&bench);
    http.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    let text = String::from_utf8(http.rest().await).unwrap();
    assert!(text.is_empty() || text.starts_with("HTTP/1.1 4"), "{text}");
}
