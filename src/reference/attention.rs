//! Twin of `shaders/attention.comp`.

use std::collections::HashMap;
use std::thread;

use super::Memory;
use crate::gpu::Dispatch;
use crate::kernels::attention::Params;
use crate::kernels::{KvFormat, PageLayout};

pub(super) fn run(dispatch: &Dispatch, memory: &mut Memory) {
    let [_, _, _, head_dim, format, key_words, _, _, causal, _] = dispatch.spec[..] else {
        panic!("attention has ten constants")
    };
    run_with(dispatch, memory, (head_dim, format, key_words), causal == 1, |value| value);
}

/// The same with `rounded` q, keys and values. `pages`: dimensions of a head, format, words of a
/// key that are side by side.
pub(super) fn run_with(
    dispatch: &Dispatch,
    memory: &mut Memory,
    pages: (u32, u32, u32),
    causal: bool,
    rounded: fn(f32) -> f32,
) {
    let p: Params = bytemuck::pod_read_unaligned(&dispatch.push);
    let [kv, q, steps, tiles, tables, _, y, ..] = dispatch.bindings[..] else {
        panic!("attention has seven bindings or more")
    };
    let (head_dim, format, key_words) = pages;
    let (dim, heads) = (head_dim as usize, p.heads as usize);
    let format = KvFormat::of_code(format);
    let layout = PageLayout { kv_heads: p.kv_heads, head_dim, format, key_words };
    memory.update(y, |memory, y| {
        // The keys of each token's session.
        let tokens: HashMap<usize, u32> = memory.words(tiles)[..4 * dispatch.groups[0] as usize]
            .chunks_exact(4)
            .flat_map(|tile| (tile[0]..tile[0] + tile[1]).map(|token| (token as usize, tile[2])))
            .collect();
        let mut rows: Vec<(usize, &mut [f32])> = y.chunks_mut(heads * dim).enumerate().collect();
        rows.retain(|(token, _)| tokens.contains_key(token));
        let each = rows.len().div_ceil(thread::available_parallelism().map_or(1, usize::from));
        thread::scope(|scope| {
            for rows in rows.chunks_mut(each.max(1)) {
                scope.spawn(|| {
                    for (token, out) in rows {
                        let [_, position, table, _] = memory.words(steps)[4 * *token..][..4] else {
                            panic!("four words a step")
                        };
                        let last = if causal { position } else { tokens[token] - 1 };
                        let pages = &memory.words(tables)[(table * p.table_stride) as usize..];
                        let words = memory.words(kv);
                        let context = Context { p: &p, layout: &layout, words, pages, rounded };
                        let q = &memory.floats(q)[*token * heads * dim..][..heads * dim];
                        let q: Vec<f32> = q.iter().copied().map(rounded).collect();
                        for (head, (q, out)) in
                            q.chunks_exact(dim).zip(out.chunks_exact_mut(dim)).enumerate()
                        {
                            context.attend(head as u32, last, q, out);
                        }
                    }
                });
            }
        });
    });
}

struct Context<'a> {
    p: &'a Params,
    layout: &'a PageLayout,
    words: &'a [u32],
    pages: &'a [u32],
    rounded: fn(f32) -> f32,
}

impl Context<'_> {
    /// One head of one token, which sees up to `position`: scores, softmax in two passes, weighted
    /// sum of values.
    fn attend(&self, head: u32, position: u32, q: &[f32], out: &mut [f32]) {
        let p = self.p;
        let kv_head = head / (p.heads / p.kv_heads);
        let first = if p.window > 0 { (position + 1).saturating_sub(p.window) } else { 0 };
        let mut row = vec![0.0; q.len()];
        let load = |at: u32, value: bool, row: &mut [f32]| {
            let page = self.pages[(at / PageLayout::TOKENS) as usize];
            self.layout.load(self.words, page, at % PageLayout::TOKENS, kv_head, value, row);
            row.iter_mut().for_each(|value| *value = (self.rounded)(*value));
        };
        let mut scores: Vec<f32> = (first..=position)
            .map(|at| {
                load(at, false, &mut row);
                let score = p.scale * row.iter().zip(q).map(|(k, q)| k * q).sum::<f32>();
                if p.soft_cap > 0.0 { p.soft_cap * (score / p.soft_cap).tanh() } else { score }
            })
            .collect();
        let best = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut total = 0.0;
        for score in &mut scores {
            *score = (*score - best).exp();
            total += *score;
        }
        out.fill(0.0);
        for (at, weight) in (first..=position).zip(&scores) {
            load(at, true, &mut row);
            for (out, value) in out.iter_mut().zip(&row) {
                *out += weight / total * value;
            }
        }
    }
}
