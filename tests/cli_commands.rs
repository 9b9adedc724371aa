//! The commands that ask the daemon something short, and `hob chat` from a pipe.

#![allow(clippy::unwrap_used)]

mod cli_support;

use cli_support::{FakeDaemon, Generation, hob, stderr, stdout, with_stdin};
use serde_json::{Value, json};

fn daemon() -> FakeDaemon {
    FakeDaemon::start(Generation::Answer(&["an", " answer"]))
}

#[test]
fn status_for_people_and_for_programs() {
    let daemon = daemon();
    let output = daemon.hob(&["status"]).output().unwrap();
    let socket = daemon.socket.display().to_string();
    let text = stdout(&output).replace(&socket, "SOCKET");
    insta::assert_snapshot!(text, @"
    hobd 0.1.0 (process 4242) on SOCKET
    model        Tiny, llama, 134,515,008 parameters, Q4_1, 93.46 MiB
    context      2048 tokens (trained for 8192)
    device       llvmpipe (Mesa 25)
    memory       100.00 MiB of 8.00 GiB
    KV cache     1,234 of 65,536 tokens, f16
    now          1 connection, 2 sessions, 1 request running, 0 waiting
    since start  5,000 prompt tokens evaluated, 40 taken from the cache, 600 generated, 700 steps
    lately       12 prompt tokens and 3.5 generated a second
    recoveries   2: the device was lost
    up           60 minutes
    ");
    let output = daemon.hob(&["status", "--json"]).output().unwrap();
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(status["model"]["name"], "Tiny");
    assert_eq!(status["kv_tokens_used"], 1234);
    let output = daemon.hob(&["top", "--once"]).output().unwrap();
    assert!(stdout(&output).contains("\nspeed     3.5 generated and 12 prompt tokens a second\n"));
    let output = daemon.hob(&["metrics"]).output().unwrap();
    assert_eq!(stdout(&output), "hob_sessions 2\n# EOF\n");
}

#[test]
fn sessions_are_listed_and_closed() {
    let daemon = daemon();
    let output = daemon.hob(&["sessions"]).output().unwrap();
    insta::assert_snapshot!(stdout(&output), @"
    SESSION  NAME   MODEL  TOKENS  CONTEXT  CACHE  STATE
          7  notes  tiny      123     2048  host   idle for 61 seconds
         12  -      -           0      512  -      busy
    ");
    let output = daemon.hob(&["sessions", "--json"]).output().unwrap();
    let sessions: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(sessions[1]["session"], 12);

    let fork = ["sessions", "fork", "notes", "--as", "draft", "--at", "20"];
    let output = daemon.hob(&fork).output().unwrap();
    assert_eq!(stderr(&output), "hob: created session 13 with 20 tokens\n");
    let asked = json!({"session": "notes", "name": "draft", "at": 20});
    assert_eq!(daemon.asked("session.fork"), [asked]);

    assert!(daemon.hob(&["sessions", "close", "notes", "12"]).status().unwrap().success());
    let output = daemon.hob(&["sessions", "close", "missing"]).output().unwrap();
    assert_eq!((output.status.code(), stderr(&output)), (Some(1), "error: no session missing\n"));
    assert_eq!(
        daemon.asked("session.close"),
        [json!({"session": "notes"}), json!({"session": 12}), json!({"session": "missing"})]
    );
}

#[test]
fn lora_lists_loads_and_unloads_the_adapters_of_a_model() {
    let daemon = FakeDaemon::start(Generation::Answer(&[]));
    let output = daemon.hob(&["lora"]).output().unwrap();
    let told: Vec<Vec<&str>> =
        stdout(&output).lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(told, [vec!["NAME", "SIZE", "SESSIONS"], vec!["law", "3.00", "MiB", "2"]]);
    let output = daemon.hob(&["lora", "--json", "-m", "tiny"]).output().unwrap();
    let list: Value = serde_json::from_str(stdout(&output)).unwrap();
    assert_eq!(list["adapters"][0]["name"], "law");
    assert_eq!(daemon.asked("lora.list")[1]["model"], "tiny");
    let output = daemon.hob(&["lora", "load", "verse=verse.gguf"]).output().unwrap();
    assert_eq!(stderr(&output), "hob: loaded verse (1.00 MiB on the device)\n");
    let asked = daemon.asked("lora.load").remove(0);
    let path = std::env::current_dir().unwrap().join("verse.gguf");
    assert_eq!((&asked["name"], asked["path"].as_str()), (&"verse".into(), path.to_str()));
    assert!(daemon.hob(&["lora", "unload", "verse", "-m", "tiny"]).status().unwrap().success());
    assert_eq!(daemon.asked("lora.unload")[0]["model"], "tiny");
    let output = daemon.hob(&["lora", "load", "verse"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn without_a_daemon_the_socket_and_the_way_to_start_one_are_told() {
    for command in [&["status"][..], &["sessions"], &["tokenize"], &["detokenize", "1"]] {
        let mut hob = hob(command);
        let output = hob.args(["--socket", "/nowhere/hob.sock"]).output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{command:?}");
        let told = stderr(&output);
        assert!(told.contains("no daemon answers on /nowhere/hob.sock"), "{told}");
        assert!(told.contains("hobd --model FILE"), "{told}");
    }
}

#[test]
fn the_daemon_tokenizes_where_no_model_is_named() {
    let daemon = daemon();
    let output = with_stdin(daemon.hob(&["tokenize", "--json"]), b"a b\n");
    assert_eq!(stdout(&output), "[97,32,98,10]\n");
    let asked = json!({"text": "a b\n", "add_special": false, "parse_special": false});
    assert_eq!(daemon.asked("tokenize"), [asked]);
    let output = with_stdin(daemon.hob(&["tokenize"]), b"a\n");
    assert_eq!(stdout(&output), "ID  TEXT\n97  \"a\"\n10  \"\\n\"\n");
    let output = with_stdin(daemon.hob(&["detokenize"]), b"[97, 32, 98]");
    assert_eq!(stdout(&output), "a b");
    let output = daemon.hob(&["detokenize", "--json", "97", "10"]).output().unwrap();
    assert_eq!(stdout(&output), "\"a\\n\"\n");
    let output = with_stdin(daemon.hob(&["detokenize"]), b"97 32");
    assert_eq!(output.status.code(), Some(65));
}

#[test]
fn a_conversation_keeps_its_session_and_its_history() {
    let daemon = daemon();
    let state = tempfile::tempdir().unwrap();
    let saved = state.path().join("talk.json");
    let lines = format!(
        "/system Be kind.\nfirst\n/set temperature 0.25\nsecond \\\nline\n/stats\n/nonsense\n\
         /save {}\n/clear\nthird\n/quit\nnever\n",
        saved.display()
    );
    let mut command = daemon.hob(&["chat", "--max-tokens", "5"]);
    command.env("XDG_STATE_HOME", state.path());
    let output = with_stdin(command, lines.as_bytes());
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).starts_with("an answer\nan answer\nprompt     12 tokens"));
    assert!(stderr(&output).contains("no command \"/nonsense\""), "{}", stderr(&output));

    let asked = daemon.asked("generate");
    assert_eq!(asked.len(), 3);
    let (system, first) = (json!({"role": "system", "content": "Be kind."}), "first");
    let answer = json!({"role": "assistant", "content": "an answer"});
    let user = |text: &str| json!({"role": "user", "content": text});
    assert_eq!(asked[0]["messages"], json!([system, user(first)]));
    let second = user("second \nline");
    assert_eq!(asked[1]["messages"], json!([system, user(first), answer, second]));
    assert_eq!(asked[2]["messages"], json!([system, user("third")]));
    assert_eq!((&asked[0]["max_tokens"], &asked[1]["temperature"]), (&json!(5), &json!(0.25)));
    assert!(asked.iter().all(|request| request["session"] == 7));
    assert_eq!(daemon.asked("session.close"), [json!({"session": 7})]);
    let saved: Value = serde_json::from_slice(&std::fs::read(saved).unwrap()).unwrap();
    assert_eq!(saved, json!([system, user(first), answer, second, answer]));
    history_is_private(state.path());
}

fn history_is_private(state: &std::path::Path) {
    use std::os::unix::fs::PermissionsExt;
    let path = state.join("hob/chat_history");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(std::fs::read_to_string(path).unwrap().contains("first"));
}

#[test]
fn a_refused_turn_is_not_a_part_of_the_conversation() {
    let daemon = FakeDaemon::start(Generation::Refuse(-32002, "too long"));
    let output = with_stdin(daemon.hob(&["chat"]), b"one\ntwo\n");
    assert!(output.status.success());
    assert_eq!(stderr(&output).matches("error: too long\n").count(), 2, "{}", stderr(&output));
    assert_eq!(
        daemon.asked("generate")[1]["messages"],
        json!([{"role": "user", "content": "two"}])
    );
}
