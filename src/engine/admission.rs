//! Who runs next: what a request needs is checked on arrival, and leased before it runs.

use std::collections::VecDeque;

use super::request::Generation;
use super::types::{AdmitError, FinishReason, GenerateRequest};
use super::worker::Worker;
use crate::gpu::DeviceError;
use crate::session::SessionId;

impl Worker {
    /// Most tokens that the request may generate, or why it cannot be served.
    pub(super) fn check(&self, request: &GenerateRequest) -> Result<usize, AdmitError> {
        let mut context_tokens = self.info.context_tokens as usize;
        if let Some(id) = request.session {
            let session = self
                .sessions
                .of_owner(request.owner, id)
                .ok_or_else(|| AdmitError::UnknownSession(id.0.to_string()))?;
            if session.busy {
                return Err(AdmitError::SessionBusy(id.0));
            }
            context_tokens = session.context_tokens;
        }
        let waiting = self.waiting.len();
        if waiting >= self.requests_queued_max {
            return Err(AdmitError::QueueFull { waiting, limit: self.requests_queued_max });
        }
        let prompt_tokens = request.tokens.len();
        if prompt_tokens == 0 {
            return Err(AdmitError::EmptyPrompt);
        }
        let vocab_size = self.vocab() as u32;
        if let Some(token) = request.tokens.iter().find(|token| **token >= vocab_size) {
            return Err(AdmitError::UnknownToken { token: *token, vocab_size });
        }
        let room = context_tokens.saturating_sub(prompt_tokens);
        if prompt_tokens > context_tokens || room == 0 && request.tokens_max > 0 {
            return Err(AdmitError::ContextFull { prompt_tokens, context_tokens });
        }
        let pool = self.runner.kv().config().tokens_max;
        if prompt_tokens > pool {
            return Err(AdmitError::KvFull { wanted_tokens: prompt_tokens, free_tokens: pool });
        }
        Ok(room.min(pool - prompt_tokens).min(request.tokens_max as usize))
    }

    /// Leases pages for waiting requests, oldest first, while there is room.
    pub(super) fn admit(&mut self) -> Result<(), DeviceError> {
        self.drop_cancelled();
        while self.running.len() < self.running_max {
            let Some(mut generation) = self.waiting.pop_front() else { break };
            // All that it may ever need: once running, a request never waits for pages.
            let needed = generation.request.tokens.len() + generation.tokens_max;
            let leased = self.lease_pages(generation.session, needed);
            if leased.is_err() {
                self.waiting.push_front(generation);
                return leased.map(|_| ());
            }
            if !leased? {
                if self.running.is_empty() {
                    let free_tokens = self.runner.kv().tokens_free();
                    self.settle(generation.session, None);
                    generation.refuse(AdmitError::KvFull { wanted_tokens: needed, free_tokens });
                    continue;
                }
                self.waiting.push_front(generation);
                break;
            }
            self.reuse_prefix(&mut generation);
            self.running.push_back(generation);
        }
        Ok(())
    }

    fn drop_cancelled(&mut self) {
        for waiting in [true, false] {
            let queue = if waiting { &mut self.waiting } else { &mut self.running };
            let (gone, kept): (VecDeque<_>, VecDeque<_>) =
                std::mem::take(queue).into_iter().partition(Generation::is_cancelled);
            *queue = kept;
            for generation in gone {
                self.end(generation, FinishReason::Cancelled, None);
            }
        }
    }

    /// Makes the session's lease hold `needed` positions, at the cost of other sessions' caches.
    fn lease_pages(&mut self, id: SessionId, needed: usize) -> Result<bool, DeviceError> {
        loop {
            let (kv, executor) = self.runner.kv_mut();
            let session = self.sessions.get_mut(id);
            if session.lease.is_none() {
                session.lease = kv.lease().ok();
            }
            if let Some(lease) = &mut session.lease
                && kv.grow(executor, lease, needed)?.is_ok()
            {
                return Ok(true);
            }
            let Some(victim) = self.cache_to_give_up() else { return Ok(false) };
            let session = self.sessions.get_mut(victim);
            session.tokens.clear();
            let lease = session.lease.take().expect("sessions to give up have pages");
            tracing::debug!(session = victim.0, "giving up the cache of a session at rest");
            self.totals.activity.evictions += 1;
            self.runner.kv_mut().0.release(lease);
        }
    }

    /// The session longest idle; where nothing runs that would give pages back, else the one whose
    /// request waits at the end of the queue.
    fn cache_to_give_up(&self) -> Option<SessionId> {
        if let Some(idle) = self.sessions.longest_idle() {
            return Some(idle);
        }
        if !self.running.is_empty() {
            return None;
        }
        let mut waiting = self.waiting.iter().rev().map(|generation| generation.session);
        waiting.find(|id| self.sessions.has_pages(*id))
    }

    /// Keeps what the cache holds of the prompt; at least one token is computed if anything is
    /// wanted of it.
    fn reuse_prefix(&mut self, generation: &mut Generation) {
        let session = self.sessions.get_mut(generation.session);
        let prompt = &generation.request.tokens;
        let mut keep = session.common_prefix(prompt);
        if generation.request.prompt_logprobs.is_some() {
            keep = 0; // logits are not kept
        } else if generation.tokens_max > 0 {
            keep = keep.min(prompt.len() - 1);
        }
        session.tokens.truncate(keep);
        if !generation.has_started() {
            generation.cached = keep;
            self.totals.cached_tokens += keep as u64;
        }
    }
}
