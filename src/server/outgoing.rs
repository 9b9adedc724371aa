//! What waits to be written to one client: bounded, and never waited for by who adds to it.

use std::collections::VecDeque;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use thiserror::Error;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::byte_budget::Share;

/// What may wait for a client without counting in the memory of all.
const FREE_BYTES: usize = 64 * 1024;

/// Small frames are joined up to this size for one write.
const WRITE_BYTES: usize = 64 * 1024;

/// Reason a client can no longer be written to.
#[derive(Debug, Error)]
pub(super) enum WriteError {
    #[error("the client left what waits for it unread for {0:?}")]
    Timeout(Duration),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Queue of events.
#[derive(Debug)]
pub(super) struct Outgoing {
    bytes_max: usize,
    state: Mutex<State>,
    /// Something was added, or the end was set.
    added: Notify,
    /// Something was taken.
    taken: Notify,
}

#[derive(Debug)]
struct State {
    frames: VecDeque<Vec<u8>>,
    bytes: usize,
    finished: bool,
    /// Where more waits than every client may have.
    share: Share,
}

impl State {
    fn count(&mut self) {
        self.share.take(if self.bytes > FREE_BYTES { self.bytes } else { 0 });
    }
}

impl Outgoing {
    pub(super) fn new(bytes_max: usize, share: Share) -> Self {
        let state = State { frames: VecDeque::new(), bytes: 0, finished: false, share };
        Self { bytes_max, state: Mutex::new(state), added: Notify::new(), taken: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a frame. `false`: it does not fit behind what waits already, the client is too slow.
    /// One frame of any size fits an empty queue.
    #[must_use]
    pub(super) fn push(&self, frame: Vec<u8>) -> bool {
        let mut state = self.state();
        if state.bytes > 0 && state.bytes + frame.len() > self.bytes_max {
            return false;
        }
        state.bytes += frame.len();
        state.frames.push_back(frame);
        state.count();
        drop(state);
        self.added.notify_one();
        true
    }

    /// True if nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.state().bytes == 0
    }

    /// Nothing is added any more: the writer ends when all is written.
    pub(super) fn finish(&self) {
        self.state().finished = true;
        self.added.notify_one();
    }

    /// Waits until at most half of the room is taken, so that replies to what is read next fit.
    pub(super) async fn has_room(&self) {
        loop {
            let taken = self.taken.notified();
            if self.state().bytes <= self.bytes_max / 2 {
                return;
            }
            taken.await;
        }
    }

    /// Next bytes to write; `None` after the last. They count as waiting until [`Self::written`].
    async fn next(&self) -> Option<Vec<u8>> {
        loop {
            let added = self.added.notified();
            {
                let mut state = self.state();
                if let Some(mut chunk) = state.frames.pop_front() {
                    while let Some(frame) = state.frames.front() {
                        if chunk.len() + frame.len() > WRITE_BYTES {
                            break;
                        }
                        chunk.extend_from_slice(frame);
                        state.frames.pop_front();
                    }
                    return Some(chunk);
                }
                if state.finished {
                    return None;
                }
            }
            added.await;
        }
    }

    fn written(&self, bytes: usize) {
        let mut state = self.state();
        state.bytes -= bytes;
        state.count();
        drop(state);
        self.taken.notify_waiters();
    }

    /// Writes until [`Self::finish`]. Each write has to make some progress within `patience`.
    pub(super) async fn write_to(
        &self,
        stream: &mut OwnedWriteHalf,
        patience: Duration,
    ) -> Result<(), WriteError> {
        while let Some(chunk) = self.next().await {
            let mut rest = &chunk[..];
            while !rest.is_empty() {
                let written = timeout(patience, stream.write(rest))
                    .await
                    .map_err(|_| WriteError::Timeout(patience))??;
                if written == 0 {
                    return Err(io::Error::from(io::ErrorKind::WriteZero).into());
                }
                self.written(written);
                rest = &rest[written..];
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::byte_budget::ByteBudget;
    use super::*;

    #[test]
    fn one_frame_of_any_size_fits_and_then_the_limit_holds() {
        let budget = Arc::new(ByteBudget::new(1 << 20));
        let outgoing = Outgoing::new(10, budget.share(1));
        assert!(outgoing.push(vec![0; 100]));
        assert!(!outgoing.push(vec![0; 1]));
        outgoing.written(95);
        assert!(outgoing.push(vec![0; 5]));
        assert!(!outgoing.push(vec![0; 1]));
    }
}
