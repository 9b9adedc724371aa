//! Twin of `shaders/qkv_post.comp`.

use super::Memory;
use crate::gpu::Dispatch;
use crate::kernels::PageLayout;
use crate::kernels::qkv_post::Params;

pub(super) fn run(dispatch: &Dispatch, memory: &mut Memory) {
    let p: Params = bytemuck::pod_read_unaligned(&dispatch.push);
    let [qkv, steps, tables, rope, q_gain, k_gain, q, kv] = dispatch.bindings[..] else {
        panic!("qkv_post has eight bindings")
    };
    let [.., head_dim, kv_half, qk_norm, neox] = dispatch.spec[..] else {
        panic!("qkv_post has seven constants")
    };
    let dim = head_dim as usize;
    let layout = PageLayout { kv_heads: p.kv_heads, head_dim, half: kv_half == 1 };
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
                if qk_norm == 1 {
                    normalise(&mut values, memory.floats(if is_q { q_gain } else { k_gain }), &p);
                }
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

fn normalise(values: &mut [f32], gain: &[f32], p: &Params) {
    let squares: f32 = values.iter().map(|v| v * v).sum();
    let factor = 1.0 / (squares / values.len() as f32 + p.epsilon).sqrt();
    for (value, gain) in values.iter_mut().zip(gain) {
        *value *= factor * gain;
    }
}

fn rotate(values: &mut [f32], rope: &[f32], p: &Params, position: u32, neox: bool) {
    let half = p.rope_dim as usize / 2;
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
