//! `hob run` against a fake daemon.

#![allow(clippy::unwrap_used)]

mod cli_support;

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use cli_support::{FakeDaemon, Generation, stderr, stdout, with_stdin};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

#[test]
fn the_answer_streams_to_stdout_and_nothing_else_does() {
    let daemon = FakeDaemon::start(Generation::Answer(&["Once", " upon", " 好吃"]));
    let output = daemon.hob(&["run", "Tell", "a", "story"]).output().unwrap();
    assert_eq!(stdout(&output), "Once upon 好吃\n");
    assert_eq!(stderr(&output), "");
    assert!(output.status.success());
    let asked = daemon.asked("generate");
    let messages = json!([{"role": "user", "content": "Tell a story"}]);
    let expected = json!({"messages": messages, "stream": true, "priority": "interactive"});
    assert_eq!(asked, [expected]);
}

#[test]
fn options_reach_the_daemon() {
    let daemon = FakeDaemon::start(Generation::Answer(&["x"]));
    let arguments = [
        "run",
        "--temperature",
        "0.5",
        "--top-k",
        "3",
        "--top-p",
        "0.9",
        "--min-p",
        "0.1",
        "--repeat-penalty",
        "1.1",
        "--presence-penalty",
        "0.5",
        "--frequency-penalty",
        "-0.25",
        "--seed",
        "18446744073709551615",
        "--max-tokens",
        "9",
        "--stop",
        "a",
        "--stop",
        "b",
        "--raw",
        "--session",
        "taken",
        "The",
    ];
    assert!(daemon.hob(&arguments).status().unwrap().success());
    let expected = json!({
        "session": "taken", "prompt": "The", "max_tokens": 9, "temperature": 0.5, "top_k": 3,
        "top_p": 0.9, "min_p": 0.1, "repeat_penalty": 1.1, "seed": u64::MAX, "stop": ["a", "b"],
        "stream": true, "presence_penalty": 0.5, "frequency_penalty": -0.25,
    });
    let asked = daemon.asked("generate");
    assert_eq!(asked.len(), 1);
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(asked[0][name].to_string(), value.to_string(), "{name}");
    }
    assert_eq!(daemon.asked("session.create"), [json!({"name": "taken"})]);
}

#[test]
fn tools_of_a_file_go_along_as_they_stand_there() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tools.json");
    let tools = r#"[ {"type": "function", "function": {"name": "add", "b": 1.50, "a": []}} ]"#;
    std::fs::write(&file, tools).unwrap();
    let arguments = ["run", "--tools", file.to_str().unwrap(), "Add", "them"];
    let daemon = FakeDaemon::start(Generation::Answer(&["x"]));
    assert!(daemon.hob(&arguments).status().unwrap().success());
    let asked = daemon.asked("generate");
    assert_eq!(asked[0]["tools"], serde_json::from_str::<Value>(tools).unwrap());
    assert_eq!(asked[0]["messages"], json!([{"role": "user", "content": "Add them"}]));

    std::fs::write(&file, r#"[{"name": "add"}, "sub"]"#).unwrap();
    let output = daemon.hob(&arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(65));
    let told = stderr(&output);
    assert!(told.contains("tools.json: wanted a JSON array of tools"), "{told}");
    assert!(told.contains("line 1 column 23"), "{told}");

    let daemon = FakeDaemon::start_without_template(Generation::Answer(&["x"]));
    let output = daemon.hob(&arguments).output().unwrap();
    let told = stderr(&output);
    assert!(told.contains("has no chat template, so --tools has no place"), "{told}");
}

#[test]
fn a_piped_prompt_goes_below_the_words() {
    let daemon = FakeDaemon::start(Generation::Answer(&["x"]));
    with_stdin(daemon.hob(&["run", "--system", "Be brief.", "Sum up:"]), b"a\nb\n");
    with_stdin(daemon.hob(&["run"]), b"alone\n");
    let asked = daemon.asked("generate");
    assert_eq!(
        asked[0]["messages"],
        json!([
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Sum up:\n\na\nb"},
        ])
    );
    assert_eq!(asked[1]["messages"][0]["content"], "alone");
}

#[test]
fn json_is_the_final_result() {
    let daemon = FakeDaemon::start(Generation::Answer(&["to", "gether"]));
    let output = daemon.hob(&["run", "--json", "x"]).output().unwrap();
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(result["text"], "together");
    assert_eq!(result["finish_reason"], "stop");
    assert_eq!(daemon.asked("generate")[0].get("stream"), None);
}

#[test]
fn statistics_go_to_stderr() {
    let daemon = FakeDaemon::start(Generation::Answer(&["x"]));
    let output = daemon.hob(&["run", "--stats", "x"]).output().unwrap();
    assert_eq!(stdout(&output), "x\n");
    assert!(stderr(&output).contains("(100.0 tokens/s)"), "{}", stderr(&output));
    assert!(stderr(&output).contains("(40.0 tokens/s)"), "{}", stderr(&output));
}

#[test]
fn a_model_without_a_template_continues_the_text() {
    let daemon = FakeDaemon::start_without_template(Generation::Answer(&["x"]));
    let output = daemon.hob(&["run", "The"]).output().unwrap();
    assert!(stderr(&output).contains("Tiny has no chat template"), "{}", stderr(&output));
    assert_eq!(daemon.asked("generate")[0]["prompt"], "The");
    let output = daemon.hob(&["run", "--system", "s", "The"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("--system has no place"), "{}", stderr(&output));
}

#[test]
fn a_refusal_is_told_in_the_daemons_words() {
    let message = "the prompt has 9000 tokens; the context holds 2048";
    let daemon = FakeDaemon::start(Generation::Refuse(-32002, message));
    let output = daemon.hob(&["run", "x"]).output().unwrap();
    assert_eq!(stderr(&output), format!("error: {message}\n"));
    assert_eq!((output.status.code(), stdout(&output)), (Some(1), ""));
}

#[test]
fn a_failed_generation_keeps_what_was_printed() {
    let daemon = FakeDaemon::start(Generation::Fail("the device was lost in vkQueueSubmit"));
    let output = daemon.hob(&["run", "x"]).output().unwrap();
    assert_eq!(stdout(&output), "half\n");
    assert!(stderr(&output).contains("the device was lost"), "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_lost_connection_keeps_what_was_printed() {
    let daemon = FakeDaemon::start(Generation::HangUp(&["Once", " upon"]));
    let output = daemon.hob(&["run", "x"]).output().unwrap();
    assert_eq!(stdout(&output), "Once upon\n");
    let told = "error: the connection to hobd was lost during generate";
    assert!(stderr(&output).starts_with(told), "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(3));
}

#[test]
fn ctrl_c_cancels_the_generation() {
    let daemon = FakeDaemon::start(Generation::UntilCancelled(&["so", " far\n"]));
    let mut command = daemon.hob(&["run", "x"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "so far\n");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(130));
    let generate_id = {
        let requests = daemon.requests.lock().unwrap();
        requests.iter().find(|request| request["method"] == "generate").unwrap()["id"].clone()
    };
    assert_eq!(daemon.asked("cancel"), [json!({"id": generate_id})]);
}

#[test]
fn a_second_ctrl_c_leaves_at_once() {
    // This daemon never looks at `cancel`.
    let daemon = FakeDaemon::start(Generation::Endless("more\n"));
    let mut command = daemon.hob(&["run", "x"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    let pid = Pid::from_child(&child);
    let reader = std::thread::spawn(move || stdout.read_to_end(&mut Vec::new()).unwrap());
    // Signals that arrive together count as one, so they are repeated until the process ends.
    let status = loop {
        kill_process(pid, Signal::INT).unwrap();
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        std::thread::yield_now();
    };
    assert_eq!(status.code(), Some(130));
    reader.join().unwrap();
}

#[test]
fn a_closed_pipe_ends_quietly() {
    let daemon = FakeDaemon::start(Generation::Endless("line\n"));
    let mut command = daemon.hob(&["run", "x"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut String::new()).unwrap();
    drop(stdout);
    let output = child.wait_with_output().unwrap();
    assert_eq!(stderr(&output), "");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn no_prompt_is_told() {
    let daemon = FakeDaemon::start(Generation::Answer(&["x"]));
    let output = daemon.hob(&["run"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("no prompt"), "{}", stderr(&output));
    let output = with_stdin(daemon.hob(&["run"]), b"caf\xe9");
    assert_eq!(output.status.code(), Some(65));
    assert!(stderr(&output).contains("byte 0xe9 at offset 3"), "{}", stderr(&output));
}
