//! Waiting on a thread of its own, for a limited time.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use super::queue::{CommandReceiver, Received};

/// Wakes a thread that is parked.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// What came of waiting for a command.
#[derive(Debug)]
pub(super) enum Waited {
    /// A command arrived.
    Received(Received),
    /// None, and none can come.
    Closed,
    /// None in time.
    TimedOut,
}

/// Waits for the next command, at most for `limit` where there is one.
pub(super) fn receive(commands: &mut CommandReceiver, limit: Option<Duration>) -> Waited {
    match park_until(limit, |context| commands.poll_next(context)) {
        Some(Some(received)) => Waited::Received(received),
        Some(None) => Waited::Closed,
        None => Waited::TimedOut,
    }
}

/// Waits for a future on this thread.
pub(super) fn wait_for<T>(mut future: Pin<&mut impl Future<Output = T>>) -> T {
    loop {
        if let Some(value) = park_until(None, |context| future.as_mut().poll(context)) {
            return value;
        }
    }
}

/// Polls whenever this thread is woken; `None` when the time is over.
fn park_until<T>(
    limit: Option<Duration>,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Option<T> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let started = Instant::now();
    loop {
        if let Poll::Ready(value) = poll(&mut context) {
            return Some(value);
        }
        match limit.map(|limit| limit.saturating_sub(started.elapsed())) {
            None => thread::park(),
            Some(Duration::ZERO) => return None,
            Some(rest) => thread::park_timeout(rest),
        }
    }
}
