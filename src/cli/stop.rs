//! `hob stop`: ends the daemon, which saves its sessions first, and tells what it could not save.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, RawPid, Signal, pidfd_open, pidfd_send_signal};

use super::args::GlobalOptions;
use super::client::{Client, ClientError};
use super::{CliError, daemon, exit, lost_daemon, output};
use crate::protocol::{NoParams, NotSaved, RequestId, StopReport, method};

/// How long the daemon may take once it has told what it could not save.
const TIMEOUT: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };

/// The same of a daemon that cannot tell: it saves sessions meanwhile.
const UNHEARD_TIMEOUT: Timespec = Timespec { tv_sec: 600, tv_nsec: 0 };

pub(crate) fn run(global: &GlobalOptions) -> Result<u8, CliError> {
    let mut client = match daemon::connect(global) {
        Ok(connection) => Some(connection.client),
        Err(CliError::Client(ClientError::Unreachable { socket, source })) => {
            let lost = lost_daemon::process();
            let pid = lost.ok_or(ClientError::Unreachable { socket, source })?;
            output::note(&format_args!("the socket of hobd (process {pid}) is gone"));
            return end(None, pid);
        }
        Err(error) => return Err(error),
    };
    // The process that answered, not the one it says it is: it could name any.
    let raw = client.as_ref().and_then(Client::daemon_pid);
    let raw = raw.ok_or(CliError::Stop { pid: 0, source: Errno::SRCH.into() })?;
    end(client.as_mut(), raw)
}

/// Ends a process and tells what it could not save.
fn end(mut client: Option<&mut Client>, raw: RawPid) -> Result<u8, CliError> {
    let pid = raw.cast_unsigned();
    let failed = |source: Errno| CliError::Stop { pid, source: source.into() };
    let process = Pid::from_raw(raw).ok_or_else(|| failed(Errno::SRCH))?;
    // It can be read once the process has ended, whoever waits for that.
    let process = pidfd_open(process, PidfdFlags::empty()).map_err(failed)?;
    let asked = client.as_deref_mut().map(ask_for_report).transpose()?;
    // The number may have been another process's by then: it is the daemon's if that answers still.
    if client.as_ref().is_some_and(|client| client.daemon_pid() != Some(raw)) {
        return Err(failed(Errno::SRCH));
    }
    pidfd_send_signal(&process, Signal::TERM).map_err(failed)?;
    let report: Option<StopReport> = match (client, &asked) {
        (Some(client), Some(id)) => client.finish(method::STOP_REPORT, id).ok(),
        _ => None,
    };
    let timeout = if report.is_some() { &TIMEOUT } else { &UNHEARD_TIMEOUT };
    let mut ended = [PollFd::new(&process, PollFlags::IN)];
    if poll(&mut ended, Some(timeout)).map_err(failed)? == 0 {
        return Err(failed(Errno::TIMEDOUT));
    }
    output::note(&format_args!("hobd (process {pid}) has stopped"));
    tell(&report.unwrap_or_default().not_saved)
}

/// Asks what the daemon will not have saved; it has heard that when this returns.
fn ask_for_report(client: &mut Client) -> Result<RequestId, CliError> {
    let id = client.begin(method::STOP_REPORT, &NoParams {})?;
    client.initialize()?; // frames are read in their order
    Ok(id)
}

/// Names what was not saved.
fn tell(not_saved: &[NotSaved]) -> Result<u8, CliError> {
    for NotSaved { session, uid, name, model, lost, reason } in not_saved {
        let name = name.as_ref().map_or_else(String::new, |name| format!(" ({name:?})"));
        let what = match lost {
            true => "was not saved",
            false => "was saved without its cache, which will be computed again",
        };
        let text = format!("session {session}{name} of uid {uid}, model {model}, {what}: {reason}");
        output::note(&output::on_one_line(&text));
    }
    match not_saved.iter().filter(|session| session.lost).count() {
        0 => Ok(exit::DONE),
        count => Err(CliError::NotSaved { count }),
    }
}
