//! HTTP/1.1 on the daemon's socket: the interfaces that other servers have made usual.
//!
//! A connection that begins with an HTTP method comes here from the [server](crate::server), which
//! knows this module by the trait `OtherProtocol` alone. hyper reads and writes HTTP; all else is
//! ours: `connection` (one client: limits, hang-ups, the stop), `router` (which handler), `reply`
//! (whole bodies, server-sent events, lines of JSON), `error` (one failure in each interface's
//! shape), `fields` (lenient reading of JSON), `conversation` (from messages to the engine and from
//! its tokens to events), `caller` (models and the engine, as one user sees them).
//!
//! # How an interface is written
//!
//! One file, `NAME.rs`, with `pub(super) const ROUTES: &[Route]`, listed in `TABLES`. A route
//! names its paths, its method and the `Shape` of its errors; its handler takes a `Call` and
//! returns a `Reply` or a `Failure`:
//!
//! ```text
//! pub(super) const ROUTES: &[Route] =
//!     &[Route::new(Verb::Post, &["/v1/thing"], Shape::OpenAi, |call| Box::pin(thing(call)))];
//!
//! async fn thing(call: Call) -> Result<Reply, Failure> {
//!     let body = call.json()?;                             // Fields: null is absent
//!     let task = Task { model: body.optional("model", "a string")?, .. };
//!     let mut running = conversation::start(&call.caller, task).await?;  // admitted, or a Failure
//!     if stream {
//!         return Ok(call.events(|mut sink| async move {
//!             while let Some(event) = running.next().await { sink.data(&chunk(event)).await?; }
//!             Ok(())
//!         }));
//!     }
//!     Ok(Reply::json(&whole(running.collect().await?)))
//! }
//! ```
//!
//! A handler does not look at limits, ids of requests, hang-ups or the stop: the frame drops its
//! future, or the task of its stream, and with it the request in the engine. What is wrong is found
//! before the first byte of a stream is sent, so that it is a plain status.

// Interfaces come one after the other.
#![allow(dead_code)]

mod anthropic;
mod anthropic_request;
mod call;
mod caller;
mod chat_completions;
mod completions;
mod connection;
mod conversation;
mod embedding;
mod embeddings;
mod error;
mod fields;
mod io;
mod models;
mod openai;
mod reply;
mod responses;
mod responses_events;
mod responses_request;
mod responses_store;
mod router;
mod scored;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::server::{Link, OtherProtocol};

use responses_store::ResponseStore;
use router::Route;

/// The routes of all interfaces.
const TABLES: &[&[Route]] = &[
    anthropic::ROUTES,
    chat_completions::ROUTES,
    completions::ROUTES,
    embeddings::ROUTES,
    models::ROUTES,
    responses::ROUTES,
];

/// Every method and path served, for documentation.
#[must_use]
pub fn routes() -> Vec<(&'static str, &'static str)> {
    let all = TABLES.iter().flat_map(|table| table.iter());
    all.flat_map(|route| route.paths.iter().map(|path| (route.verb.name(), *path))).collect()
}

/// HTTP, for the [`Server`](crate::server::Server).
#[derive(Clone, Debug, Default)]
pub struct Http {
    state: Arc<State>,
}

impl Http {
    /// With other times than the usual ones.
    #[must_use]
    pub fn with_times(times: Times) -> Self {
        Self { state: Arc::new(State { times, ..State::default() }) }
    }
}

/// How long what may take.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// The head of a request, from its first byte.
    pub head: Duration,
    /// The body of a request.
    pub body: Duration,
    /// A stream with nothing to tell sends something after this long, so that nobody in between
    /// takes it for dead.
    pub silence: Duration,
}

impl Default for Times {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { head: seconds(10), body: seconds(30), silence: seconds(15) }
    }
}

/// What outlives a connection.
#[derive(Debug, Default)]
struct State {
    responses: ResponseStore,
    times: Times,
}

impl OtherProtocol for Http {
    /// True for the first letters of GET, PUT, POST, PATCH, HEAD, DELETE and OPTIONS. `C` stays the
    /// other protocol's: CONNECT is not served.
    fn begins_with(&self, first: u8) -> bool {
        matches!(first, b'G' | b'P' | b'H' | b'D' | b'O')
    }

    fn refusal(&self, message: &str) -> Vec<u8> {
        let body =
            format!("{{\"error\":{{\"message\":{message:?},\"type\":\"overloaded_error\"}}}}");
        let head = "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
                    connection: close";
        format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
    }

    fn serve(&self, link: Link) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(connection::serve(link, Arc::clone(&self.state)))
    }
}
