//! A conversation longer than its context goes on without its oldest turns, says so, and gets the
//! answer of a fresh conversation without them.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::real_model;
use hob::config::Config;
use hob::engine::{self, Control, EngineOptions, Owner};
use hob::server::{Server, ServerOptions};
use hob::vulkan::{VulkanConfig, VulkanExecutor};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;

const CONTEXT: u64 = 96;
const ANSWER: u64 = 6;

/// `CONTEXT_FULL` of the protocol.
const CONTEXT_FULL: i64 = -32002;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(120);

struct Client(BufReader<UnixStream>);

impl Client {
    /// The whole reply.
    async fn ask(&mut self, method: &str, params: Value) -> Value {
        let line = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        self.0.write_all(format!("{line}\n").as_bytes()).await.unwrap();
        let mut line = String::new();
        let read = tokio::time::timeout(PATIENCE, self.0.read_line(&mut line));
        assert!(read.await.expect("an answer in time").unwrap() > 0, "the server hung up");
        serde_json::from_str(&line).unwrap()
    }

    async fn call(&mut self, method: &str, params: Value) -> Value {
        let reply = self.ask(method, params).await;
        assert!(reply["error"].is_null(), "{reply}");
        reply["result"].clone()
    }

    /// An answer to a conversation, on a session or on none.
    async fn answer(&mut self, session: Option<&str>, messages: &[Value], full: &str) -> Value {
        let mut params = json!({
            "messages": messages, "max_tokens": ANSWER, "temperature": 0, "on_context_full": full,
        });
        if let Some(session) = session {
            params["session"] = session.into();
        }
        self.ask("generate", params).await
    }

    /// The tokens that a conversation becomes.
    async fn prompt(&mut self, messages: &[Value]) -> Vec<u64> {
        let rendered = self.call("apply_template", json!({"messages": messages})).await;
        let params = json!({"text": rendered["prompt"], "parse_special": true});
        let tokens = self.call("tokenize", params).await;
        tokens["tokens"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
    }
}

fn message(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

/// A system prompt, and turns of about 30 tokens.
fn conversation() -> Vec<Value> {
    let mut messages = vec![message("system", "You name rivers, briefly.")];
    for (river, country) in
        [("Rhine", "Germany"), ("Seine", "France"), ("Ebro", "Spain"), ("Po", "Italy")]
    {
        messages.push(message("user", &format!("Which river flows through most of {country}?")));
        messages.push(message("assistant", &format!("The {river} does, from its springs on.")));
    }
    messages.push(message("user", "And which one through Egypt?"));
    messages
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shifted_conversation_is_answered_as_a_fresh_one_without_its_oldest_turns() {
    let options = EngineOptions { context_tokens: CONTEXT as usize, ..EngineOptions::default() };
    let executor = Box::new(VulkanExecutor::new(&VulkanConfig::default()).unwrap());
    let model = real_model("SmolLM2-135M-Instruct.Q4_1.gguf");
    let opened = engine::open(executor, &model, &options, &mut |_, _| {}).unwrap();
    let (handle, thread) = engine::start(opened, &options).unwrap();
    let commands = handle.commands.clone();
    let serving = ServerOptions::from(&Config::default());
    let server = Server::new(handle, serving, CancellationToken::new());
    let (ours, theirs) = UnixStream::pair().unwrap();
    server.serve_stream(theirs, Owner { uid: 1000 });
    let mut client = Client(BufReader::new(ours));
    client.call("session.create", json!({"name": "rivers"})).await;

    let mut messages = conversation();
    let whole = client.prompt(&messages).await;
    assert!(whole.len() as u64 > CONTEXT, "{} tokens are too few for this test", whole.len());
    let refused = client.answer(Some("rivers"), &messages, "error").await;
    assert_eq!(refused["error"]["code"], CONTEXT_FULL, "{refused}");

    let mut before: Option<Vec<u64>> = None;
    for _ in 0..2 {
        let whole = client.prompt(&messages).await;
        let shifted = client.answer(Some("rivers"), &messages, "shift").await["result"].clone();
        let left_out = shifted["shifted"]["messages"].as_u64().expect("it says so") as usize;
        let without = |count: usize| [&messages[..1], &messages[1 + count..]].concat();
        let kept = client.prompt(&without(left_out)).await;
        assert_eq!(shifted["usage"]["prompt_tokens"], kept.len());
        assert_eq!(shifted["shifted"]["tokens"], whole.len() - kept.len());
        let one_turn_more = client.prompt(&without(left_out - 2)).await;
        let room = (CONTEXT - ANSWER) as usize;
        assert!(kept.len() <= room && one_turn_more.len() > room, "no more than there has to be");

        let fresh = client.answer(None, &without(left_out), "error").await["result"].clone();
        assert_eq!(shifted["tokens"], fresh["tokens"]);
        assert_eq!((&shifted["text"], &fresh["shifted"]), (&fresh["text"], &Value::Null));
        // What is used again is the common beginning: the system prompt, and no more than that.
        let common = before.map_or(0, |before| {
            before.iter().zip(&kept).take_while(|(before, now)| before == now).count()
        });
        assert_eq!(shifted["usage"]["cached_tokens"], common);
        before = Some(kept);
        messages.push(message("assistant", shifted["text"].as_str().unwrap()));
        messages.push(message("user", "Which one is the longest of all of these rivers then?"));
    }
    server.drain().await;
    commands.control(Control::Shutdown).unwrap();
    tokio::task::spawn_blocking(|| thread.join().unwrap().unwrap()).await.unwrap();
}
