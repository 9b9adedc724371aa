//! Other protocols than JSON-RPC on the same socket, told apart by a connection's first byte.

use std::fmt::Debug;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use rustix::net::RecvFlags;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;

use super::byte_budget::Share;
use super::connection_table::{Busy, Place};
use super::text::Job;
use super::{Models, ServerOptions, Shared};
use crate::engine::{CancelFlag, Owner};

/// Serves connections that do not speak JSON-RPC.
pub trait OtherProtocol: Debug + Send + Sync + 'static {
    /// True if a connection that begins with this byte is for it.
    fn begins_with(&self, first: u8) -> bool;

    /// What a connection is sent that is refused.
    fn refusal(&self, message: &str) -> Vec<u8>;

    /// Serves a connection to its end.
    fn serve(&self, link: Link) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

/// A connection that is handed over, none of it read.
#[derive(Debug)]
pub struct Link {
    /// The connection.
    pub stream: UnixStream,
    /// Who is at its other end.
    pub owner: Owner,
    /// The daemon.
    pub host: Host,
    pub(super) place: Arc<Place>,
}

impl Link {
    /// Makes guards that keep the connection from counting as at rest, as long as one lives.
    pub fn busy(&self) -> impl Fn() -> Busy + Send + Sync + 'static + use<> {
        let place = Arc::clone(&self.place);
        move || place.busy()
    }
}

/// The daemon, as other protocols see it; cheap to clone.
#[derive(Clone, Debug)]
pub struct Host(pub(super) Arc<Shared>);

impl Host {
    /// Its models.
    #[must_use]
    pub fn models(&self) -> &Models {
        &self.0.models
    }

    /// Its limits.
    #[must_use]
    pub fn options(&self) -> &ServerOptions {
        &self.0.options
    }

    /// Work on a text for a user; it ends early when its future is dropped.
    #[must_use]
    pub fn job(&self, owner: Owner) -> Job {
        Job::new(&self.0, owner.uid, &CancelFlag::default())
    }

    /// Memory of a request of a user, none yet.
    #[must_use]
    pub fn share(&self, owner: Owner) -> Share {
        self.0.work.share(owner.uid)
    }

    /// Cancelled once no new requests are to be taken on; those that run are to end.
    #[must_use]
    pub fn stopping(&self) -> &CancellationToken {
        &self.0.stopping
    }

    /// Cancelled once the time for answers is over.
    #[must_use]
    pub fn abandoned(&self) -> &CancellationToken {
        &self.0.abandoned
    }
}

/// The first byte of a connection, which stays unread; `None` if it closes without one.
pub(super) async fn first_byte(stream: &UnixStream) -> Option<u8> {
    let mut byte = [0];
    loop {
        stream.readable().await.ok()?;
        let looked = stream.try_io(Interest::READABLE, || {
            Ok(rustix::net::recv(stream, &mut byte[..], RecvFlags::PEEK)?.0)
        });
        match looked {
            Ok(0) => return None,
            Ok(_) => return Some(byte[0]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}
