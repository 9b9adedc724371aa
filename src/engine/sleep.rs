//! The machine sleeps: a device may lose what it holds then, or keep the machine awake. Caches go
//! to the host's memory, the model leaves the device, and afterwards all comes back.

use tokio::sync::oneshot;

use super::EngineCommand;
use super::types::{AdmitError, LoadFailure, Owner};
use super::worker::Worker;
use crate::gpu::DeviceError;

/// From the announcement of a sleep to its end.
#[derive(Debug)]
pub(super) struct Asleep {
    /// True if the model was on the device.
    loaded: bool,
    /// Commands that need the device, in order of arrival.
    postponed: Vec<(Owner, EngineCommand)>,
    /// Whoever waits for the model to be on the device.
    loads: Vec<oneshot::Sender<Result<(), LoadFailure>>>,
}

impl Worker {
    /// Frees the device. Requests that run or wait rest where they are.
    pub(super) fn fall_asleep(&mut self) -> Result<(), DeviceError> {
        if self.asleep.is_some() {
            return Ok(());
        }
        let loaded = self.runner.is_on_device();
        self.asleep = Some(Asleep { loaded, postponed: Vec::new(), loads: Vec::new() });
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
            && let Err(failure) = self.load_unchecked()
        {
            while let Some(generation) = self.waiting.pop_front() {
                self.refuse(generation, AdmitError::NotLoaded(failure.message.clone()));
            }
            self.end_embeddings(&AdmitError::NotLoaded(failure.message));
        }
        for reply in asleep.loads {
            let _ = reply.send(self.load()); // whoever asked may have gone away
        }
        asleep.postponed.into_iter().try_for_each(|(_, command)| self.serve(command))
    }

    /// Loads the model, once the machine is awake.
    pub(super) fn load_when_awake(&mut self, reply: oneshot::Sender<Result<(), LoadFailure>>) {
        match &mut self.asleep {
            Some(asleep) => asleep.loads.push(reply),
            None => drop(reply.send(self.load())), // whoever asked may have gone away
        }
    }

    /// Keeps a user's command that needs the device until the machine is awake. As many as may wait
    /// are kept, in all and of each user.
    pub(super) fn postpone(
        &mut self,
        owner: Owner,
        command: EngineCommand,
    ) -> Option<EngineCommand> {
        let Some(asleep) = &mut self.asleep else { return Some(command) };
        let needs_device = matches!(
            command,
            EngineCommand::Generate { .. }
                | EngineCommand::Embed { .. }
                | EngineCommand::LoadAdapter { .. }
        );
        if !needs_device {
            return Some(command);
        }
        asleep.postponed.retain(|(_, other)| !other.is_abandoned());
        let limit = self.requests_queued_max;
        let waiting = asleep.postponed.iter().filter(|(other, _)| *other == owner).count();
        if waiting >= limit {
            command.refuse(AdmitError::QueueFull { waiting, limit });
        } else {
            asleep.postponed.push((owner, command));
        }
        None
    }
}
