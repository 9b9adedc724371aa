//! The log never holds what clients say or what the model answers, whatever its level.
#![allow(clippy::unwrap_used)]

mod server_support;

use std::io;
use std::sync::{Arc, Mutex};

use serde_json::json;
use server_support::{ADA, Bench, Client, HOLD};
use tracing_subscriber::fmt::MakeWriter;

/// Stands in everything that a client sends here.
const SECRET: &str = "xyzzy-secret";

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[tokio::test]
async fn prompts_answers_and_names_stay_out_of_the_log_at_trace() {
    let log = Log::default();
    // All targets, dependencies as well.
    let level = tracing::Level::TRACE;
    tracing_subscriber::fmt().with_max_level(level).with_writer(log.clone()).init();
    let mut bench = Bench::start();
    let mut client = bench.connect();
    client.call("initialize", json!({"client": {"name": SECRET}})).await;
    client.call("session.create", json!({"name": SECRET})).await;
    client.call("session.create", json!({"name": SECRET})).await;
    client.call("tokenize", json!({"text": SECRET})).await;
    let messages = json!([{"role": SECRET, "content": SECRET}]);
    client.call("apply_template", json!({"messages": messages})).await;
    client.call("generate", json!({"messages": messages, "stop": SECRET, "max_tokens": 3})).await;
    for objects in [json!([{SECRET: SECRET}]), json!([SECRET])] {
        let params = json!({"messages": messages, "tools": objects, "documents": objects});
        client.call("generate", params).await;
    }
    client.call("generate", json!({"prompt": SECRET, "max_tokens": 3})).await;
    client.call("generate", json!({"session": SECRET, "prompt": SECRET, "max_tokens": 3})).await;
    client.call("generate", json!({"prompt": SECRET, "temperature": SECRET})).await;
    client.call("generate", json!({"prompt": SECRET, SECRET: SECRET})).await;
    client.call(SECRET, json!({"text": SECRET})).await;
    client.call("session.close", json!({"session": "not xyzzy-secret"})).await;
    client.ask(SECRET, "generate", json!({"tokens": [HOLD]})).await;
    client.call("cancel", json!({"id": SECRET})).await;
    client.message().await;
    client.send_bytes(format!("{{\"prompt\": {SECRET}}}\n").as_bytes()).await;
    client.message().await;
    client.send_bytes(format!("{SECRET}\u{0}").as_bytes()).await;
    drop(client);
    // A header that is none.
    let mut client = Client::new(bench.raw_as(ADA));
    client.send_bytes(format!("C {SECRET}\n\n").as_bytes()).await;
    while client.next_line().await {}
    bench.cancelled().await;
    bench.stop.cancel();
    bench.server.drain().await;
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(log.contains("connection opened") && log.contains("generated"), "it was on: {log}");
    assert!(log.contains("framing lost"), "{log}");
    // The mock answers with "a"s.
    assert!(!log.contains("xyzzy") && !log.contains("aaa"), "{log}");
}
