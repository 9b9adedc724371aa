//! One request, read.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::HeaderMap;
use hyper::body::{Body, Bytes, Incoming};
use hyper::http::request::Parts;
use tokio::time::timeout;

use super::caller::Caller;
use super::error::Failure;
use super::fields::Fields;
use super::reply::{Gone, Reply, Sink};
use super::router::{self, PathParams};
use crate::server::Share;

/// Largest body: histories of agents are several MiB.
pub(super) const BODY_BYTES_MAX: usize = 32 << 20;

/// A body that counts in nobody's memory.
const BODY_BYTES_FREE: usize = 64 * 1024;

/// A body is in memory as it came, and as it was read.
const COPIES: usize = 2;

/// Longest id of a request that is taken from its client.
const REQUEST_ID_BYTES_MAX: usize = 128;

/// One request.
pub(super) struct Call {
    pub(super) caller: Caller,
    pub(super) id: String,
    pub(super) headers: HeaderMap,
    params: PathParams,
    query: String,
    body: Bytes,
    /// Memory of the body, and of what is read from it.
    _share: Share,
}

impl Call {
    /// Reads the body.
    pub(super) async fn read(
        caller: Caller,
        id: String,
        parts: Parts,
        params: PathParams,
        body: Incoming,
    ) -> Result<Self, Failure> {
        let Parts { headers, uri, .. } = parts;
        let encoding = headers.get("content-encoding").and_then(|value| value.to_str().ok());
        if let Some(encoding) = encoding.filter(|encoding| *encoding != "identity") {
            return Err(Failure::encoded_body(encoding));
        }
        let mut share = caller.host.share(caller.owner);
        let bytes = body.size_hint().upper().map_or(BODY_BYTES_MAX, |bytes| bytes as usize);
        if bytes > BODY_BYTES_FREE {
            share.grow_to(bytes.min(BODY_BYTES_MAX) * COPIES).await;
        }
        let body = read_body(body, caller.state.times.body).await?;
        let query = uri.query().unwrap_or_default().to_owned();
        Ok(Self { caller, id, headers, params, query, body, _share: share })
    }

    /// The body's JSON object.
    pub(super) fn json(&self) -> Result<Fields<'_>, Failure> {
        Fields::of_body(&self.body)
    }

    /// True if there is no body, or an empty one.
    pub(super) fn is_bodiless(&self) -> bool {
        self.body.trim_ascii().is_empty()
    }

    /// The value of a name in the path.
    pub(super) fn param(&self, name: &str) -> &str {
        self.params.iter().find(|(key, _)| *key == name).map_or("", |(_, value)| value)
    }

    /// The value of a name in the query.
    pub(super) fn query(&self, name: &str) -> Option<String> {
        let pairs = self.query.split('&').filter_map(|pair| pair.split_once('='));
        let mut values = pairs.filter(|(key, _)| *key == name);
        values.next().and_then(|(_, value)| router::decoded(&value.replace('+', " ")))
    }

    /// A header's text.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// A reply of server-sent events.
    pub(super) fn events<F, P>(&self, produce: P) -> Reply
    where
        P: FnOnce(Sink) -> F,
        F: Future<Output = Result<(), Gone>> + Send + 'static,
    {
        Reply::events(self.caller.waiting_bytes_max(), self.caller.state.times.silence, produce)
    }

    /// A reply of one JSON text a line.
    pub(super) fn lines<F, P>(&self, produce: P) -> Reply
    where
        P: FnOnce(Sink) -> F,
        F: Future<Output = Result<(), Gone>> + Send + 'static,
    {
        Reply::lines(self.caller.waiting_bytes_max(), produce)
    }
}

async fn read_body(body: Incoming, patience: Duration) -> Result<Bytes, Failure> {
    let announced = body.size_hint().lower();
    if announced > BODY_BYTES_MAX as u64 {
        return Err(Failure::body_too_large(BODY_BYTES_MAX));
    }
    let reading = Limited::new(body, BODY_BYTES_MAX).collect();
    match timeout(patience, reading).await {
        Err(_) => Err(Failure::body_too_slow(patience)),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            Err(Failure::body_too_large(BODY_BYTES_MAX))
        }
        Ok(Err(_)) => Err(Failure::invalid("", "the body ended early or was not well formed")),
        Ok(Ok(body)) => Ok(body.to_bytes()),
    }
}

/// The id of a request: its client's own where that is short and printable.
pub(super) fn request_id(headers: &HeaderMap) -> String {
    let own = headers.get("x-request-id").and_then(|value| value.to_str().ok());
    let fits = |id: &&str| {
        (1..=REQUEST_ID_BYTES_MAX).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic())
    };
    own.filter(fits).map_or_else(|| fresh_id("req_"), str::to_owned)
}

/// An id that no other thing of this daemon has, and nobody can guess.
pub(super) fn fresh_id(prefix: &str) -> String {
    use std::hash::{BuildHasher, RandomState};
    use std::sync::LazyLock;
    // SipHash under a key from the system's random numbers.
    static KEYS: LazyLock<(RandomState, RandomState)> = LazyLock::new(Default::default);
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{prefix}{:016x}{:08x}", KEYS.0.hash_one(number), KEYS.1.hash_one(number) as u32)
}
