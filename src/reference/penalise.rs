//! Twin of `shaders/penalise.comp`.

use super::Memory;
use super::sample::rows_of;
use crate::gpu::Dispatch;
use crate::kernels::penalise::Params;
use crate::kernels::sampling::{NONE, Penalty};

pub(super) fn run(dispatch: &Dispatch, memory: &mut Memory) {
    let params: Params = bytemuck::pod_read_unaligned(&dispatch.push);
    let [logits, wanted, listed, chosen] = dispatch.bindings[..] else {
        panic!("penalise has four bindings")
    };
    let stride = params.stride as usize;
    memory.update(logits, |memory, logits| {
        let rows = rows_of(memory, wanted, dispatch.groups[0]);
        for (at, row) in rows.iter().enumerate() {
            let size = size_of::<Penalty>() / 4;
            let from = row.penalties_at as usize * size;
            let list = &memory.words(listed)[from..][..row.penalties as usize * size];
            let mut list: Vec<Penalty> = bytemuck::cast_slice(list).to_vec();
            if row.penalty_pending != NONE {
                let token = memory.words(chosen)[row.penalty_pending as usize];
                match list.iter_mut().find(|one| one.token == token) {
                    Some(one) => {
                        one.count += 1;
                        one.repeats = 1;
                    }
                    None => list.push(Penalty { token, count: 1, repeats: 1, bias: 0.0 }),
                }
            }
            for one in list.iter().filter(|one| one.token < row.vocab) {
                let logit = &mut logits[at * stride + one.token as usize];
                *logit = row.penalised(*logit, one);
            }
        }
    });
}
