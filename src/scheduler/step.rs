//! What the next step computes: a token for everybody who decodes, and a slice of the prompts.

use super::{Claim, Fairness};

/// A request that runs, as the scheduler sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Whose it is.
    pub claim: Claim,
    /// Tokens that are known and not computed yet.
    pub pending: usize,
    /// It has its prompt behind it and takes a token a step.
    pub decoding: bool,
    /// Logits of every token are wanted, not of the last one alone.
    pub all_logits: bool,
    /// Logits of the last token are wanted.
    pub last_logits: bool,
}

/// Limits of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepLimits {
    /// Tokens in all.
    pub tokens_max: usize,
    /// Rows of logits.
    pub rows_max: usize,
    /// Tokens of prompts.
    pub slice_tokens: usize,
}

/// What a step computes for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Index of the [`Work`].
    pub work: usize,
    /// Tokens, at least one.
    pub tokens: usize,
    /// Rows of logits, of the last tokens.
    pub logits: usize,
}

/// Chooses the next step, the most deserving first. Nothing is charged: that is for who runs it.
///
/// Decoding comes before any prompt, and every decoder is part of every step as long as the rows
/// of logits suffice; the rest of the step is a slice of prompts, in the order of fairness.
#[must_use]
pub fn plan(fair: &Fairness, work: &[Work], limits: StepLimits) -> Vec<Share> {
    let claims: Vec<Claim> = work.iter().map(|work| work.claim).collect();
    let order = fair.order(&claims);
    let (mut tokens, mut rows) = (limits.tokens_max, limits.rows_max);
    let mut slice = limits.slice_tokens;
    let mut shares = Vec::new();
    for decoding in [true, false] {
        for index in order.iter().copied().filter(|at| work[*at].decoding == decoding) {
            let Work { pending, all_logits, last_logits, .. } = work[index];
            let mut count = pending.min(tokens);
            if !decoding {
                count = count.min(slice);
            }
            if all_logits {
                count = count.min(rows);
            }
            let logits = match all_logits {
                true => count,
                false => usize::from(last_logits && count == pending),
            };
            if count == 0 || logits > rows {
                continue;
            }
            tokens -= count;
            rows -= logits;
            if !decoding {
                slice -= count;
            }
            shares.push(Share { work: index, tokens: count, logits });
        }
    }
    shares
}
