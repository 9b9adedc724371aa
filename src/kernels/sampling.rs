//! How a token is chosen from a row of logits, in whole numbers: `shaders/include/sampling.glsl` is
//! the other end.
//!
//! Weights are whole numbers, made of a logit by one subtraction and one multiplication, which all
//! devices round alike; so their sums depend neither on their order nor on a driver's exponential,
//! and host and device choose the same token, always.

use bytemuck::{Pod, Zeroable};

/// What is written where the device chose no token: its logits are no numbers, or too many tokens
/// are left for it. The host chooses then.
pub const NONE: u32 = u32::MAX;

/// Marks a token of a step that is not known yet: the rest is its row in the step before.
pub const PENDING: u32 = 1 << 31;

/// Tokens that are made less likely, at most.
pub const PENALTIES_MAX: usize = 4096;

/// Number of tokens that the lists of a step of `rows` rows have room for.
#[must_use]
pub fn penalties_room(rows: usize) -> usize {
    (rows * 64).max(PENALTIES_MAX)
}

/// log2(e): weights are powers of two.
pub const LOG2_E: f32 = std::f32::consts::LOG2_E;

/// Weights beyond this many halvings are 0.
const HALVINGS_MAX: f32 = 31.0;

/// Logarithm of the largest weight.
const WEIGHT_BITS: u32 = 30;

/// Sampling settings of one row, in the shaders' layout.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Row {
    /// Tokens to choose from: the first logits of the row.
    pub vocab: u32,
    /// 1: draws one, by all that follows; 0: takes the best.
    pub draws: u32,
    /// Keeps the k best; 0 keeps all.
    pub top_k: u32,
    /// Keeps the fewest best whose weights reach this part of all, in 2^-32; `u32::MAX` keeps all.
    pub top_p: u32,
    /// Drops tokens whose logits are further than this from the best one.
    pub distance_max: f32,
    /// Halvings of the weight for each unit of distance from the best logit, at the temperature.
    pub halvings: f32,
    /// Uniform random number, in units of 2^-32.
    pub random: u32,
    /// Length of the row's list of tokens whose logits change.
    pub penalties: u32,
    /// Index of the list's first entry among those of all rows.
    pub penalties_at: u32,
    /// One more of them, by its row in the step before; [`NONE`]: there is none.
    pub penalty_pending: u32,
    /// Factor of their logits up to 0.
    pub penalty: f32,
    /// Factor of their logits above 0.
    pub relief: f32,
    /// Frequency penalty: subtracted once per occurrence of the token.
    pub frequency: f32,
    /// Presence penalty: subtracted once if the token occurs at all.
    pub presence: f32,
    /// Index of the row's mask among those of the step; [`NONE`]: all tokens may be chosen.
    pub mask: u32,
}

/// A token whose logit changes.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Penalty {
    /// Token id.
    pub token: u32,
    /// Number of times that it was generated.
    pub count: u32,
    /// 1 if it occurs in the window of the repetition penalty, else 0.
    pub repeats: u32,
    /// Bias: added to its logit before anything else.
    pub bias: f32,
}

impl Row {
    /// The best of `vocab` tokens.
    #[must_use]
    pub fn best(vocab: u32) -> Self {
        Self {
            vocab,
            draws: 0,
            top_k: 0,
            top_p: u32::MAX,
            distance_max: f32::MAX,
            halvings: LOG2_E,
            random: 0,
            penalties: 0,
            penalties_at: 0,
            penalty_pending: NONE,
            penalty: 1.0,
            relief: 1.0,
            frequency: 0.0,
            presence: 0.0,
            mask: NONE,
        }
    }

    /// The logit of a listed token.
    #[must_use]
    pub fn penalised(&self, logit: f32, listed: &Penalty) -> f32 {
        let mut left = logit + listed.bias;
        if listed.repeats > 0 {
            left *= if left <= 0.0 { self.penalty } else { self.relief };
        }
        if listed.count > 0 {
            left -= listed.count as f32 * self.frequency + self.presence;
        }
        left
    }
}

/// Bits that order as logits do; 0 and -0 are one.
#[must_use]
pub fn key(logit: f32) -> u32 {
    let bits = if logit == 0.0 { 0 } else { logit.to_bits() };
    if bits >> 31 == 1 { !bits } else { bits | (1 << 31) }
}

/// Key of +inf: it and all above are no numbers to choose from.
pub const KEY_INFINITE: u32 = 0xff80_0000;
/// Key of -inf: all below are no numbers.
pub const KEY_LEAST: u32 = 0x007f_ffff;

/// Weight of a token whose logit is `distance` below the best: 2^30 times 2^-(distance * halvings),
/// to within 2^-14 of it, or to within 1.
#[must_use]
pub fn weight(distance: f32, halvings: f32) -> u32 {
    let exponent = distance * halvings;
    if exponent < HALVINGS_MAX {
        let fixed = (exponent * 65536.0) as u32;
        let f = fixed & 0xffff;
        // A polynomial of fourth degree for 2^-f, off by 3.5e-5 at most.
        let p = 3490 - ((f * 448) >> 16);
        let p = 15698 - ((f * p) >> 16);
        let p = 45424 - ((f * p) >> 16);
        let p = 65536 - ((f * p) >> 16);
        (p << (WEIGHT_BITS - 16)) >> (fixed >> 16)
    } else {
        0 // also where the exponent is infinite
    }
}

/// `part` of `sum`, in 2^-32; sums have 48 bits at most.
#[must_use]
pub fn part_of(sum: u64, part: u32) -> u64 {
    ((u128::from(sum) * u128::from(part)) >> 32) as u64
}

/// Draws a token from `logits`, of which `best` is the largest. `candidates` is room for them.
///
/// What stays: of all the `top_k` best; of these the fewest whose weights, without the temperature,
/// reach `top_p`; of these those that are not too far from the best. The last two leave the
/// `min_keep` best; on the device, that is 1. Of equals the lower token is
/// better. Then their weights, with the temperature, lie one behind the other in the order of
/// tokens, and `random` points at one.
#[must_use]
pub fn draw(
    logits: &[f32],
    best: f32,
    row: &Row,
    min_keep: usize,
    candidates: &mut Vec<(f32, u32)>,
) -> u32 {
    candidates.clear();
    candidates.extend(logits.iter().copied().zip(0..));
    keep_top_k(candidates, row.top_k as usize);
    let mut kept = Vec::new(); // the best one stays anyway
    if min_keep > 1 {
        kept.clone_from(candidates);
        keep_top_k(&mut kept, min_keep);
    }
    keep_top_p(candidates, row.top_p, best);
    candidates.retain(|(logit, _)| best - logit <= row.distance_max);
    if !kept.is_empty() {
        candidates.append(&mut kept);
        candidates.sort_unstable_by_key(|(_, token)| *token);
        candidates.dedup_by_key(|(_, token)| *token);
    }
    if candidates.len() < logits.len() {
        candidates.sort_unstable_by_key(|(_, token)| *token);
    }
    let weight = |logit: f32| u64::from(weight(best - logit, row.halvings));
    let target = part_of(candidates.iter().map(|(logit, _)| weight(*logit)).sum(), row.random);
    let mut reached = 0;
    let reaching = candidates.iter().find(|(logit, _)| {
        reached += weight(*logit);
        reached > target
    });
    reaching.expect("the best token stays, and its weight is above 0").1
}

/// Orders the better first: the higher logit, then the lower token.
#[must_use]
pub fn best_first((logit, token): &(f32, u32)) -> (u32, u32) {
    (!key(*logit), *token)
}

fn keep_top_k(candidates: &mut Vec<(f32, u32)>, k: usize) {
    if k == 0 || k >= candidates.len() {
        return;
    }
    candidates.select_nth_unstable_by_key(k - 1, best_first);
    candidates.truncate(k);
}

/// First guess at how many tokens top-p keeps; more are sorted only where it keeps more.
const NUCLEUS_TOKENS: usize = 256;

fn keep_top_p(candidates: &mut Vec<(f32, u32)>, p: u32, best: f32) {
    if p == u32::MAX {
        return;
    }
    let weight = |logit: f32| u64::from(weight(best - logit, LOG2_E));
    let wanted = part_of(candidates.iter().map(|(logit, _)| weight(*logit)).sum(), p);
    let (mut sorted, mut reached, mut chunk) = (0, 0, NUCLEUS_TOKENS);
    while sorted < candidates.len() {
        let rest = &mut candidates[sorted..];
        let count = chunk.min(rest.len());
        if count < rest.len() {
            rest.select_nth_unstable_by_key(count - 1, best_first);
        }
        rest[..count].sort_unstable_by_key(best_first);
        let reaching = rest[..count].iter().position(|(logit, _)| {
            reached += weight(*logit);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_powers_of_two_and_fall() {
        for step in 0..31 * 64 {
            let distance = step as f32 / 64.0;
            let wanted = f64::from(1 << WEIGHT_BITS) * (-f64::from(distance)).exp2();
            let off = (f64::from(weight(distance, 1.0)) - wanted).abs();
            assert!(off <= wanted / 16384.0 + 1.0, "{distance}: off by {off} of {wanted}");
        }
        assert_eq!(weight(0.0, f32::MAX), 1 << WEIGHT_BITS);
        for distance in [31.0, f32::MAX, f32::INFINITY, f32::NAN] {
            assert_eq!(weight(distance, 1.0), 0, "{distance}");
        }
        assert_eq!(weight(1e38, f32::MAX), 0);
    }

    #[test]
    fn keys_order_as_logits_do() {
        let infinite = f32::INFINITY;
        let ascending = [-infinite, -1e38, -1.0, -1e-30, 0.0, 1e-30, 2.0, 3.0, infinite];
        assert!(ascending.windows(2).all(|pair| key(pair[0]) < key(pair[1])));
        assert_eq!(key(0.0), key(-0.0));
        assert_eq!((key(-infinite), key(infinite)), (KEY_LEAST, KEY_INFINITE));
        assert!(key(f32::NAN) > KEY_INFINITE && key(-f32::NAN) < KEY_LEAST);
    }

    #[test]
    fn top_p_over_many_equals_sorts_on_as_far_as_it_must() {
        let mut candidates: Vec<(f32, u32)> = (0..5000).rev().map(|id| (1.0, id)).collect();
        keep_top_p(&mut candidates, 1 << 31, 1.0);
        assert_eq!(candidates.len(), 2500);
        assert!(candidates.iter().zip(0..).all(|(c, id)| c.1 == id));
    }
}
