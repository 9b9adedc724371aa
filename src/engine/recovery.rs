//! A lost device, a hung one, and one that computes nonsense: all end with a new device.
//!
//! What is on the device is thrown away and loaded again. A running request keeps its tokens and
//! its sampler; its session's cache is empty, so its next steps evaluate prompt and answer once
//! more. They give the same bits as before, whatever the batches are, and the stream goes on with
//! the token that it would have had.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use thiserror::Error;

use super::open_error::OpenError;
use super::worker::Worker;
use crate::gpu::DeviceError;
use crate::model::ModelLoadError;

/// The engine gives up at this many losses within [`LOSSES_WINDOW`].
const LOSSES_MAX: usize = 3;

/// Time window in which device losses are counted.
const LOSSES_WINDOW: Duration = Duration::from_secs(600);

/// Reason the engine ended.
#[derive(Debug, Error)]
pub enum EngineFailure {
    /// The device failed, and there is no way to open it again.
    #[error("the device failed: {0}")]
    Device(#[source] DeviceError),
    /// The device failed too often.
    #[error("the device failed {LOSSES_MAX} times in ten minutes, last: {0}")]
    Losses(#[source] DeviceError),
    /// The model could not be loaded again.
    #[error("the device failed, and then the model did not load again: {0}")]
    Reload(#[source] Box<OpenError>),
}

/// When the device was lost lately.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// Oldest first; at most [`LOSSES_MAX`].
    times: VecDeque<Instant>,
    /// The last rebuild for logits that are not numbers.
    bad_logits: Option<Instant>,
}

impl Losses {
    /// Notes a loss; whether there may be another attempt.
    fn note(&mut self, now: Instant) -> bool {
        self.times.retain(|time| now.duration_since(*time) < LOSSES_WINDOW);
        self.times.push_back(now);
        self.times.len() < LOSSES_MAX
    }

    /// True if bad logits are worth a rebuild: not where one was tried lately. A prompt that always
    /// gives them must not take the device from everybody else again and again.
    pub(super) fn may_rebuild_for_logits(&self, now: Instant) -> bool {
        self.bad_logits.is_none_or(|time| now.duration_since(time) >= LOSSES_WINDOW)
    }

    /// Notes a rebuild for bad logits; it counts as no loss, since the model may be at fault.
    fn note_bad_logits(&mut self, now: Instant) {
        self.bad_logits = Some(now);
    }
}

impl Worker {
    /// Opens a device that failed again and loads the model onto it.
    ///
    /// # Errors
    /// [`EngineFailure`]; nothing more can be done.
    pub(super) fn recover(&mut self, error: DeviceError) -> Result<(), EngineFailure> {
        let mut error = error;
        for attempt in 0_u32.. {
            let started = Instant::now();
            tracing::error!(%error, "the device failed");
            let again = self.losses.note(started);
            if !self.runner.can_reopen() {
                return Err(EngineFailure::Device(error));
            }
            if !again {
                return Err(EngineFailure::Losses(error));
            }
            if attempt > 0 {
                std::thread::sleep(self.reopen_pause);
            }
            match self.rebuild() {
                Ok(()) => return Ok(()),
                Err(OpenError::Device(next) | OpenError::Model(ModelLoadError::Device(next))) => {
                    error = next;
                }
                Err(other) => return Err(EngineFailure::Reload(Box::new(other))),
            }
        }
        unreachable!("losses are counted")
    }

    /// Opens the device again because it computed what is no number.
    ///
    /// # Errors
    /// As [`Self::recover`].
    pub(super) fn recover_from_bad_logits(&mut self) -> Result<(), EngineFailure> {
        tracing::error!("the device computed logits that are not numbers");
        self.losses.note_bad_logits(Instant::now());
        match self.rebuild() {
            Ok(()) => Ok(()),
            Err(OpenError::Device(error) | OpenError::Model(ModelLoadError::Device(error))) => {
                self.recover(error)
            }
            Err(other) => Err(EngineFailure::Reload(Box::new(other))),
        }
    }

    /// True if a rebuild may cure logits that are not numbers.
    pub(super) fn can_rebuild_for_logits(&self) -> bool {
        self.runner.can_reopen() && self.losses.may_rebuild_for_logits(Instant::now())
    }

    /// Puts requests that run back to those that wait, and before them: they are admitted again in
    /// their order.
    pub(super) fn all_wait(&mut self) {
        while let Some(generation) = self.running.pop() {
            self.waiting.push_front(generation);
        }
    }

    fn rebuild(&mut self) -> Result<(), OpenError> {
        let started = Instant::now();
        // The pages went with the device: what they held is computed again when it is needed.
        for id in self.sessions.ids() {
            self.sessions.get_mut(id).lease = None;
        }
        self.flying = None; // its tokens are computed again
        self.all_wait();
        let heartbeat = self.heartbeat.clone();
        self.runner.put_on(self.budget.reserve(), &mut |_, _| heartbeat.beat())?;
        self.totals.recoveries += 1;
        let seconds = started.elapsed().as_secs_f64();
        let requests = self.waiting.len();
        tracing::warn!(seconds, requests, "the device is open again, and requests go on");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_third_loss_within_ten_minutes_is_the_last() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut losses = Losses::default();
        assert!(losses.note(at(0)));
        assert!(losses.note(at(300)));
        assert!(losses.note(at(601)), "the first is forgotten");
        assert!(losses.note(at(901)), "and so is the second");
        assert!(!losses.note(at(902)));
    }

    #[test]
    fn bad_logits_are_worth_one_rebuild_in_ten_minutes() {
        let start = Instant::now();
        let mut losses = Losses::default();
        assert!(losses.may_rebuild_for_logits(start));
        losses.note_bad_logits(start);
        assert!(!losses.may_rebuild_for_logits(start + Duration::from_secs(599)));
        assert!(losses.may_rebuild_for_logits(start + Duration::from_secs(600)));
    }
}
