//! Waiting for commands on a thread of its own, for a limited time.

use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::Receiver;

/// Wakes a thread that is parked.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// What came of waiting.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Received<T> {
    /// A command.
    Command(T),
    /// None, and none can come.
    Closed,
    /// None in time.
    TimedOut,
}

/// Waits for the next command, at most for `limit` where there is one.
pub(super) fn receive<T>(commands: &mut Receiver<T>, limit: Option<Duration>) -> Received<T> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let started = Instant::now();
    loop {
        match commands.poll_recv(&mut context) {
            Poll::Ready(Some(command)) => return Received::Command(command),
            Poll::Ready(None) => return Received::Closed,
            Poll::Pending => {}
        }
        match limit.map(|limit| limit.saturating_sub(started.elapsed())) {
            None => thread::park(),
            Some(Duration::ZERO) => return Received::TimedOut,
            Some(rest) => thread::park_timeout(rest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_ends_the_wait_and_so_do_time_and_the_last_sender() {
        let (sender, mut receiver) = tokio::sync::mpsc::channel(4);
        assert_eq!(
            receive::<u32>(&mut receiver, Some(Duration::from_millis(1))),
            Received::TimedOut
        );
        let other = thread::spawn(move || sender.blocking_send(7));
        assert_eq!(receive(&mut receiver, None), Received::Command(7));
        assert!(other.join().expect("it sends").is_ok());
        assert_eq!(receive(&mut receiver, None), Received::Closed);
    }
}
