//! A generation in progress: from its tokens to the events its caller hears.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedSender;

use super::constraints::Constraints;
use super::runner::Wanted;
use super::types::{
    EngineEvent, FinishReason, GenerateRequest, GenerateResult, Timings, TokenLogprob,
};
use crate::grammar::{Grammar, GrammarError, GrammarState, mask_words};
use crate::kernels::sampling::{NONE, Row};
use crate::sampler::{Sampler, SamplingError, log_softmax_top};
use crate::scheduler::{Claim, Priority};
use crate::session::SessionId;
use crate::tokenizer::{StopMatcher, StreamDecoder, Tokenizer};

/// A request that is running or waiting to.
pub(super) struct Generation {
    pub request: GenerateRequest,
    /// In the order of arrival.
    pub number: u64,
    pub session: SessionId,
    pub priority: Priority,
    /// Most tokens to generate, by the request and the context.
    pub tokens_max: usize,
    /// Prompt tokens found in the cache, once it has run.
    pub cached: Option<usize>,
    /// True if its logits were non-finite once and the device was reopened for that.
    pub retried: bool,
    /// The device could not choose its next token: the host does.
    pub on_host: bool,
    /// Why it can go no further, where its grammar allows nothing.
    pub failure: Option<String>,
    /// How far the text has come in its grammar.
    grammar: Option<GrammarState>,
    events: UnboundedSender<EngineEvent>,
    /// Prompt and generated tokens.
    history: Vec<u32>,
    generated: Vec<u32>,
    text: String,
    sampler: Sampler,
    decoder: StreamDecoder,
    stops: StopMatcher,
    logprobs: Vec<TokenLogprob>,
    prompt_logprobs: Vec<TokenLogprob>,
    arrived: Instant,
    started: Option<Instant>,
    first_token: Option<Instant>,
    device_time: Duration,
    sampling_time: Duration,
    steps: u64,
    computed_tokens: u64,
}

impl Generation {
    pub(super) fn new(
        request: GenerateRequest,
        (number, session, priority): (u64, SessionId, Priority),
        tokens_max: usize,
        vocab_size: usize,
        events: UnboundedSender<EngineEvent>,
    ) -> Result<Self, SamplingError> {
        let mut sampler = Sampler::new(&request.sampling, vocab_size)?;
        sampler.set_bias(&request.constraints.bias);
        let constraints = &request.constraints;
        let begin = |grammar: &Arc<Grammar>| grammar.begin(constraints.begins_after.clone());
        Ok(Self {
            sampler,
            failure: None,
            grammar: constraints.grammar.as_ref().map(begin),
            stops: StopMatcher::new(&request.stop),
            history: request.tokens.clone(),
            request,
            number,
            session,
            priority,
            tokens_max,
            cached: None,
            retried: false,
            on_host: false,
            events,
            generated: Vec::new(),
            text: String::new(),
            decoder: StreamDecoder::continuing(false),
            logprobs: Vec::new(),
            prompt_logprobs: Vec::new(),
            arrived: Instant::now(),
            started: None,
            first_token: None,
            device_time: Duration::ZERO,
            sampling_time: Duration::ZERO,
            steps: 0,
            computed_tokens: 0,
        })
    }

    /// Notes how much of the prompt was found in the cache, and tells a caller that asked.
    pub(super) fn note_cached(&mut self, cached: usize) {
        self.cached = Some(cached);
        if self.request.report_start {
            let cached_tokens = u32::try_from(cached).unwrap_or(u32::MAX);
            let _ = self.events.send(EngineEvent::Started { cached_tokens }); // as in `emit`
        }
    }

    /// All positions that it may ever need.
    pub(super) fn tokens_wanted(&self) -> usize {
        self.request.tokens.len() + self.tokens_max
    }

    /// Prompt and generated tokens so far.
    pub(super) fn history(&self) -> &[u32] {
        &self.history
    }

    /// Reason to end the request, if any: cancelled, caller gone, or deadline passed.
    pub(super) fn given_up(&self, now: Instant) -> Option<FinishReason> {
        if self.request.cancel.is_raised() || self.events.is_closed() {
            return Some(FinishReason::Cancelled);
        }
        let over = self.request.deadline.is_some_and(|deadline| now >= deadline);
        over.then_some(FinishReason::Deadline)
    }

    /// Claim of this request for the scheduler.
    pub(super) fn claim(&self) -> Claim {
        Claim {
            request: self.number,
            uid: self.request.owner.uid,
            session: self.session.0,
            priority: self.priority,
        }
    }

    /// When it arrived.
    pub(super) fn arrived(&self) -> Instant {
        self.arrived
    }

    /// True if it was part of a step already.
    pub(super) fn has_started(&self) -> bool {
        self.started.is_some()
    }

    /// Notes the first step that the request is part of.
    pub(super) fn mark_started(&mut self) {
        self.started.get_or_insert_with(Instant::now);
    }

    /// Notes a step that evaluated the `count` tokens from `position` on.
    pub(super) fn note_step(&mut self, position: usize, count: usize, elapsed: Duration) {
        let end = self.request.tokens.len().min(position + count);
        self.computed_tokens += end.saturating_sub(position) as u64;
        self.device_time += elapsed;
        self.steps += 1;
    }

    /// Takes the logits behind prompt token `at`, as the prediction of the one after it.
    pub(super) fn take_prompt_logits(
        &mut self,
        at: usize,
        logits: &[f32],
    ) -> Result<(), SamplingError> {
        // After a pause or a loss, tokens are computed again, and what was taken is there already.
        if let Some(count) = self.request.prompt_logprobs
            && self.prompt_logprobs.len() == at
            && let Some(next) = self.request.tokens.get(at + 1)
        {
            self.prompt_logprobs.push(log_softmax_top(logits, *next, count as usize)?);
        }
        Ok(())
    }

    /// Sampling request for the next token, or for the one after it if the next is still in row
    /// `pending` of the step in flight. `None` if the host samples.
    pub(super) fn wanted(&self, pending: Option<u32>) -> Option<Wanted> {
        let GenerateRequest { logprobs, prompt_logprobs, sampling, .. } = &self.request;
        let needs_logits = logprobs.is_some() || prompt_logprobs.is_some();
        if needs_logits || self.on_host || !sampling.suit_the_device() {
            return None;
        }
        let row = self.sampler.row(u64::from(pending.is_some()));
        let penalties = self.sampler.penalties(&self.history, pending.is_some());
        let pending = pending.filter(|_| sampling.penalises());
        Some(Wanted {
            row: Row { penalty_pending: pending.unwrap_or(NONE), ..row },
            penalties,
            masked: self.is_masked(),
        })
    }

    /// True if some tokens must not come.
    fn is_masked(&self) -> bool {
        let Constraints { forbidden, ignore_eos, .. } = &self.request.constraints;
        self.grammar.is_some() || *ignore_eos || !forbidden.is_empty()
    }

    /// Writes which tokens may come next, a bit each.
    pub(super) fn mask(
        &mut self,
        mask: &mut [u32],
        tokenizer: &Tokenizer,
    ) -> Result<(), GrammarError> {
        match &mut self.grammar {
            Some(grammar) => grammar.mask(mask)?,
            None => mask.fill(u32::MAX),
        }
        let forbid = |mask: &mut [u32], tokens: &[u32]| {
            for token in tokens {
                if let Some(word) = mask.get_mut(*token as usize / 32) {
                    *word &= !(1 << (token % 32));
                }
            }
        };
        let Constraints { forbidden, ignore_eos, .. } = &self.request.constraints;
        if *ignore_eos {
            let before = mask.to_vec();
            forbid(mask, tokenizer.stop_ids());
            if self.grammar.is_some() && mask.iter().all(|word| *word == 0) {
                mask.copy_from_slice(&before);
            }
        }
        forbid(mask, forbidden);
        match mask.iter().all(|word| *word == 0) {
            true => Err(GrammarError::Stuck("all tokens that may come are forbidden".into())),
            false => Ok(()),
        }
    }

    /// True if the next token is the last that may be generated.
    pub(super) fn is_last_token(&self) -> bool {
        self.generated.len() + 1 >= self.tokens_max
    }

    /// Takes the next token, which the device chose; says why the generation ends, if it does.
    pub(super) fn take_token(&mut self, token: u32, tokenizer: &Tokenizer) -> Option<FinishReason> {
        let started = Instant::now();
        self.first_token.get_or_insert(started);
        self.sampler.pass();
        let reason = self.accept(token, None, tokenizer);
        self.sampling_time += started.elapsed();
        reason
    }

    /// Chooses the next token from its logits; says why the generation ends, if it does.
    pub(super) fn take_logits(
        &mut self,
        logits: &mut [f32],
        tokenizer: &Tokenizer,
    ) -> Result<Option<FinishReason>, SamplingError> {
        let started = Instant::now();
        self.first_token.get_or_insert(started);
        let reason = self.choose(logits, tokenizer);
        self.sampling_time += started.elapsed();
        reason
    }

    fn choose(
        &mut self,
        logits: &mut [f32],
        tokenizer: &Tokenizer,
    ) -> Result<Option<FinishReason>, SamplingError> {
        // The sampler changes the logits; what is reported is the model's own distribution.
        let plain = self.request.logprobs.map(|count| (count as usize, logits.to_vec()));
        let mask = match self.is_masked() {
            false => None,
            true => {
                let mut mask = vec![0; mask_words(logits.len())];
                if let Err(error) = self.mask(&mut mask, tokenizer) {
                    self.failure = Some(error.to_string());
                    return Ok(Some(FinishReason::Error));
                }
                Some(mask)
            }
        };
        let token = match self.sampler.sample(logits, &self.history, mask.as_deref()) {
            Err(error @ SamplingError::NoCandidates { .. }) if mask.is_some() => {
                self.failure = Some(error.to_string());
                return Ok(Some(FinishReason::Error));
            }
            token => token?,
        };
        let plain = plain.filter(|_| !tokenizer.is_stop(token));
        let logprob =
            plain.map(|(count, logits)| log_softmax_top(&logits, token, count)).transpose()?;
        Ok(self.accept(token, logprob, tokenizer))
    }

    /// Makes text of a token that was chosen.
    fn accept(
        &mut self,
        token: u32,
        logprob: Option<TokenLogprob>,
        tokenizer: &Tokenizer,
    ) -> Option<FinishReason> {
        if tokenizer.is_stop(token) {
            let rest = self.flush();
            if !rest.is_empty() {
                self.emit(rest, token, None);
            }
            return Some(FinishReason::Stop);
        }
        self.history.push(token);
        self.generated.push(token);
        self.sampler.note(token);
        let followed = self.grammar.as_mut().map_or(Ok(()), |grammar| grammar.accept(token));
        self.logprobs.extend(logprob.clone());
        let piece = self.decoder.push(tokenizer, token).unwrap_or_default();
        let found = self.stops.push(&piece);
        let mut text = found.text;
        let is_over = self.grammar.as_ref().is_some_and(GrammarState::is_over);
        let reason = if found.stopped {
            Some(FinishReason::Stop)
        } else if let Err(error) = followed {
            self.failure = Some(error.to_string());
            Some(FinishReason::Error)
        } else if is_over || self.generated.len() >= self.tokens_max {
            let rest = self.decoder.flush();
            let last = self.stops.push(&rest);
            text.push_str(&last.text);
            if last.stopped {
                Some(FinishReason::Stop)
            } else {
                text.push_str(&self.stops.flush());
                Some(if is_over { FinishReason::Stop } else { FinishReason::Length })
            }
        } else {
            None
        };
        self.text.push_str(&text);
        self.emit(text, token, logprob);
        reason
    }

    /// The text still held back, which is now part of the result.
    fn flush(&mut self) -> String {
        let rest = self.decoder.flush();
        let last = self.stops.push(&rest);
        let mut text = last.text;
        if !last.stopped {
            text.push_str(&self.stops.flush());
        }
        self.text.push_str(&text);
        text
    }

    fn emit(&self, text: String, token: u32, logprob: Option<TokenLogprob>) {
        if self.request.stream {
            // A caller that has gone away is noticed before the next step.
            let _ = self.events.send(EngineEvent::Token { text, token, logprob });
        }
    }

    /// Ends the generation and tells its caller.
    pub(super) fn finish(mut self, finish_reason: FinishReason, error: Option<String>) {
        if !matches!(finish_reason, FinishReason::Stop | FinishReason::Length) {
            self.flush();
        }
        let now = Instant::now();
        let started = self.started.unwrap_or(now);
        let first = self.first_token.unwrap_or(now);
        let ms = |from: Instant, to: Instant| {
            to.checked_duration_since(from).unwrap_or(Duration::ZERO).as_secs_f64() * 1e3
        };
        let error = error.or(self.failure);
        let result = GenerateResult {
            text: self.text,
            tokens: self.generated,
            stop_text: self.stops.matched().map(str::to_owned),
            finish_reason,
            error,
            prompt_tokens: self.request.tokens.len() as u32,
            cached_tokens: self.cached.unwrap_or(0) as u32,
            logprobs: self.request.logprobs.map(|_| self.logprobs),
            prompt_logprobs: self.request.prompt_logprobs.map(|_| self.prompt_logprobs),
            timings: Timings {
                queue_ms: ms(self.arrived, started),
                prefill_ms: ms(started, first),
                decode_ms: ms(first, now),
                device_ms: self.device_time.as_secs_f64() * 1e3,
                sampling_ms: self.sampling_time.as_secs_f64() * 1e3,
                steps: self.steps,
                computed_tokens: self.computed_tokens,
            },
        };
        // A caller that has gone away needs no answer.
        let _ = self.events.send(EngineEvent::Done(Box::new(result)));
    }

    /// Tells the caller that the request cannot be served.
    pub(super) fn refuse(self, error: super::types::AdmitError) {
        let _ = self.events.send(EngineEvent::Refused(error)); // as in `finish`
    }
}
