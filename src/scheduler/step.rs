//! What the next step computes: a token for everybody who decodes, and a slice of the prompts.

use super::{Claim, Fairness, Priority};

/// A request that runs, as the scheduler sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Whose it is.
    pub claim: Claim,
    /// Tokens that are known and not computed yet.
    pub pending: usize,
    /// True if the prompt is finished and the request decodes one token a step.
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
    /// The same of a step in which a prompt joins a more urgent one, which waits for all of them.
    pub joined_tokens: usize,
}

/// Share of one request in a step.
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
/// of logits suffice; the rest of the step is a slice of prompts, in the order of fairness. A
/// prompt joins a more urgent one only as long as that one's first token is not held up by it.
#[must_use]
pub fn plan(fair: &Fairness, work: &[Work], limits: StepLimits) -> Vec<Share> {
    let claims: Vec<Claim> = work.iter().map(|work| work.claim).collect();
    let order = fair.order(&claims);
    let (mut tokens, mut rows, mut prefilled) = (limits.tokens_max, limits.rows_max, 0);
    let mut urgent = None;
    let mut shares = Vec::new();
    for decoding in [true, false] {
        for index in order.iter().copied().filter(|at| work[*at].decoding == decoding) {
            let Work { claim, pending, all_logits, last_logits, .. } = work[index];
            let mut count = pending.min(tokens);
            if !decoding {
                let joins = urgent.is_some_and(|urgent| claim.priority > urgent);
                let slice = if joins { limits.joined_tokens } else { limits.slice_tokens };
                count = count.min(slice.saturating_sub(prefilled));
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
                prefilled += count;
                urgent = Some(
                    urgent.map_or(claim.priority, |urgent: Priority| urgent.min(claim.priority)),
                );
            }
            shares.push(Share { work: index, tokens: count, logits });
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(request: u64, priority: Priority, pending: usize) -> Work {
        let claim = Claim { request, uid: request as u32, session: request, priority };
        Work { claim, pending, decoding: false, all_logits: false, last_logits: true }
    }

    #[test]
    fn a_prompt_joins_a_more_urgent_one_within_a_shorter_step() {
        let limits =
            StepLimits { tokens_max: 512, rows_max: 8, slice_tokens: 256, joined_tokens: 64 };
        let taken = |work: &[Work]| {
            let shares = plan(&Fairness::default(), work, limits);
            shares.iter().map(|share| (share.work, share.tokens)).collect::<Vec<_>>()
        };
        let (urgent, background) = (Priority::Interactive, Priority::Background);
        let long = prompt(1, background, 8000);
        assert_eq!(taken(&[long]), [(0, 256)]);
        assert_eq!(taken(&[long, prompt(2, urgent, 32)]), [(1, 32), (0, 32)]);
        assert_eq!(taken(&[long, prompt(2, urgent, 100)]), [(1, 100)]);
        assert_eq!(taken(&[long, prompt(2, background, 32)]), [(0, 256)]);
        assert_eq!(taken(&[prompt(1, urgent, 100), prompt(2, urgent, 300)]), [(0, 100), (1, 156)]);
    }
}
