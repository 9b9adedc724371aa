//! Logits to the next token.
//!
//! The order and meaning are llama.cpp's: penalties, top-k, top-p, min-p, temperature,
//! draw. A sampler's choice depends on its parameters, seed and step, the logits and the history,
//! and on nothing else, so that a stream can be taken up again after a device was lost; and it does
//! not depend on whether the host chooses or the device, by [`Sampler::row`], since both compute in
//! whole numbers (`kernels/sampling.rs`).

mod logprobs;
mod params;
mod rng;
mod typical;

#[cfg(test)]
mod tests;

pub use logprobs::{TokenLogprob, log_softmax_top};
pub use params::{PENALTY_TOKENS, SamplingParams};

use std::collections::HashMap;

use thiserror::Error;

use crate::kernels::sampling::{LOG2_E, Penalty, Row, draw};

/// Parts that a row's numbers are counted in: 2^32.
const PARTS: f64 = 4_294_967_296.0;

/// Parameters out of range, or logits that nothing can be drawn from.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum SamplingError {
    /// A parameter is out of its range.
    #[error("{field} is {found}; wanted {least} to {most}")]
    OutOfRange {
        /// Item in question.
        field: &'static str,
        /// Smallest allowed value.
        least: f32,
        /// Largest allowed value.
        most: f32,
        /// What it is.
        found: f32,
    },
    /// The model computed something that is not a number, or infinite.
    #[error("the logit of token {token} is {found}: the model's result is not usable")]
    BadLogit {
        /// Token id.
        token: usize,
        /// Its logit: NaN or positive infinity.
        found: f32,
    },
    /// No logits, or all are -inf.
    #[error("no token can be chosen: {vocab_size} logits, none above -inf")]
    NoCandidates {
        /// Number of logits.
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
        /// Token id.
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
    /// Tokens with a bias, and those that were generated where they lose for it.
    listed: Vec<Penalty>,
    /// Their places.
    places: HashMap<u32, usize>,
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
        Ok(Self {
            params: *params,
            seed,
            step: 0,
            vocab_size,
            listed: Vec::new(),
            places: HashMap::new(),
            candidates: Vec::new(),
        })
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

    /// Notes that the device chose the next token, by [`Sampler::row`].
    pub fn pass(&mut self) {
        self.step += 1;
    }

    /// Goes to where `step` tokens have been chosen.
    pub fn set_step(&mut self, step: u64) {
        self.step = step;
    }

    /// Adds to the logits of tokens from now on.
    pub fn set_bias(&mut self, bias: &[(u32, f32)]) {
        for (token, bias) in bias {
            self.entry(*token).bias = *bias;
        }
    }

    /// Notes a token that was generated, for the penalties.
    pub fn note(&mut self, token: u32) {
        if self.params.penalises_generated() {
            self.entry(token).count += 1;
        }
    }

    fn entry(&mut self, token: u32) -> &mut Penalty {
        let next = self.listed.len();
        let place = *self.places.entry(token).or_insert(next);
        if place == next {
            self.listed.push(Penalty { token, count: 0, repeats: 0, bias: 0.0 });
        }
        &mut self.listed[place]
    }

    /// Chooses the next token and goes on to the next step.
    ///
    /// `logits`: `[vocab_size]`; they are changed in place. `history`: the tokens before, prompt
    /// included. `mask`: a bit for each token that may be chosen, 32 a word; without it, any.
    ///
    /// # Errors
    /// Logits that are not numbers, are all -inf, or are not as many as the tokens.
    pub fn sample(
        &mut self,
        logits: &mut [f32],
        history: &[u32],
        mask: Option<&[u32]>,
    ) -> Result<u32, SamplingError> {
        if logits.len() != self.vocab_size {
            let vocab_size = self.vocab_size;
            return Err(SamplingError::LogitCount { found: logits.len(), vocab_size });
        }
        let row = self.row(0);
        for listed in self.penalties(history, false) {
            if let Some(logit) = logits.get_mut(listed.token as usize) {
                *logit = row.penalised(*logit, &listed);
            }
        }
        if let Some(mask) = mask {
            for (token, logit) in logits.iter_mut().enumerate() {
                if mask[token / 32] >> (token % 32) & 1 == 0 {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        let (best, max) = largest(logits)?;
        let SamplingParams { top_k, typical_p, min_keep, .. } = self.params;
        let token = match row.draws {
            0 => best,
            _ => {
                if typical_p < 1.0 {
                    typical::keep(logits, top_k as usize, typical_p, min_keep as usize);
                }
                let max = if typical_p < 1.0 { largest(logits)?.1 } else { max };
                draw(logits, max, &row, min_keep as usize, &mut self.candidates)
            }
        };
        self.step += 1;
        Ok(token)
    }

    /// Sampling settings for the token `ahead` steps from now, in the device's layout, without
    /// penalties.
    #[must_use]
    pub fn row(&self, ahead: u64) -> Row {
        let SamplingParams { temperature, top_k, top_p, min_p, repeat_penalty, .. } = self.params;
        let SamplingParams { frequency_penalty, presence_penalty, .. } = self.params;
        let repeats = self.params.penalises_repeats();
        Row {
            draws: u32::from(temperature > 0.0),
            top_k,
            top_p: if top_p < 1.0 { (f64::from(top_p) * PARTS) as u32 } else { u32::MAX },
            distance_max: if min_p > 0.0 { -min_p.ln() } else { f32::MAX },
            halvings: (LOG2_E / temperature).min(f32::MAX),
            random: rng::random(self.seed, self.step + ahead),
            penalty: if repeats { repeat_penalty } else { 1.0 },
            relief: if repeats { 1.0 / repeat_penalty } else { 1.0 },
            frequency: frequency_penalty,
            presence: presence_penalty,
            ..Row::best(self.vocab_size as u32)
        }
    }

    /// The tokens whose logits change, each once. With `pending`, one more will be in the text
    /// before the token that is chosen.
    #[must_use]
    pub fn penalties(&self, history: &[u32], pending: bool) -> Vec<Penalty> {
        let mut listed = self.listed.clone();
        if self.params.penalises_repeats() {
            let window = self.params.repeat_last_n as usize - usize::from(pending);
            let mut places: HashMap<u32, usize> = HashMap::new();
            for &token in &history[history.len().saturating_sub(window)..] {
                let next = listed.len();
                let known = self.places.get(&token).copied();
                let place = known.unwrap_or_else(|| *places.entry(token).or_insert(next));
                if place == next {
                    listed.push(Penalty { token, count: 0, repeats: 0, bias: 0.0 });
                }
                listed[place].repeats = 1;
            }
        }
        listed
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
