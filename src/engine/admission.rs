//! Who runs next: what a request needs is checked on arrival; it runs once there is a place in the
//! batch, and room for its prompt.

use std::time::{Duration, Instant};

use super::request::Generation;
use super::room::Asker;
use super::types::{AdmitError, FinishReason, GenerateRequest};
use super::worker::Worker;
use crate::gpu::DeviceError;
use crate::scheduler::{Claim, Placement, Priority, place};

/// A request that has waited this long for memory, and is next, is admitted before all others.
const MEMORY_PATIENCE: Duration = Duration::from_secs(10);

/// Outcome of admitting a request.
enum Entered {
    Yes,
    /// There is no room.
    No,
    /// There is, and its cache is being read.
    Fetching,
}

impl Worker {
    /// Most tokens that the request may generate, or why it cannot be served.
    pub(super) fn check(&self, request: &GenerateRequest) -> Result<usize, AdmitError> {
        if self.runner.model().hyper().encoder {
            let architecture = self.info.architecture.clone();
            return Err(AdmitError::NoGeneration { architecture });
        }
        let mut context_tokens = self.info.context_tokens as usize;
        if let Some(id) = request.session {
            let session = self
                .sessions
                .of_owner(request.owner, id)
                .ok_or(AdmitError::UnknownSession(id.0))?;
            if session.busy {
                return Err(AdmitError::SessionBusy(id.0));
            }
            context_tokens = session.traits.context_tokens;
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
        let pool = self.budget.tokens_full();
        if prompt_tokens > pool {
            return Err(AdmitError::KvFull { wanted_tokens: prompt_tokens, free_tokens: pool });
        }
        let tokens_max = room.min(pool - prompt_tokens).min(request.tokens_max as usize);
        self.check_memory(prompt_tokens + tokens_max.min(1))?;
        self.check_request_of(request.owner, prompt_tokens + tokens_max)?;
        Ok(tokens_max)
    }

    /// Lets waiting requests run, in the order of fairness, while there are places and pages.
    pub(super) fn admit(&mut self) -> Result<(), DeviceError> {
        self.drop_given_up();
        let now = Instant::now();
        // Requests as urgent as one that has to wait for memory, or less, wait behind it.
        let mut blocked: Option<Priority> = None;
        let mut first = true;
        while let Some(number) = self.next_waiting(blocked) {
            let generation = self.waiting(number);
            let (claim, arrived) = (generation.claim(), generation.arrived());
            let running: Vec<Claim> = self.running.iter().map(Generation::claim).collect();
            let placement = place(&self.fair, &claim, &running, self.running_max);
            let victim = match placement {
                Placement::Free => None,
                Placement::InsteadOf(at) => Some(running[at].request),
                Placement::None => {
                    blocked = Some(claim.priority);
                    first = false;
                    continue;
                }
            };
            match self.enter(number)? {
                Entered::Fetching => {} // nobody waits behind it
                Entered::Yes => {
                    if let Some(victim) = victim
                        && self.running.iter().any(|g| g.number == victim)
                    {
                        self.pause(victim);
                    }
                    let generation = self.take_waiting(number);
                    self.running.push(generation);
                }
                Entered::No if self.nobody_gives_room() => {
                    let generation = self.take_waiting(number);
                    let wanted = generation.history().len() + 1;
                    let error = self.kv_full(wanted);
                    self.refuse(generation, error);
                }
                Entered::No if first && now.duration_since(arrived) > MEMORY_PATIENCE => break,
                Entered::No => blocked = Some(claim.priority),
            }
            first = false;
        }
        Ok(())
    }

    /// True if no room will become free by itself.
    fn nobody_gives_room(&self) -> bool {
        self.running.is_empty() && self.embeddings.iter().all(|e| e.open.is_empty())
    }

    /// The waiting request that is next, of those more urgent than `blocked`.
    fn next_waiting(&self, blocked: Option<Priority>) -> Option<u64> {
        // Who is at a limit of their own waits for themselves, and everybody else passes.
        let free = |g: &&Generation| {
            let may = blocked.is_none_or(|blocked| g.priority < blocked);
            may && !self.fetches.has(g.session) && self.is_within_quota(g)
        };
        let claims: Vec<Claim> = self.waiting.iter().filter(free).map(Generation::claim).collect();
        let order = self.fair.order(&claims);
        order.first().map(|at| claims[*at].request)
    }

    fn waiting(&self, number: u64) -> &Generation {
        self.waiting.iter().find(|g| g.number == number).expect("it waits")
    }

    pub(super) fn take_waiting(&mut self, number: u64) -> Generation {
        let at = self.waiting.iter().position(|g| g.number == number).expect("it waits");
        self.waiting.remove(at).expect("found there")
    }

    /// Makes room for a request's prompt and its next token, and brings its session's cache back.
    fn enter(&mut self, number: u64) -> Result<Entered, DeviceError> {
        let generation = self.waiting(number);
        let (id, known) = (generation.session, generation.history().len());
        let asker = Asker::Waiting(generation.priority);
        let keep = self.prefix_to_keep(generation);
        if !self.make_room_within_quota(id, generation.tokens_wanted())? {
            return Ok(Entered::No);
        }
        let wanted = self.pages_missing(id, keep, known);
        if !self.free_pages(wanted, asker, id)? {
            return Ok(Entered::No);
        }
        if self.fetch_parked(id) {
            return Ok(Entered::Fetching);
        }
        if !self.bring_back(id, keep, asker)? {
            return Ok(Entered::No);
        }
        let keep = self.sessions.get(id).tokens.len(); // less where a cache was given up or damaged
        let at = self.waiting.iter().position(|g| g.number == number).expect("it waits");
        let generation = &mut self.waiting[at];
        if generation.cached.is_none() {
            generation.note_cached(keep);
            self.totals.cached_tokens += keep as u64;
        }
        Ok(Entered::Yes)
    }

    /// Length of the cached prefix to keep. At least one token is left to compute if any result is
    /// requested.
    fn prefix_to_keep(&self, generation: &Generation) -> usize {
        let known = generation.history();
        let keep = self.sessions.get(generation.session).common_prefix(known);
        if generation.request.prompt_logprobs.is_some() && !generation.has_started() {
            return 0; // logits are not kept
        }
        if generation.tokens_max > 0 { keep.min(known.len() - 1) } else { keep }
    }

    fn drop_given_up(&mut self) {
        let now = Instant::now();
        let all = self.running.iter().chain(&self.waiting);
        let gone: Vec<(u64, FinishReason)> =
            all.filter_map(|g| g.given_up(now).map(|reason| (g.number, reason))).collect();
        for (number, reason) in gone {
            let running = self.running.iter().position(|g| g.number == number);
            let generation = match running {
                Some(at) => self.running.remove(at),
                None => self.take_waiting(number),
            };
            self.end(generation, reason, None);
        }
    }
}
