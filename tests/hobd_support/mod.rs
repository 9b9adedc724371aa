//! The `hobd` program, running, and one connection to it.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // each test uses a part

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// hobd with a folder for all that it reads and writes.
pub fn hobd(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hobd"));
    command.arg("--socket").arg(folder.join("hob.sock"));
    for kind in ["CONFIG", "CACHE", "STATE", "DATA"] {
        command.env(format!("XDG_{kind}_HOME"), folder);
    }
    command
}

/// A running daemon; killed where a test fails.
pub struct Daemon {
    pub child: Child,
    lines: BufReader<UnixStream>,
}

impl Daemon {
    /// `folder` is where its socket and all its files are.
    pub fn start(model: &Path, folder: &Path) -> Self {
        let mut command = hobd(folder);
        command.arg("--model").arg(model);
        Self::start_by(command, folder)
    }

    pub fn start_by(mut command: Command, folder: &Path) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        // The socket is there before the model is; what is sent waits.
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
        let ready = log.by_ref().map_while(Result::ok).any(|line| line.contains(" ready"));
        // What comes later is dropped, but read.
        std::thread::spawn(move || log.map_while(Result::ok).for_each(drop));
        if !ready {
            panic!("hobd ended: {}", child.wait().unwrap());
        }
        let stream = UnixStream::connect(folder.join("hob.sock")).unwrap();
        Self { child, lines: BufReader::new(stream) }
    }

    pub fn send(&mut self, id: i64, method: &str, params: Value) {
        self.try_send(id, method, params).unwrap();
    }

    pub fn try_send(&mut self, id: i64, method: &str, params: Value) -> io::Result<()> {
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.lines.get_mut().write_all(format!("{request}\n").as_bytes())
    }

    /// The next message; `None` at the end.
    pub fn next(&mut self) -> Option<Value> {
        let mut line = String::new();
        match self.lines.read_line(&mut line) {
            Ok(0) | Err(_) => None,
            Ok(_) => Some(serde_json::from_str(&line).unwrap()),
        }
    }

    pub fn result(&mut self, method: &str, params: Value) -> Value {
        self.send(1, method, params);
        let mut reply = self.next().unwrap();
        assert!(reply["error"].is_null(), "{reply}");
        reply["result"].take()
    }

    /// The error that a request is answered with.
    pub fn error(&mut self, method: &str, params: Value) -> Value {
        self.send(1, method, params);
        let mut reply = self.next().unwrap();
        assert!(reply["result"].is_null(), "{reply}");
        reply["error"].take()
    }

    /// Sends SIGTERM and waits for the end.
    pub fn stop(&mut self) -> (Option<i32>, Duration) {
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
