//! `hob` in front of a socket on which somebody else than the user's daemon may listen.
#![allow(clippy::unwrap_used)]

mod cli_support;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use cli_support::{CLAIMED_PID, FakeDaemon, Generation, hob, stderr, stdout};

/// Variable with the socket on which this program is to pose as a daemon.
const SOCKET: &str = "HOB_TEST_POSE_ON";

/// A user that owns nothing here.
const OTHER_UID: u32 = 54_321;

/// No test of its own: a process that the tests below start.
#[test]
fn pose_as_a_daemon() {
    let Some(socket) = std::env::var_os(SOCKET) else { return };
    let _daemon = FakeDaemon::start_on(Path::new(&socket), Generation::Answer(&["forged"]), true);
    println!("listening");
    loop {
        std::thread::park();
    }
}

/// Starts a process that poses as a daemon which has the id of another process.
fn pose(socket: &Path, claimed: u32, uid: Option<u32>) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "pose_as_a_daemon", "--nocapture"]);
    command.env(SOCKET, socket).env(CLAIMED_PID, claimed.to_string()).stdout(Stdio::piped());
    if let Some(uid) = uid {
        command.uid(uid).gid(uid);
    }
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("listening")), "it never listened");
    child
}

#[test]
fn stop_ends_the_process_that_answers_and_none_that_it_names() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("hob.sock");
    let mut bystander = Command::new("sleep").arg("600").spawn().unwrap();
    let mut poser = pose(&socket, bystander.id(), None);
    let output = hob(&["stop"]).env("HOB_SOCKET", &socket).output().unwrap();
    let bystanders_end = bystander.try_wait().unwrap();
    bystander.kill().unwrap();
    bystander.wait().unwrap();
    assert_eq!(bystanders_end, None, "the daemon's word ended another process");
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(poser.wait().unwrap().signal(), Some(15), "who answers is who ends");
}

#[test]
fn another_users_daemon_is_told_no_prompt() {
    if !rustix::process::geteuid().is_root() {
        return; // only root can start a process of another user
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let socket = folder.path().join("hob.sock");
    let mut poser = pose(&socket, 1, Some(OTHER_UID));
    let output = hob(&["run", "--raw", "a secret"]).env("HOB_SOCKET", &socket).output().unwrap();
    poser.kill().unwrap();
    poser.wait().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert_eq!(stdout(&output), "", "nothing forged reaches the user");
    assert!(stderr(&output).contains("uid 54321 serves"), "{}", stderr(&output));
}
