//! Log-probabilities of a chosen token and of the most likely ones.

use super::{SamplingError, largest};
use crate::kernels::sampling::best_first;

/// Log-probability of a token, and of the most likely ones at its place, best first.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token chosen, or the one that stood there.
    pub id: u32,
    /// Natural-log probability before any sampling setting is applied.
    pub logprob: f32,
    /// The most likely tokens.
    pub top: Vec<(u32, f32)>,
}

/// Log-softmax of `chosen` and of the `top_count` most likely tokens; of equals, the lower id
/// first.
///
/// `logits`: `[vocab_size]`, before penalties. The sum is accumulated in f64.
///
/// # Errors
/// Logits that are not numbers, all -inf, or without `chosen`.
pub fn log_softmax_top(
    logits: &[f32],
    chosen: u32,
    top_count: usize,
) -> Result<TokenLogprob, SamplingError> {
    let vocab_size = logits.len();
    let chosen_logit = *logits
        .get(chosen as usize)
        .ok_or(SamplingError::UnknownToken { token: chosen, vocab_size })?;
    let (_, max) = largest(logits)?;
    let max = f64::from(max);
    let sum: f64 = logits.iter().map(|logit| (f64::from(*logit) - max).exp()).sum();
    let log_sum = max + sum.ln();
    let logprob = |logit: f32| (f64::from(logit) - log_sum) as f32;
    let top = top(logits, top_count.min(vocab_size));
    Ok(TokenLogprob {
        id: chosen,
        logprob: logprob(chosen_logit),
        top: top.into_iter().map(|(logit, id)| (id, logprob(logit))).collect(),
    })
}

/// The `count` largest logits and their tokens, best first.
fn top(logits: &[f32], count: usize) -> Vec<(f32, u32)> {
    let mut top: Vec<(f32, u32)> = Vec::with_capacity(count + 1);
    if count == 0 {
        return top;
    }
    for (id, logit) in logits.iter().enumerate() {
        // Ids ascend, so that an equal logit goes behind.
        if top.len() == count && *logit <= top[count - 1].0 {
            continue;
        }
        let entry = (*logit, id as u32);
        let at = top.partition_point(|other| best_first(other) < best_first(&entry));
        top.insert(at, entry);
        top.truncate(count);
    }
    top
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn logprobs_are_of_the_whole_vocabulary() {
        let logits = [1.0_f32, 3.0, 2.0, 3.0, f32::NEG_INFINITY];
        let sum: f64 = [1.0_f64, 3.0, 2.0, 3.0].iter().map(|l| l.exp()).sum();
        let got = log_softmax_top(&logits, 0, 3).unwrap();
        let close =
            |found: f32, logit: f64| assert!((f64::from(found) - (logit - sum.ln())).abs() < 1e-6);
        close(got.logprob, 1.0);
        assert_eq!(got.top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 3, 2]);
        close(got.top[0].1, 3.0);
        close(got.top[2].1, 2.0);
        assert_eq!(log_softmax_top(&logits, 4, 0).unwrap().logprob, f32::NEG_INFINITY);
        assert_eq!(log_softmax_top(&logits, 1, 99).unwrap().top.len(), 5);
    }

    #[test]
    fn huge_logits_do_not_overflow_and_small_ones_add_up() {
        assert!(log_softmax_top(&[1e38, -1e38], 0, 1).unwrap().logprob.abs() < 1e-6);
        let many = vec![0.0_f32; 262_144];
        let got = log_softmax_top(&many, 17, 2).unwrap();
        assert!((got.logprob + (262_144_f32).ln()).abs() < 1e-5);
        assert_eq!((got.top[0].0, got.top[1].0), (0, 1));
    }

    #[test]
    fn bad_logits_are_errors() {
        assert!(log_softmax_top(&[0.0, f32::NAN], 0, 1).is_err());
        assert!(log_softmax_top(&[f32::NEG_INFINITY; 3], 0, 1).is_err());
        assert!(log_softmax_top(&[0.0], 1, 1).is_err());
        assert!(log_softmax_top(&[], 0, 1).is_err());
    }
}
