//! One step: which tokens, on which pages, and what becomes of their logits.

use std::ops::Range;
use std::time::Duration;

use super::request::Generation;
use super::room::Asker;
use super::runner::Mix;
use super::types::FinishReason;
use super::worker::Worker;
use crate::gpu::DeviceError;
use crate::sampler::SamplingError;
use crate::scheduler::{Batch, PrefillSlice, Share, StepLimits, TokenSpan, Work, plan};

/// Target duration of prefill steps while no request decodes; cancelling waits for at most one.
const PREFILL_TARGET: Duration = Duration::from_millis(250);

/// The slices of prompts, by whether somebody decodes in the same step.
#[derive(Debug)]
pub(super) struct Slices {
    alone: PrefillSlice,
    beside_decoding: PrefillSlice,
}

impl Slices {
    pub(super) fn new(tokens_max: usize, inter_token: Duration) -> Self {
        Self {
            alone: PrefillSlice::new(tokens_max, PREFILL_TARGET),
            beside_decoding: PrefillSlice::new(tokens_max, inter_token),
        }
    }

    pub(super) fn of(&mut self, decoding: bool) -> &mut PrefillSlice {
        if decoding { &mut self.beside_decoding } else { &mut self.alone }
    }
}

/// Purpose of a span of the batch.
#[derive(Debug)]
pub(super) struct Entry {
    /// Number of the request.
    pub number: u64,
    /// Tokens of the span.
    pub count: usize,
    /// Position of its first token.
    pub position: usize,
    /// Rows of logits.
    pub logits: Range<usize>,
}

/// A step that is about to run.
#[derive(Debug, Default)]
pub(super) struct Step {
    pub batch: Batch,
    /// The adapters of each span.
    pub mixes: Vec<Mix>,
    pub entries: Vec<Entry>,
    pub prefilled: usize,
    pub decodes: bool,
}

impl Worker {
    /// Ends requests with nothing to compute: of a prompt that was wholly cached, nothing more is
    /// wanted.
    pub(super) fn end_complete(&mut self) {
        let complete = |g: &Generation| self.work(g).pending == 0;
        let numbers: Vec<u64> =
            self.running.iter().filter(|g| complete(g)).map(|g| g.number).collect();
        for number in numbers {
            let generation = self.take_running(number);
            self.end(generation, FinishReason::Length, None);
        }
    }

    pub(super) fn work(&self, generation: &Generation) -> Work {
        let position = self.sessions.get(generation.session).tokens.len();
        let (known, prompt_len) = (generation.history().len(), generation.request.tokens.len());
        let decoding = position + 1 == known && position >= prompt_len;
        Work {
            claim: generation.claim(),
            pending: known - position,
            decoding,
            all_logits: generation.request.prompt_logprobs.is_some() && !decoding,
            last_logits: generation.tokens_max > 0,
        }
    }

    /// Chooses the step and takes the pages it needs; who gets none is left out, and waits again.
    pub(super) fn form_step(&mut self) -> Result<Step, DeviceError> {
        let limits = self.runner.model().limits();
        let work: Vec<Work> = self.running.iter().map(|g| self.work(g)).collect();
        let decodes = work.iter().any(|work| work.decoding);
        let limits = StepLimits {
            tokens_max: limits.tokens_max,
            rows_max: limits.logit_rows_max,
            slice_tokens: self.slices.of(decodes).tokens(),
            joined_tokens: self.slices.of(true).tokens(),
        };
        let shares = plan(&self.fair, &work, limits);
        for Share { work: index, tokens, .. } in &shares {
            let (priority, number) = (work[*index].claim.priority, work[*index].claim.request);
            let Some(generation) = self.running.iter().find(|g| g.number == number) else {
                continue; // made way for an earlier one
            };
            let id = generation.session;
            let wanted = self.sessions.get(id).tokens.len() + tokens;
            if !self.hold(id, wanted, Asker::Running(priority, number))? {
                self.pause(number);
            }
        }
        let mut step = Step { decodes, ..Step::default() };
        let mut rows = 0;
        for Share { work: index, tokens, logits } in shares {
            let Work { claim, decoding, .. } = work[index];
            let at = self.running.iter().position(|g| g.number == claim.request);
            let Some(generation) = at.map(|at| &mut self.running[at]) else { continue };
            generation.mark_started();
            let session = self.sessions.get(generation.session);
            let position = session.tokens.len();
            step.mixes.push(session.traits.mix());
            step.batch.spans.push(TokenSpan {
                table: session.lease.as_ref().expect("who runs has a lease").table(),
                position: position as u32,
                tokens: generation.history()[position..position + tokens].to_vec(),
                logits,
            });
            let logits = rows..rows + logits;
            rows = logits.end;
            step.entries.push(Entry { number: claim.request, count: tokens, position, logits });
            step.prefilled += if decoding { 0 } else { tokens };
        }
        Ok(step)
    }

    /// Takes what a span's rows gave: prompt logprobs, the next token, the end.
    pub(super) fn process(&mut self, entry: &Entry, on_device: bool) {
        let mut generation = self.take_running(entry.number);
        let outcome = match on_device {
            true => Ok(self.take_token(&mut generation, entry)),
            false => self.take_logits(&mut generation, entry),
        };
        match outcome {
            Ok(Some(reason)) => self.end(generation, reason, None),
            Ok(None) => self.running.push(generation),
            Err(_) if !generation.retried && self.can_rebuild_for_logits() => {
                generation.retried = true;
                self.bad_logits = true;
                self.running.push(generation);
            }
            Err(error) => {
                // The cache may hold what made the logits bad.
                self.sessions.get_mut(generation.session).tokens.clear();
                self.end(generation, FinishReason::Error, Some(error.to_string()));
            }
        }
    }

    fn take_logits(
        &mut self,
        generation: &mut Generation,
        entry: &Entry,
    ) -> Result<Option<FinishReason>, SamplingError> {
        let vocab = self.vocab();
        let prompt_len = generation.request.tokens.len();
        let end = entry.position + entry.count;
        let first = end - entry.logits.len();
        for (at, row) in (first..end).zip(entry.logits.clone()) {
            if at < prompt_len {
                let logits = &self.runner.logits(row)[..vocab];
                generation.take_prompt_logits(at, logits)?;
            }
        }
        if end < generation.history().len() {
            return Ok(None); // more of the prompt, or of an answer that is evaluated again
        }
        if generation.tokens_max == 0 {
            return Ok(Some(FinishReason::Length));
        }
        let row = entry.logits.end - 1;
        self.totals.decode_tokens += 1;
        generation.take_logits(&mut self.runner.logits(row)[..vocab], &self.tokenizer)
    }

    /// Takes the token that the device chose, where the span was the last that is known.
    fn take_token(&mut self, generation: &mut Generation, entry: &Entry) -> Option<FinishReason> {
        if entry.position + entry.count < generation.history().len() {
            return None;
        }
        if generation.tokens_max == 0 {
            return Some(FinishReason::Length);
        }
        let token = self.runner.chosen(entry.logits.start);
        self.totals.decode_tokens += 1;
        generation.take_token(token, &self.tokenizer)
    }

    /// A request, if it runs.
    pub(super) fn generation(&mut self, number: u64) -> Option<&mut Generation> {
        self.running.iter_mut().find(|g| g.number == number)
    }

    fn take_running(&mut self, number: u64) -> Generation {
        let at = self.running.iter().position(|g| g.number == number).expect("it runs");
        self.running.remove(at)
    }
}
