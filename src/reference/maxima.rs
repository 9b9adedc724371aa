//! Twin of `shaders/maxima.comp`.

use super::Memory;
use super::sample::rows_of;
use crate::gpu::Dispatch;
use crate::kernels::maxima::Params;
use crate::kernels::sampling::{KEY_INFINITE, KEY_LEAST, NONE, key};

pub(super) fn run(dispatch: &Dispatch, memory: &mut Memory) {
    let params: Params = bytemuck::pod_read_unaligned(&dispatch.push);
    let [logits, wanted, maxima] = dispatch.bindings[..] else {
        panic!("maxima has three bindings")
    };
    let (stride, chunks) = (params.stride as usize, params.chunks as usize);
    memory.update_words(maxima, |memory, maxima| {
        let rows = rows_of(memory, wanted, dispatch.groups[1]);
        for (at, row) in rows.iter().enumerate() {
            let logits = &memory.floats(logits)[at * stride..][..row.vocab as usize];
            for chunk in 0..chunks {
                let mut best = [0, NONE];
                for token in (chunk..logits.len()).step_by(chunks) {
                    let key = key(logits[token]);
                    if !(KEY_LEAST..KEY_INFINITE).contains(&key) {
                        best = [NONE; 2];
                        break;
                    }
                    if key > best[0] {
                        best = [key, token as u32];
                    }
                }
                maxima[2 * (at * chunks + chunk)..][..2].copy_from_slice(&best);
            }
        }
    });
}
