//! A client's stream as hyper wants it, and what else is to be known of it.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep};

/// How often a client is looked at whose request is being answered: whether it is still there.
const HANG_UP_POLL: Duration = Duration::from_millis(50);

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Between two requests.
    Idle,
    /// Some of a request's head has come.
    Head,
    /// A request is being read or answered.
    Busy,
}

/// The stream.
pub(super) struct Io {
    stream: Arc<UnixStream>,
    phase: watch::Sender<Phase>,
    /// How long a client may read nothing of what is to be written.
    patience: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Io {
    pub(super) fn new(
        stream: Arc<UnixStream>,
        phase: watch::Sender<Phase>,
        patience: Duration,
    ) -> Self {
        Self { stream, phase, patience, stalled: None }
    }

    /// Tries to write until something is written; an error once nothing was for too long.
    fn poll_with(
        &mut self,
        cx: &mut Context<'_>,
        write: impl Fn(&UnixStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            match self.stream.poll_write_ready(cx) {
                Poll::Pending => return self.poll_stalled(cx).map(Err),
                Poll::Ready(ready) => ready?,
            }
            match write(&self.stream) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => {
                    self.stalled = None;
                    return Poll::Ready(written);
                }
            }
        }
    }

    fn poll_stalled(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let patience = self.patience;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(patience)));
        ready!(stalled.as_mut().poll(cx));
        let message = format!("the client left what waits for it unread for {patience:?}");
        Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, message))
    }
}

impl AsyncRead for Io {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.stream.poll_read_ready(cx))?;
            match self.stream.try_read_buf(buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
                Ok(count) => {
                    self.phase.send_if_modified(|phase| {
                        let begins = count > 0 && *phase == Phase::Idle;
                        if begins {
                            *phase = Phase::Head;
                        }
                        begins
                    });
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

impl AsyncWrite for Io {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_with(cx, |stream| stream.try_write(bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_with(cx, |stream| stream.try_write_vectored(bytes))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        use rustix::net::{Shutdown, shutdown};
        Poll::Ready(shutdown(&*self.stream, Shutdown::Write).map_err(io::Error::from))
    }
}

/// Waits until a client is gone while a request of its is answered, or takes too long over a
/// request's head. One that has only closed its sending side still reads.
pub(super) async fn lost(
    stream: &UnixStream,
    mut phase: watch::Receiver<Phase>,
    head_patience: Duration,
) -> &'static str {
    loop {
        let now = *phase.borrow_and_update();
        let changed = match now {
            Phase::Idle => phase.changed().await,
            Phase::Head => {
                let deadline = Instant::now() + head_patience;
                match tokio::time::timeout_at(deadline, phase.changed()).await {
                    Err(_) => return "the head of a request took too long",
                    Ok(changed) => changed,
                }
            }
            Phase::Busy => tokio::select! {
                changed = phase.changed() => changed,
                () = hung_up(stream) => return "the client has hung up",
            },
        };
        if changed.is_err() {
            return std::future::pending().await; // the connection itself has ended
        }
    }
}

async fn hung_up(stream: &UnixStream) {
    loop {
        match stream.ready(Interest::WRITABLE).await {
            Ok(ready) if !ready.is_write_closed() => sleep(HANG_UP_POLL).await,
            _ => return,
        }
    }
}
