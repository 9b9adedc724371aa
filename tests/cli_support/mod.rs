//! A daemon that answers from a script, and the `hob` program to hold against it.

// Each test program uses a part of this.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};

/// Variable with the process id that a fake daemon says it has.
pub const CLAIMED_PID: &str = "HOB_TEST_CLAIMED_PID";

/// What the daemon does when asked to generate.
#[derive(Clone)]
pub enum Generation {
    /// Streams these pieces, then the result.
    Answer(&'static [&'static str]),
    /// Streams these pieces and closes the connection.
    HangUp(&'static [&'static str]),
    /// Streams these pieces and waits for `cancel`.
    UntilCancelled(&'static [&'static str]),
    /// Streams a piece again and again until the connection or the request ends.
    Endless(&'static str),
    /// Replies with an error.
    Refuse(i64, &'static str),
    /// Ends with the finish reason `error`.
    Fail(&'static str),
}

/// A listening fake daemon and the requests it got, in their order.
pub struct FakeDaemon {
    pub socket: PathBuf,
    pub requests: Arc<Mutex<Vec<Value>>>,
    folder: Option<tempfile::TempDir>,
}

impl FakeDaemon {
    /// Listens on a socket of its own.
    pub fn start(generation: Generation) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut daemon = Self::start_on(&folder.path().join("hob.sock"), generation, true);
        daemon.folder = Some(folder);
        daemon
    }

    /// One whose model has no chat template.
    pub fn start_without_template(generation: Generation) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut daemon = Self::start_on(&folder.path().join("hob.sock"), generation, false);
        daemon.folder = Some(folder);
        daemon
    }

    pub fn start_on(socket: &Path, generation: Generation, template: bool) -> Self {
        let listener = UnixListener::bind(socket).unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&requests);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (log, generation) = (Arc::clone(&log), generation.clone());
                thread::spawn(move || Peer::serve(stream.unwrap(), &log, &generation, template));
            }
        });
        Self { socket: socket.to_owned(), requests, folder: None }
    }

    /// `hob` with this daemon's socket, its stdin closed.
    pub fn hob(&self, arguments: &[&str]) -> Command {
        let mut command = hob(arguments);
        command.env("HOB_SOCKET", &self.socket);
        command
    }

    /// Parameters of the requests of this method.
    pub fn asked(&self, method: &str) -> Vec<Value> {
        let requests = self.requests.lock().unwrap();
        let of_method = requests.iter().filter(|request| request["method"] == method);
        of_method.map(|request| request["params"].clone()).collect()
    }
}

/// The built program, apart from the user's own files and daemon.
pub fn hob(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hob"));
    command.args(arguments).stdin(Stdio::null());
    for variable in ["HOB_SOCKET", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "NO_COLOR"] {
        command.env_remove(variable);
    }
    command.env("HOME", env!("CARGO_TARGET_TMPDIR"));
    command
}

/// Runs with this on stdin.
pub fn with_stdin(mut command: Command, input: &[u8]) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // A program that does not read its stdin closes it: that shows in its output.
    let _ = stdin.write_all(input);
    drop(stdin);
    child.wait_with_output().unwrap()
}

pub fn stdout(output: &Output) -> &str {
    str::from_utf8(&output.stdout).unwrap()
}

pub fn stderr(output: &Output) -> &str {
    str::from_utf8(&output.stderr).unwrap()
}

struct Peer {
    stream: UnixStream,
    generation: Generation,
    template: bool,
    /// The id of a generation that waits to be cancelled.
    waiting: Option<Value>,
}

impl Peer {
    fn serve(stream: UnixStream, log: &Mutex<Vec<Value>>, generation: &Generation, template: bool) {
        let lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let mut peer = Self { stream, generation: generation.clone(), template, waiting: None };
        for line in lines.map_while(Result::ok) {
            let request: Value = serde_json::from_str(&line).unwrap();
            assert_eq!(request["jsonrpc"], "2.0");
            log.lock().unwrap().push(request.clone());
            if peer.answer(&request).is_err() {
                return;
            }
        }
    }

    fn answer(&mut self, request: &Value) -> std::io::Result<()> {
        let (id, params) = (&request["id"], &request["params"]);
        let result = match request["method"].as_str().unwrap() {
            "initialize" => self.initialized(),
            "session.create" if params["name"] == "taken" => {
                return self.refuse(id, -32005, "a session named \"taken\" exists already");
            }
            "session.create" => json!({"session": 7, "context_tokens": 2048}),
            "session.list" => json!({"sessions": [
                {"session": 7, "name": "notes", "model": "tiny", "context_tokens": 2048, "tokens": 123,
                 "cached_tokens": 123, "cache": "host", "priority": "normal", "busy": false,
                 "idle_seconds": 61},
                {"session": 12, "context_tokens": 512, "tokens": 0, "cached_tokens": 0,
                 "cache": "none", "priority": "background", "busy": true, "idle_seconds": 0},
            ]}),
            "session.fork" => json!({"session": 13, "context_tokens": 512, "tokens": 20,
                "cached_tokens": 20, "busy": false, "idle_seconds": 0}),
            "session.close" if params["session"] == "missing" => {
                return self.refuse(id, -32003, "no session missing");
            }
            "session.close" => json!({"session": 7}),
            "lora.list" => json!({"model": "Tiny", "adapters": [
                {"name": "law", "bytes": 3 << 20, "sessions": 2},
            ]}),
            "lora.load" => json!({"name": params["name"], "bytes": 1 << 20, "sessions": 0}),
            "lora.unload" => json!({"name": params["name"]}),
            "status" => self.status(),
            "metrics" => json!({"text": "hob_sessions 2\n# EOF\n"}),
            "tokenize" => {
                let text = params["text"].as_str().unwrap();
                json!({"tokens": text.bytes().collect::<Vec<u8>>()})
            }
            "detokenize" => {
                let ids = params["tokens"].as_array().unwrap();
                let bytes = ids.iter().map(|id| u8::try_from(id.as_u64().unwrap()).unwrap());
                json!({"text": String::from_utf8_lossy(&bytes.collect::<Vec<u8>>())})
            }
            "generate" => return self.generate(id, params["stream"] == true),
            "cancel" => {
                if let Some(waiting) = self.waiting.take() {
                    self.finish(&waiting, "so far", "cancelled", None)?;
                }
                json!({"cancelled": true})
            }
            other => return self.refuse(id, -32601, &format!("no method {other}")),
        };
        self.send(&json!({"jsonrpc": "2.0", "id": id, "result": result}))
    }

    fn generate(&mut self, id: &Value, stream: bool) -> std::io::Result<()> {
        match self.generation.clone() {
            Generation::Answer(pieces) => {
                self.pieces(id, pieces, stream)?;
                self.finish(id, &pieces.concat(), "stop", None)
            }
            Generation::HangUp(pieces) => {
                self.pieces(id, pieces, stream)?;
                self.stream.shutdown(std::net::Shutdown::Both)
            }
            Generation::UntilCancelled(pieces) => {
                self.waiting = Some(id.clone());
                self.pieces(id, pieces, stream)
            }
            Generation::Endless(piece) => loop {
                self.pieces(id, &[piece], true)?;
            },
            Generation::Refuse(code, message) => self.refuse(id, code, message),
            Generation::Fail(reason) => {
                self.pieces(id, &["half"], stream)?;
                self.finish(id, "half", "error", Some(reason))
            }
        }
    }

    fn pieces(&mut self, id: &Value, pieces: &[&str], stream: bool) -> std::io::Result<()> {
        for piece in pieces.iter().filter(|_| stream) {
            let params = json!({"id": id, "text": piece, "token": 1});
            let method = "generate.token";
            self.send(&json!({"jsonrpc": "2.0", "method": method, "params": params}))?;
        }
        Ok(())
    }

    fn finish(
        &mut self,
        id: &Value,
        text: &str,
        reason: &str,
        error: Option<&str>,
    ) -> std::io::Result<()> {
        self.send(&json!({"jsonrpc": "2.0", "id": id, "result": {
            "text": text, "tokens": [1, 2], "finish_reason": reason, "error": error,
            "usage": {"prompt_tokens": 12, "cached_tokens": 2, "completion_tokens": 3},
            "timings": {"queue_ms": 1.0, "prefill_ms": 100.0, "decode_ms": 50.0},
        }}))
    }

    fn refuse(&mut self, id: &Value, code: i64, message: &str) -> std::io::Result<()> {
        let error = json!({"code": code, "message": message});
        self.send(&json!({"jsonrpc": "2.0", "id": id, "error": error}))
    }

    fn send(&mut self, message: &Value) -> std::io::Result<()> {
        self.stream.write_all(format!("{message}\n").as_bytes())
    }

    fn initialized(&self) -> Value {
        let claimed = std::env::var(CLAIMED_PID).ok();
        let pid: u32 = claimed.map_or(4242, |pid| pid.parse().unwrap());
        json!({
            "server": {"name": "hobd", "version": "0.1.0", "pid": pid}, "protocol": 1,
            "model": self.model(),
            "limits": {"frame_bytes_max": 1, "connections_max": 1, "requests_in_flight_max": 1,
                "sessions_max": 1, "context_tokens": 2048, "stop_max": 16, "logprobs_max": 20},
        })
    }

    fn status(&self) -> Value {
        json!({
            "server": {"name": "hobd", "version": "0.1.0", "pid": 4242}, "model": self.model(),
            "device": "llvmpipe", "driver": "Mesa 25", "kv_dtype": "f16", "connections": 1,
            "sessions": 2, "running": 1, "queued": 0, "kv_tokens_max": 65536,
            "kv_tokens_used": 1234, "device_bytes": 104857600u64,
            "device_budget_bytes": 8589934592u64, "prefill_tokens": 5000, "cached_tokens": 40,
            "decode_tokens": 600, "steps": 700, "uptime_seconds": 3600,
            "prefill_tokens_per_second": 12.0, "decode_tokens_per_second": 3.5, "recoveries": 2,
            "loaded": true,
        })
    }

    fn model(&self) -> Value {
        json!({
            "name": "Tiny", "architecture": "llama", "parameters": 134515008,
            "weights_bytes": 98000000, "quantization": "Q4_1", "context_tokens_trained": 8192,
            "context_tokens": 2048, "vocab_size": 49152, "has_chat_template": self.template,
        })
    }
}
