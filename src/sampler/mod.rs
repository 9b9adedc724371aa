//! Logits to the next token.
//!
//! The order and meaning are llama.cpp's: repetition penalty, top-k, top-p, min-p, temperature,
//! draw. A sampler's choice depends on its parameters, seed and step, the logits and the history,
//! and on nothing else, so that a stream can be taken up again after a device was lost.

mod logprobs;
mod params;
mod rng;

#[cfg(test)]
mod tests;

pub use logprobs::{TokenLogprob, log_softmax_top};
pub use params::SamplingParams;

use std::cmp::Ordering;

use thiserror::Error;

/// The repetition penalty looks at this many of the last tokens, prompt included.
pub const PENALTY_TOKENS: usize = 64;

/// First guess at how many tokens top-p keeps; more are sorted only where it keeps more.
const NUCLEUS_TOKENS: usize = 256;

/// Parameters out of range, or logits that nothing can be drawn from.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum SamplingError {
    /// A parameter is out of its range.
    #[error("{field} is {found}; wanted {least} to {most}")]
    OutOfRange {
        /// Which.
        field: &'static str,
        /// Least allowed.
        least: f32,
        /// Most allowed.
        most: f32,
        /// What it is.
        found: f32,
    },
    /// The model computed something that is not a number, or infinite.
    #[error("the logit of token {token} is {found}: the model's result is not usable")]
    BadLogit {
        /// The token.
        token: usize,
        /// Its logit: NaN or +inf.
        found: f32,
    },
    /// No logits, or all are -inf.
    #[error("no token can be chosen: {vocab_size} logits, none above -inf")]
    NoCandidates {
        /// How many logits there are.
        vocab_size: usize,
    },
    /// There are more or fewer logits than tokens.
    #[error("{found} logits for a vocabulary of {vocab_size}")]
    LogitCount {
        /// Logits.
        found: usize,
        /// Tokens.
        vocab_size: usize,
    },
    /// A token that the vocabulary lacks.
    #[error("token {token} is not in the vocabulary of {vocab_size}")]
    UnknownToken {
        /// The token.
        token: u32,
        /// The number of tokens.
        vocab_size: usize,
    },
}

/// Chooses the tokens of one stream.
#[derive(Clone, Debug)]
pub struct Sampler {
    params: SamplingParams,
    seed: u64,
    step: u64,
    vocab_size: usize,
    /// Kept from step to step: logit and token.
    candidates: Vec<(f32, u32)>,
}

impl Sampler {
    /// A sampler for a vocabulary of `vocab_size` tokens, at step 0.
    ///
    /// # Errors
    /// [`SamplingError::OutOfRange`].
    pub fn new(params: &SamplingParams, vocab_size: usize) -> Result<Self, SamplingError> {
        params.check()?;
        let seed = params.seed.unwrap_or_else(rng::system_seed);
        Ok(Self { params: *params, seed, step: 0, vocab_size, candidates: Vec::new() })
    }

    /// The seed in use: the one asked for, or the system's.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Tokens chosen so far.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Goes to where `step` tokens have been chosen.
    pub fn set_step(&mut self, step: u64) {
        self.step = step;
    }

    /// Chooses the next token and goes on to the next step.
    ///
    /// `logits`: `[vocab_size]`; the repetition penalty is applied to them in place. `history`: the
    /// tokens before, prompt included; the last [`PENALTY_TOKENS`] are looked at.
    ///
    /// # Errors
    /// Logits that are not numbers, are all -inf, or are not as many as the tokens.
    pub fn sample(&mut self, logits: &mut [f32], history: &[u32]) -> Result<u32, SamplingError> {
        if logits.len() != self.vocab_size {
            let vocab_size = self.vocab_size;
            return Err(SamplingError::LogitCount { found: logits.len(), vocab_size });
        }
        penalise(logits, history, self.params.repeat_penalty);
        let (best, max) = largest(logits)?;
        let token = if self.params.temperature == 0.0 { best } else { self.draw(logits, max) };
        self.step += 1;
        Ok(token)
    }

    fn draw(&mut self, logits: &[f32], max: f32) -> u32 {
        let mut candidates = std::mem::take(&mut self.candidates);
        candidates.clear();
        let finite = logits.iter().zip(0..).filter(|(logit, _)| **logit > f32::NEG_INFINITY);
        candidates.extend(finite.map(|(logit, id)| (*logit, id)));
        keep_top_k(&mut candidates, self.params.top_k as usize);
        keep_top_p(&mut candidates, self.params.top_p, max);
        keep_min_p(&mut candidates, self.params.min_p, max);
        let uniform = rng::uniform(self.seed, self.step);
        let token = pick(&candidates, self.params.temperature, max, uniform);
        self.candidates = candidates;
        token
    }
}

/// The best token and its logit; of equals, the lowest id.
fn largest(logits: &[f32]) -> Result<(u32, f32), SamplingError> {
    let mut best = (0, f32::NEG_INFINITY);
    for (token, logit) in logits.iter().enumerate() {
        if logit.is_nan() || *logit == f32::INFINITY {
            return Err(SamplingError::BadLogit { token, found: *logit });
        }
        if *logit > best.1 {
            best = (token as u32, *logit);
        }
    }
    if best.1 == f32::NEG_INFINITY {
        return Err(SamplingError::NoCandidates { vocab_size: logits.len() });
    }
    Ok(best)
}

/// Makes the last tokens less likely, each once however often it occurs.
fn penalise(logits: &mut [f32], history: &[u32], penalty: f32) {
    if penalty == 1.0 {
        return;
    }
    let last = &history[history.len().saturating_sub(PENALTY_TOKENS)..];
    for (index, token) in last.iter().enumerate() {
        if last[..index].contains(token) {
            continue;
        }
        if let Some(logit) = logits.get_mut(*token as usize) {
            *logit = if *logit <= 0.0 { *logit * penalty } else { *logit / penalty };
        }
    }
}

/// Order of candidates: the higher logit, then the lower token.
fn best_first(a: &(f32, u32), b: &(f32, u32)) -> Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

/// Keeps the `k` best, sorted; 0 keeps all, as they are.
fn keep_top_k(candidates: &mut Vec<(f32, u32)>, k: usize) {
    if k == 0 || k >= candidates.len() {
        return;
    }
    candidates.select_nth_unstable_by(k - 1, best_first);
    candidates.truncate(k);
    candidates.sort_unstable_by(best_first);
}

/// Keeps the fewest best candidates, at least one, whose probabilities among all reach `p`; sorted.
fn keep_top_p(candidates: &mut Vec<(f32, u32)>, p: f32, max: f32) {
    if p >= 1.0 {
        return;
    }
    let weight = |logit: f32| f64::from(logit - max).exp();
    let wanted = f64::from(p) * candidates.iter().map(|c| weight(c.0)).sum::<f64>();
    let (mut sorted, mut reached, mut chunk) = (0, 0.0, NUCLEUS_TOKENS);
    while sorted < candidates.len() {
        let rest = &mut candidates[sorted..];
        let count = chunk.min(rest.len());
        if count < rest.len() {
            rest.select_nth_unstable_by(count - 1, best_first);
        }
        rest[..count].sort_unstable_by(best_first);
        let reaching = rest[..count].iter().position(|candidate| {
            reached += weight(candidate.0);
            reached >= wanted
        });
        if let Some(index) = reaching {
            candidates.truncate(sorted + index + 1);
            return;
        }
        sorted += count;
        chunk *= 4;
    }
}

/// Drops candidates whose probability is less than `min_p` times the best one's.
fn keep_min_p(candidates: &mut Vec<(f32, u32)>, min_p: f32, max: f32) {
    if min_p > 0.0 {
        let least = max + min_p.ln();
        candidates.retain(|candidate| candidate.0 >= least);
    }
}

/// Draws a candidate by its probability at `temperature`; `uniform` is in `0.0..1.0`.
fn pick(candidates: &[(f32, u32)], temperature: f32, max: f32, uniform: f64) -> u32 {
    let weight = |logit: f32| (f64::from(logit - max) / f64::from(temperature)).exp();
    let mut left = uniform * candidates.iter().map(|c| weight(c.0)).sum::<f64>();
    for (logit, token) in candidates {
        left -= weight(*logit);
        if left < 0.0 {
            return *token;
        }
    }
    // Rounding may leave a little; the best candidate is then as good as the last.
    let best = candidates.iter().min_by(|a, b| best_first(a, b));
    best.expect("the best logit is above -inf and passes every filter").1
}
