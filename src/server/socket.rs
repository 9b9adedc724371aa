//! The socket's path: who may serve it, and leaving it clean.
//!
//! A lock file beside the socket, held by `flock` for the life of the daemon, decides between two
//! daemons; the kernel lets go of it however the holder ends. The lock file itself stays: removing
//! it would let two daemons hold locks on different files of one name.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use interprocess::local_socket::{GenericFilePath, ListenerOptions, ToFsName};
use interprocess::os::unix::local_socket::ListenerOptionsExt;
use interprocess::os::unix::uds_local_socket::tokio::Listener;
use listenfd::ListenFd;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::fs::{FlockOperation, flock};
use thiserror::Error;
use tracing::{debug, warn};

use crate::config::SOCKET_BYTES_MAX;

/// Time an ending daemon may still hold its lock.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);
const LOCK_POLL: Duration = Duration::from_millis(20);

/// Only the owner may connect.
const SOCKET_MODE: u32 = 0o600;

/// A socket that cannot be served.
#[derive(Debug, Error)]
pub enum SocketError {
    /// Longer than the kernel takes.
    #[error(
        "the socket path {} has {found} bytes; at most {SOCKET_BYTES_MAX} are possible",
        path.display()
    )]
    PathTooLong {
        /// Path in question.
        path: PathBuf,
        /// Length.
        found: usize,
    },
    /// Another daemon serves it.
    #[error("hobd is running already{} on {}", pid_text(*pid), path.display())]
    AlreadyRunning {
        /// Path of the socket.
        path: PathBuf,
        /// The other's process id, where it is known.
        pid: Option<i32>,
    },
    /// Something that is no socket lies there.
    #[error("{} exists and is not a socket; it was left alone", path.display())]
    NotASocket {
        /// Path in question.
        path: PathBuf,
    },
    /// Others could put a socket of their own into the folder.
    #[error("the folder {} is not safe for a socket: {reason}", path.display())]
    UnsafeFolder {
        /// Folder in question.
        path: PathBuf,
        /// Reason.
        reason: String,
    },
    /// A call failed.
    #[error("cannot {attempt} {}: {source}", path.display())]
    Io {
        /// Operation attempted.
        attempt: &'static str,
        /// Object of the operation.
        path: PathBuf,
        /// Reason for the failure.
        source: io::Error,
    },
}

fn pid_text(pid: Option<i32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" (process {pid})"))
}

fn failed(attempt: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SocketError {
    let path = path.to_owned();
    move |source| SocketError::Io { attempt, path, source }
}

/// A listening socket.
#[derive(Debug)]
pub struct BoundSocket {
    listener: Listener,
    path: PathBuf,
    /// Held for a socket that this process bound; `None` for one of the service manager's.
    claim: Option<Claim>,
}

#[derive(Debug)]
struct Claim {
    /// Keeps the lock.
    _lock: File,
    device: u64,
    inode: u64,
}

impl BoundSocket {
    /// Takes the service manager's socket where it passed one, else binds `path`.
    ///
    /// # Errors
    /// As [`Self::bind`], or the passed descriptor is no Unix stream socket.
    pub fn adopt_or_bind(path: &Path) -> Result<Self, SocketError> {
        let passed = ListenFd::from_env()
            .take_unix_listener(0)
            .map_err(failed("take the service manager's socket for", path))?;
        match passed {
            Some(listener) => Self::adopt(listener, path),
            None => Self::bind(path),
        }
    }

    /// Serves a socket that is listening already. `path` is for messages, where it has no name.
    ///
    /// # Errors
    /// The descriptor cannot be used.
    pub fn adopt(
        listener: std::os::unix::net::UnixListener,
        path: &Path,
    ) -> Result<Self, SocketError> {
        let address = listener.local_addr().map_err(failed("look at", path))?;
        let path = address.as_pathname().unwrap_or(path).to_owned();
        let listener = Listener::try_from(OwnedFd::from(listener))
            .map_err(failed("listen on the passed socket", &path))?;
        debug!(path = %path.display(), "serving the service manager's socket");
        Ok(Self { listener, path, claim: None })
    }

    /// Binds `path`, mode 0600, in a folder that is created (0700) if it is missing. A socket that
    /// a dead daemon left is replaced. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// Another daemon serves it, something else lies there, or the folder is not safe.
    pub fn bind(path: &Path) -> Result<Self, SocketError> {
        let found = path.as_os_str().as_bytes().len();
        if found > SOCKET_BYTES_MAX {
            return Err(SocketError::PathTooLong { path: path.to_owned(), found });
        }
        let folder = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        make_folder(folder)?;
        let lock = take_lock(path)?;
        remove_stale(path)?;
        let name = path.to_fs_name::<GenericFilePath>().map_err(failed("name the socket", path))?;
        let listener = ListenerOptions::new()
            .name(name)
            .mode(SOCKET_MODE)
            .reclaim_name(false)
            .create_tokio_as::<Listener>()
            .map_err(failed("listen on", path))?;
        let metadata = fs::symlink_metadata(path).map_err(failed("look at", path))?;
        let claim = Claim { _lock: lock, device: metadata.dev(), inode: metadata.ino() };
        Ok(Self { listener, path: path.to_owned(), claim: Some(claim) })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn listener(&self) -> &Listener {
        &self.listener
    }

    /// Closes the socket, so that new clients are refused, and unlinks it if it is still ours.
    pub(super) fn stop_listening(self) {}
}

impl Drop for BoundSocket {
    fn drop(&mut self) {
        let Some(claim) = &self.claim else {
            return;
        };
        let ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|found| found.dev() == claim.device && found.ino() == claim.inode);
        if ours && let Err(error) = fs::remove_file(&self.path) {
            warn!(%error, "cannot remove the socket");
        }
    }
}

/// Creates the folder, and refuses one in which others could replace the socket.
fn make_folder(folder: &Path) -> Result<(), SocketError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(failed("create the folder", folder))?;
    let own = rustix::process::geteuid().as_raw();
    let unsafe_for = |reason| SocketError::UnsafeFolder { path: folder.to_owned(), reason };
    // The link's owner counts as well as its target's: either could point elsewhere tomorrow.
    let link = fs::symlink_metadata(folder).map_err(failed("look at", folder))?;
    let target = fs::metadata(folder).map_err(failed("look at", folder))?;
    for metadata in [&link, &target] {
        if metadata.uid() != own && metadata.uid() != 0 {
            return Err(unsafe_for(format!("it belongs to uid {}", metadata.uid())));
        }
    }
    const STICKY: u32 = 0o1000;
    for (bit, who) in [(0o002, "everybody"), (0o020, "its group")] {
        if target.mode() & (bit | STICKY) == bit {
            return Err(unsafe_for(format!("{who} may write to it, and it has no sticky bit")));
        }
    }
    Ok(())
}

/// Takes the lock beside the socket and writes this process's id into it.
fn take_lock(path: &Path) -> Result<File, SocketError> {
    let mut lock_path = path.to_owned().into_os_string();
    lock_path.push(".lock");
    let lock_path = PathBuf::from(lock_path);
    let mut lock = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(SOCKET_MODE)
        .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
        .open(&lock_path)
        .map_err(failed("open the lock file", &lock_path))?;
    match lock_with_patience(&lock) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut text = String::new();
            // Only for the message; the holder may be just writing it.
            let _ = lock.read_to_string(&mut text);
            let pid = text.trim().parse().ok();
            return Err(SocketError::AlreadyRunning { path: path.to_owned(), pid });
        }
        Err(error) => return Err(failed("lock", &lock_path)(error.into())),
    }
    lock.set_len(0)
        .and_then(|()| lock.rewind())
        .and_then(|()| writeln!(lock, "{}", std::process::id()))
        .map_err(failed("write", &lock_path))?;
    Ok(lock)
}

/// Tries for a while: the kernel lets go of the lock of a daemon that was killed only once all of
/// it is gone, device memory included.
fn lock_with_patience(lock: &File) -> Result<(), rustix::io::Errno> {
    let start = Instant::now();
    loop {
        match flock(lock, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) if start.elapsed() < LOCK_PATIENCE => {
                thread::sleep(LOCK_POLL);
            }
            result => return result,
        }
    }
}

/// Removes the socket of a dead daemon. The lock is held, so whoever listens is no hobd that
/// locks; it is left alone all the same.
fn remove_stale(path: &Path) -> Result<(), SocketError> {
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("look at", path)(error)),
    };
    if !metadata.file_type().is_socket() {
        return Err(SocketError::NotASocket { path: path.to_owned() });
    }
    match UnixStream::connect(path) {
        Ok(stream) => {
            let peer = getsockopt(&stream, PeerCredentials).ok();
            let pid = peer.map(|peer| peer.pid()).filter(|pid| *pid > 0);
            Err(SocketError::AlreadyRunning { path: path.to_owned(), pid })
        }
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            debug!(path = %path.display(), "replacing the socket of a dead daemon");
            fs::remove_file(path).map_err(failed("remove the stale socket", path))
        }
        Err(error) => Err(failed("look at the socket", path)(error)),
    }
}
