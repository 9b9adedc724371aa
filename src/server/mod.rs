//! The server: one Unix socket, many connections, several requests in flight on each.
//!
//! The only async code. It owns connections, their limits and the life of a request; it knows
//! nothing of the model but the [`EngineHandle`]. The engine never waits for a client: what a
//! client does not read queues up to a limit, then its connection is dropped.
//!
//! Reading order: [`BoundSocket`] (who may serve this path), [`serve`] (accept, stop),
//! `connection` (one client), `methods` and `generate` (one request).

mod access;
mod byte_budget;
mod connection;
mod connection_table;
mod constraints;
mod conversation;
mod embed;
mod ending;
mod frame_reader;
mod generate;
mod library;
mod literal;
mod log_limit;
mod lora;
mod methods;
mod metrics;
mod models;
mod other;
mod outgoing;
mod peer_groups;
mod privacy;
mod replaced;
mod sessions;
mod shift;
mod signals;
mod sleep;
mod socket;
mod state_lock;
pub mod text;
mod text_pool;
mod turns;
mod watchdog;

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use interprocess::local_socket::traits::tokio::Listener as _;
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, info, warn};

use crate::config::Config;
use crate::engine::{EngineHandle, Owner};
use crate::protocol::{ErrorCode, ErrorObject, Framing, encode_frame, encode_response};

pub use access::{Access, AccessError, Peer, quotas};
pub use byte_budget::Share;
pub use connection_table::Busy;
pub use conversation::Conversation;
pub use embed::texts_max as embed_texts_max;
pub use ending::{Ending, Farewells, SaveLimits};
pub use generate::log_end;
pub use library::{Library, ModelSpec};
pub use models::{InUse, Models};
pub use other::{Host, Link, OtherProtocol};
pub use signals::stop_on_signals;
pub use sleep::follow_sleep;
pub use socket::{BoundSocket, SocketError};
pub use state_lock::{Holder, StateInUse, StateLock};
pub use turns::Loader;
pub use watchdog::{Notice, watch};

use byte_budget::ByteBudget;
use connection::Connection;
use connection_table::{ConnectionTable, Place, TableLimits};
use log_limit::LogLimit;
use text_pool::TextPool;

/// Pause before accepting again when the process is out of file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Limits of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerOptions {
    /// Largest frame that a client may send.
    pub frame_bytes_max: usize,
    /// Connections at once.
    pub connections_max: u32,
    /// Connections of one user, but for root and the daemon's own; 0: a quarter of all.
    pub user_connections_max: u32,
    /// Requests in flight on one connection.
    pub requests_in_flight_max: usize,
    /// Bytes of requests and replies in work, of all clients.
    pub work_bytes_max: usize,
    /// Bytes that may wait for one client.
    pub outgoing_bytes_max: usize,
    /// Time a client may leave pending output unread.
    pub write_timeout: Duration,
    /// Grace period of running requests after a stop.
    pub shutdown_timeout: Duration,
    /// Sessions at once: the engine's limit, reported by `initialize`.
    pub sessions_max: u32,
    /// Users and groups allowed to connect.
    pub access: Access,
}

impl From<&Config> for ServerOptions {
    fn from(config: &Config) -> Self {
        Self {
            frame_bytes_max: config.frame_bytes_max as usize,
            connections_max: config.connections_max,
            user_connections_max: config.user_connections_max,
            requests_in_flight_max: config.requests_in_flight_max as usize,
            work_bytes_max: (config.work_mib_max as usize) << 20,
            outgoing_bytes_max: config.outgoing_bytes_max as usize,
            write_timeout: Duration::from_millis(config.write_timeout_ms.into()),
            shutdown_timeout: Duration::from_millis(config.shutdown_timeout_ms.into()),
            sessions_max: config.sessions_max,
            access: Access::default(),
        }
    }
}

/// Reason a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServeEnd {
    /// A stop was requested.
    Stopped,
    /// The engine's thread is gone.
    EngineGone,
}

/// How a server ended, and who waits to hear how the daemon does.
#[derive(Debug)]
pub struct Served {
    /// Reason.
    pub end: ServeEnd,
    /// Clients that wait for the report.
    pub farewells: Farewells,
}

/// State shared by all connections.
#[derive(Debug)]
struct Shared {
    models: Models,
    options: ServerOptions,
    connections: Arc<ConnectionTable>,
    refusals: LogLimit,
    texts: TextPool,
    work: Arc<ByteBudget>,
    /// What else than JSON-RPC is spoken on the socket.
    other: Option<Arc<dyn OtherProtocol>>,
    /// No new requests; running ones are cancelled and answered.
    stopping: CancellationToken,
    /// The time for answers is over.
    abandoned: CancellationToken,
    /// Clients that outlive the server.
    farewells: Farewells,
}

/// A server without a socket: it serves streams that it is given.
#[derive(Clone, Debug)]
pub struct Server {
    shared: Arc<Shared>,
    tasks: TaskTracker,
}

impl Server {
    /// A server in front of `engine`. Cancelling `stop` ends it.
    #[must_use]
    pub fn new(engine: EngineHandle, options: ServerOptions, stop: CancellationToken) -> Self {
        Self::with_models(Models::single(engine), options, stop)
    }

    /// A server in front of several models. Cancelling `stop` ends it.
    #[must_use]
    pub fn with_models(models: Models, options: ServerOptions, stop: CancellationToken) -> Self {
        Self::speaking(None, models, options, stop)
    }

    /// The same, with another protocol on the same socket.
    #[must_use]
    pub fn speaking(
        other: Option<Arc<dyn OtherProtocol>>,
        models: Models,
        options: ServerOptions,
        stop: CancellationToken,
    ) -> Self {
        let own = rustix::process::geteuid().as_raw();
        let limits = TableLimits::new(options.connections_max, options.user_connections_max, own);
        let work = Arc::new(ByteBudget::new(options.work_bytes_max));
        let shared = Arc::new(Shared {
            models,
            options,
            connections: Arc::new(ConnectionTable::new(limits)),
            refusals: LogLimit::default(),
            texts: TextPool::new(available_parallelism().map_or(1, Into::into)),
            work,
            other,
            stopping: stop,
            abandoned: CancellationToken::new(),
            farewells: Farewells::default(),
        });
        Self { shared, tasks: TaskTracker::new() }
    }

    /// Serves a connection whose peer the kernel named, if the configuration lets it in.
    pub fn serve_peer(&self, stream: UnixStream, peer: &Peer) {
        let owner = Owner { uid: peer.uid };
        if self.shared.options.access.allows(peer) {
            return self.serve_stream(stream, owner);
        }
        if let Some(left_out) = self.shared.refusals.admit(peer.uid, Instant::now()) {
            warn!(
                uid = peer.uid,
                gid = peer.gid,
                left_out,
                "connection refused: not in allow_users or allow_groups"
            );
        }
        let message = "the configuration of this daemon does not let you in (allow_users, \
                       allow_groups)";
        // It has said nothing yet: its framing is not known, so a line it is.
        refuse(&stream, Framing::Newline, ErrorObject::new(ErrorCode::NOT_ALLOWED, message));
    }

    /// Serves one connection of `owner` in a task of its own.
    pub fn serve_stream(&self, stream: UnixStream, owner: Owner) {
        let place = self.shared.connections.open(owner.uid, Instant::now());
        let shared = Arc::clone(&self.shared);
        self.tasks.spawn(async move { serve_one(&shared, stream, owner, place).await });
    }

    /// Waits until all connections have ended: their running requests are cancelled, answered and
    /// flushed, at most for the shutdown timeout.
    pub async fn drain(&self) {
        self.shared.stopping.cancel();
        self.tasks.close();
        let deadline = Instant::now() + self.shared.options.shutdown_timeout;
        if timeout_at(deadline, self.tasks.wait()).await.is_err() {
            warn!(connections = self.tasks.len(), "shutdown timeout: connections are dropped");
            self.shared.abandoned.cancel();
            self.tasks.wait().await;
        }
    }
}

/// Serves a connection in the protocol that it begins with, once it has begun.
async fn serve_one(shared: &Arc<Shared>, stream: UnixStream, owner: Owner, place: Place) {
    let first = tokio::select! {
        biased;
        () = shared.stopping.cancelled() => return,
        () = place.evicted().cancelled() => return,
        first = other::first_byte(&stream) => first,
    };
    // Who leaves without a word has cost nobody a place.
    let Some(first) = first else { return };
    let other = shared.other.as_ref().filter(|other| other.begins_with(first));
    if let Err(refusal) = place.speak(Instant::now()) {
        if let Some(left_out) = shared.refusals.admit(owner.uid, Instant::now()) {
            warn!(uid = owner.uid, left_out, ?refusal, "connection refused: too many");
        }
        let error = ErrorObject::from(refusal);
        return match other {
            Some(other) => write_now(&stream, &other.refusal(&error.message)),
            None => refuse(&stream, Framing::of(first), error),
        };
    }
    debug!(uid = owner.uid, "connection opened");
    let place = Arc::new(place);
    match other {
        Some(other) => {
            let link =
                Link { stream, owner, host: Host(Arc::clone(shared)), place: Arc::clone(&place) };
            tokio::select! {
                biased;
                () = place.evicted().cancelled() => {}
                () = other.serve(link) => {}
            }
        }
        None => Connection::serve(Arc::clone(shared), stream, owner, place).await,
    }
    debug!(uid = owner.uid, "connection closed");
}

/// Tells a client why it is not served.
fn refuse(stream: &UnixStream, framing: Framing, error: ErrorObject) {
    if let Ok(body) = encode_response::<()>(None, &Err(error)) {
        write_now(stream, &encode_frame(framing, &body));
    }
}

/// Writes the only message of a connection: a new socket's buffer holds it, and a client that is
/// gone already needs none.
fn write_now(stream: &UnixStream, bytes: &[u8]) {
    let _ = rustix::io::write(stream.as_fd(), bytes);
}

/// Accepts and serves connections until `stop` is cancelled or the default model's engine is gone,
/// then drains.
///
/// The socket is unlinked, if it is still ours, as soon as no more connections are accepted.
pub async fn serve(
    socket: BoundSocket,
    models: Models,
    other: Option<Arc<dyn OtherProtocol>>,
    options: ServerOptions,
    stop: CancellationToken,
) -> Served {
    let server = Server::speaking(other, models.clone(), options, stop.clone());
    let end = tokio::select! {
        biased;
        () = stop.cancelled() => ServeEnd::Stopped,
        () = models.default_gone() => ServeEnd::EngineGone,
        () = accept_all(&socket, &server) => ServeEnd::Stopped,
    };
    // Before all else: a step of the device may take longer than there is time.
    models.save_tokens();
    socket.stop_listening();
    info!(?end, "stopping");
    server.drain().await;
    Served { end, farewells: server.shared.farewells.clone() }
}

/// Accepts until the future is dropped.
async fn accept_all(socket: &BoundSocket, server: &Server) {
    let failures = LogLimit::default();
    loop {
        match accept(socket).await {
            Ok((stream, peer)) => server.serve_peer(stream, &peer),
            Err(error) => {
                if let Some(left_out) = failures.admit(0, Instant::now()) {
                    warn!(%error, left_out, "cannot accept a connection");
                }
                sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

async fn accept(socket: &BoundSocket) -> io::Result<(UnixStream, Peer)> {
    let stream = socket.listener().accept().await?;
    // Registered anew with tokio, whose own type tells when the peer has hung up.
    let stream = std::os::unix::net::UnixStream::from(std::os::fd::OwnedFd::try_from(stream)?);
    stream.set_nonblocking(true)?;
    let stream = UnixStream::from_std(stream)?;
    let peer = Peer::of(stream.as_fd())?;
    Ok((stream, peer))
}
