//! `hob stop`: ends the daemon, which saves its sessions first.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::args::GlobalOptions;
use super::{CliError, daemon, exit, output};

/// How long the daemon may take: it saves sessions meanwhile.
const TIMEOUT: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };

pub(crate) fn run(global: &GlobalOptions) -> Result<u8, CliError> {
    let daemon = daemon::connect(global)?.daemon.server;
    let failed = |source: Errno| CliError::Stop { pid: daemon.pid, source: source.into() };
    let raw = i32::try_from(daemon.pid).ok().and_then(Pid::from_raw);
    let pid = raw.ok_or_else(|| failed(Errno::SRCH))?;
    // It can be read once the process has ended, whoever waits for that.
    let process = pidfd_open(pid, PidfdFlags::empty()).map_err(failed)?;
    pidfd_send_signal(&process, Signal::TERM).map_err(failed)?;
    let mut ended = [PollFd::new(&process, PollFlags::IN)];
    if poll(&mut ended, Some(&TIMEOUT)).map_err(failed)? == 0 {
        return Err(failed(Errno::TIMEDOUT));
    }
    output::note(&format_args!("hobd (process {}) has stopped", daemon.pid));
    Ok(exit::DONE)
}
