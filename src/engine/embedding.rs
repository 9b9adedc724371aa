//! A request for embeddings in progress: from its texts' tokens to one vector of each.

use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::types::{AdmitError, CancelFlag, Owner};
use crate::model::{Pool, Pooling};
use crate::scheduler::{Claim, Priority};
use crate::session::SessionId;

/// A checked request for embeddings: its texts are already tokens.
#[derive(Clone, Debug)]
pub struct EmbedRequest {
    /// User that made the request.
    pub owner: Owner,
    /// The texts, none of them empty.
    pub texts: Vec<Vec<u32>>,
    /// Pooling of the text's rows; `None` uses the model's own.
    pub pooling: Option<Pooling>,
    /// Priority.
    pub priority: Priority,
    /// When it ends without a result; looked at between steps.
    pub deadline: Option<Instant>,
    /// Raised by whoever gives up on the request; looked at between steps.
    pub cancel: CancelFlag,
}

/// The result of a request for embeddings.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbedResult {
    /// A vector for each text, as the pooling made it.
    pub vectors: Vec<Vec<f32>>,
    /// Pooling that was used.
    pub pooling: Pooling,
    /// From arrival to the first step that it was part of.
    pub queue_ms: f64,
    /// From then to its end.
    pub compute_ms: f64,
    /// Part of that spent in device steps that included it, in ms.
    pub device_ms: f64,
    /// Number of those steps.
    pub steps: u64,
}

/// Channel for the result; closing the receiver cancels the request.
pub(super) type EmbedReply = oneshot::Sender<Result<EmbedResult, AdmitError>>;

/// A text that is being evaluated.
pub(super) struct OpenText {
    /// Session that holds the text's pages.
    pub session: SessionId,
    pub pool: Pool,
}

/// A request that is running or waiting to.
pub(super) struct Embedding {
    pub request: EmbedRequest,
    /// In the order of arrival.
    pub number: u64,
    pub pooling: Pooling,
    /// Vectors of the first texts.
    pub vectors: Vec<Vec<f32>>,
    /// The texts behind those that have a vector.
    pub open: Vec<OpenText>,
    /// True if its results were non-finite once and the device was reopened for that.
    pub retried: bool,
    reply: EmbedReply,
    arrived: Instant,
    started: Option<Instant>,
    device_time: Duration,
    steps: u64,
}

impl Embedding {
    pub(super) fn new(
        request: EmbedRequest,
        number: u64,
        pooling: Pooling,
        reply: EmbedReply,
    ) -> Self {
        Self {
            vectors: Vec::with_capacity(request.texts.len()),
            request,
            number,
            pooling,
            open: Vec::new(),
            retried: false,
            reply,
            arrived: Instant::now(),
            started: None,
            device_time: Duration::ZERO,
            steps: 0,
        }
    }

    /// Claim for the scheduler; all embeddings of a user count as one session.
    pub(super) fn claim(&self) -> Claim {
        Claim {
            request: self.number,
            uid: self.request.owner.uid,
            session: 0,
            priority: self.request.priority,
        }
    }

    /// Reason to end the request, if any: cancelled, caller gone, or deadline passed.
    pub(super) fn given_up(&self, now: Instant) -> Option<AdmitError> {
        if self.request.cancel.is_raised() || self.reply.is_closed() {
            return Some(AdmitError::Cancelled);
        }
        let over = self.request.deadline.is_some_and(|deadline| now >= deadline);
        over.then_some(AdmitError::Deadline)
    }

    /// True if it was part of a step already.
    pub(super) fn has_started(&self) -> bool {
        self.started.is_some()
    }

    /// True if every text has its vector.
    pub(super) fn is_done(&self) -> bool {
        self.vectors.len() == self.request.texts.len()
    }

    /// Notes a step that it was part of.
    pub(super) fn note_step(&mut self, started: Instant, elapsed: Duration) {
        self.started.get_or_insert(started);
        self.device_time += elapsed;
        self.steps += 1;
    }

    /// Takes the rows of the next tokens of the first open text, whose session is over with its
    /// last one.
    pub(super) fn take_rows(&mut self, rows: &[f32]) -> Option<SessionId> {
        let text = &mut self.open[0];
        text.pool.add(rows);
        if text.pool.tokens() < self.request.texts[self.vectors.len()].len() {
            return None;
        }
        let text = self.open.remove(0);
        self.vectors.push(text.pool.finish());
        Some(text.session)
    }

    /// Tells the caller that it cannot be served.
    pub(super) fn refuse(self, error: AdmitError) {
        let _ = self.reply.send(Err(error)); // a caller that has gone away needs no answer
    }

    /// Hands the vectors over.
    pub(super) fn finish(self) {
        let now = Instant::now();
        let started = self.started.unwrap_or(now);
        let ms = |from: Instant, to: Instant| to.duration_since(from).as_secs_f64() * 1e3;
        let result = EmbedResult {
            vectors: self.vectors,
            pooling: self.pooling,
            queue_ms: ms(self.arrived, started),
            compute_ms: ms(started, now),
            device_ms: self.device_time.as_secs_f64() * 1e3,
            steps: self.steps,
        };
        let _ = self.reply.send(Ok(result)); // as in `refuse`
    }
}
