//! Clients that are gone, slow, greedy or hostile, and the stop.
#![allow(clippy::unwrap_used)]

mod server_support;

use std::time::{Duration, Instant};

use hob::engine::Owner;
use serde_json::{Value, json};
use server_support::{ADA, BOB, Bench, Client, EVE, FLOOD, HOLD, PATIENCE, code};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

#[tokio::test]
async fn a_disconnect_cancels_what_is_in_flight() {
    let mut bench = Bench::start();
    let mut client = bench.connect();
    for id in [1, 2] {
        client.ask(id, "generate", json!({"tokens": [HOLD], "stream": id == 1})).await;
        bench.arrived().await;
    }
    drop(client);
    bench.cancelled().await;
    bench.cancelled().await;
    let mut other = bench.connect();
    assert_eq!(other.call("status", json!({})).await["result"]["connections"], 1);
}

#[tokio::test]
async fn a_client_that_only_stops_sending_gets_its_replies() {
    let mut bench = Bench::start();
    let mut client = bench.connect();
    let request = json!({"jsonrpc": "2.0", "id": 1, "method": "generate", "params":
        {"tokens": [9], "max_tokens": 3, "stream": true}});
    // Without the newline at the end.
    client.send_bytes(request.to_string().as_bytes()).await;
    client.writer.shutdown().await.unwrap();
    for _ in 0..3 {
        assert_eq!(client.message().await["method"], "generate.token");
    }
    assert_eq!(client.message().await["id"], 1);
    assert_eq!(client.next().await, None);
    // And one that then hangs up altogether has cancelled.
    let mut client = bench.connect();
    client.ask(1, "generate", json!({"tokens": [HOLD]})).await;
    client.writer.shutdown().await.unwrap();
    bench.arrived().await;
    bench.arrived().await;
    drop(client);
    bench.cancelled().await;
}

#[tokio::test]
async fn a_slow_reader_is_dropped_and_its_generation_cancelled() {
    let mut bench = Bench::with(|options| options.outgoing_bytes_max = 64 * 1024);
    let mut slow = bench.connect();
    let mut other = bench.connect();
    slow.ask(1, "generate", json!({"tokens": [FLOOD], "stream": true})).await;
    bench.cancelled().await;
    // What had been written can be read, then comes the end.
    while slow.next().await.is_some() {}
    assert!(other.call("status", json!({})).await["result"].is_object());
}

#[tokio::test]
async fn a_client_that_reads_nothing_at_all_is_dropped_after_the_timeout() {
    let bench = Bench::with(|options| {
        options.write_timeout = Duration::from_millis(200);
        options.outgoing_bytes_max = 16 * 1024;
    });
    let mut client = bench.connect();
    let line = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize"}).to_string() + "\n";
    // More than all buffers hold: at some point the server is not reading either, then it leaves.
    let lines = line.repeat(100_000);
    let written = timeout(PATIENCE, client.writer.write_all(lines.as_bytes())).await;
    assert!(written.expect("the connection ends").is_err());
}

#[tokio::test]
async fn ten_thousand_pipelined_requests_are_all_answered() {
    const COUNT: usize = 10_000;
    let bench = Bench::start();
    let Client { mut reader, mut writer } = bench.connect();
    let sending = tokio::spawn(async move {
        for id in 0..COUNT {
            let request = json!({"jsonrpc": "2.0", "id": id, "method": "tokenize",
                "params": {"text": id.to_string()}});
            writer.write_all(format!("{request}\n").as_bytes()).await.unwrap();
        }
        writer.shutdown().await.unwrap();
    });
    let mut text = String::new();
    timeout(PATIENCE, reader.read_to_string(&mut text)).await.unwrap().unwrap();
    sending.await.unwrap();
    let mut answered = vec![false; COUNT];
    for line in text.lines() {
        let reply: Value = serde_json::from_str(line).unwrap();
        let id = reply["id"].as_u64().unwrap() as usize;
        let tokens = reply["result"]["tokens"].as_array().unwrap();
        assert_eq!(tokens.len(), id.to_string().len());
        assert!(!std::mem::replace(&mut answered[id], true), "{id} is answered twice");
    }
    assert!(answered.iter().all(|answered| *answered));
}

#[tokio::test]
async fn a_flood_that_is_read_late_waits_and_loses_nothing() {
    const COUNT: usize = 1000;
    // Room for some 70 replies: the rest of the requests must stay unread.
    let bench = Bench::with(|options| options.outgoing_bytes_max = 64 * 1024);
    let mut flood = bench.connect();
    let mut writer = flood.writer;
    let sending = tokio::spawn(async move {
        for id in 0..COUNT {
            let request = json!({"jsonrpc": "2.0", "id": id, "method": "status"});
            writer.write_all(format!("{request}\n").as_bytes()).await.unwrap();
        }
        writer
    });
    let mut other = bench.connect();
    for _ in 0..20 {
        assert!(other.call("status", json!({})).await["result"].is_object());
    }
    let mut replies = 0;
    while replies < COUNT {
        let mut line = String::new();
        let read = timeout(PATIENCE, flood.reader.read_line(&mut line)).await;
        assert!(read.unwrap().unwrap() > 0, "dropped after {replies} replies");
        assert!(serde_json::from_str::<Value>(&line).unwrap()["result"].is_object());
        replies += 1;
    }
    sending.await.unwrap();
}

#[tokio::test]
async fn generations_past_the_limit_are_refused_and_others_are_not() {
    let mut bench = Bench::with(|options| options.requests_in_flight_max = 2);
    let mut client = bench.connect();
    for id in [1, 2] {
        client.ask(id, "generate", json!({"tokens": [HOLD]})).await;
        bench.arrived().await;
    }
    let refused = client.call("generate", json!({"tokens": [HOLD]})).await;
    assert_eq!((code(&refused), &refused["error"]["data"]["limit"]), (-32015, &json!(2)));
    assert!(client.call("tokenize", json!({"text": "a"})).await["result"].is_object());
}

const STATUS: &[u8] = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"status\"}\n";

#[tokio::test]
async fn connections_past_the_limit_are_told_so() {
    let bench = Bench::with(|options| options.connections_max = 1);
    let mut first = bench.connect();
    assert!(first.call("status", json!({})).await["result"].is_object());
    let mut second = bench.connect();
    second.send_bytes(STATUS).await;
    assert_eq!(code(&second.message().await), -32017);
    drop(first);
    // Its place is free as soon as its task has ended.
    loop {
        let mut client = bench.connect();
        client.send_bytes(STATUS).await;
        match client.message().await {
            reply if reply["result"].is_object() => return,
            refused => assert_eq!(code(&refused), -32017),
        }
    }
}

#[tokio::test]
async fn connections_of_one_user_shut_nobody_else_out() {
    let bench = Bench::with(|options| options.connections_max = 8);
    // Silent ones take no place, however many.
    let silent: Vec<_> = (0..100).map(|_| bench.raw_as(EVE)).collect();
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut client = bench.connect_as(EVE);
        assert!(client.call("status", json!({})).await["result"].is_object());
        held.push(client);
    }
    let mut third = bench.connect_as(EVE);
    third.send_bytes(STATUS).await;
    let refused = third.message().await;
    assert_eq!((code(&refused), &refused["error"]["data"]["limit"]), (-32017, &json!(2)));
    for (owner, count) in [(ADA, 3), (BOB, 4), (Owner { uid: 0 }, 5)] {
        let mut client = bench.connect_as(owner);
        let status = client.call("status", json!({})).await;
        assert_eq!(status["result"]["connections"], count, "{owner:?}: {status}");
        held.push(client);
    }
    drop(silent);
}

#[tokio::test]
async fn a_connection_at_rest_gives_its_place_to_who_holds_fewer_and_is_told_so() {
    let mut bench = Bench::with(|options| {
        options.connections_max = 3;
        options.user_connections_max = 3;
    });
    let mut busy = bench.connect_as(EVE);
    busy.ask(1, "generate", json!({"tokens": [HOLD]})).await;
    bench.arrived().await;
    let mut idle = bench.connect_as(EVE);
    assert!(idle.call("status", json!({})).await["result"].is_object());
    let mut newest = bench.connect_as(EVE);
    assert!(newest.call("status", json!({})).await["result"].is_object());
    let mut other = bench.connect_as(ADA);
    assert!(other.call("status", json!({})).await["result"].is_object());
    assert_eq!(code(&idle.message().await), -32017);
    assert_eq!(idle.next().await, None);
    for client in [&mut newest, &mut other] {
        assert!(client.call("status", json!({})).await["result"].is_object());
    }
}

#[tokio::test]
async fn an_announced_gigabyte_is_refused_and_the_connection_closed() {
    let mut bench = Bench::start();
    let mut stream = bench.raw_as(ADA);
    let request = json!({"jsonrpc": "2.0", "id": 1, "method": "generate",
        "params": {"tokens": [HOLD]}});
    let request = request.to_string();
    let frames = format!(
        "Content-Length: {}\r\n\r\n{request}Content-Length: 1073741824\r\n\r\n{{",
        request.len()
    );
    stream.write_all(frames.as_bytes()).await.unwrap();
    bench.cancelled().await;
    let mut text = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut text)).await.unwrap().unwrap();
    let refusal = text.lines().find(|line| line.contains("error")).unwrap();
    let end = refusal.rfind('}').unwrap();
    let refusal: Value = serde_json::from_str(&refusal[..=end]).unwrap();
    assert_eq!(code(&refusal), -32013);
    assert_eq!(refusal["error"]["data"], json!({"limit": 8_388_608, "found": 1_073_741_824}));
    assert!(text.contains("cancelled"), "what was in flight is answered: {text}");
}

#[tokio::test]
async fn lines_and_headers_without_end_are_refused() {
    let bench = Bench::with(|options| options.frame_bytes_max = 8192);
    for (byte, expected) in [(b'x', -32013), (b'C', -32014)] {
        let mut client = bench.connect();
        client.send_bytes(&[byte; 8200]).await;
        let mut text = String::new();
        timeout(PATIENCE, client.reader.read_to_string(&mut text)).await.unwrap().unwrap();
        let json = &text[text.find('{').unwrap()..];
        assert_eq!(code(&serde_json::from_str(json).unwrap()), expected);
    }
}

#[tokio::test]
async fn the_stop_cancels_answers_and_ends_in_time() {
    let mut bench = Bench::start();
    let mut busy = bench.connect();
    let mut idle = bench.connect();
    busy.ask(1, "generate", json!({"tokens": [HOLD]})).await;
    bench.arrived().await;
    // It reads nothing of a flood: it may not hold up the stop.
    let mut stuck = bench.connect();
    stuck.ask(1, "generate", json!({"tokens": [FLOOD], "stream": true})).await;
    bench.arrived().await;
    let started = Instant::now();
    bench.stop.cancel();
    bench.server.drain().await;
    assert!(started.elapsed() < Duration::from_secs(5));
    assert_eq!(busy.message().await["result"]["finish_reason"], "cancelled");
    assert_eq!(busy.next().await, None);
    assert_eq!(idle.next().await, None);
}

#[tokio::test]
async fn a_reply_that_no_client_could_be_sent_is_refused_before_the_work() {
    let bench = Bench::with(|options| options.outgoing_bytes_max = 64 * 1024);
    let mut client = bench.connect();
    let text = "a".repeat(1 << 20);
    for (method, params) in [
        ("tokenize", json!({"text": text})),
        ("detokenize", json!({"tokens": vec![100; 200_000]})),
        ("generate", json!({"tokens": vec![100; 2000], "prompt_logprobs": 20})),
    ] {
        let refused = client.call(method, params).await;
        assert_eq!((code(&refused), &refused["error"]["data"]["limit"]), (-32043, &json!(65536)));
    }
    assert!(client.call("tokenize", json!({"text": "a"})).await["result"].is_object());
}

#[tokio::test]
async fn errors_stay_small_whatever_a_request_repeats() {
    let bench = Bench::start();
    let mut client = bench.connect();
    let huge = "y".repeat(4 << 20);
    for (method, params) in [
        (huge.as_str(), json!({})),
        ("generate", json!({huge.as_str(): 1})),
        ("generate", json!({"prompt": "a", "stop": [1, huge]})),
        ("generate", json!({"prompt": "a", "session": huge})),
        ("generate", json!({"messages": [{"role": "user", "content": "a", huge.as_str(): 1}]})),
        ("session.info", json!({"session": huge})),
        ("tokenize", json!({"text": "a", "model": huge})),
    ] {
        let refused = client.call(method, params).await;
        assert!(refused["error"].is_object(), "{method:.20}");
        assert!(refused.to_string().len() < 10_000, "{method:.20}: {}", refused.to_string().len());
    }
}

#[tokio::test]
async fn half_sent_frames_of_one_user_keep_no_other_from_sending() {
    const FRAME: usize = 4 << 20;
    let bench = Bench::with(|options| options.work_bytes_max = 8 << 20);
    let mut half = Vec::new();
    for _ in 0..8 {
        let client = bench.raw_as(EVE);
        client.writable().await.unwrap();
        // As much as the socket takes: those past eve's share stay unread.
        assert!(client.try_write(&vec![b' '; FRAME]).unwrap() > 64 * 1024);
        half.push(client);
    }
    for owner in [ADA, BOB] {
        let mut client = bench.connect_as(owner);
        let text = "a".repeat(1 << 20);
        assert!(client.call("tokenize", json!({"text": text})).await["result"].is_object());
    }
    drop(half);
    // Whoever waited for their memory goes on.
    let mut client = bench.connect_as(EVE);
    let text = "a".repeat(1 << 20);
    assert!(client.call("tokenize", json!({"text": text})).await["result"].is_object());
}
