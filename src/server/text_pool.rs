//! Whose text is worked on next: short texts and long ones each have threads of their own, and
//! users take turns.
//!
//! A place bounds the memory of the work as well: at most [`LONG_PLACES_MAX`] long texts are taken
//! apart at once, whoever sent them.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// A text up to this size waits for no longer one.
pub(super) const SHORT_BYTES_MAX: usize = 64 * 1024;

const SHORT_PLACES: usize = 3;

/// Half of the processors, at most.
const LONG_PLACES_MAX: usize = 3;

/// Work of one size.
#[derive(Debug)]
struct Lane {
    free: usize,
    /// By user, in the order in which they came.
    waiting: BTreeMap<u32, VecDeque<oneshot::Sender<Permit>>>,
    /// The user who was served last.
    last: u32,
}

impl Lane {
    fn new(places: usize) -> Self {
        Self { free: places, waiting: BTreeMap::new(), last: 0 }
    }

    /// The first who waits of the user whose turn it is.
    fn next(&mut self) -> Option<oneshot::Sender<Permit>> {
        let behind = self.waiting.range((Excluded(self.last), Unbounded)).next();
        let (&uid, _) = behind.or_else(|| self.waiting.first_key_value())?;
        self.last = uid;
        let queue = self.waiting.get_mut(&uid)?;
        let next = queue.pop_front();
        if queue.is_empty() {
            self.waiting.remove(&uid);
        }
        next
    }
}

/// Places for work on texts.
#[derive(Clone, Debug)]
pub(super) struct TextPool {
    lanes: Arc<[Mutex<Lane>; 2]>,
}

impl TextPool {
    pub(super) fn new(processors: usize) -> Self {
        let long = (processors / 2).clamp(1, LONG_PLACES_MAX);
        let lanes = [SHORT_PLACES, long].map(|places| Mutex::new(Lane::new(places)));
        Self { lanes: Arc::new(lanes) }
    }

    fn lane(&self, at: usize) -> MutexGuard<'_, Lane> {
        self.lanes[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a place for `bytes` of text; whoever stops waiting leaves the queue.
    pub(super) async fn admit(&self, uid: u32, bytes: usize) -> Permit {
        let at = usize::from(bytes > SHORT_BYTES_MAX);
        let place = {
            let mut lane = self.lane(at);
            if lane.free > 0 {
                lane.free -= 1;
                return Permit { pool: Some(self.clone()), at };
            }
            let (sender, place) = oneshot::channel();
            lane.waiting.entry(uid).or_default().push_back(sender);
            place
        };
        place.await.expect("a sender is only taken out of the queue to send")
    }

    /// Hands a place that is free again to the next who still waits.
    fn free(&self, at: usize) {
        loop {
            let next = {
                let mut lane = self.lane(at);
                let next = lane.next();
                if next.is_none() {
                    lane.free += 1;
                }
                next
            };
            let Some(next) = next else { return };
            let permit = Permit { pool: Some(self.clone()), at };
            match next.send(permit) {
                Ok(()) => return,
                // Nobody waits there any more; the place goes to another one.
                Err(mut permit) => permit.pool = None,
            }
        }
    }
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(super) struct Permit {
    /// `None`: the place was not handed over.
    pool: Option<TextPool>,
    at: usize,
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.take() {
            pool.free(self.at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    const LONG: usize = SHORT_BYTES_MAX + 1;

    type Waiting = Pin<Box<dyn Future<Output = Permit>>>;

    fn wait(pool: &TextPool, uid: u32, bytes: usize) -> Waiting {
        let pool = pool.clone();
        let mut waiting: Waiting = Box::pin(async move { pool.admit(uid, bytes).await });
        assert!(ready(&mut waiting).is_none(), "there was a place");
        waiting
    }

    fn ready(waiting: &mut Waiting) -> Option<Permit> {
        match waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(permit) => Some(permit),
            Poll::Pending => None,
        }
    }

    #[tokio::test]
    async fn a_short_text_waits_for_no_long_one() {
        let pool = TextPool::new(2);
        let _held = pool.admit(1, LONG).await;
        let _waiting: Vec<_> = (0..16).map(|_| wait(&pool, 1, LONG)).collect();
        let _place = pool.admit(1, SHORT_BYTES_MAX).await;
    }

    #[tokio::test]
    async fn users_take_turns() {
        let pool = TextPool::new(2);
        let held = pool.admit(1, LONG).await;
        let mut flood: Vec<_> = (0..16).map(|_| wait(&pool, 1, LONG)).collect();
        let mut other = wait(&pool, 2, LONG);
        drop(held);
        let place = ready(&mut other).or_else(|| ready(&mut flood[0]));
        drop(place);
        let next = ready(&mut other).or_else(|| ready(&mut flood[0]));
        drop(next);
        let served = flood[2..].iter_mut().filter_map(ready).count();
        assert_eq!(served, 0, "the other user came second at the latest");
    }

    #[tokio::test]
    async fn who_stops_waiting_keeps_no_place() {
        let pool = TextPool::new(2);
        let held = pool.admit(1, LONG).await;
        drop(wait(&pool, 1, LONG));
        let mut last = wait(&pool, 1, LONG);
        drop(held);
        let place = ready(&mut last).expect("handed on");
        // One that was handed a place and never looked gives it back.
        let unseen = wait(&pool, 1, LONG);
        drop(place);
        drop(unseen);
        pool.admit(1, LONG).await;
    }
}
