//! SIGTERM, SIGINT and SIGHUP: the first stops in order, a second SIGTERM or SIGINT at once.

use std::fs;
use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// Exit status of a process that a signal ended, as shells count it, is 128 plus its number.
const SIGNAL_STATUS: i32 = 128;

/// Cancels the returned token at the first SIGTERM, SIGINT or SIGHUP; exits the process at a second
/// SIGTERM or SIGINT. A terminal that closes may send SIGHUP more than once, so a second one is no
/// order to hurry. Where SIGHUP is ignored, as under `nohup`, it stays so.
///
/// # Errors
/// The handlers cannot be installed.
pub fn stop_on_signals() -> io::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let is_ignored = fs::read_to_string("/proc/self/status")
        .is_ok_and(|status| ignores(&status, SignalKind::hangup()));
    let mut hangup = match is_ignored {
        true => None,
        false => Some(signal(SignalKind::hangup())?),
    };
    let stop = CancellationToken::new();
    let token = stop.clone();
    tokio::spawn(async move {
        loop {
            let kind = tokio::select! {
                _ = terminate.recv() => SignalKind::terminate(),
                _ = interrupt.recv() => SignalKind::interrupt(),
                () = receive(&mut hangup) => SignalKind::hangup(),
            };
            if token.is_cancelled() {
                if kind == SignalKind::hangup() {
                    continue;
                }
                warn!("second signal: exiting at once");
                std::process::exit(SIGNAL_STATUS + kind.as_raw_value());
            }
            info!(signal = kind.as_raw_value(), "stopping on a signal");
            token.cancel();
        }
    });
    Ok(stop)
}

async fn receive(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// True if the process whose `/proc/PID/status` this is ignores a signal.
fn ignores(status: &str, kind: SignalKind) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (kind.as_raw_value() - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_signal_is_known_by_its_bit() {
        let status = "Name:\thobd\nSigBlk:\t0000000000000001\nSigIgn:\t0000000000001001\n";
        assert!(ignores(status, SignalKind::hangup()));
        assert!(!ignores(status, SignalKind::interrupt()));
        assert!(!ignores("", SignalKind::hangup()));
    }
}
