//! Ctrl-C: the first one cancels what is watched, any other ends the process.

use std::io;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use super::CliError;
use super::client::Incoming;
use super::exit;

type Target = Arc<Mutex<Option<Sender<Incoming>>>>;

/// Catches SIGINT from its creation to the end of the process.
#[derive(Debug)]
pub(crate) struct Interrupts {
    target: Target,
}

impl Interrupts {
    /// Starts catching SIGINT.
    pub(crate) fn catch() -> Result<Self, CliError> {
        let target = Target::default();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|source| CliError::Signals { source })?;
        let mut signals = {
            let _context = runtime.enter();
            tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt())
                .map_err(|source| CliError::Signals { source })?
        };
        let watched = Arc::clone(&target);
        thread::Builder::new()
            .name("interrupts".into())
            .spawn(move || {
                runtime.block_on(async {
                    while signals.recv().await.is_some() {
                        deliver(&watched);
                    }
                })
            })
            .map_err(|source: io::Error| CliError::Signals { source })?;
        Ok(Self { target })
    }

    /// Sends the next interrupt to `receiver` instead of ending the process, for the guard's life.
    pub(crate) fn watch(&self, receiver: Sender<Incoming>) -> Watch {
        *self.target.lock().unwrap_or_else(PoisonError::into_inner) = Some(receiver);
        Watch { target: Arc::clone(&self.target) }
    }
}

/// Ends the watching when dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    target: Target,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.target.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

fn deliver(target: &Target) {
    let watched = target.lock().unwrap_or_else(PoisonError::into_inner).take();
    let delivered = watched.is_some_and(|receiver| receiver.send(Incoming::Interrupted).is_ok());
    if !delivered {
        std::process::exit(exit::CANCELLED.into());
    }
}
