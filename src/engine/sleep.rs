//! The machine sleeps: a device may lose what it holds then, or keep the machine awake. Caches go
//! to the host's memory, the model leaves the device, and afterwards all comes back.

use super::EngineCommand;
use super::types::{AdmitError, EngineEvent};
use super::worker::Worker;
use crate::gpu::DeviceError;

/// From the announcement of a sleep to its end.
#[derive(Debug)]
pub(super) struct Asleep {
    /// Whether the model was on the device.
    loaded: bool,
    /// What came meanwhile and needs the device, in the order in which it came.
    postponed: Vec<EngineCommand>,
}

impl Worker {
    /// Frees the device. Requests that run or wait rest where they are.
    pub(super) fn fall_asleep(&mut self) -> Result<(), DeviceError> {
        if self.asleep.is_some() {
            return Ok(());
        }
        let loaded = self.runner.is_on_device();
        self.asleep = Some(Asleep { loaded, postponed: Vec::new() });
        if !loaded || !self.runner.can_reopen() {
            return Ok(());
        }
        self.all_wait();
        for id in self.sessions.ids() {
            let session = self.sessions.get(id);
            if session.busy || session.traits.ephemeral {
                self.park(id)?;
            }
        }
        self.free_device()?;
        let requests = self.waiting.len();
        tracing::info!(model = self.info.name, requests, "the device is free for the sleep");
        Ok(())
    }

    /// Puts the model back where it was, and lets what rested go on.
    pub(super) fn wake_up(&mut self) -> Result<(), DeviceError> {
        let Some(asleep) = self.asleep.take() else { return Ok(()) };
        if asleep.loaded
            && let Err(failure) = self.load()
        {
            while let Some(generation) = self.waiting.pop_front() {
                self.refuse(generation, AdmitError::NotLoaded(failure.message.clone()));
            }
            self.end_embeddings(&AdmitError::NotLoaded(failure.message));
        }
        asleep.postponed.into_iter().try_for_each(|command| self.serve(command))
    }

    /// Keeps a command that needs the device until the machine is awake.
    pub(super) fn postpone(&mut self, command: EngineCommand) -> Option<EngineCommand> {
        let limit = self.requests_queued_max;
        let Some(asleep) = &mut self.asleep else { return Some(command) };
        let crowded = asleep.postponed.len() >= limit;
        let full = AdmitError::QueueFull { waiting: limit, limit };
        // Who is refused may be gone.
        match command {
            EngineCommand::Generate { events, .. } if crowded => {
                let _ = events.send(EngineEvent::Refused(full));
            }
            EngineCommand::Embed { reply, .. } if crowded => drop(reply.send(Err(full))),
            EngineCommand::Generate { .. }
            | EngineCommand::Embed { .. }
            | EngineCommand::LoadAdapter { .. }
            | EngineCommand::Load { .. } => asleep.postponed.push(command),
            other => return Some(other),
        }
        None
    }
}
