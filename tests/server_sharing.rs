//! One engine for several users: none of them keeps it from the others.
#![allow(clippy::unwrap_used)]

mod server_support;

use std::time::Duration;

use hob::engine::{EngineCommand, Owner};
use serde_json::{Value, json};
use server_support::{ADA, BOB, Bench, Client, code};
use tokio::sync::oneshot;
use tokio::time::sleep;

/// As many as one user may have.
const CLIENTS: usize = 12;

/// Root and the daemon's own user may do more than others.
fn operator() -> Owner {
    Owner { uid: rustix::process::geteuid().as_raw() }
}

/// All sessions, of all users.
async fn sessions(root: &mut Client) -> Vec<Value> {
    let all = root.call("session.list", json!({"all": true})).await;
    all["result"]["sessions"].as_array().unwrap().clone()
}

/// Waits until there is no session without a name.
async fn unnamed_are_gone(root: &mut Client) {
    while sessions(root).await.iter().any(|session| session["name"].is_null()) {
        sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn clients_that_hang_up_leave_no_session_behind() {
    let (bench, go) = Bench::paused();
    let mut root = bench.connect_as(operator());
    for _ in 0..CLIENTS {
        let mut client = bench.connect();
        for id in 0..8 {
            client.ask(id, "session.create", json!({})).await;
        }
    }
    go.send(()).unwrap();
    unnamed_are_gone(&mut root).await;
    // While the engine goes on: what was answered, what is being answered, and what is not.
    for _ in 0..CLIENTS {
        let mut client = bench.connect_as(BOB);
        let made = client.call("session.create", json!({})).await["result"]["session"].take();
        client.ask(1, "session.fork", json!({"session": made})).await;
        client.ask(2, "session.create", json!({})).await;
    }
    unnamed_are_gone(&mut root).await;
}

#[tokio::test]
async fn a_connection_forgets_the_sessions_that_it_has_closed() {
    let bench = Bench::start();
    let mut client = bench.connect();
    for _ in 0..3 {
        let made = client.call("session.create", json!({})).await["result"]["session"].take();
        client.call("session.close", json!({"session": made})).await;
    }
    let kept = client.call("session.create", json!({})).await["result"]["session"].take();
    assert_eq!(sessions(&mut bench.connect_as(operator())).await.len(), 1);
    let info = client.call("session.info", json!({"session": kept})).await;
    assert_eq!(info["result"]["session"], kept, "what is over closes nothing else");
}

#[tokio::test]
async fn a_generation_waits_for_a_place_and_is_not_refused() {
    let (mut bench, go) = Bench::paused();
    let mut flood = Vec::new();
    let commands = bench.mock.handle.commands.clone();
    let status = || {
        let (reply, answer) = oneshot::channel();
        (EngineCommand::Status { reply }, answer)
    };
    // All of Ada's places; the last one waits.
    for _ in 0..64 {
        let (command, answer) = status();
        commands.send(ADA, command).await.unwrap();
        flood.push(answer);
    }
    let mut ada = bench.connect();
    ada.ask(1, "generate", json!({"tokens": [9], "max_tokens": 2})).await;
    ada.ask(2, "generate", json!({"tokens": [9], "deadline_ms": 1})).await;
    let late = ada.message().await;
    assert_eq!((&late["id"], code(&late)), (&json!(2), -32041), "{late}");
    ada.ask(3, "generate", json!({"tokens": [9]})).await;
    ada.ask(4, "cancel", json!({"id": 3})).await;
    let mut ends = [ada.message().await, ada.message().await];
    ends.sort_by_key(|message| message["id"].as_u64());
    assert_eq!(ends[1]["result"]["cancelled"], true);
    assert_eq!(code(&ends[0]), -32040, "{}", ends[0]);
    // Others have places of their own.
    let (command, others) = status();
    commands.send(BOB, command).await.unwrap();
    go.send(()).unwrap();
    others.await.unwrap();
    let done = ada.message().await;
    assert_eq!((&done["id"], &done["result"]["text"]), (&json!(1), &json!("aa")));
    bench.arrived().await;
    assert!(bench.mock.arrived.try_recv().is_err(), "the others never came to the engine");
}

#[tokio::test]
async fn root_and_the_daemons_user_list_and_close_any_session() {
    let bench = Bench::start();
    let (mut ada, mut bob) = (bench.connect(), bench.connect_as(BOB));
    let mut root = bench.connect_as(operator());
    let create = |name: &str| ("session.create", json!({"name": name}));
    let mut numbers = Vec::new();
    for name in ["diary", "letters"] {
        let (method, params) = create(name);
        numbers.push(ada.call(method, params).await["result"]["session"].take());
    }
    let (method, params) = create("diary");
    bob.call(method, params).await;

    let listed: Vec<(u64, String)> = sessions(&mut root)
        .await
        .iter()
        .map(|entry| (entry["uid"].as_u64().unwrap(), entry["name"].to_string()))
        .collect();
    let [a, b] = [ADA, BOB].map(|owner| u64::from(owner.uid));
    let expected = [(a, "diary"), (a, "letters"), (b, "diary")];
    assert_eq!(listed, expected.map(|(uid, name)| (uid, format!("{name:?}"))));
    let own = root.call("session.list", json!({})).await;
    assert_eq!(own["result"]["sessions"], json!([]));

    // By its number, or by its user and name; a name alone is one of the caller's own.
    assert_eq!(code(&root.call("session.close", json!({"session": "diary"})).await), -32003);
    let close = async |client: &mut Client, params: Value| {
        client.call("session.close", params).await["result"]["session"].take()
    };
    assert_eq!(close(&mut root, json!({"session": numbers[1]})).await, numbers[1]);
    assert_eq!(close(&mut root, json!({"session": "diary", "uid": a})).await, numbers[0]);
    assert_eq!(ada.call("session.list", json!({})).await["result"]["sessions"], json!([]));
    assert_eq!(sessions(&mut root).await.len(), 1);

    // Nobody else may.
    for (method, params) in [
        ("session.list", json!({"all": true})),
        ("session.close", json!({"session": "diary", "uid": b})),
    ] {
        let refused = ada.call(method, params).await;
        let message = refused["error"]["message"].as_str().unwrap();
        assert!(message.contains("for root and the user that the daemon runs as"), "{message}");
    }
    assert_eq!(close(&mut bob, json!({"session": "diary", "uid": b})).await, 3);
}
