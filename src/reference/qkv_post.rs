//! Twin of `shaders/qkv_post.comp`.

use super::Memory;
use crate::gpu::Dispatch;
use crate::kernels::qkv_post::{NormKind, Params};
use crate::kernels::{KvFormat, PageLayout};

pub(super) fn run(dispatch: &Dispatch, memory: &mut Memory) {
    let p: Params = bytemuck::pod_read_unaligned(&dispatch.push);
    let [qkv, steps, tables, rope, q_gain, k_gain, q, kv] = dispatch.bindings[..] else {
        panic!("qkv_post has eight bindings")
    };
    let [.., head_dim, format, key_words, qk_norm, neox] = dispatch.spec[..] else {
        panic!("qkv_post has eight constants")
    };
    let dim = head_dim as usize;
    let format = KvFormat::of_code(format);
    let layout = PageLayout { kv_heads: p.kv_heads, head_dim, format, key_words };
    let heads = (p.heads + 2 * p.kv_heads) as usize;
    for token in 0..dispatch.groups[0] as usize {
        let [_, position, table, _] = memory.words(steps)[4 * token..][..4] else {
            panic!("four words a step")
        };
        for head in 0..heads {
            let at = token * p.qkv_stride as usize + head * dim;
            let mut values = memory.floats(qkv)[at..][..dim].to_vec();
            let is_q = head < p.heads as usize;
            let is_v = head >= (p.heads + p.kv_heads) as usize;
            if !is_v {
                let (first, count) = if is_q { (0, p.heads) } else { (p.heads, p.kv_heads) };
                let section = &memory.floats(qkv)
                    [token * p.qkv_stride as usize + first as usize * dim..]
                    [..count as usize * dim];
                let gain = memory.floats(if is_q { q_gain } else { k_gain });
                normalise(qk_norm, section, head - first as usize, gain, &mut values, p.epsilon);
                rotate(&mut values, memory.floats(rope), &p, position, neox == 1);
            }
            if is_q {
                memory.update(q, |_, q| {
                    q[(token * p.heads as usize + head) * dim..][..dim].copy_from_slice(&values);
                });
                continue;
            }
            let page = memory.words(tables)
                [(table * p.table_stride + position / PageLayout::TOKENS) as usize];
            let kv_head = head as u32 - p.heads - if is_v { p.kv_heads } else { 0 };
            memory.update_words(kv, |_, words| {
                layout.store(words, page, position % PageLayout::TOKENS, kv_head, is_v, &values);
            });
        }
    }
}

/// Normalises head `head` of `section`, which has all heads of q or of k.
fn normalise(
    kind: u32,
    section: &[f32],
    head: usize,
    gain: &[f32],
    values: &mut [f32],
    epsilon: f32,
) {
    let dim = values.len();
    let (mean, over) = match kind {
        _ if kind == NormKind::Head as u32 => (0.0, &section[head * dim..][..dim]),
        _ if kind == NormKind::Whole as u32 => (0.0, section),
        _ if kind == NormKind::LayerNormHead as u32 => {
            (values.iter().sum::<f32>() / dim as f32, &section[head * dim..][..dim])
        }
        _ => return,
    };
    let gain = if kind == NormKind::Head as u32 { gain } else { &gain[head * dim..] };
    let squares: f32 = over.iter().map(|v| (v - mean) * (v - mean)).sum();
    let factor = 1.0 / (squares / over.len() as f32 + epsilon).sqrt();
    for (value, gain) in values.iter_mut().zip(gain) {
        *value = (*value - mean) * factor * gain;
    }
}

fn rotate(values: &mut [f32], rope: &[f32], p: &Params, position: u32, neox: bool) {
    let half = p.rope_dim as usize / 2; // 0 where nothing is rotated
    let row = |row: u32, pair: usize| {
        let at = 2 * (row as usize * half + pair);
        (rope[at], rope[at + 1])
    };
    for pair in 0..half {
        let (coarse, fine) = (row(position / 64, pair), row(p.rope_coarse + position % 64, pair));
        let cos = coarse.0 * fine.0 - coarse.1 * fine.1;
        let sin = coarse.1 * fine.0 + coarse.0 * fine.1;
        let (a, b) = if neox { (pair, pair + half) } else { (2 * pair, 2 * pair + 1) };
        (values[a], values[b]) =
            (values[a] * cos - values[b] * sin, values[b] * cos + values[a] * sin);
    }
}
