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

use super::{Models, ServerOptions, Shared};
use crate::engine::Owner;

/// Serves connections that do not speak JSON-RPC.
pub trait OtherProtocol: Debug + Send + Sync + 'static {
    /// True if a connection that begins with this byte is for it.
    fn begins_with(&self, first: u8) -> bool;

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
