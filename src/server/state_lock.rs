//! The lock on the folder of saved sessions: one daemon uses it at a time.
//!
//! The lock file is held by `flock` for the life of the daemon and names its process and socket, so
//! that a daemon is found whose socket is gone. It stays when the daemon ends, and says nothing
//! then: what counts is whether it is held.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use thiserror::Error;
use tracing::{info, warn};

/// Name of the lock file in the folder.
const NAME: &str = "hobd.lock";

/// How long a lock may still be held by a daemon that was killed: until the kernel has taken its
/// device's memory.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long a daemon may save sessions before the next one gives up waiting for it.
const STOPPING_PATIENCE: Duration = Duration::from_secs(600);
const POLL: Duration = Duration::from_millis(20);

/// Longest content that is read: a process, a socket, and a word.
const CONTENT_BYTES_MAX: u64 = 8192;

/// The third line of a daemon that saves its sessions before it ends.
const STOPPING: &str = "stopping";

/// A daemon that holds the lock, as it describes itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// Its process.
    pub pid: Option<i32>,
    /// Its socket.
    pub socket: PathBuf,
    /// True if it is saving its sessions to end.
    pub stopping: bool,
}

/// A state folder that cannot be used.
#[derive(Debug, Error)]
#[error(
    "the folder of saved sessions {} is in use by another hobd{}{}: two would overwrite each \
     other's sessions. Stop that one (`hob stop`), or give this one a folder of its own \
     (state_dir) or none (save_sessions = false)",
    folder.display(), pid_text(holder), socket_text(holder)
)]
pub struct StateInUse {
    /// Folder in question.
    pub folder: PathBuf,
    /// Who uses it.
    pub holder: Holder,
}

fn pid_text(holder: &Holder) -> String {
    holder.pid.map_or_else(String::new, |pid| format!(" (process {pid})"))
}

fn socket_text(holder: &Holder) -> String {
    match holder.socket.as_os_str().is_empty() {
        true => String::new(),
        false => format!(" on {}", holder.socket.display()),
    }
}

/// The lock on a state folder; it ends with this.
#[derive(Debug)]
pub struct StateLock {
    /// `None` where the folder cannot be written: nothing is saved there anyway.
    file: Option<File>,
    socket: PathBuf,
}

impl StateLock {
    /// Takes the lock of a folder, which is made if it is missing. A daemon that is saving its
    /// sessions is waited for.
    ///
    /// # Errors
    /// [`StateInUse`].
    pub fn take(folder: &Path, socket: &Path) -> Result<Self, StateInUse> {
        let socket = std::path::absolute(socket).unwrap_or_else(|_| socket.to_owned());
        let path = folder.join(NAME);
        let file = match open(folder, &path) {
            Ok(file) => file,
            Err(error) => {
                warn!(folder = %folder.display(), %error, "no session can be saved");
                return Ok(Self { file: None, socket });
            }
        };
        wait_for(&file, folder, PATIENCE)?;
        let lock = Self { file: Some(file), socket };
        lock.describe("");
        Ok(lock)
    }

    /// Says that this daemon saves its sessions and ends then.
    pub fn note_stopping(&self) {
        self.describe(STOPPING);
    }

    /// A lock file that cannot be written, such as on a full disk, is a lock all the same.
    fn describe(&self, more: &str) {
        let Some(mut file) = self.file.as_ref() else { return };
        let text = format!("{}\n{}\n{more}\n", std::process::id(), self.socket.display());
        let written = file.set_len(0).and_then(|()| file.rewind());
        if let Err(error) = written.and_then(|()| file.write_all(text.as_bytes())) {
            warn!(%error, "the lock of the saved sessions does not name this process");
        }
    }

    /// The daemon that holds the lock of a folder, if one does.
    #[must_use]
    pub fn holder(folder: &Path) -> Option<Holder> {
        let path = folder.join(NAME);
        let file = File::options()
            .read(true)
            .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
            .open(path)
            .ok()?;
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK) => Some(read(&file)),
            _ => None,
        }
    }
}

fn open(folder: &Path, path: &Path) -> io::Result<File> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
        .open(path)
}

fn wait_for(file: &File, folder: &Path, patience: Duration) -> Result<(), StateInUse> {
    let started = Instant::now();
    let mut told = false;
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => {}
            Ok(()) => return Ok(()),
            Err(error) => {
                // Some file systems know no locks.
                warn!(folder = %folder.display(), %error, "the saved sessions are not locked");
                return Ok(());
            }
        }
        let holder = read(file);
        let patience = if holder.stopping { STOPPING_PATIENCE } else { patience };
        if started.elapsed() >= patience {
            return Err(StateInUse { folder: folder.to_owned(), holder });
        }
        if holder.stopping && !told {
            info!(process = holder.pid, "waiting for another hobd to save its sessions");
            told = true;
        }
        thread::sleep(POLL);
    }
}

fn read(mut file: &File) -> Holder {
    let mut text = String::new();
    // Only for messages; the holder may be just writing it.
    let _ = file.rewind().and_then(|()| file.take(CONTENT_BYTES_MAX).read_to_string(&mut text));
    let mut lines = text.lines();
    let pid = lines.next().and_then(|pid| pid.parse().ok());
    let socket = lines.next().map(PathBuf::from).unwrap_or_default();
    Holder { pid, socket, stopping: lines.next() == Some(STOPPING) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_daemon_uses_a_folder_and_names_itself() {
        let folder = tempfile::tempdir().expect("a folder");
        let state = folder.path().join("state/hob");
        assert_eq!(StateLock::holder(&state), None);
        let lock = StateLock::take(&state, Path::new("/run/x.sock")).expect("nobody has it");
        let own = Holder {
            pid: i32::try_from(std::process::id()).ok(),
            socket: "/run/x.sock".into(),
            stopping: false,
        };
        assert_eq!(StateLock::holder(&state), Some(own.clone()));
        let refused = StateLock::take(&state, Path::new("/run/y.sock")).expect_err("it is held");
        assert_eq!(refused.holder, own);
        let text = refused.to_string();
        assert!(text.contains("/run/x.sock") && text.contains("state_dir"), "{text}");
        drop(lock);
        assert_eq!(StateLock::holder(&state), None);
        StateLock::take(&state, Path::new("/run/y.sock")).expect("nobody has it");
    }

    #[test]
    fn a_daemon_that_is_saving_is_waited_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let lock = StateLock::take(folder.path(), Path::new("a")).expect("nobody has it");
        lock.note_stopping();
        assert!(StateLock::holder(folder.path()).is_some_and(|holder| holder.stopping));
        let state = folder.path().to_owned();
        let waiting = thread::spawn(move || {
            let file = open(&state, &state.join(NAME)).expect("it is there");
            wait_for(&file, &state, Duration::ZERO) // which refuses one that is not ending
        });
        drop(lock);
        waiting.join().expect("no panic").expect("it has ended");
    }

    #[test]
    fn a_folder_that_cannot_be_made_has_nothing_to_lock() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("plain"), b"").expect("written");
        let lock = StateLock::take(&folder.path().join("plain/hob"), Path::new("a"));
        lock.expect("nothing is saved there").note_stopping();
    }
}
