//! Steps on the device: one at a time, or the next one submitted before the tokens of the last are
//! known.
//!
//! Where the device chooses all tokens of a step, and all who run go on decoding, the next step
//! takes its tokens from where this one leaves them, and the device need not wait for the host.
//! A request that turns out to be at its end has then taken part in a step too many: the token is
//! dropped, and what it wrote lies behind the session's tokens, where nobody reads. Whatever else
//! happens, commands first of all, finds no step on the device: see [`Worker::land`].

use super::request::Generation;
use super::runner::{Flight, Results, Wanted};
use super::steps::{Entry, Step};
use super::types::FinishReason;
use super::worker::Worker;
use crate::gpu::DeviceError;
use crate::kernels::sample;
use crate::kernels::sampling::PENDING;
use crate::scheduler::TokenSpan;

/// A step that runs.
#[derive(Debug)]
pub(super) struct Flying {
    flight: Flight,
    entries: Vec<Entry>,
    tokens: usize,
    prefilled: usize,
    decodes: bool,
    /// The device chooses the tokens.
    on_device: bool,
    /// Requests whose tokens are chosen once there is a mask for each.
    masked: Vec<u64>,
}

impl Worker {
    /// One step: a token for each request that decodes, and a slice of prompt for those that do not
    /// yet. The next one may be on the device when it returns.
    pub(super) fn step(&mut self) -> Result<(), DeviceError> {
        let mut flying = match self.flying.take() {
            Some(flying) => flying,
            None => {
                self.end_complete();
                let step = self.form_step()?;
                if step.entries.is_empty() {
                    return Ok(()); // whoever was to run waits for pages again
                }
                let wanted = self.wanted_of(&step);
                self.start(step, wanted)?
            }
        };
        self.choose(&mut flying)?;
        let next = match self.follow(&flying) {
            Some((step, wanted)) => Some(self.start(step, Some(wanted))?),
            None => None,
        };
        let again = self.finish(flying)?;
        if let Some(mut next) = next {
            let goes_on = |e: &Entry| self.running.iter().any(|g| g.number == e.number);
            next.entries.retain(|entry| goes_on(entry) && !again.contains(&entry.number));
            if next.entries.is_empty() {
                self.runner.forget(&next.flight);
            } else {
                self.flying = Some(next);
            }
        }
        Ok(())
    }

    /// Finishes the step that is on the device, if there is one.
    pub(super) fn land(&mut self) -> Result<(), DeviceError> {
        match self.flying.take() {
            Some(mut flying) => {
                self.choose(&mut flying)?;
                self.finish(flying).map(drop)
            }
            None => Ok(()),
        }
    }

    /// Makes the masks that a step waits for, while it computes its logits: the tokens before are
    /// known by now.
    fn choose(&mut self, flying: &mut Flying) -> Result<(), DeviceError> {
        if !flying.flight.waits_for_masks() {
            return Ok(());
        }
        let words = self.runner.mask_words();
        let mut masks = vec![u32::MAX; words * flying.masked.len()];
        for (mask, number) in masks.chunks_mut(words).zip(&flying.masked) {
            let at = self.running.iter().position(|generation| generation.number == *number);
            let Some(at) = at else { continue }; // it ended, and its token is dropped
            if let Err(error) = self.running[at].mask(mask, &self.tokenizer) {
                mask.fill(u32::MAX);
                let generation = self.running.remove(at);
                self.end(generation, FinishReason::Error, Some(error.to_string()));
            }
        }
        self.runner.choose(&mut flying.flight, &masks)
    }

    /// Sampling requests for the device; `None` if the host samples. Both choose the same tokens.
    fn wanted_of(&self, step: &Step) -> Option<Vec<Wanted>> {
        if !sample::is_sound(self.runner.model().capabilities()) {
            return None;
        }
        let with_rows = step.entries.iter().filter(|entry| !entry.logits.is_empty());
        let wanted = with_rows.map(|entry| {
            let generation = self.running.iter().find(|g| g.number == entry.number)?;
            generation.wanted(None)
        });
        let wanted: Option<Vec<Wanted>> = wanted.collect();
        wanted.filter(|wanted| !wanted.is_empty() && self.runner.has_room_for(wanted))
    }

    fn start(&mut self, step: Step, wanted: Option<Vec<Wanted>>) -> Result<Flying, DeviceError> {
        let results = wanted.as_deref().map_or(Results::Logits, Results::Tokens);
        let flight = self.runner.start(&step.batch, &step.mixes, results)?;
        let with_rows = step.entries.iter().filter(|entry| !entry.logits.is_empty());
        let is_masked = |(_, wanted): &(&Entry, &Wanted)| wanted.masked;
        let wanted_rows = wanted.iter().flatten();
        let masked = with_rows.zip(wanted_rows).filter(is_masked).map(|(entry, _)| entry.number);
        let masked = masked.collect();
        Ok(Flying {
            flight,
            entries: step.entries,
            tokens: step.batch.token_count(),
            prefilled: step.prefilled,
            decodes: step.decodes,
            on_device: wanted.is_some(),
            masked,
        })
    }

    /// The step behind one that is on the device, where its tokens need not be known for it.
    fn follow(&self, flying: &Flying) -> Option<(Step, Vec<Wanted>)> {
        let others_wait = !self.waiting.is_empty() || !self.embeddings.is_empty();
        if !flying.on_device || others_wait {
            return None;
        }
        let (mut step, mut all_wanted) = (Step { decodes: true, ..Step::default() }, Vec::new());
        for generation in &self.running {
            let entry = flying.entries.iter().find(|entry| entry.number == generation.number)?;
            let position = entry.position + entry.count;
            if entry.logits.is_empty() || position < generation.history().len() {
                return None; // it has more of its prompt to come
            }
            if generation.is_last_token() {
                continue;
            }
            let row = entry.logits.start as u32;
            let span = self.span_behind(generation, position, row)?;
            all_wanted.push(generation.wanted(Some(row))?);
            step.mixes.push(self.sessions.get(generation.session).traits.mix());
            let rows = step.entries.len();
            let number = generation.number;
            step.entries.push(Entry { number, count: 1, position, logits: rows..rows + 1 });
            step.batch.spans.push(span);
        }
        let goes_on = !step.entries.is_empty() && self.runner.has_room_for(&all_wanted);
        goes_on.then_some((step, all_wanted))
    }

    /// The span of a token that is not known yet; `None` where it needs a page first.
    fn span_behind(&self, generation: &Generation, position: usize, row: u32) -> Option<TokenSpan> {
        let session = self.sessions.get(generation.session);
        let lease = session.lease.as_ref()?;
        let pages = self.runner.kv().pages_wanted(lease, session.tokens.len(), position + 1);
        (pages == 0).then(|| TokenSpan {
            table: lease.table(),
            position: position as u32,
            tokens: vec![PENDING | row],
            logits: 1,
        })
    }

    /// Waits for a step and takes what it gave; the requests whose last token has to be computed
    /// again, since the device could not choose one.
    fn finish(&mut self, flying: Flying) -> Result<Vec<u64>, DeviceError> {
        let Flying { flight, entries, tokens, prefilled, decodes, on_device, .. } = flying;
        let elapsed = self.runner.finish(flight)?;
        self.heartbeat.beat();
        self.slices.of(decodes).learn(prefilled, elapsed);
        self.totals.steps += 1;
        self.totals.prefill_tokens += prefilled as u64;
        let counts = [prefilled, tokens - prefilled];
        self.totals.activity.note_step(elapsed, entries.len(), counts);
        let vocab = self.vocab() as u32;
        let mut again = Vec::new();
        for entry in entries {
            let row = entry.logits.start;
            let has_token = on_device && !entry.logits.is_empty();
            let failed = has_token && self.runner.chosen(row) >= vocab;
            let Some(generation) = self.generation(entry.number) else { continue }; // it ended
            generation.note_step(entry.position, entry.count, elapsed);
            let computed = entry.count - usize::from(failed);
            let known = generation.history()[entry.position..][..computed].to_vec();
            generation.on_host = failed;
            let (claim, session) = (generation.claim(), generation.session);
            self.fair.charge(&claim, entry.count);
            self.sessions.get_mut(session).tokens.extend(known);
            if failed {
                again.push(entry.number);
            } else {
                self.process(&entry, on_device);
            }
        }
        Ok(again)
    }
}
