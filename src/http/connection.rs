//! One client that speaks HTTP.

use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::watch;
use tracing::debug;

use super::call::{self, Call};
use super::caller::Caller;
use super::error::{Failure, Shape};
use super::io::{Io, Phase, lost};
use super::reply::{Outcome, Reply};
use super::{State, TABLES, router};
use crate::server::{self, Link};

/// Largest head.
const HEAD_BYTES_MAX: usize = 32 * 1024;

/// Most headers.
const HEADERS_MAX: usize = 100;

/// Serves a client until it is gone, too slow, or the server stops.
pub(super) async fn serve(link: Link, state: Arc<State>) {
    let at_work = link.busy();
    let Link { stream, owner, host, .. } = link;
    let stream = Arc::new(stream);
    let head_patience = state.times.head;
    let (phase, watching) = watch::channel(Phase::Idle);
    let io = Io::new(Arc::clone(&stream), phase.clone(), host.options().write_timeout);
    let caller = Caller { owner, host: host.clone(), state };
    let service =
        service_fn(move |request| answer(caller.clone(), request, Busy::new(&phase, at_work())));
    let mut serving = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            // The time of a head is our own: an idle connection has as long as it likes.
            .header_read_timeout(None)
            .max_headers(HEADERS_MAX)
            .max_header_size(HEAD_BYTES_MAX)
            // Who closes only the sending side still reads.
            .half_close(true)
            .serve_connection(TokioIo::new(io), service)
    );
    let mut stopping = false;
    let mut lost = pin!(lost(&stream, watching, head_patience));
    loop {
        tokio::select! {
            biased;
            () = host.abandoned().cancelled() => return,
            () = host.stopping().cancelled(), if !stopping => {
                stopping = true;
                serving.as_mut().graceful_shutdown();
            }
            why = &mut lost => {
                return debug!(uid = owner.uid, why, "connection lost");
            }
            result = serving.as_mut() => {
                if let Err(error) = result {
                    debug!(uid = owner.uid, %error, "connection lost");
                }
                return;
            }
        }
    }
}

/// A request is being read or answered, as long as this lives.
struct Busy {
    phase: watch::Sender<Phase>,
    _at_work: server::Busy,
}

impl Busy {
    fn new(phase: &watch::Sender<Phase>, at_work: server::Busy) -> Self {
        phase.send_replace(Phase::Busy);
        Self { phase: phase.clone(), _at_work: at_work }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.phase.send_replace(Phase::Idle);
    }
}

/// Answers one request, whatever it is.
async fn answer(caller: Caller, request: Request<Incoming>, busy: Busy) -> Outcome {
    let started = Instant::now();
    let uid = caller.owner.uid;
    let (parts, body) = request.into_parts();
    let id = call::request_id(&parts.headers);
    let found = router::find(TABLES, &parts.method, parts.uri.path());
    // Never the path that was sent, which may be anything.
    let path = found.as_ref().map_or("", |(_, path, _)| *path);
    let method = parts.method.clone();
    let (shape, answered) = match found {
        Err(refused) => {
            let (shape, failure) = *refused;
            (shape, Err(failure))
        }
        Ok((route, _, params)) => {
            let read = Call::read(caller, id.clone(), parts, params, body).await;
            let answered = match read {
                Ok(call) => (route.handler)(call).await,
                Err(failure) => Err(failure),
            };
            (route.shape, answered)
        }
    };
    let reply = answered.unwrap_or_else(|failure: Failure| failure.reply(shape, &id));
    let status = reply.code().as_u16();
    let ms = started.elapsed().as_millis() as u64;
    debug!(uid, %method, path, status, request_id = id, ms, "answered");
    Ok(with_common_headers(reply, shape, &id).into_response(busy))
}

fn with_common_headers(reply: Reply, shape: Shape, id: &str) -> Reply {
    let reply = reply
        .header("server", concat!("hob/", env!("CARGO_PKG_VERSION")))
        .header("x-request-id", id);
    if shape == Shape::Anthropic { reply.header("request-id", id) } else { reply }
}
