//! A model leaves the device when it is told to, or when nobody has used it for some time, and
//! comes back when it is told to, or with the next request.
//!
//! Sessions stay: their caches go where those go that the device has no room for, and what finds no
//! room there is computed again when it is needed.

use std::time::Instant;

use super::KvPages;
use super::open_error::OpenError;
use super::types::LoadFailure;
use super::worker::Worker;
use crate::gpu::DeviceError;
use crate::model::ModelLoadError;

impl Worker {
    /// True if the model is on the device, nobody waits for it, and it could come back.
    pub(super) fn can_unload(&self) -> bool {
        self.is_idle() && self.runner.is_on_device() && self.runner.can_reopen()
    }

    /// Takes the model off the device, if it [can be unloaded](Self::can_unload); the caches unused
    /// for longest are the first that find no room elsewhere.
    pub(super) fn unload(&mut self) -> Result<(), DeviceError> {
        if !self.can_unload() {
            return Ok(());
        }
        self.free_device()?;
        tracing::info!(model = self.info.name, "the model has left the device");
        Ok(())
    }

    /// Moves caches and model out of the device's memory.
    pub(super) fn free_device(&mut self) -> Result<(), DeviceError> {
        for id in self.sessions.by_last_use().into_iter().rev() {
            self.park(id)?;
        }
        // What `status` tells meanwhile.
        self.totals = self.status();
        self.totals.device_bytes = 0;
        self.totals.kv_tokens_used = 0;
        self.totals.kv_pages = KvPages::default();
        self.runner.take_off();
        Ok(())
    }

    /// Puts the model on the device, where it is not, unless another file has taken its place.
    pub(super) fn load(&mut self) -> Result<(), LoadFailure> {
        if self.runner.is_on_device() {
            return Ok(());
        }
        self.runner.check_place().map_err(|error| {
            tracing::warn!(model = self.info.name, %error, "the model is not loaded again");
            LoadFailure::from(&error)
        })?;
        self.load_unchecked()
    }

    /// The same for requests that have begun with this very file.
    pub(super) fn load_unchecked(&mut self) -> Result<(), LoadFailure> {
        let (started, heartbeat) = (Instant::now(), self.heartbeat.clone());
        let loaded = self.runner.put_on(self.budget.reserve(), &mut |_, _| heartbeat.beat());
        loaded.map_err(|error| {
            tracing::warn!(model = self.info.name, %error, "the model cannot be loaded again");
            LoadFailure::from(&error)
        })?;
        self.last_busy = Instant::now();
        let seconds = started.elapsed().as_secs_f64();
        tracing::info!(model = self.info.name, seconds, "the model is on the device again");
        Ok(())
    }
}

impl From<&OpenError> for LoadFailure {
    fn from(error: &OpenError) -> Self {
        let no_room = match error {
            OpenError::Model(ModelLoadError::TooLarge { .. }) => true,
            OpenError::Device(error) | OpenError::Model(ModelLoadError::Device(error)) => {
                matches!(error, DeviceError::OutOfMemory { .. })
            }
            _ => false,
        };
        let replaced = matches!(error, OpenError::Changed { .. } | OpenError::Replaced { .. });
        Self { message: error.to_string(), no_room, replaced }
    }
}
