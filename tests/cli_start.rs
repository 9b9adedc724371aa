//! `hob run` starts a daemon where none runs.

#![allow(clippy::unwrap_used)]

mod cli_support;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cli_support::{FakeDaemon, Generation, stderr, stdout};
use rustix::process::{Pid, Signal, kill_process};

/// Longest wait for something that takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder with `hob` and, as its `hobd`, this shell script.
struct Install {
    folder: tempfile::TempDir,
}

impl Install {
    fn with_daemon(script: &str) -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        std::fs::hard_link(env!("CARGO_BIN_EXE_hob"), folder.path().join("hob")).unwrap();
        let hobd = folder.path().join("hobd");
        std::fs::write(&hobd, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&hobd, PermissionsExt::from_mode(0o755)).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.path("hob"));
        command.arg("run").args(arguments).stdin(Stdio::null());
        command.env("HOB_SOCKET", self.path("hob.sock")).env("XDG_STATE_HOME", self.path("state"));
        command
    }
}

#[test]
fn it_says_so_and_answers_from_a_daemon_apart_from_the_terminal() {
    // The daemon leaves its arguments and its process id, and "serves" until it is stopped.
    let install = Install::with_daemon(
        "here=$(dirname \"$0\"); echo \"$@\" > \"$here/arguments\"; \
         echo $$ > \"$here/pid.new\"; mv \"$here/pid.new\" \"$here/pid\"; exec sleep 600",
    );
    let mut command = install.run(&["--model", "model.gguf", "hello"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let pid: i32 = read_when_there(&install.path("pid")).trim().parse().unwrap();
    let socket = install.path("hob.sock");
    let _daemon = FakeDaemon::start_on(&socket, Generation::Answer(&["hi"]), true);
    let output = child.wait_with_output().unwrap();
    let session = session_of(pid);
    kill_process(Pid::from_raw(pid).unwrap(), Signal::TERM).unwrap();

    assert_eq!(stdout(&output), "hi\n");
    let log = install.path("state/hob/hobd.log");
    let told = stderr(&output);
    assert!(told.contains("no daemon answers on") && told.contains("starting"), "{told}");
    assert!(told.contains(log.to_str().unwrap()), "{told}");
    assert_eq!(session, pid, "the daemon leads a session of its own");
    assert_eq!(std::fs::metadata(log).unwrap().permissions().mode() & 0o777, 0o600);
    let model = std::env::current_dir().unwrap().join("model.gguf");
    let arguments = format!("--socket {} --model {}\n", socket.display(), model.display());
    assert_eq!(std::fs::read_to_string(install.path("arguments")).unwrap(), arguments);
}

#[test]
fn a_daemon_that_fails_is_told_with_the_end_of_its_log() {
    let install = Install::with_daemon("echo loading; echo 'model.gguf: not a GGUF file'; exit 78");
    let output = install.run(&["hello"]).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let told = stderr(&output);
    assert!(told.contains("hobd ended (exit status: 78)"), "{told}");
    assert!(told.ends_with("loading\nmodel.gguf: not a GGUF file\n"), "{told}");
}

#[test]
fn a_stale_socket_starts_a_daemon_too() {
    let install = Install::with_daemon("echo started; exit 1");
    drop(std::os::unix::net::UnixListener::bind(install.path("hob.sock")).unwrap());
    let output = install.run(&["hello"]).output().unwrap();
    assert!(stderr(&output).ends_with("started\n"), "{}", stderr(&output));
}

fn read_when_there(path: &Path) -> String {
    let start = Instant::now();
    loop {
        if let Ok(text) = std::fs::read_to_string(path) {
            return text;
        }
        assert!(start.elapsed() < PATIENCE, "{} does not appear", path.display());
        std::thread::yield_now();
    }
}

/// Session id of a process: the fourth field behind its name in /proc/PID/stat.
fn session_of(pid: i32) -> i32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let behind_name = stat.rsplit_once(')').unwrap().1;
    behind_name.split_whitespace().nth(3).unwrap().parse().unwrap()
}
