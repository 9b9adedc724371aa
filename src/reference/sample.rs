//! Twin of `shaders/sample.comp`.

use super::Memory;
use crate::gpu::{BufferSlice, Dispatch};
use crate::kernels::maxima::Params;
use crate::kernels::sample::LIST_MAX;
use crate::kernels::sampling::{
    KEY_INFINITE, KEY_LEAST, LOG2_E, NONE, Row, draw, key, part_of, weight,
};

/// Sampling settings of the rows of logits.
pub(super) fn rows_of(memory: &Memory, wanted: BufferSlice, count: u32) -> Vec<Row> {
    let words = count as usize * size_of::<Row>() / 4;
    bytemuck::cast_slice(&memory.words(wanted)[..words]).to_vec()
}

pub(super) fn run(dispatch: &Dispatch, memory: &mut Memory) {
    let params: Params = bytemuck::pod_read_unaligned(&dispatch.push);
    let [logits, wanted, maxima, chosen] = dispatch.bindings[..] else {
        panic!("sample has four bindings")
    };
    let chunks = params.chunks as usize;
    let mut candidates = Vec::new();
    memory.update_words(chosen, |memory, chosen| {
        let rows = rows_of(memory, wanted, dispatch.groups[0]);
        for (at, (row, chosen)) in rows.iter().zip(chosen).enumerate() {
            let logits = &memory.floats(logits)[at * params.stride as usize..];
            let logits = &logits[..row.vocab as usize];
            let maxima: Vec<[u32; 2]> =
                bytemuck::cast_slice(&memory.words(maxima)[2 * at * chunks..][..2 * chunks])
                    .to_vec();
            let best = maxima.iter().max_by_key(|[key, token]| (*key, !token));
            let [best_key, best] = *best.expect("there is a chunk");
            *chosen = if best_key <= KEY_LEAST || best_key >= KEY_INFINITE {
                NONE
            } else if row.draws == 0 {
                best
            } else {
                let best = logits[best as usize];
                match fits(logits, &maxima, row, (best_key, best)) {
                    true => draw(logits, best, row, 1, &mut candidates),
                    false => NONE,
                }
            };
        }
    });
}

/// True if the device has room for the tokens that it looks at.
fn fits(logits: &[f32], maxima: &[[u32; 2]], row: &Row, (best_key, best): (u32, f32)) -> bool {
    let cuts = row.top_p != u32::MAX;
    let distance_max = if cuts { f32::MAX } else { row.distance_max };
    if row.top_k == 0 && distance_max == f32::MAX && !cuts {
        return true; // it looks at all, and lists none
    }
    let least = key_reached(maxima, row.top_k as usize, best_key);
    let bin_last = (row.top_k == 0 && cuts).then(|| bin_reaching(logits, best, row.top_p));
    let listed = |logit: &&f32| {
        let distance = best - **logit;
        let binned = bin_last.is_none_or(|last| bin_of(distance).is_some_and(|bin| bin <= last));
        key(**logit) >= least && distance <= distance_max && binned
    };
    logits.iter().filter(listed).count() <= LIST_MAX
}

/// A key that at least `count` chunks reach, and not many more if that can be.
fn key_reached(maxima: &[[u32; 2]], count: usize, best: u32) -> u32 {
    if count == 0 || maxima.len() <= count {
        return 0;
    }
    let (mut low, mut high) = (0, best + 1);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        let reaching = maxima.iter().filter(|[key, _]| *key >= middle).count();
        if reaching < count {
            high = middle;
        } else {
            low = middle;
            if reaching <= 2 * count {
                break;
            }
        }
    }
    low
}

/// Bins of half a halving each, as far as there are weights.
fn bin_of(distance: f32) -> Option<usize> {
    let exponent = distance * LOG2_E;
    (exponent < 31.0).then_some((exponent * 2.0) as usize)
}

/// The bin within which `part` of all weights is reached.
fn bin_reaching(logits: &[f32], best: f32, part: u32) -> usize {
    let mut bins = [0_u64; 62];
    for logit in logits {
        if let Some(bin) = bin_of(best - logit) {
            bins[bin] += u64::from(weight(best - logit, LOG2_E));
        }
    }
    let wanted = part_of(bins.iter().sum(), part);
    let mut reached = 0;
    let reaching = bins.iter().position(|sum| {
        reached += sum;
        reached >= wanted
    });
    reaching.expect("a part of the sum is at most the sum")
}
