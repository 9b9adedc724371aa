//! Embeddings between the steps of those who generate: texts of several requests in one batch, at
//! most one slice of tokens a step.
//!
//! An encoder takes whole texts. Other models take a text in parts, each behind the one before, as
//! they take a prompt; what they make of a token does not depend on the cut.

use std::time::Instant;

use super::embedding::{EmbedReply, EmbedRequest, Embedding, OpenText};
use super::room::Asker;
use super::types::AdmitError;
use super::worker::Worker;
use crate::gpu::DeviceError;
use crate::model::Pool;
use crate::scheduler::{Batch, Claim, TokenSpan};
use crate::session::{Owner, SessionId, Traits};

/// Most texts of a step: each needs a row of the block tables.
const TEXTS_A_STEP: usize = 32;

/// The texts of a step, and whose they are: the number of the request for each span.
#[derive(Default)]
struct EmbedStep {
    batch: Batch,
    numbers: Vec<u64>,
    tokens: usize,
}

impl Worker {
    /// A new request: refused at once, or put with those that wait.
    pub(super) fn arrive_to_embed(&mut self, request: EmbedRequest, reply: EmbedReply) {
        let loaded = self.load().map_err(|failure| AdmitError::NotLoaded(failure.message));
        let checked = loaded.and_then(|()| self.check_embed(&request));
        if let Err(error) = checked.and_then(|()| self.find_place_to_wait(request.owner)) {
            let _ = reply.send(Err(error)); // the caller may be gone
            return;
        }
        let pooling = request.pooling.unwrap_or(self.runner.model().hyper().pooling);
        self.arrived += 1;
        self.embeddings.push(Embedding::new(request, self.arrived, pooling, reply));
    }

    fn check_embed(&self, request: &EmbedRequest) -> Result<(), AdmitError> {
        let longest = request.texts.iter().map(Vec::len).max().unwrap_or(0);
        if request.texts.iter().any(Vec::is_empty) || longest == 0 {
            return Err(AdmitError::EmptyPrompt);
        }
        let vocab_size = self.vocab() as u32;
        let unknown = request.texts.iter().flatten().find(|token| **token >= vocab_size);
        if let Some(token) = unknown {
            return Err(AdmitError::UnknownToken { token: *token, vocab_size });
        }
        let context_tokens = self.info.context_tokens as usize;
        if longest > context_tokens {
            return Err(AdmitError::ContextFull { prompt_tokens: longest, context_tokens });
        }
        self.check_memory(longest)?;
        self.check_request_of(request.owner, longest)
    }

    /// One step of embedding, if anybody wants one and it is their turn.
    pub(super) fn embed(&mut self) -> Result<(), DeviceError> {
        self.end_given_up_embeddings();
        self.close_lost_texts();
        if self.embeddings.is_empty() {
            return Ok(());
        }
        let step = self.form_embed_step()?;
        if step.numbers.is_empty() {
            self.refuse_what_never_fits();
            return Ok(());
        }
        let started = Instant::now();
        let rows = self.runner.encode(&step.batch)?;
        let elapsed = started.elapsed();
        self.heartbeat.beat();
        let decodes = self.decodes();
        self.slices.of(decodes).learn(step.tokens, elapsed);
        self.totals.steps += 1;
        self.totals.prefill_tokens += step.tokens as u64;
        let requests = step.numbers.chunk_by(|a, b| a == b).count();
        self.totals.activity.note_step(elapsed, requests, [step.tokens, 0]);
        for numbers in step.numbers.chunk_by(|a, b| a == b) {
            self.embedding(numbers[0]).note_step(started, elapsed);
        }
        self.hand_out_rows(&step, &rows);
        Ok(())
    }

    /// Gives every text its rows, and every request that is done its answer.
    fn hand_out_rows(&mut self, step: &EmbedStep, rows: &[f32]) {
        let width = rows.len() / step.tokens;
        let mut rest = rows;
        for (span, number) in step.batch.spans.iter().zip(&step.numbers) {
            let rows;
            (rows, rest) = rest.split_at(span.tokens.len() * width);
            let Some(at) = self.embeddings.iter().position(|e| e.number == *number) else {
                continue; // refused for an earlier text
            };
            let claim = self.embeddings[at].claim();
            self.fair.charge(&claim, span.tokens.len());
            if rows.iter().any(|value| !value.is_finite()) {
                self.take_bad_rows(at);
                continue;
            }
            if let Some(session) = self.embeddings[at].take_rows(rows) {
                self.drop_session(session);
            }
            if self.embeddings[at].is_done() {
                self.embeddings.remove(at).finish();
            }
        }
    }

    /// Handles non-finite results for a text: reopening the device may cure that, once.
    fn take_bad_rows(&mut self, at: usize) {
        if !self.embeddings[at].retried && self.can_rebuild_for_logits() {
            self.embeddings[at].retried = true;
            self.bad_logits = true;
            self.close_texts(at);
        } else {
            let what = "the model made values of a text that are not numbers";
            self.end_embedding(at, AdmitError::Failed(what.to_owned()));
        }
    }

    /// Chooses the texts of a step and takes the pages they need; whoever gets none waits.
    fn form_embed_step(&mut self) -> Result<EmbedStep, DeviceError> {
        let mut step = EmbedStep::default();
        let claims: Vec<Claim> = self.embeddings.iter().map(Embedding::claim).collect();
        let order = self.fair.order(&claims);
        if !self.is_turn_of(&claims[order[0]]) {
            return Ok(step);
        }
        let decodes = self.decodes();
        let slice = self.slices.of(decodes).tokens();
        let mut served: Vec<Owner> = Vec::new();
        for claim in order.into_iter().map(|at| claims[at]) {
            let owner = self.embedding(claim.request).request.owner;
            let beside = served.iter().filter(|other| **other == owner).count();
            if !self.may_run_beside(owner, beside) {
                continue;
            }
            let before = step.numbers.len();
            while self.add_text(&mut step, claim.request, slice)? {}
            if step.numbers.len() > before {
                served.push(owner);
            }
        }
        Ok(step)
    }

    /// True if nobody whose prompt is being evaluated comes first.
    fn is_turn_of(&self, claim: &Claim) -> bool {
        let prompts = self.running.iter().filter(|g| !self.work(g).decoding);
        let rank = self.fair.rank(claim);
        !prompts.map(|g| self.fair.rank(&g.claim())).any(|other| other < rank)
    }

    fn decodes(&self) -> bool {
        self.running.iter().any(|g| self.work(g).decoding)
    }

    /// Adds the next text of a request, or the next part of one, to a step of about `slice` tokens;
    /// `false` where there is none, or no room for it.
    fn add_text(
        &mut self,
        step: &mut EmbedStep,
        number: u64,
        slice: usize,
    ) -> Result<bool, DeviceError> {
        let whole = self.runner.model().hyper().encoder;
        let in_step = step.numbers.iter().filter(|other| **other == number).count();
        let embedding = self.embedding(number);
        let index = embedding.vectors.len() + in_step;
        let Some(text) = embedding.request.texts.get(index) else { return Ok(false) };
        let (len, open) = (text.len(), embedding.open.get(in_step));
        let evaluated = open.map_or(0, |text| text.pool.tokens());
        let room = slice.saturating_sub(step.tokens);
        let fits = if whole { len <= room || step.tokens == 0 } else { room > 0 };
        if !fits || step.numbers.len() == TEXTS_A_STEP {
            return Ok(false);
        }
        if open.is_none() && !self.open_text(number, len)? {
            return Ok(false);
        }
        let count = if whole { len } else { room.min(len - evaluated) };
        let embedding = self.embedding(number);
        let tokens = embedding.request.texts[index][evaluated..evaluated + count].to_vec();
        let session = embedding.open[in_step].session;
        step.batch.spans.push(TokenSpan {
            table: self.sessions.get(session).lease.as_ref().expect("it was opened").table(),
            position: evaluated as u32,
            tokens,
            logits: 0,
        });
        step.numbers.push(number);
        step.tokens += count;
        Ok(true)
    }

    /// Takes the pages for the next text of a request; whether there were enough.
    fn open_text(&mut self, number: u64, tokens: usize) -> Result<bool, DeviceError> {
        let embedding = self.embedding(number);
        let (owner, priority) = (embedding.request.owner, embedding.request.priority);
        let pooling = embedding.pooling;
        let traits = Traits {
            name: None,
            context_tokens: tokens,
            priority,
            ttl: None,
            ephemeral: true,
            adapters: Vec::new(),
        };
        let session = self.sessions.insert(owner, traits);
        self.sessions.get_mut(session).busy = true;
        let width = self.runner.model().hyper().embedding as usize;
        // Noted before anything can fail, so that it is closed with its request.
        self.embedding(number).open.push(OpenText { session, pool: Pool::new(pooling, width) });
        let asker = Asker::Waiting(priority);
        let opened = self.make_room_within_quota(session, tokens)?
            && self.take_table(session, asker)?
            && self.hold(session, tokens, asker)?;
        if !opened {
            self.embedding(number).open.pop();
            self.drop_session(session);
        }
        Ok(opened)
    }

    /// Ends the first request where nobody else has what it waits for.
    fn refuse_what_never_fits(&mut self) {
        if !self.running.is_empty() || !self.waiting.is_empty() {
            return;
        }
        let wanted = self.embeddings[0].request.texts.iter().map(Vec::len).max();
        let error = self.kv_full(wanted.unwrap_or(0));
        self.end_embedding(0, error);
    }

    fn end_given_up_embeddings(&mut self) {
        let now = Instant::now();
        for at in (0..self.embeddings.len()).rev() {
            if let Some(error) = self.embeddings[at].given_up(now) {
                self.end_embedding(at, error);
            }
        }
    }

    /// Begins texts anew whose pages went with their device, or were not all there.
    fn close_lost_texts(&mut self) {
        for at in 0..self.embeddings.len() {
            let open = &self.embeddings[at].open;
            let lost = |text: &OpenText| {
                let lease = self.sessions.get(text.session).lease.as_ref();
                lease.is_none_or(|lease| lease.pages().is_empty())
            };
            if open.iter().any(lost) {
                self.close_texts(at);
            }
        }
    }

    fn close_texts(&mut self, at: usize) {
        for text in std::mem::take(&mut self.embeddings[at].open) {
            self.drop_session(text.session);
        }
    }

    pub(super) fn end_embedding(&mut self, at: usize, error: AdmitError) {
        self.close_texts(at);
        self.embeddings.remove(at).refuse(error);
    }

    /// Ends all requests.
    pub(super) fn end_embeddings(&mut self, error: &AdmitError) {
        while !self.embeddings.is_empty() {
            self.end_embedding(0, error.clone());
        }
    }

    /// Bytes of cache that the user's texts have.
    pub(super) fn embedding_bytes(&self, owner: Owner) -> u64 {
        let own = self.embeddings.iter().filter(|e| e.request.owner == owner);
        own.flat_map(|e| &e.open).map(|text| self.held_bytes(self.sessions.get(text.session))).sum()
    }

    /// True if a session holds a text that is being embedded.
    pub(super) fn is_embedding(&self, id: SessionId) -> bool {
        self.embeddings.iter().flat_map(|e| &e.open).any(|text| text.session == id)
    }

    fn embedding(&mut self, number: u64) -> &mut Embedding {
        self.embeddings.iter_mut().find(|e| e.number == number).expect("it is not over")
    }
}
