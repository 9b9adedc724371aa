//! A daemon that uses this user's saved sessions, though nobody answers where its socket was: a
//! logout removes the folder of the sockets. The lock on the sessions names its process.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use super::CliError;
use crate::config::{Places, load};
use crate::server::{Holder, StateLock};

/// Refuses to start a second daemon beside one that uses this user's saved sessions, unless that
/// one is about to end.
pub(crate) fn check_none(tried: &[PathBuf]) -> Result<(), CliError> {
    let Some(Holder { pid, socket, stopping: false }) = holder() else { return Ok(()) };
    if tried.contains(&socket) && UnixStream::connect(&socket).is_ok() {
        return Ok(()); // it has just been started, and will answer
    }
    let is_gone = UnixStream::connect(&socket).is_err();
    Err(CliError::LostDaemon { pid: pid.unwrap_or(0), socket, is_gone })
}

/// The process of a daemon whose socket is gone.
pub(crate) fn process() -> Option<i32> {
    let Holder { pid, socket, stopping: _ } = holder()?;
    let pid = pid.filter(|pid| *pid > 0)?;
    // The lock is held; but by whom a file says, which may have come from another machine.
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    (name.trim_end() == "hobd" && UnixStream::connect(socket).is_err()).then_some(pid)
}

fn holder() -> Option<Holder> {
    let places = Places::of_this_process();
    // A configuration that cannot be read is hobd's to complain of.
    let config = load(None, &places).unwrap_or_default();
    StateLock::holder(&places.state_dir(&config)?)
}
