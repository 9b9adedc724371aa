//! Memory of requests and replies, per user and in all.
//!
//! What a client sends is counted before it is read, and until it is answered; where there is no
//! room, it stays unread. Replies are counted too, but never wait: they exist already, and are
//! read, or their connection ends, within the write timeout.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Share of one user.
const USER_SHARE: usize = 4;

#[derive(Debug, Default)]
struct State {
    all: usize,
    of: HashMap<u32, usize>,
}

/// Bytes in work.
#[derive(Debug)]
pub(super) struct ByteBudget {
    bytes_max: usize,
    state: Mutex<State>,
    freed: Notify,
}

impl ByteBudget {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, state: Mutex::default(), freed: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A share of nothing yet.
    pub(super) fn share(self: &Arc<Self>, uid: u32) -> Share {
        Share { budget: Arc::clone(self), uid, bytes: 0 }
    }

    /// True if `more` bytes fit. A user with nothing in work may have one thing of any size: the
    /// limit of a frame bounds it.
    fn fits(&self, state: &State, uid: u32, own: usize, more: usize) -> bool {
        let held = state.of.get(&uid).copied().unwrap_or(0);
        let alone = held == own;
        alone || (held + more <= self.bytes_max / USER_SHARE && state.all + more <= self.bytes_max)
    }
}

/// Bytes of one request or reply, until it is dropped.
#[derive(Debug)]
pub struct Share {
    budget: Arc<ByteBudget>,
    uid: u32,
    bytes: usize,
}

impl Share {
    /// A share of nothing, of the same user.
    pub(super) fn another(&self) -> Self {
        self.budget.share(self.uid)
    }

    /// Waits until there is room for `bytes` in all.
    pub async fn grow_to(&mut self, bytes: usize) {
        let budget = Arc::clone(&self.budget);
        loop {
            let freed = budget.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            if bytes <= self.bytes {
                return;
            }
            {
                let mut state = budget.state();
                if budget.fits(&state, self.uid, self.bytes, bytes - self.bytes) {
                    return self.set(&mut state, bytes);
                }
            }
            freed.await;
        }
    }

    /// Counts `bytes` in all, whether there is room or not.
    pub(super) fn take(&mut self, bytes: usize) {
        let less = bytes < self.bytes;
        let budget = Arc::clone(&self.budget);
        self.set(&mut budget.state(), bytes);
        if less {
            budget.freed.notify_waiters();
        }
    }

    fn set(&mut self, state: &mut State, bytes: usize) {
        let held = state.of.entry(self.uid).or_default();
        *held = *held - self.bytes + bytes;
        if *held == 0 {
            state.of.remove(&self.uid);
        }
        state.all = state.all - self.bytes + bytes;
        self.bytes = bytes;
    }

    /// What is counted.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.take(0);
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn fits_now(share: &mut Share, bytes: usize) -> bool {
        let growing = std::pin::pin!(share.grow_to(bytes));
        matches!(growing.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(()))
    }

    #[test]
    fn a_user_has_a_quarter_and_hinders_nobody_else() {
        let budget = Arc::new(ByteBudget::new(400));
        let mut first = budget.share(1);
        let mut second = budget.share(1);
        assert!(fits_now(&mut first, 80));
        assert!(!fits_now(&mut second, 21));
        assert!(fits_now(&mut second, 20));
        assert!(fits_now(&mut budget.share(2), 100));
        drop(first);
        assert!(fits_now(&mut second, 100));
        assert_eq!(second.bytes(), 100);
    }

    #[test]
    fn one_of_any_size_fits_who_has_nothing_and_replies_always() {
        let budget = Arc::new(ByteBudget::new(400));
        let mut large = budget.share(1);
        assert!(fits_now(&mut large, 1000));
        let mut reply = budget.share(2);
        reply.take(500);
        assert!(!fits_now(&mut budget.share(2), 1));
        drop(reply);
        assert!(fits_now(&mut budget.share(2), 1));
        drop(large);
        assert_eq!(budget.state().all, 0);
        assert!(budget.state().of.is_empty());
    }

    #[tokio::test]
    async fn who_waits_goes_on_when_there_is_room() {
        let budget = Arc::new(ByteBudget::new(400));
        let mut first = budget.share(1);
        first.take(100);
        let waiting = tokio::spawn({
            let mut second = budget.share(1);
            async move { second.grow_to(50).await }
        });
        tokio::task::yield_now().await;
        drop(first);
        waiting.await.expect("it goes on");
    }
}
