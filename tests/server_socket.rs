//! Who may serve a socket, and what is left behind.
#![allow(clippy::unwrap_used)]

mod server_support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hob::config::Config;
use hob::http::Http;
use hob::server::{BoundSocket, Models, ServeEnd, Served, ServerOptions, SocketError, serve};
use serde_json::json;
use server_support::{Client, HOLD, Mock, PATIENCE, code};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

struct Daemon {
    stop: CancellationToken,
    task: JoinHandle<Served>,
    mock: Mock,
}

impl Daemon {
    fn start(socket: BoundSocket) -> Self {
        let mock = Mock::start();
        let stop = CancellationToken::new();
        let options = ServerOptions::from(&Config::default());
        let task = tokio::spawn(serve(
            socket,
            Models::single(mock.handle.clone()),
            Some(Arc::new(Http::default())),
            options,
            stop.clone(),
        ));
        Self { stop, task, mock }
    }

    async fn ended(self) -> ServeEnd {
        timeout(PATIENCE, self.task).await.unwrap().unwrap().end
    }
}

async fn answers(path: &Path) -> bool {
    let mut client = Client::new(UnixStream::connect(path).await.unwrap());
    client.call("status", json!({})).await["result"].is_object()
}

fn in_folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run/hob/hob.sock");
    (folder, path)
}

#[tokio::test]
async fn the_socket_is_the_owners_alone() {
    let (_folder, path) = in_folder();
    let socket = BoundSocket::bind(&path).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o600);
    assert_eq!(mode(path.parent().unwrap()), 0o700);
    drop(socket);
    assert!(!path.exists());
}

#[tokio::test]
async fn a_second_daemon_is_refused_and_harms_nothing() {
    let (_folder, path) = in_folder();
    let daemon = Daemon::start(BoundSocket::bind(&path).unwrap());
    let inode = fs::metadata(&path).unwrap().ino();
    let error = BoundSocket::bind(&path).unwrap_err();
    let pid = i32::try_from(std::process::id()).unwrap();
    assert!(
        matches!(error, SocketError::AlreadyRunning { pid: Some(found), .. } if found == pid),
        "{error}"
    );
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    assert_eq!(fs::metadata(&path).unwrap().ino(), inode);
    assert!(answers(&path).await);
    daemon.stop.cancel();
    assert_eq!(daemon.ended().await, ServeEnd::Stopped);
    assert!(!path.exists());
    // The lock went with it.
    BoundSocket::bind(&path).unwrap();
}

#[tokio::test]
async fn whoever_listens_without_a_lock_is_left_alone_too() {
    let (_folder, path) = in_folder();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let _other = std::os::unix::net::UnixListener::bind(&path).unwrap();
    assert!(matches!(BoundSocket::bind(&path), Err(SocketError::AlreadyRunning { .. })));
    assert!(std::os::unix::net::UnixStream::connect(&path).is_ok());
}

#[tokio::test]
async fn a_stale_socket_is_replaced() {
    let (_folder, path) = in_folder();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "closing does not unlink: as after a crash");
    let daemon = Daemon::start(BoundSocket::bind(&path).unwrap());
    assert!(answers(&path).await);
    daemon.stop.cancel();
    daemon.ended().await;
}

#[tokio::test]
async fn what_is_no_socket_is_left_alone() {
    let (_folder, path) = in_folder();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, "a letter").unwrap();
    assert!(matches!(BoundSocket::bind(&path), Err(SocketError::NotASocket { .. })));
    assert_eq!(fs::read_to_string(&path).unwrap(), "a letter");
    fs::remove_file(&path).unwrap();
    symlink("/dev/null", &path).unwrap();
    assert!(matches!(BoundSocket::bind(&path), Err(SocketError::NotASocket { .. })));
}

#[tokio::test]
async fn folders_that_others_write_to_and_long_paths_are_refused() {
    let (folder, path) = in_folder();
    let parent = path.parent().unwrap();
    fs::create_dir_all(parent).unwrap();
    for mode in [0o777, 0o770, 0o702] {
        fs::set_permissions(parent, PermissionsExt::from_mode(mode)).unwrap();
        let refused = matches!(BoundSocket::bind(&path), Err(SocketError::UnsafeFolder { .. }));
        assert!(refused, "{mode:o}");
    }
    fs::set_permissions(parent, PermissionsExt::from_mode(0o1777)).unwrap();
    BoundSocket::bind(&path).unwrap();
    let long = folder.path().join("x".repeat(108));
    assert!(matches!(BoundSocket::bind(&long), Err(SocketError::PathTooLong { .. })));
}

#[tokio::test]
async fn a_socket_that_was_replaced_is_not_unlinked() {
    let (_folder, path) = in_folder();
    let socket = BoundSocket::bind(&path).unwrap();
    fs::remove_file(&path).unwrap();
    fs::write(&path, "another's").unwrap();
    drop(socket);
    assert_eq!(fs::read_to_string(&path).unwrap(), "another's");
}

#[tokio::test]
async fn a_passed_socket_is_served_and_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hob.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    listener.set_nonblocking(true).unwrap();
    let daemon = Daemon::start(BoundSocket::adopt(listener, Path::new("unnamed")).unwrap());
    assert!(answers(&path).await);
    daemon.stop.cancel();
    assert_eq!(daemon.ended().await, ServeEnd::Stopped);
    assert!(path.exists(), "it belongs to the service manager");
}

#[tokio::test]
async fn the_stop_unlinks_answers_and_refuses_new_clients() {
    let (_folder, path) = in_folder();
    let mut daemon = Daemon::start(BoundSocket::bind(&path).unwrap());
    let mut client = Client::new(UnixStream::connect(&path).await.unwrap());
    client.ask(1, "generate", json!({"tokens": [HOLD]})).await;
    timeout(PATIENCE, daemon.mock.arrived.recv()).await.unwrap();
    daemon.stop.cancel();
    assert_eq!(client.message().await["result"]["finish_reason"], "cancelled");
    assert_eq!(daemon.ended().await, ServeEnd::Stopped);
    assert!(UnixStream::connect(&path).await.is_err());
}

#[tokio::test]
async fn the_server_ends_with_the_engine() {
    let (_folder, path) = in_folder();
    let daemon = Daemon::start(BoundSocket::bind(&path).unwrap());
    let mut client = Client::new(UnixStream::connect(&path).await.unwrap());
    assert!(client.call("status", json!({})).await["result"].is_object());
    let commands = daemon.mock.handle.commands.clone();
    commands.control(hob::engine::Control::Shutdown).unwrap();
    assert_eq!(daemon.ended().await, ServeEnd::EngineGone);
    assert_eq!(client.next().await.map(|reply| code(&reply)), None);
}
