//! Twin of `shaders/mask.comp`.

use super::Memory;
use super::sample::rows_of;
use crate::gpu::Dispatch;
use crate::kernels::mask::Params;
use crate::kernels::sampling::NONE;

pub(super) fn run(dispatch: &Dispatch, memory: &mut Memory) {
    let params: Params = bytemuck::pod_read_unaligned(&dispatch.push);
    let [logits, wanted, masks] = dispatch.bindings[..] else { panic!("mask has three bindings") };
    let (stride, words) = (params.stride as usize, params.words as usize);
    memory.update(logits, |memory, logits| {
        let rows = rows_of(memory, wanted, dispatch.groups[1]);
        for (at, row) in rows.iter().enumerate().filter(|(_, row)| row.mask != NONE) {
            let mask = &memory.words(masks)[row.mask as usize * words..][..words];
            let logits = &mut logits[at * stride..][..row.vocab as usize];
            for (token, logit) in logits.iter_mut().enumerate() {
                if mask[token / 32] >> (token % 32) & 1 == 0 {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
    });
}
