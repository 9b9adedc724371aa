//! One client: its frames in, its replies out, and what it has in flight.
//!
//! Frames are read in order; each request then runs in a task of its own. A client that is gone,
//! or does not read what waits for it, loses its connection, and everything it asked for is
//! cancelled.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use serde::Serialize;
use serde_json::json;
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::bytes::BytesMut;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::Shared;
use super::byte_budget::Share;
use super::connection_table::Place;
use super::frame_reader::FrameReader;
use super::methods::Call;
use super::models::InUse;
use super::outgoing::Outgoing;
use super::text::{self, Job};
use super::text_pool::SHORT_BYTES_MAX;
use super::turns::Loader;
use crate::engine::{CancelFlag, Owner, SessionGuard};
use crate::protocol::{
    CancelResult, ErrorCode, ErrorObject, FrameError, Framing, ModelLoading, RequestError,
    RequestId, decode_request, encode_frame, encode_notification, encode_response, method,
};

/// One client.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) shared: Arc<Shared>,
    pub(super) owner: Owner,
    place: Arc<Place>,
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
    /// The request that is answered when the daemon has saved its sessions.
    report_to: Mutex<Option<RequestId>>,
}

#[derive(Debug)]
struct InFlight {
    cancel: CancelFlag,
    generates: bool,
}

/// Reason reading ended.
enum ReadEnd {
    /// The client has closed its sending side.
    Closed,
    /// The bytes cannot be divided into frames.
    Broken(FrameError),
    /// The server stops.
    Stopping,
}

impl Connection {
    /// Serves a client until it is gone, too slow, or the server stops.
    pub(super) async fn serve(
        shared: Arc<Shared>,
        stream: UnixStream,
        owner: Owner,
        place: Arc<Place>,
    ) {
        let options = &shared.options;
        let (read_half, mut write_half) = stream.into_split();
        let mut frames =
            FrameReader::new(read_half, options.frame_bytes_max, shared.work.share(owner.uid));
        let write_timeout = options.write_timeout;
        let connection = Arc::new(Self {
            owner,
            place,
            outgoing: Outgoing::new(options.outgoing_bytes_max, shared.work.share(owner.uid)),
            framing: OnceLock::new(),
            in_flight: Mutex::default(),
            unnamed: Mutex::default(),
            short_requests: Arc::new(Semaphore::new(options.requests_in_flight_max)),
            large_replies: tokio::sync::Mutex::default(),
            dropped: CancellationToken::new(),
            report_to: Mutex::default(),
            shared: Arc::clone(&shared),
        });
        let requests = async {
            connection.run(&mut frames).await;
            connection.outgoing.finish();
            Ok(())
        };
        let replies = connection.outgoing.write_to(&mut write_half, write_timeout);
        let both = async { tokio::try_join!(requests, replies) };
        let mut evicted = false;
        tokio::select! {
            biased;
            () = shared.abandoned.cancelled() => {}
            () = connection.dropped.cancelled() => {
                if let Some(left_out) = shared.refusals.admit(owner.uid, Instant::now()) {
                    warn!(
                        uid = owner.uid,
                        left_out, "connection dropped: the client does not read its replies"
                    );
                }
            }
            () = connection.place.evicted().cancelled() => evicted = true,
            result = both => if let Err(error) = result {
                debug!(uid = owner.uid, %error, "connection lost");
            },
        }
        connection.cancel_all();
        if evicted {
            connection.give_way(&write_half);
        }
        let report_to = connection.report_to.lock().unwrap_or_else(PoisonError::into_inner).take();
        match report_to.filter(|_| shared.stopping.is_cancelled()) {
            Some(id) => {
                if let Ok(stream) = frames.into_half().reunite(write_half) {
                    let framing = connection.framing.get().copied().unwrap_or(Framing::Newline);
                    shared.farewells.keep(stream, id, framing);
                }
            }
            None => drop(write_half), // which tells the client that nothing more comes
        }
    }

    /// Tells the client why its connection ends, where that would not land inside a frame.
    fn give_way(&self, half: &OwnedWriteHalf) {
        debug!(
            uid = self.owner.uid,
            "connection closed: it was at rest, and others want its place"
        );
        if self.outgoing.is_empty() {
            let message = "the connection was at rest, and there are too many; open it again";
            let error = ErrorObject::new(ErrorCode::TOO_MANY_CONNECTIONS, message);
            let framing = self.framing.get().copied().unwrap_or(Framing::Newline);
            tell_end(half, framing, error);
        }
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
                Ok(Some((frame, share))) => tokio::select! {
                    biased;
                    () = self.shared.stopping.cancelled() => return ReadEnd::Stopping,
                    () = self.accept(frame, share, tasks) => {}
                },
                Ok(None) => return ReadEnd::Closed,
                Err(error) => return ReadEnd::Broken(error),
            }
            while tasks.try_join_next().is_some() {}
        }
    }

    /// Reads a frame, a long one where long texts are worked on: it would hold up other clients.
    async fn read(self: &Arc<Self>, frame: BytesMut) -> Result<ReadRequest, RequestError> {
        if frame.len() <= SHORT_BYTES_MAX {
            return read_request(&frame);
        }
        let never = CancelFlag::default();
        let job = self.job(&never);
        let read = job.run(frame.len(), move |_| Ok(read_request(&frame))).await;
        read.unwrap_or_else(|error| Err(RequestError { id: None, error: Box::new(error) }))
    }

    /// Answers a frame at once, or starts the task that will.
    async fn accept(self: &Arc<Self>, frame: BytesMut, share: Share, tasks: &mut JoinSet<()>) {
        self.place.touch();
        let (id, call) = match self.read(frame).await {
            Ok((id, Ok(call))) => (id, call),
            Ok((id, Err(error))) => {
                debug!(uid = self.owner.uid, code = error.code.0, "request refused");
                return self.refuse(id.as_ref(), error);
            }
            Err(refusal) => {
                let code = refusal.error.code.0;
                debug!(uid = self.owner.uid, code, "not a request");
                return self.reply::<()>(refusal.id.as_ref(), &Err(*refusal.error));
            }
        };
        let Some(id) = id else {
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
        if let Call::StopReport = call {
            return self.report_later(id);
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
            connection.answer(id, call, cancel, share).await;
            drop(room);
        });
    }

    /// Notes a request that is answered when the daemon has saved its sessions.
    fn report_later(&self, id: RequestId) {
        if self.is_operator() {
            *self.report_to.lock().unwrap_or_else(PoisonError::into_inner) = Some(id);
        } else {
            let message = "the report is for root and the daemon's own user";
            self.refuse(Some(&id), ErrorObject::new(ErrorCode::NOT_ALLOWED, message));
        }
    }

    async fn answer(self: &Arc<Self>, id: RequestId, call: Call, cancel: CancelFlag, share: Share) {
        let guard = Admitted { connection: self, id: &id };
        let _busy = self.place.busy();
        let (method, large) = (call.method(), call.has_large_reply());
        let result = call.run(self, &id, &cancel).await;
        // Before the reply: who has read it may use the id again.
        drop(guard);
        // What was sent is gone; the reply counts by itself.
        drop(share);
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

    /// Work on a text for one of the client's requests.
    pub(super) fn job(&self, cancel: &CancelFlag) -> Job {
        Job::new(&self.shared, self.owner.uid, cancel)
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
        let limit = self.shared.options.outgoing_bytes_max;
        let body = match result {
            Ok(_) => encode_response(id, result),
            Err(error) => encode_response::<()>(id, &Err(error.clone().bounded())),
        };
        match body {
            Ok(body) if body.len() > limit => {
                self.send(encode_response::<()>(id, &Err(text::reply_too_large(limit))));
            }
            body => self.send(body),
        }
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
        self.shared.models.get(name, self.caller(), |model| self.tell_of_load(id, model)).await
    }

    /// True if the client is root or the daemon's own user.
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

    /// Who models are loaded and unloaded for.
    pub(super) fn caller(&self) -> Loader {
        Loader::of(self.owner)
    }

    /// The model that a request names, for its tokenizer and chat template.
    pub(super) async fn model_of_text(
        &self,
        id: &RequestId,
        name: Option<&str>,
    ) -> Result<InUse, ErrorObject> {
        let tell = |model: &str| self.tell_of_load(id, model);
        self.shared.models.get_text(name, self.caller(), tell).await
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

/// Sends the last message of a connection, as far as the socket's buffer has room for it.
fn tell_end(half: &OwnedWriteHalf, framing: Framing, error: ErrorObject) {
    if let Ok(body) = encode_response::<()>(None, &Err(error)) {
        let _ = half.try_write(&encode_frame(framing, &body));
    }
}

/// A request's id, and what it asks for.
type ReadRequest = (Option<RequestId>, Result<Call, ErrorObject>);

fn read_request(frame: &[u8]) -> Result<ReadRequest, RequestError> {
    let request = decode_request(frame)?;
    Ok((request.id, Call::read(&request.method, request.params)))
}

async fn all_done(tasks: &mut JoinSet<()>) {
    while tasks.join_next().await.is_some() {}
}
