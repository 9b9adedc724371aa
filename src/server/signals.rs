//! SIGTERM and SIGINT: the first stops in order, the second at once.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// Exit status of a process that a signal ended, as shells count it, is 128 plus its number.
const SIGNAL_STATUS: i32 = 128;

/// Cancels the returned token at the first SIGTERM or SIGINT; exits the process at the second.
///
/// # Errors
/// The handlers cannot be installed.
pub fn stop_on_signals() -> io::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let stop = CancellationToken::new();
    let token = stop.clone();
    tokio::spawn(async move {
        loop {
            let kind = tokio::select! {
                _ = terminate.recv() => SignalKind::terminate(),
                _ = interrupt.recv() => SignalKind::interrupt(),
            };
            if token.is_cancelled() {
                warn!("second signal: exiting at once");
                std::process::exit(SIGNAL_STATUS + kind.as_raw_value());
            }
            info!(signal = kind.as_raw_value(), "stopping on a signal");
            token.cancel();
        }
    });
    Ok(stop)
}
