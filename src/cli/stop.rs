//! `hob stop`: ends the daemon, which saves its sessions first.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::args::GlobalOptions;
use super::{CliError, daemon, exit, output};

/// How long the daemon may take: it saves sessions meanwhile.
const TIMEOUT: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };

pub(crate) fn run(global: &GlobalOptions) -> Result<u8, CliError> {
    let mut connection = daemon::connect(global)?;
    let said = connection.daemon.server.pid;
    let failed = |source: Errno| CliError::Stop { pid: said, source: source.into() };
    // The process that answered, not the one it says it is: it could name any.
    let raw = connection.client.daemon_pid().ok_or_else(|| failed(Errno::SRCH))?;
    let pid = Pid::from_raw(raw).ok_or_else(|| failed(Errno::SRCH))?;
    // It can be read once the process has ended, whoever waits for that.
    let process = pidfd_open(pid, PidfdFlags::empty()).map_err(failed)?;
    // The number may have been another process's by then: it is the daemon's if that answers still.
    connection.client.initialize()?;
    if connection.client.daemon_pid() != Some(raw) {
        return Err(failed(Errno::SRCH));
    }
    pidfd_send_signal(&process, Signal::TERM).map_err(failed)?;
    let mut ended = [PollFd::new(&process, PollFlags::IN)];
    if poll(&mut ended, Some(&TIMEOUT)).map_err(failed)? == 0 {
        return Err(failed(Errno::TIMEDOUT));
    }
    output::note(&format_args!("hobd (process {raw}) has stopped"));
    Ok(exit::DONE)
}
