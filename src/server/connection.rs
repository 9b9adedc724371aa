//! One client: its frames in, its replies out, and what it has in flight.
//!
//! Frames are read in order; each request then runs in a task of its own. A client that is gone,
//! or does not read what waits for it, loses its connection, and everything it asked for is
//! cancelled.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde_json::json;
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::bytes::BytesMut;
use tokio_util::codec::Decoder;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::Shared;
use super::methods::Call;
use super::models::InUse;
use super::outgoing::Outgoing;
use crate::engine::{CancelFlag, Owner, SessionGuard};
use crate::protocol::{
    CancelResult, ErrorCode, ErrorObject, FrameDecoder, FrameError, Framing, ModelLoading,
    RequestId, decode_request, encode_frame, encode_notification, encode_response, method,
};

/// Room for one read.
const READ_BYTES: usize = 16 * 1024;

/// An empty buffer larger than this is given back: a connection at rest costs little, whatever it
/// has sent before.
const BUFFER_KEPT_BYTES: usize = 64 * 1024;

/// How often a client that closed its sending side is looked at: whether it still reads.
const HANG_UP_POLL: Duration = Duration::from_millis(50);

/// One client.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) shared: Arc<Shared>,
    pub(super) owner: Owner,
    outgoing: Outgoing,
    /// Known with the first byte that comes.
    framing: OnceLock<Framing>,
    in_flight: Mutex<HashMap<RequestId, InFlight>>,
    /// Sessions without a name that this client made: they end with the connection, since nobody
    /// would find them.
    unnamed: Mutex<Vec<SessionGuard>>,
    /// Room for requests that are no generations: they wait for it, unread.
    short_requests: Arc<Semaphore>,
    /// Large replies go out one by one, each when there is room.
    large_replies: tokio::sync::Mutex<()>,
    /// The client does not read, or cannot be answered.
    dropped: CancellationToken,
}

#[derive(Debug)]
struct InFlight {
    cancel: CancelFlag,
    generates: bool,
}

/// Why no more requests are read.
enum ReadEnd {
    /// The client has closed its sending side.
    Closed,
    /// Its bytes cannot be cut into frames.
    Broken(FrameError),
    /// The server stops.
    Stopping,
}

impl Connection {
    /// Serves a client until it is gone, too slow, or the server stops.
    pub(super) async fn serve(shared: Arc<Shared>, stream: UnixStream, owner: Owner) {
        let options = &shared.options;
        let (read_half, mut write_half) = stream.into_split();
        let mut frames = FrameReader::new(read_half, options.frame_bytes_max);
        let write_timeout = options.write_timeout;
        let connection = Arc::new(Self {
            owner,
            outgoing: Outgoing::new(options.outgoing_bytes_max),
            framing: OnceLock::new(),
            in_flight: Mutex::default(),
            unnamed: Mutex::default(),
            short_requests: Arc::new(Semaphore::new(options.requests_in_flight_max)),
            large_replies: tokio::sync::Mutex::default(),
            dropped: CancellationToken::new(),
            shared: Arc::clone(&shared),
        });
        let requests = async {
            connection.run(&mut frames).await;
            connection.outgoing.finish();
            Ok(())
        };
        let replies = connection.outgoing.write_to(&mut write_half, write_timeout);
        let both = async { tokio::try_join!(requests, replies) };
        tokio::select! {
            biased;
            () = shared.abandoned.cancelled() => {}
            () = connection.dropped.cancelled() => {
                warn!(uid = owner.uid, "connection dropped: the client does not read its replies");
            }
            result = both => if let Err(error) = result {
                debug!(uid = owner.uid, %error, "connection lost");
            },
        }
        connection.cancel_all();
    }

    /// Reads and answers requests until none can come and all are answered.
    async fn run(self: &Arc<Self>, frames: &mut FrameReader) {
        let mut tasks = JoinSet::new();
        let stopping = &self.shared.stopping;
        match self.read_all(frames, &mut tasks).await {
            ReadEnd::Stopping => {}
            // The connection itself failed: there is nobody to answer.
            ReadEnd::Broken(FrameError::Io(_)) => return,
            ReadEnd::Broken(error) => self.answer_broken(&error),
            ReadEnd::Closed => tokio::select! {
                biased;
                () = frames.hung_up() => return,
                () = all_done(&mut tasks) => return,
                () = stopping.cancelled() => {}
            },
        }
        self.cancel_all();
        all_done(&mut tasks).await;
    }

    async fn read_all(
        self: &Arc<Self>,
        frames: &mut FrameReader,
        tasks: &mut JoinSet<()>,
    ) -> ReadEnd {
        loop {
            let next = async {
                self.outgoing.has_room().await;
                frames.next().await
            };
            let frame = tokio::select! {
                biased;
                () = self.shared.stopping.cancelled() => return ReadEnd::Stopping,
                frame = next => frame,
            };
            if let Some(framing) = frames.framing() {
                self.framing.get_or_init(|| framing);
            }
            match frame {
                Ok(Some(frame)) => self.accept(&frame, tasks).await,
                Ok(None) => return ReadEnd::Closed,
                Err(error) => return ReadEnd::Broken(error),
            }
            while tasks.try_join_next().is_some() {}
        }
    }

    /// Answers a frame at once, or starts the task that will.
    async fn accept(self: &Arc<Self>, frame: &[u8], tasks: &mut JoinSet<()>) {
        let request = match decode_request(frame) {
            Ok(request) => request,
            Err(refusal) => {
                let code = refusal.error.code.0;
                debug!(uid = self.owner.uid, code, "not a request");
                return self.reply::<()>(refusal.id.as_ref(), &Err(*refusal.error));
            }
        };
        let call = match Call::read(&request.method, request.params) {
            Ok(call) => call,
            Err(error) => {
                debug!(uid = self.owner.uid, code = error.code.0, "request refused");
                return self.refuse(request.id.as_ref(), error);
            }
        };
        let Some(id) = request.id else {
            // A notification: nobody would get an answer.
            if let Call::Cancel(params) = call {
                self.cancel(&params.id);
            }
            return;
        };
        if let Call::Cancel(params) = call {
            let cancelled = self.cancel(&params.id);
            return self.reply(Some(&id), &Ok(CancelResult { cancelled }));
        }
        let room = match call.generates() {
            true => None,
            // Never closed, so there is always a permit in the end.
            false => Arc::clone(&self.short_requests).acquire_owned().await.ok(),
        };
        let cancel = match self.admit(&id, call.generates()) {
            Ok(cancel) => cancel,
            Err(error) => return self.refuse(Some(&id), error),
        };
        let connection = Arc::clone(self);
        tasks.spawn(async move {
            connection.answer(id, call, cancel).await;
            drop(room);
        });
    }

    async fn answer(self: &Arc<Self>, id: RequestId, call: Call, cancel: CancelFlag) {
        let guard = Admitted { connection: self, id: &id };
        let (method, large) = (call.method(), call.has_large_reply());
        let result = call.run(self, &id, &cancel).await;
        // Before the reply: who has read it may use the id again.
        drop(guard);
        if let Err(error) = &result {
            debug!(uid = self.owner.uid, method, code = error.code.0, "request refused");
        }
        if large && result.is_ok() {
            let _turn = self.large_replies.lock().await;
            self.outgoing.has_room().await;
            return self.reply(Some(&id), &result);
        }
        self.reply(Some(&id), &result);
    }

    /// Notes a request as in flight.
    fn admit(&self, id: &RequestId, generates: bool) -> Result<CancelFlag, ErrorObject> {
        let limit = self.shared.options.requests_in_flight_max;
        let mut in_flight = self.in_flight();
        if in_flight.contains_key(id) {
            let message = format!("a request with the id {id} is in flight on this connection");
            return Err(ErrorObject::new(ErrorCode::DUPLICATE_ID, message));
        }
        if generates && in_flight.values().filter(|other| other.generates).count() >= limit {
            let message = format!(
                "{limit} generations are in flight on this connection, the most there may be"
            );
            let error = ErrorObject::new(ErrorCode::TOO_MANY_REQUESTS, message);
            return Err(error.with_data(json!({"limit": limit})));
        }
        let cancel = CancelFlag::default();
        in_flight.insert(id.clone(), InFlight { cancel: cancel.clone(), generates });
        Ok(cancel)
    }

    fn in_flight(&self) -> MutexGuard<'_, HashMap<RequestId, InFlight>> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cancels one request; whether it was in flight.
    fn cancel(&self, id: &RequestId) -> bool {
        let in_flight = self.in_flight();
        let found = in_flight.get(id);
        found.inspect(|request| request.cancel.raise()).is_some()
    }

    fn cancel_all(&self) {
        self.in_flight().values().for_each(|request| request.cancel.raise());
    }

    fn answer_broken(&self, error: &FrameError) {
        let (code, data) = match error {
            FrameError::TooLarge { limit, found } => {
                (ErrorCode::FRAME_TOO_LARGE, Some(json!({"limit": limit, "found": found})))
            }
            _ => (ErrorCode::BAD_FRAME, None),
        };
        // Not the error itself: it repeats some of the client's bytes.
        debug!(uid = self.owner.uid, code = code.0, "framing lost");
        let message = error.to_string();
        self.reply::<()>(None, &Err(ErrorObject { code, message, data }));
    }

    /// A notification gets no reply, whatever is wrong with it.
    fn refuse(&self, id: Option<&RequestId>, error: ErrorObject) {
        if id.is_some() {
            self.reply::<()>(id, &Err(error));
        }
    }

    fn reply<R: Serialize>(&self, id: Option<&RequestId>, result: &Result<R, ErrorObject>) {
        self.send(encode_response(id, result));
    }

    /// Sends a notification behind what waits already.
    pub(super) fn notify<P: Serialize>(&self, method: &str, params: &P) {
        self.send(encode_notification(method, params));
    }

    /// The model that a request names, on the device; the client is told of a load.
    pub(super) async fn model(
        &self,
        id: &RequestId,
        name: Option<&str>,
    ) -> Result<InUse, ErrorObject> {
        self.shared.models.get(name, |model| self.tell_of_load(id, model)).await
    }

    /// Whether the client is root or the daemon's own user.
    pub(super) fn is_operator(&self) -> bool {
        let own = rustix::process::geteuid().as_raw();
        self.owner.uid == 0 || self.owner.uid == own
    }

    /// Refuses everybody but root and the daemon's own user.
    pub(super) fn check_operator(&self, what: &str) -> Result<(), ErrorObject> {
        if self.is_operator() {
            return Ok(());
        }
        let message = format!("{what} is for root and the user that the daemon runs as");
        Err(ErrorObject::new(ErrorCode::NOT_ALLOWED, message))
    }

    /// The model that a request names, for its tokenizer and chat template.
    pub(super) async fn model_of_text(
        &self,
        id: &RequestId,
        name: Option<&str>,
    ) -> Result<InUse, ErrorObject> {
        self.shared.models.get_text(name, |model| self.tell_of_load(id, model)).await
    }

    fn tell_of_load(&self, id: &RequestId, model: &str) {
        let (id, model) = (id.clone(), model.to_owned());
        self.notify(method::MODEL_LOADING, &ModelLoading { id, model });
    }

    /// Notes a session that has no name: it ends with the connection.
    pub(super) fn own_session(&self, guard: SessionGuard) {
        let mut unnamed = self.unnamed.lock().unwrap_or_else(PoisonError::into_inner);
        unnamed.retain(|other| !other.is_over());
        unnamed.push(guard);
    }

    fn send(&self, body: Result<Vec<u8>, serde_json::Error>) {
        let body = body.expect("the protocol's types have text keys and finite numbers");
        let framing = self.framing.get().copied().unwrap_or(Framing::Newline);
        if !self.outgoing.push(encode_frame(framing, &body)) {
            self.dropped.cancel();
        }
    }
}

/// Takes a request out of those in flight, however its task ends.
struct Admitted<'a> {
    connection: &'a Connection,
    id: &'a RequestId,
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        self.connection.in_flight().remove(self.id);
    }
}

async fn all_done(tasks: &mut JoinSet<()>) {
    while tasks.join_next().await.is_some() {}
}

/// The receiving side, cut into frames.
struct FrameReader {
    half: OwnedReadHalf,
    buffer: BytesMut,
    decoder: FrameDecoder,
    ended: bool,
}

impl FrameReader {
    fn new(half: OwnedReadHalf, frame_bytes_max: usize) -> Self {
        let decoder = FrameDecoder::new(frame_bytes_max);
        Self { half, buffer: BytesMut::new(), decoder, ended: false }
    }

    fn framing(&self) -> Option<Framing> {
        self.decoder.framing()
    }

    /// The next frame; `None` at the end. Nothing is lost when the future is dropped.
    async fn next(&mut self) -> Result<Option<BytesMut>, FrameError> {
        loop {
            let frame = match self.ended {
                true => self.decoder.decode_eof(&mut self.buffer)?,
                false => self.decoder.decode(&mut self.buffer)?,
            };
            if frame.is_some() || self.ended {
                return Ok(frame);
            }
            if self.buffer.is_empty() && self.buffer.capacity() > BUFFER_KEPT_BYTES {
                self.buffer = BytesMut::new();
            }
            self.buffer.reserve(READ_BYTES);
            self.ended = self.half.read_buf(&mut self.buffer).await? == 0;
        }
    }

    /// Waits until the client, whose sending side is closed, has closed the other one as well.
    async fn hung_up(&self) {
        loop {
            match self.half.ready(Interest::WRITABLE).await {
                Ok(ready) if !ready.is_write_closed() => sleep(HANG_UP_POLL).await,
                _ => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn a_large_frame_leaves_no_large_buffer_behind() {
        const FRAME_BYTES: usize = 1 << 20;
        let (mut peer, ours) = UnixStream::pair().expect("a pair of sockets");
        let mut frames = FrameReader::new(ours.into_split().0, FRAME_BYTES);
        let sending = tokio::spawn(async move {
            let line = [&vec![b'x'; FRAME_BYTES][..], b"\n"].concat();
            peer.write_all(&line).await.expect("it is read");
            peer
        });
        let frame = frames.next().await.expect("within the limit").expect("a frame");
        assert_eq!(frame.len(), FRAME_BYTES);
        drop(frame);
        let peer = sending.await.expect("it was sent");
        // Waits for more, as a connection at rest does.
        let waiting = timeout(Duration::from_millis(1), frames.next());
        assert!(waiting.await.is_err());
        assert!(frames.buffer.capacity() <= BUFFER_KEPT_BYTES, "{}", frames.buffer.capacity());
        drop(peer);
    }
}
