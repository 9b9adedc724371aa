//! The machine's sleep, as a logind of the test announces it on a bus of the test's own.
#![allow(clippy::unwrap_used)]

#[path = "engine_support/mod.rs"]
mod engine_support;
#[path = "common/random.rs"]
mod random;
#[path = "idea/tiny.rs"]
mod tiny;

use std::fs;
use std::io::{BufRead as _, BufReader, PipeReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use engine_support::{Engine, prompt, request, small_pool};
use hob::server::{Models, follow_sleep};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use zbus::OwnedFd;
use zbus::{Connection, connection};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

const PATH: &str = "/org/freedesktop/login1";
const MANAGER: &str = "org.freedesktop.login1.Manager";

/// A bus that ends with the test.
struct Bus {
    daemon: Child,
    address: String,
}

impl Bus {
    fn start(folder: &Path) -> Self {
        let config = folder.join("bus.conf");
        let text = format!(
            "<busconfig><listen>unix:dir={}</listen><policy context=\"default\">\
             <allow own=\"*\"/><allow send_destination=\"*\"/><allow receive_sender=\"*\"/>\
             </policy></busconfig>",
            folder.display()
        );
        fs::write(&config, text).unwrap();
        let mut daemon = Command::new("dbus-daemon")
            .args(["--nofork", "--print-address=1", "--config-file"])
            .arg(&config)
            .stdout(Stdio::piped())
            .spawn()
            .expect("dbus-daemon, which tests/make/deps.sh installs");
        let mut address = String::new();
        BufReader::new(daemon.stdout.take().unwrap()).read_line(&mut address).unwrap();
        Self { daemon, address: address.trim().to_owned() }
    }
}

impl Drop for Bus {
    fn drop(&mut self) {
        let _ = self.daemon.kill(); // it may be gone
        let _ = self.daemon.wait();
    }
}

/// What logind was asked for: the words, and an end of a pipe that closes when who asked lets go.
type Delay = ([String; 2], PipeReader);

/// As much of logind as there has to be.
struct Logind {
    delays: mpsc::UnboundedSender<Delay>,
}

#[zbus::interface(name = "org.freedesktop.login1.Manager")]
impl Logind {
    fn inhibit(&self, what: String, _who: String, _why: String, mode: String) -> OwnedFd {
        let (kept, given) = std::io::pipe().unwrap();
        self.delays.send(([what, mode], kept)).unwrap();
        OwnedFd::from(std::os::fd::OwnedFd::from(given))
    }
}

async fn logind(address: &str) -> (Connection, mpsc::UnboundedReceiver<Delay>) {
    let (delays, asked) = mpsc::unbounded_channel();
    let bus = connection::Builder::address(address)
        .serve_at(PATH, Logind { delays })
        .name("org.freedesktop.login1")
        .build()
        .await
        .unwrap();
    (bus, asked)
}

#[test]
fn the_machine_sleeps_once_the_device_is_free_and_finds_it_loaded_afterwards() {
    let folder = tempfile::tempdir().unwrap();
    let bus = Bus::start(folder.path());
    let runtime = Runtime::new().unwrap();
    let (logind, mut asked) = runtime.block_on(logind(&bus.address));
    let engine = Engine::start_to_reload(&small_pool());
    let stop = CancellationToken::new();
    let models = Models::single(engine.handle.clone());
    let following = runtime.spawn(follow_sleep(Some(bus.address.clone()), models, stop.clone()));
    let mut delay = || {
        let delay = runtime.block_on(async { timeout(PATIENCE, asked.recv()).await });
        let (words, pipe) = delay.expect("it asks").expect("logind lives");
        assert_eq!(words, ["sleep", "delay"]);
        pipe
    };
    let announce = |sleeps: bool| {
        let signal = logind.emit_signal(None::<&str>, PATH, MANAGER, "PrepareForSleep", &sleeps);
        runtime.block_on(signal).unwrap();
    };
    let first = engine.run(request(None, &prompt(1, 50), 3));
    for _ in 0..2 {
        let mut held = delay();
        assert!(engine.status().loaded);
        announce(true);
        // Until the pipe is closed, the machine waits.
        assert_eq!(held.read(&mut [0]).unwrap(), 0);
        assert!(!engine.status().loaded, "the device is free by then");
        announce(false);
        while !engine.status().loaded {
            std::thread::yield_now();
        }
        assert_eq!(engine.run(request(None, &prompt(1, 50), 3)).tokens, first.tokens);
    }
    drop(delay());
    stop.cancel();
    runtime.block_on(async { timeout(PATIENCE, following).await }).expect("it ends").unwrap();
    engine.stop();
}

#[test]
fn without_a_bus_nothing_happens() {
    let engine = Engine::start_to_reload(&small_pool());
    let models = Models::single(engine.handle.clone());
    let nowhere = "unix:path=/nonexistent/bus".to_owned();
    let following = follow_sleep(Some(nowhere), models, CancellationToken::new());
    let ended = async { timeout(PATIENCE, following).await };
    Runtime::new().unwrap().block_on(ended).expect("it ends");
    assert!(engine.status().loaded);
    engine.stop();
}
