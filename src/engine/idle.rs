//! A model that nobody uses leaves the device, and comes back with the next request.

use std::time::Instant;

use super::recovery::EngineFailure;
use super::types::SessionAction;
use super::worker::Worker;
use super::{EngineCommand, KvPages};
use crate::gpu::DeviceError;

impl Worker {
    /// Takes the model off the device. Sessions' caches go where those go that the device has no
    /// room for, the one unused for longest first.
    pub(super) fn unload(&mut self) -> Result<(), DeviceError> {
        for id in self.sessions.by_last_use().into_iter().rev() {
            self.park(id)?;
        }
        // What `status` tells meanwhile.
        self.totals = self.status();
        self.totals.loaded = false;
        self.totals.device_bytes = 0;
        self.totals.kv_tokens_used = 0;
        self.totals.kv_pages = KvPages::default();
        self.runner.take_off();
        tracing::info!("nobody uses the model: it has left the device");
        Ok(())
    }

    /// Puts the model back on the device, if it is not there and the command needs it there.
    ///
    /// # Errors
    /// [`EngineFailure`], as a lost device that does not open again.
    pub(super) fn load_for(&mut self, command: &EngineCommand) -> Result<(), EngineFailure> {
        let needed = match command {
            EngineCommand::Generate { .. } => true,
            EngineCommand::OnSession { action, .. } => matches!(action, SessionAction::Fork { .. }),
            _ => false,
        };
        if !needed || self.runner.is_on_device() {
            return Ok(());
        }
        let started = Instant::now();
        self.reload()?;
        self.last_busy = Instant::now();
        let seconds = started.elapsed().as_secs_f64();
        tracing::info!(seconds, "the model is on the device again");
        Ok(())
    }
}
