//! The service manager's side of hobd: socket activation, readiness, status and watchdog.

#[path = "common/faults.rs"]
mod faults;
#[path = "common/random.rs"]
mod random;
#[path = "common/streams.rs"]
mod streams;
#[path = "idea/tiny.rs"]
mod tiny;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use faults::{Call, Failing, Fault, Plan};
use hob::engine::{self, EngineOptions};
use hob::reference::ReferenceExecutor;
use hob::server::{Notice, watch};
use streams::{Failure, finish, generate, join, request};
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// The watchdog of the tests.
const WATCHDOG: Duration = Duration::from_millis(400);

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

// The lock is what the device hangs on; no other task takes it.
#[tokio::test]
#[allow(clippy::await_holding_lock)] // what it holds up is another thread, on purpose
async fn a_stopped_engine_makes_the_watchdog_miss() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let [model, _] = tiny::write(folder.path());
    let plan = Plan::default();
    let opener = plan.clone();
    let open = Box::new(move || opener.open(ReferenceExecutor::new()));
    let options = EngineOptions { context_tokens: 96, kv_tokens: 96, ..EngineOptions::default() };
    let opened = engine::open_with(open, &model, &options, &mut |_, _| {})?;
    let (engine, thread) = engine::start(opened, &options)?;
    let (sender, mut notices) = unbounded_channel();
    let stop = CancellationToken::new();
    let tell = move |notice| sender.send(notice).expect("the test listens");
    let watched = {
        let engine = engine.clone();
        move || engine.clone()
    };
    let watching = tokio::spawn(watch(watched, Some(WATCHDOG), stop.clone(), tell));
    assert_eq!(timeout(PATIENCE, notices.recv()).await?, Some(Notice::Alive));

    let until = Arc::new(Mutex::new(()));
    let held = until.lock().map_err(|_| "poisoned")?;
    let hang = Failing::Hang(Arc::clone(&until));
    plan.set([Fault { call: Some(Call::Wait), nth: 2, failing: hang }]);
    let generating = engine.clone();
    let generation =
        tokio::task::spawn_blocking(move || finish(generate(&generating, request(None, 2))?));
    // It is fed while the engine gets on, and then no more: what came before is heard first.
    while plan.left() > 0 {
        timeout(PATIENCE, notices.recv()).await?.ok_or("the watch ended")?;
    }
    while timeout(WATCHDOG * 2, notices.recv()).await.is_ok() {}
    drop(held);
    assert_eq!(timeout(PATIENCE, notices.recv()).await?, Some(Notice::Alive));
    generation.await??;
    stop.cancel();
    watching.await?;
    tokio::task::spawn_blocking(move || join(engine, thread)).await?
}

/// What a daemon tells the service manager, one message after the other.
fn told(notify: &UnixDatagram) -> Result<String, Failure> {
    let mut buffer = [0; 4096];
    let count = notify.recv(&mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..count]).into_owned())
}

fn hobd(model: &Path, folder: &Path) -> Command {
    let mut command = Command::new("systemd-socket-activate");
    command.arg("--listen").arg(folder.join("hob.sock"));
    for name in ["NOTIFY_SOCKET", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"] {
        command.arg("--setenv").arg(name); // nothing else passes
    }
    for name in ["LD_LIBRARY_PATH", "VK_DRIVER_FILES", "VK_ICD_FILENAMES", "PATH"] {
        if std::env::var_os(name).is_some() {
            command.arg("--setenv").arg(name);
        }
    }
    command.arg("--setenv").arg(format!("WATCHDOG_USEC={}", WATCHDOG.as_micros()));
    command.arg(env!("CARGO_BIN_EXE_hobd")).arg("--model").arg(model);
    command
        .env("NOTIFY_SOCKET", folder.join("notify"))
        .env("XDG_CACHE_HOME", folder)
        .env("XDG_CONFIG_HOME", folder)
        .stderr(Stdio::null());
    command
}

#[test]
fn a_socket_of_systemd_is_served_and_readiness_status_and_watchdog_are_told() -> Result<(), Failure>
{
    let folder = tempfile::tempdir()?;
    let [model, _] = tiny::write(folder.path());
    let notify = UnixDatagram::bind(folder.path().join("notify"))?;
    notify.set_read_timeout(Some(PATIENCE))?;
    let activator = hobd(&model, folder.path()).spawn();
    let _running = Running(activator.map_err(|error| {
        format!("cannot start systemd-socket-activate: {error}. Debian: apt install systemd")
    })?);
    let socket = folder.path().join("hob.sock");
    let started = Instant::now();
    let mut stream = loop {
        match UnixStream::connect(&socket) {
            Ok(stream) => break stream,
            Err(error) if started.elapsed() > PATIENCE => return Err(error.into()),
            Err(_) => std::thread::yield_now(),
        }
    };
    // What is asked before there is a daemon waits for it.
    stream.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"status\"}\n")?;
    let mut messages = Vec::new();
    while !messages.iter().any(|message: &String| message.contains("READY=1")) {
        messages.push(told(&notify)?);
    }
    let loading = messages.iter().any(|m| m.starts_with("STATUS=loading the model: "));
    assert!(loading, "{messages:?}");
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line)?;
    assert!(line.contains("\"id\":1,\"result\""), "{line}");
    messages.clear();
    let fed = |messages: &[String]| messages.iter().filter(|m| *m == "WATCHDOG=1\n").count();
    while fed(&messages) < 3 {
        messages.push(told(&notify)?);
    }
    let serving = "STATUS=serving llama: 0 sessions, 0 requests running, 0 waiting\n";
    assert!(messages.iter().any(|message| message == serving), "{messages:?}");
    Ok(())
}
