//! What is measured: contexts of a model on a device, and steps over them.

use std::time::{Duration, Instant};

use super::meter::{MeterHandle, Submission};
use crate::cli::local::LocalError;
use crate::engine::Opened;
use crate::kernels::work::Positions;
use crate::kv_cache::KvLease;
use crate::scheduler::{Batch, TokenSpan};

/// Tokens of one session in a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// Which session.
    pub(super) session: usize,
    /// Position of the first token.
    pub(super) position: usize,
    /// At least one.
    pub(super) tokens: Vec<u32>,
    /// Whether the last token's logits are wanted.
    pub(super) logits: bool,
}

/// What a step cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cost {
    /// From the tokens to the logits.
    pub(super) time: Duration,
    /// Processor time of this thread within it, but for waiting.
    pub(super) host: Duration,
}

/// Contexts of a model. A context is what was written to its positions so far: to go back is to
/// name a lower position.
pub(super) trait Subject {
    /// Width of the logits.
    fn vocab_size(&self) -> usize;

    /// Most tokens of a step.
    fn tokens_max(&self) -> usize;

    /// Most tokens of a step whose logits are wanted.
    fn logit_rows_max(&self) -> usize;

    /// Runs one step: at most one span of each session.
    ///
    /// # Errors
    /// The device failed.
    fn step(&mut self, spans: Vec<Span>) -> Result<Cost, LocalError>;

    /// What was submitted since this was asked last.
    fn take_submissions(&mut self) -> Vec<Submission>;
}

/// A model with one lease for each session.
pub(super) struct ModelSubject {
    opened: Opened,
    leases: Vec<KvLease>,
    meter: MeterHandle,
}

impl ModelSubject {
    /// Leases `sessions` whole contexts.
    pub(super) fn new(
        mut opened: Opened,
        sessions: usize,
        meter: MeterHandle,
    ) -> Result<Self, LocalError> {
        let context_tokens = opened.runner.kv().config().context_tokens;
        let (kv, executor) = opened.runner.kv_mut();
        let mut leases = Vec::with_capacity(sessions);
        for _ in 0..sessions {
            let mut lease = kv.lease()?;
            kv.grow(executor, &mut lease, 0, context_tokens)??;
            leases.push(lease);
        }
        Ok(Self { opened, leases, meter })
    }
}

impl Subject for ModelSubject {
    fn vocab_size(&self) -> usize {
        self.opened.runner.model().vocab()
    }

    fn tokens_max(&self) -> usize {
        self.opened.runner.model().limits().tokens_max
    }

    fn logit_rows_max(&self) -> usize {
        self.opened.runner.model().limits().logit_rows_max
    }

    fn step(&mut self, spans: Vec<Span>) -> Result<Cost, LocalError> {
        let positions = spans
            .iter()
            .map(|span| Positions { first: span.position as u64, count: span.tokens.len() as u64 });
        self.meter.begin_step(positions.collect());
        let spans = spans.into_iter().map(|span| TokenSpan {
            table: self.leases[span.session].table(),
            position: span.position as u32,
            tokens: span.tokens,
            logits: usize::from(span.logits),
        });
        let batch = Batch { spans: spans.collect() };
        let (started, worked) = (Instant::now(), self.meter.working_cpu());
        self.opened.runner.step(&batch)?;
        let host = self.meter.working_cpu().saturating_sub(worked);
        Ok(Cost { time: started.elapsed(), host })
    }

    fn take_submissions(&mut self) -> Vec<Submission> {
        self.meter.take()
    }
}
