//! Twin of `shaders/penalise.comp`.

use super::Memory;
use super::sample::rows_of;
use crate::gpu::Dispatch;
use crate::kernels::penalise::Params;
use crate::kernels::sampling::{NONE, PENALTIES_MAX};

pub(super) fn run(dispatch: &Dispatch, memory: &mut Memory) {
    let params: Params = bytemuck::pod_read_unaligned(&dispatch.push);
    let [logits, wanted, tokens, chosen] = dispatch.bindings[..] else {
        panic!("penalise has four bindings")
    };
    let stride = params.stride as usize;
    memory.update(logits, |memory, logits| {
        let rows = rows_of(memory, wanted, dispatch.groups[0]);
        for (at, row) in rows.iter().enumerate() {
            let list = &memory.words(tokens)[at * PENALTIES_MAX..][..row.penalties as usize];
            let pending = Some(row.penalty_pending).filter(|pending| *pending != NONE);
            let pending = pending.map(|pending| memory.words(chosen)[pending as usize]);
            let pending = pending.filter(|token| !list.contains(token));
            for token in list.iter().copied().chain(pending).filter(|token| *token < row.vocab) {
                let logit = &mut logits[at * stride + token as usize];
                *logit = row.penalised(*logit);
            }
        }
    });
}
