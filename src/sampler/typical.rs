//! Locally typical sampling: on the host alone, by its own exponentials.

use crate::kernels::sampling::best_first;

/// Keeps, of the `top_k` best tokens (0: of all), those whose information is closest to the
/// entropy, until they have `part` of the probability; `min_keep` at least. The others get -inf.
pub(super) fn keep(logits: &mut [f32], top_k: usize, part: f32, min_keep: usize) {
    let mut kept: Vec<(f32, u32)> = logits.iter().copied().zip(0..).collect();
    kept.retain(|(logit, _)| logit.is_finite());
    if top_k > 0 && top_k < kept.len() {
        kept.select_nth_unstable_by_key(top_k - 1, best_first);
        kept.truncate(top_k);
    }
    let best = kept.iter().map(|(logit, _)| f64::from(*logit)).fold(f64::MIN, f64::max);
    let sum: f64 = kept.iter().map(|(logit, _)| (f64::from(*logit) - best).exp()).sum();
    let log_sum = best + sum.ln();
    let information = |logit: f32| log_sum - f64::from(logit);
    let probability = |logit: f32| (-information(logit)).exp();
    let entropy: f64 = kept.iter().map(|(l, _)| probability(*l) * information(*l)).sum();
    kept.sort_by(|(a, x), (b, y)| {
        let off = |logit: f32| (information(logit) - entropy).abs();
        off(*a).total_cmp(&off(*b)).then(x.cmp(y))
    });
    let mut reached = 0.0;
    let reaching = kept.iter().position(|(logit, _)| {
        reached += probability(*logit);
        reached > f64::from(part)
    });
    kept.truncate(reaching.map_or(kept.len(), |at| (at + 1).max(min_keep)));
    let values: Vec<(u32, f32)> = kept.iter().map(|(logit, token)| (*token, *logit)).collect();
    logits.fill(f32::NEG_INFINITY);
    for (token, logit) in values {
        logits[token as usize] = logit;
    }
}
