//! The `hobd` program on a Vulkan device, with the tiny models of the shared reference files.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// hobd promises to end in 5 s.
const STOP_MAX: Duration = Duration::from_secs(5);

fn models() -> Option<PathBuf> {
    let shared = std::env::var_os("HOB_SHARED").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../shared")),
        PathBuf::from,
    );
    let folder = shared.join("tiny/malformed");
    if folder.is_dir() {
        return Some(folder);
    }
    println!("skipped: shared files absent");
    None
}

fn hobd(folder: &Path, model: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hobd"));
    command.arg("--model").arg(model).arg("--socket").arg(folder.join("hob.sock"));
    command.env("XDG_CONFIG_HOME", folder).env("XDG_CACHE_HOME", folder);
    command.env("XDG_STATE_HOME", folder);
    command
}

/// A running daemon; killed where a test fails.
struct Daemon {
    child: Child,
    lines: BufReader<UnixStream>,
    folder: tempfile::TempDir,
}

impl Daemon {
    fn start(model: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut child = hobd(folder.path(), model).stderr(Stdio::piped()).spawn().unwrap();
        // The socket is there before the model is; what is sent waits.
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
        let ready = log.by_ref().map_while(Result::ok).any(|line| line.contains(" ready"));
        // What comes later is dropped, but read.
        std::thread::spawn(move || log.map_while(Result::ok).for_each(drop));
        if !ready {
            panic!("hobd ended: {}", child.wait().unwrap());
        }
        let stream = UnixStream::connect(folder.path().join("hob.sock")).unwrap();
        Self { child, lines: BufReader::new(stream), folder }
    }

    fn send(&mut self, id: i64, method: &str, params: Value) {
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.lines.get_mut().write_all(format!("{request}\n").as_bytes()).unwrap();
    }

    /// The next message; `None` at the end.
    fn next(&mut self) -> Option<Value> {
        let mut line = String::new();
        match self.lines.read_line(&mut line) {
            Ok(0) | Err(_) => None,
            Ok(_) => Some(serde_json::from_str(&line).unwrap()),
        }
    }

    fn result(&mut self, method: &str, params: Value) -> Value {
        self.send(1, method, params);
        let mut reply = self.next().unwrap();
        assert!(reply["error"].is_null(), "{reply}");
        reply["result"].take()
    }

    /// Sends SIGTERM and waits for the end.
    fn stop(&mut self) -> (Option<i32>, Duration) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let started = Instant::now();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let status = self.child.wait().unwrap();
        (status.code(), started.elapsed())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It has ended already where the test passed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_daemon_generates_and_ends_in_order_while_it_is_busy() {
    let Some(models) = models() else { return };
    let mut daemon = Daemon::start(&models.join("ok-plain.gguf"));
    let params = json!({"tokens": [5, 6, 7], "max_tokens": 4, "temperature": 0, "logprobs": 2});
    let alone = daemon.result("generate", params.clone());
    assert_eq!(alone["usage"]["prompt_tokens"], 3);
    assert_eq!(daemon.result("generate", params)["logprobs"], alone["logprobs"]);
    assert_eq!(daemon.result("status", json!({}))["running"], 0);
    // A token outside its vocabulary, and a prompt past its context.
    daemon.send(2, "generate", json!({"tokens": [999_999]}));
    assert_eq!(daemon.next().unwrap()["error"]["code"], -32008);
    daemon.send(3, "generate", json!({"tokens": vec![5; 100_000]}));
    assert_eq!(daemon.next().unwrap()["error"]["code"], -32002);
    let long = json!({"tokens": [5], "max_tokens": 100_000, "stream": true, "temperature": 100});
    daemon.send(4, "generate", long);
    assert_eq!(daemon.next().unwrap()["method"], "generate.token");
    let (code, took) = daemon.stop();
    assert_eq!(code, Some(0));
    assert!(took < STOP_MAX, "{took:?}");
    let mut last = Value::Null;
    while let Some(message) = daemon.next() {
        last = message;
    }
    // It may just have come to its end by itself.
    let reason = last["result"]["finish_reason"].as_str();
    assert!(matches!(reason, Some("cancelled" | "length" | "stop")), "{last}");
    assert!(!daemon.folder.path().join("hob.sock").exists());
}

#[test]
fn malformed_models_are_named_with_what_is_wrong() {
    let Some(models) = models() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut count = 0;
    for entry in std::fs::read_dir(models).unwrap() {
        let model = entry.unwrap().path();
        let name = model.file_name().unwrap().to_str().unwrap().to_owned();
        if !name.starts_with("bad-") {
            continue;
        }
        count += 1;
        let output = hobd(folder.path(), &model).args(["--log-level", "error"]).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(78), "{name}: {told}");
        assert!(told.contains(&*model.to_string_lossy()), "{name}: {told}");
        assert!(!folder.path().join("hob.sock").exists(), "{name}");
    }
    assert!(count > 30, "{count} files");
}
