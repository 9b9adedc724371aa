//! hobd's end, and a second one beside it: nothing is lost without a word, and no session is
//! overwritten.
#![allow(clippy::unwrap_used)]

mod cli_support;
mod hobd_support;
#[path = "common/random.rs"]
mod random;
#[path = "idea/tiny.rs"]
mod tiny;

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use cli_support::{hob, stderr};
use hobd_support::{Daemon, hobd};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

fn start(folder: &Path) -> Daemon {
    let [model, _] = tiny::write(folder);
    let mut command = hobd(folder);
    command.arg("--model").arg(model).args(["--self-check", "never"]);
    Daemon::start_by(command, folder)
}

/// `hob` of the user whose daemon has its files in this folder.
fn at(folder: &Path, arguments: &[&str]) -> Output {
    let mut command: Command = hob(arguments);
    for kind in ["CONFIG", "CACHE", "STATE", "DATA"] {
        command.env(format!("XDG_{kind}_HOME"), folder);
    }
    command.env("HOB_SOCKET", folder.join("hob.sock")).output().unwrap()
}

fn keep_notes(daemon: &mut Daemon) {
    daemon.result("session.create", json!({"name": "notes"}));
    let tokens: Vec<u32> = (4..24).collect();
    let params = json!({"session": "notes", "tokens": tokens, "max_tokens": 1});
    daemon.result("generate", params);
}

#[test]
fn what_is_lost_is_named_by_hob_stop_and_shows_in_the_exit_statuses() {
    let folder = tempfile::tempdir().unwrap();
    let mut daemon = start(folder.path());
    keep_notes(&mut daemon);
    // Whoever the tests run as, no folder can be made there.
    let _ = fs::remove_dir_all(folder.path().join("hob/sessions"));
    fs::write(folder.path().join("hob/sessions"), b"no folder").unwrap();
    let output = at(folder.path(), &["stop"]);
    let told = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("\"notes\"") && told.contains("was not saved"), "{told}");
    assert!(told.contains("1 of the daemon's sessions"), "{told}");
    assert_eq!(daemon.child.wait().unwrap().code(), Some(74));
}

#[test]
fn without_time_for_caches_hob_stop_says_so_and_the_session_is_back() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("hobd.toml");
    fs::write(&config, "save_timeout_ms = 0\n").unwrap();
    let [model, _] = tiny::write(folder.path());
    let start = || {
        let mut command = hobd(folder.path());
        command.arg("--model").arg(&model).arg("--config").arg(&config);
        Daemon::start_by(command, folder.path())
    };
    let mut daemon = start();
    keep_notes(&mut daemon);
    let output = at(folder.path(), &["stop"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(daemon.child.wait().unwrap().code(), Some(0));
    let mut daemon = start();
    let list = daemon.result("session.list", json!({}));
    assert_eq!(
        (&list["sessions"][0]["name"], &list["sessions"][0]["tokens"]),
        (&json!("notes"), &json!(20))
    );
    daemon.stop();
}

#[test]
fn a_hangup_stops_in_order_unless_it_is_ignored() {
    let folder = tempfile::tempdir().unwrap();
    // The tests themselves may run under `nohup`.
    let by = |program: &[&str]| {
        let [model, _] = tiny::write(folder.path());
        let (mut command, plain) = (Command::new(program[0]), hobd(folder.path()));
        command.args(&program[1..]).arg(plain.get_program()).args(plain.get_args());
        command.arg("--model").arg(model).args(["--self-check", "never"]);
        for (name, value) in plain.get_envs() {
            command.env(name, value.unwrap());
        }
        Daemon::start_by(command, folder.path())
    };
    let mut daemon = by(&["env", "--default-signal=HUP"]);
    keep_notes(&mut daemon);
    kill_process(Pid::from_child(&daemon.child), Signal::HUP).unwrap();
    assert_eq!(daemon.child.wait().unwrap().code(), Some(0));

    let mut daemon = by(&["nohup"]);
    let list = daemon.result("session.list", json!({}));
    assert_eq!(list["sessions"][0]["tokens"], 20, "{list}");
    kill_process(Pid::from_child(&daemon.child), Signal::HUP).unwrap();
    daemon.result("session.list", json!({}));
    assert_eq!(daemon.stop().0, Some(0));
}

#[test]
fn a_second_daemon_does_not_share_saved_sessions() {
    let folder = tempfile::tempdir().unwrap();
    let mut daemon = start(folder.path());
    let mut second = second(folder.path());
    let output = second.output().unwrap();
    let told = stderr(&output);
    assert_eq!(output.status.code(), Some(73), "{told}");
    let first = format!("(process {})", daemon.child.id());
    assert!(told.contains("in use by another hobd") && told.contains(&first), "{told}");
    assert!(told.contains("hob.sock") && told.contains("state_dir"), "{told}");
    keep_notes(&mut daemon);
    assert_eq!(daemon.stop().0, Some(0));
}

/// The same user's daemon on another socket.
fn second(folder: &Path) -> Command {
    let like = hobd(folder);
    let mut command = Command::new(like.get_program());
    command.arg("--socket").arg(folder.join("second.sock"));
    command.arg("--model").arg(folder.join("llama.gguf"));
    for (name, value) in like.get_envs() {
        command.env(name, value.unwrap());
    }
    command
}

#[test]
fn a_daemon_whose_socket_is_gone_is_found_and_can_be_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let mut daemon = start(folder.path());
    keep_notes(&mut daemon);
    fs::remove_file(folder.path().join("hob.sock")).unwrap(); // as a logout does
    let output = at(folder.path(), &["run", "hello"]);
    let told = stderr(&output);
    assert_eq!(output.status.code(), Some(3), "{told}");
    let process = format!("hobd (process {})", daemon.child.id());
    assert!(told.contains(&process) && told.contains("is gone"), "{told}");
    let output = at(folder.path(), &["stop"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(daemon.child.wait().unwrap().code(), Some(0));
    let mut daemon = start(folder.path());
    let list = daemon.result("session.list", json!({}));
    assert_eq!(list["sessions"][0]["name"], "notes", "{list}");
    daemon.stop();
}

/// Saves the session, and puts a pipe where its file is written next: a disk that stands still
/// until somebody reads it.
fn stall(daemon: &mut Daemon, folder: &Path) -> PathBuf {
    daemon.result("session.save", json!({"session": "notes"}));
    let model = fs::read_dir(folder.join("hob/sessions")).unwrap().next().unwrap().unwrap().path();
    let file = fs::read_dir(model).unwrap().next().unwrap().unwrap().path();
    let pipe = file.with_extension("tmp");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
    let params = json!({"session": "notes", "tokens": [4, 5, 9, 9], "max_tokens": 1});
    daemon.result("generate", params);
    pipe
}

#[test]
fn a_disk_that_stands_still_is_given_up_after_a_time() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("hob")).unwrap();
    fs::write(folder.path().join("hob/hobd.toml"), "save_timeout_ms = 500\n").unwrap();
    let mut daemon = start(folder.path());
    keep_notes(&mut daemon);
    stall(&mut daemon, folder.path());
    let output = at(folder.path(), &["stop"]);
    let told = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("was not saved: there was no time left"), "{told}");
    assert_eq!(daemon.child.wait().unwrap().code(), Some(74));
}

#[test]
fn the_service_manager_is_asked_for_time_while_sessions_are_saved() {
    let folder = tempfile::tempdir().unwrap();
    let notify = UnixDatagram::bind(folder.path().join("notify")).unwrap();
    let [model, _] = tiny::write(folder.path());
    let mut command = hobd(folder.path());
    command.arg("--model").arg(model).args(["--self-check", "never"]);
    command.env("NOTIFY_SOCKET", folder.path().join("notify"));
    let told = std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        let mut texts = Vec::new();
        while !texts.iter().any(|text: &String| text.contains("EXTEND_TIMEOUT_USEC=15000000")) {
            let count = notify.recv(&mut buffer).unwrap();
            texts.push(String::from_utf8_lossy(&buffer[..count]).into_owned());
        }
        texts
    });
    let mut daemon = Daemon::start_by(command, folder.path());
    keep_notes(&mut daemon);
    let pipe = stall(&mut daemon, folder.path());
    kill_process(Pid::from_child(&daemon.child), Signal::TERM).unwrap();
    let told = told.join().unwrap();
    assert!(told.iter().any(|text| text.contains("STOPPING=1")), "{told:?}");
    // What the pipe takes is on no disk, so it is written once more.
    fs::read(pipe).unwrap();
    assert_eq!(daemon.child.wait().unwrap().code(), Some(0));
}
