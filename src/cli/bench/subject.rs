//! What is measured: contexts of a model on a device, and steps over them.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::meter::{MeterHandle, Submission};
use crate::cli::local::LocalError;
use crate::engine::{Flight, Opened, Results, Wanted};
use crate::kernels::sampling::Row;
use crate::kernels::work::Positions;
use crate::kv_cache::KvLease;
use crate::scheduler::{Batch, TokenSpan};

/// Tokens of one session in a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// Session in question.
    pub(super) session: usize,
    /// Position of the first token.
    pub(super) position: usize,
    /// At least one.
    pub(super) tokens: Vec<u32>,
    /// True if the last token's logits are wanted.
    pub(super) logits: bool,
}

/// Cost of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cost {
    /// From the end of the step before, or where none ran from its start, to the chosen tokens.
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

    /// Starts a step: at most one span of each session. One more may be started before it is
    /// finished.
    ///
    /// # Errors
    /// The device failed.
    fn start(&mut self, spans: Vec<Span>) -> Result<(), LocalError>;

    /// Waits for the step that was started first, and for the tokens that the device chose.
    ///
    /// # Errors
    /// The device failed.
    fn finish(&mut self) -> Result<Cost, LocalError>;

    /// Runs one step by itself.
    ///
    /// # Errors
    /// The device failed.
    fn step(&mut self, spans: Vec<Span>) -> Result<Cost, LocalError> {
        self.start(spans)?;
        self.finish()
    }

    /// Work submitted since the last call.
    fn take_submissions(&mut self) -> Vec<Submission>;
}

/// A model with one lease for each session.
pub(super) struct ModelSubject {
    opened: Opened,
    leases: Vec<KvLease>,
    meter: MeterHandle,
    /// Steps that run, the oldest first.
    flying: VecDeque<Flight>,
    /// When the last step was finished, or started where none ran; and this thread's work then.
    since: (Instant, Duration),
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
        let (flying, since) = (VecDeque::new(), (Instant::now(), Duration::ZERO));
        Ok(Self { opened, leases, meter, flying, since })
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

    fn start(&mut self, spans: Vec<Span>) -> Result<(), LocalError> {
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
        if self.flying.is_empty() {
            self.since = (Instant::now(), self.meter.working_cpu());
        }
        let row = Row::best(self.vocab_size() as u32);
        let wanted =
            vec![Wanted { row, penalties: Vec::new(), masked: false }; batch.logit_count()];
        let flight = self.opened.runner.start(&batch, &[], Results::Tokens(&wanted))?;
        self.flying.push_back(flight);
        Ok(())
    }

    fn finish(&mut self) -> Result<Cost, LocalError> {
        let flight = self.flying.pop_front().expect("a step was started");
        self.opened.runner.finish(flight)?;
        let (since, worked) = self.since;
        self.since = (Instant::now(), self.meter.working_cpu());
        Ok(Cost { time: self.since.0 - since, host: self.since.1.saturating_sub(worked) })
    }

    fn take_submissions(&mut self) -> Vec<Submission> {
        self.meter.take()
    }
}
