//! One step: which tokens, on which pages, and what becomes of their logits.

use std::time::{Duration, Instant};

use super::request::Generation;
use super::room::Asker;
use super::runner::Mix;
use super::types::FinishReason;
use super::worker::Worker;
use crate::gpu::DeviceError;
use crate::sampler::SamplingError;
use crate::scheduler::{Batch, PrefillSlice, Share, StepLimits, TokenSpan, Work, plan};

/// What a step with prompt tokens should take where nobody decodes: cancelling waits for it.
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

/// What a span of the batch was for.
struct Entry {
    /// Number of the request.
    number: u64,
    /// Tokens of the span.
    count: usize,
    /// Position of its first token.
    position: usize,
    /// Its rows of logits.
    logits: std::ops::Range<usize>,
}

/// A step that is about to run.
#[derive(Default)]
struct Step {
    batch: Batch,
    /// The adapters of each span.
    mixes: Vec<Mix>,
    entries: Vec<Entry>,
    prefilled: usize,
    decodes: bool,
}

impl Worker {
    /// One step: a token for each request that decodes, and a slice of prompt for those that do not
    /// yet.
    pub(super) fn step(&mut self) -> Result<(), DeviceError> {
        self.end_complete();
        let step = self.form_step()?;
        if step.entries.is_empty() {
            return Ok(()); // whoever was to run waits for pages again
        }
        let started = Instant::now();
        self.runner.step_with(&step.batch, &step.mixes)?;
        let elapsed = started.elapsed();
        self.heartbeat.beat();
        self.slices.of(step.decodes).learn(step.prefilled, elapsed);
        self.totals.steps += 1;
        self.totals.prefill_tokens += step.prefilled as u64;
        let tokens = [step.prefilled, step.batch.token_count() - step.prefilled];
        self.totals.activity.note_step(elapsed, step.entries.len(), tokens);
        for (entry, span) in step.entries.into_iter().zip(step.batch.spans) {
            let generation = self.generation(entry.number);
            generation.note_step(entry.position, entry.count, elapsed);
            let (claim, session) = (generation.claim(), generation.session);
            self.fair.charge(&claim, entry.count);
            self.sessions.get_mut(session).tokens.extend(span.tokens);
            self.process(entry);
        }
        Ok(())
    }

    /// Ends requests with nothing to compute: of a prompt that was wholly cached, nothing more is
    /// wanted.
    fn end_complete(&mut self) {
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
    fn form_step(&mut self) -> Result<Step, DeviceError> {
        let limits = self.runner.model().limits();
        let work: Vec<Work> = self.running.iter().map(|g| self.work(g)).collect();
        let decodes = work.iter().any(|work| work.decoding);
        let limits = StepLimits {
            tokens_max: limits.tokens_max,
            rows_max: limits.logit_rows_max,
            slice_tokens: self.slices.of(decodes).tokens(),
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
            let adapters = &session.traits.adapters;
            step.mixes.push(adapters.iter().map(|used| (used.number, used.scale())).collect());
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

    /// Reads a span's logits: prompt logprobs, the next token, the end.
    fn process(&mut self, entry: Entry) {
        let mut generation = self.take_running(entry.number);
        let outcome = self.take_logits(&mut generation, entry.position + entry.count, entry.logits);
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
        end: usize,
        rows: std::ops::Range<usize>,
    ) -> Result<Option<FinishReason>, SamplingError> {
        let vocab = self.vocab();
        let prompt_len = generation.request.tokens.len();
        let first = end - rows.len();
        for (at, row) in (first..end).zip(rows.clone()) {
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
        let row = rows.end - 1;
        self.totals.decode_tokens += 1;
        generation.take_logits(&mut self.runner.logits(row)[..vocab], &self.tokenizer)
    }

    /// A request that runs.
    fn generation(&mut self, number: u64) -> &mut Generation {
        self.running.iter_mut().find(|g| g.number == number).expect("it runs")
    }

    fn take_running(&mut self, number: u64) -> Generation {
        let at = self.running.iter().position(|g| g.number == number).expect("it runs");
        self.running.remove(at)
    }
}
