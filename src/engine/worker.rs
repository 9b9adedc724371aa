//! The engine's loop: commands, admission, one batch a step.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::mpsc::{Receiver, UnboundedSender};

use super::EngineCommand;
use super::activity::KvPages;
use super::heartbeat::Heartbeat;
use super::open::{EngineOptions, Opened};
use super::placed::Placed;
use super::recovery::{EngineFailure, Losses};
use super::request::Generation;
use super::types::{
    AdmitError, EngineEvent, EngineStatus, FinishReason, GenerateRequest, ModelInfo, SessionInfo,
};
use crate::gpu::DeviceError;
use crate::kernels::PageLayout;
use crate::sampler::SamplingError;
use crate::scheduler::{Batch, PrefillSlice, TokenSpan};
use crate::session::{Owner, SessionId, Sessions};
use crate::tokenizer::Tokenizer;

/// Commands served between two steps: a flood of them must not stop those that generate.
const COMMANDS_A_STEP: usize = 256;

/// Everything the engine's thread owns.
pub(super) struct Worker {
    pub(super) runner: Placed,
    pub(super) losses: Losses,
    /// A request whose logits are no numbers waits for a new device.
    bad_logits: bool,
    pub(super) reopen_pause: Duration,
    tokenizer: Arc<Tokenizer>,
    pub(super) info: Arc<ModelInfo>,
    pub(super) sessions: Sessions,
    /// Admitted: their pages are leased. Taken from the front, put back at the end.
    pub(super) running: VecDeque<Generation>,
    /// Waiting for pages or for a place in the batch, oldest first.
    pub(super) waiting: VecDeque<Generation>,
    slice: PrefillSlice,
    sessions_max: usize,
    pub(super) requests_queued_max: usize,
    pub(super) running_max: usize,
    started: Instant,
    pub(super) heartbeat: Heartbeat,
    pub(super) totals: EngineStatus,
}

/// What a span of the batch was for.
struct Entry {
    generation: Generation,
    /// Tokens of the span.
    count: usize,
    /// Position of its first token.
    position: usize,
    /// Its rows of logits.
    logits: std::ops::Range<usize>,
}

impl Worker {
    pub(super) fn new(opened: Opened, options: &EngineOptions, heartbeat: Heartbeat) -> Self {
        let limits = opened.runner.model().limits();
        Self {
            slice: PrefillSlice::new(options.prefill_tokens_max.min(limits.tokens_max)),
            running_max: limits.logit_rows_max,
            runner: Placed::new(opened.runner, opened.reopen),
            losses: Losses::default(),
            bad_logits: false,
            reopen_pause: options.reopen_pause,
            tokenizer: opened.tokenizer,
            info: opened.info,
            sessions: Sessions::default(),
            running: VecDeque::new(),
            waiting: VecDeque::new(),
            sessions_max: options.sessions_max,
            requests_queued_max: options.requests_queued_max,
            started: Instant::now(),
            heartbeat,
            totals: EngineStatus::default(),
        }
    }

    /// Runs until it is told to shut down, or the device fails too often.
    ///
    /// # Errors
    /// The failure that nothing could be done about; every caller has been told.
    pub(super) fn run(
        mut self,
        mut commands: Receiver<EngineCommand>,
    ) -> Result<(), EngineFailure> {
        let ended = self.serve_all(&mut commands);
        if let Err(failure) = &ended {
            tracing::error!(%failure, "giving up");
            self.fail_all(&failure.to_string());
        }
        ended
    }

    fn serve_all(&mut self, commands: &mut Receiver<EngineCommand>) -> Result<(), EngineFailure> {
        let mut served = 0;
        loop {
            let idle = self.running.is_empty() && self.waiting.is_empty();
            let command = if idle {
                // Pages given back are zeroed while nobody waits.
                let (kv, executor) = self.runner.kv_mut();
                if let Err(error) = kv.clean(executor) {
                    self.recover(error)?;
                }
                commands.blocking_recv().ok_or(TryRecvError::Disconnected)
            } else if served < COMMANDS_A_STEP {
                commands.try_recv()
            } else {
                Err(TryRecvError::Empty) // the rest after the next step
            };
            match command {
                Ok(EngineCommand::Shutdown) | Err(TryRecvError::Disconnected) => {
                    self.shut_down();
                    return Ok(());
                }
                Ok(command) => {
                    self.serve(command);
                    served += 1;
                    continue; // all that has arrived, before the next step
                }
                Err(TryRecvError::Empty) => served = 0,
            }
            if let Err(error) = self.admit().and_then(|()| self.step()) {
                self.recover(error)?;
            } else if std::mem::take(&mut self.bad_logits) {
                self.recover_from_bad_logits()?;
            }
        }
    }

    fn serve(&mut self, command: EngineCommand) {
        self.heartbeat.beat();
        // A reply whose caller has gone away is dropped.
        match command {
            EngineCommand::CreateSession { owner, name, context_tokens, reply } => {
                let _ = reply.send(self.create_session(owner, name, context_tokens));
            }
            EngineCommand::ListSessions { owner, reply } => {
                let list = self.sessions.list(owner).map(|(id, _)| id).collect::<Vec<_>>();
                let _ = reply.send(list.into_iter().map(|id| self.session_info(id)).collect());
            }
            EngineCommand::CloseSession { owner, session, reply } => {
                let _ = reply.send(self.close_session(owner, session));
            }
            EngineCommand::Generate { request, events } => self.arrive(*request, events),
            EngineCommand::Status { reply } => {
                let _ = reply.send(self.status());
            }
            EngineCommand::Shutdown => unreachable!("handled by the loop"),
        }
    }

    fn create_session(
        &mut self,
        owner: Owner,
        name: Option<String>,
        context_tokens: Option<u32>,
    ) -> Result<SessionInfo, AdmitError> {
        if let Some(name) = &name
            && self.sessions.list(owner).any(|(_, session)| session.name.as_ref() == Some(name))
        {
            return Err(AdmitError::SessionExists(name.clone()));
        }
        if self.sessions.count() >= self.sessions_max {
            return Err(AdmitError::TooManySessions { limit: self.sessions_max });
        }
        let most = self.info.context_tokens;
        let context = context_tokens.map_or(most, |wanted| wanted.clamp(1, most));
        let id = self.sessions.insert(owner, name, context as usize, false);
        Ok(self.session_info(id))
    }

    fn session_info(&mut self, id: SessionId) -> SessionInfo {
        let session = self.sessions.get_mut(id);
        SessionInfo {
            id,
            name: session.name.clone(),
            context_tokens: session.context_tokens as u32,
            cached_tokens: session.tokens.len() as u32,
            busy: session.busy,
            idle_seconds: if session.busy { 0 } else { session.last_used.elapsed().as_secs() },
        }
    }

    fn close_session(&mut self, owner: Owner, id: SessionId) -> Result<(), AdmitError> {
        if self.sessions.of_owner(owner, id).is_none() {
            return Err(AdmitError::UnknownSession(id.0.to_string()));
        }
        for queue in [&mut self.running, &mut self.waiting] {
            while let Some(at) = queue.iter().position(|g| g.session == id) {
                let generation = queue.remove(at).expect("found there");
                self.totals.activity.note_end(FinishReason::Cancelled);
                generation.finish(FinishReason::Cancelled, None);
            }
        }
        self.drop_session(id);
        Ok(())
    }

    fn drop_session(&mut self, id: SessionId) {
        if let Some(lease) = self.sessions.remove(id).and_then(|session| session.lease) {
            self.runner.kv_mut().0.release(lease);
        }
    }

    /// A new request: refused at once, or put at the end of the queue.
    fn arrive(&mut self, request: GenerateRequest, events: UnboundedSender<EngineEvent>) {
        let answer = events.clone();
        match self.check(&request) {
            Err(error) => {
                let _ = answer.send(EngineEvent::Refused(error)); // the caller may be gone
            }
            Ok(tokens_max) => {
                let context = self.info.context_tokens as usize;
                let owner = request.owner;
                let session = request
                    .session
                    .unwrap_or_else(|| self.sessions.insert(owner, None, context, true));
                self.sessions.get_mut(session).busy = true;
                let vocab = self.vocab();
                match Generation::new(request, session, tokens_max, vocab, events) {
                    Ok(generation) => self.waiting.push_back(generation),
                    Err(error) => {
                        self.settle(session, None);
                        let _ = answer.send(EngineEvent::Refused(AdmitError::Sampling(error)));
                    }
                }
            }
        }
    }

    /// Logits beyond the tokenizer's vocabulary are padding of the table.
    pub(super) fn vocab(&self) -> usize {
        self.tokenizer.vocab_size().min(self.runner.model().vocab())
    }

    /// One step: a token for each request that decodes, and a slice of prompt for those that do not
    /// yet.
    fn step(&mut self) -> Result<(), DeviceError> {
        let (batch, entries, prefilled) = self.form_batch();
        if batch.spans.is_empty() {
            for entry in entries {
                self.process(entry); // nothing left to compute: a prompt that was wholly cached
            }
            return Ok(());
        }
        let started = Instant::now();
        if let Err(error) = self.runner.step(&batch) {
            self.running.extend(entries.into_iter().map(|entry| entry.generation));
            return Err(error);
        }
        let elapsed = started.elapsed();
        self.heartbeat.beat();
        self.slice.learn(prefilled, elapsed);
        self.totals.steps += 1;
        self.totals.prefill_tokens += prefilled as u64;
        let tokens: usize = batch.spans.iter().map(|span| span.tokens.len()).sum();
        let tokens = [prefilled, tokens - prefilled];
        self.totals.activity.note_step(elapsed, entries.len(), tokens);
        for (mut entry, span) in entries.into_iter().zip(batch.spans) {
            entry.generation.note_step(entry.position, entry.count, elapsed);
            self.sessions.get_mut(entry.generation.session).tokens.extend(span.tokens);
            self.process(entry);
        }
        Ok(())
    }

    /// Takes requests from the front of `running` into a batch, as far as its limits go.
    fn form_batch(&mut self) -> (Batch, Vec<Entry>, usize) {
        let limits = self.runner.model().limits();
        let (mut batch, mut entries) = (Batch::default(), Vec::new());
        let mut slice_left = self.slice.tokens();
        let mut tokens_left = limits.tokens_max;
        let mut rows = 0;
        let mut prefilled = 0;
        for _ in 0..self.running.len() {
            let mut generation = self.running.pop_front().expect("counted");
            let session = self.sessions.get_mut(generation.session);
            let position = session.tokens.len();
            let prompt_len = generation.request.tokens.len();
            let decoding = position + 1 == generation.history().len() && position >= prompt_len;
            let rows_left = limits.logit_rows_max - rows;
            let pending = generation.history().len() - position;
            let mut count = pending.min(tokens_left);
            if !decoding {
                count = count.min(slice_left);
                if generation.request.prompt_logprobs.is_some() {
                    count = count.min(rows_left);
                }
            }
            let wants_logits = generation.request.prompt_logprobs.is_some() && !decoding;
            let last = count == pending && generation.tokens_max > 0;
            let logits = if wants_logits { count } else { usize::from(last) };
            if pending > 0 && (count == 0 || logits > rows_left) {
                self.running.push_back(generation);
                continue;
            }
            generation.mark_started();
            if pending > 0 {
                batch.spans.push(TokenSpan {
                    table: session.lease.as_ref().expect("leased on admission").table(),
                    position: position as u32,
                    tokens: generation.history()[position..position + count].to_vec(),
                    logits,
                });
            } else if !batch.spans.is_empty() {
                // A request with nothing to compute gets a step of its own: it is the next one.
                self.running.push_front(generation);
                break;
            }
            if !decoding {
                slice_left -= count;
                prefilled += count;
            }
            tokens_left -= count;
            entries.push(Entry { generation, count, position, logits: rows..rows + logits });
            rows += logits;
            if pending == 0 {
                break;
            }
        }
        (batch, entries, prefilled)
    }

    /// Reads a span's logits: prompt logprobs, the next token, the end.
    fn process(&mut self, entry: Entry) {
        let Entry { mut generation, count, position, logits } = entry;
        let outcome = self.take_logits(&mut generation, position + count, logits);
        match outcome {
            Ok(Some(reason)) => self.end(generation, reason, None),
            Ok(None) => self.running.push_back(generation),
            Err(_) if !generation.retried && self.can_rebuild_for_logits() => {
                generation.retried = true;
                self.bad_logits = true;
                self.running.push_back(generation);
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

    /// Ends a request and puts its session to rest.
    pub(super) fn end(
        &mut self,
        generation: Generation,
        reason: FinishReason,
        error: Option<String>,
    ) {
        self.totals.activity.note_end(reason);
        let keep = self.sessions.get_mut(generation.session).tokens.len();
        self.settle(generation.session, Some(keep));
        generation.finish(reason, error);
    }

    /// Marks a session idle, with pages for its first `keep` tokens only; one made for a single
    /// request goes.
    pub(super) fn settle(&mut self, id: SessionId, keep: Option<usize>) {
        let session = self.sessions.get_mut(id);
        session.busy = false;
        session.last_used = Instant::now();
        if session.ephemeral {
            self.drop_session(id);
        } else if let (Some(keep), Some(lease)) = (keep, &mut session.lease) {
            self.runner.kv_mut().0.shrink(lease, keep);
        }
    }

    fn status(&self) -> EngineStatus {
        let caps = self.runner.executor().capabilities();
        let memory = self.runner.executor().memory();
        let kv = self.runner.kv();
        let (free, soiled) = (kv.pages_free(), kv.pages_soiled());
        let leased = kv.config().pages() - free - soiled;
        let pool = (kv.config().pages() * PageLayout::TOKENS as usize) as u64;
        EngineStatus {
            device: caps.device_name.clone(),
            driver: caps.driver.clone(),
            kv_dtype: if kv.config().layout.half { "f16" } else { "f32" }.into(),
            sessions: self.sessions.count(),
            running: self.running.len(),
            queued: self.waiting.len(),
            kv_tokens_max: pool,
            kv_tokens_used: pool - kv.tokens_free() as u64,
            kv_pages: KvPages { leased: leased as u64, free: free as u64, soiled: soiled as u64 },
            device_bytes: memory.used_bytes,
            device_budget_bytes: memory.budget_bytes,
            uptime_seconds: self.started.elapsed().as_secs(),
            ..self.totals.clone()
        }
    }

    fn fail_all(&mut self, error: &str) {
        for generation in self.running.drain(..).chain(self.waiting.drain(..)) {
            generation.finish(FinishReason::Error, Some(error.to_owned()));
        }
    }

    fn shut_down(&mut self) {
        for generation in self.running.drain(..) {
            generation.finish(FinishReason::Cancelled, None);
        }
        for generation in self.waiting.drain(..) {
            generation.refuse(AdmitError::ShuttingDown);
        }
    }
}
