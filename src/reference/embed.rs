//! Twin of `shaders/embed.comp`.

use super::{Memory, planes};
use crate::gpu::Dispatch;
use crate::kernels::embed::Params;
use crate::kernels::sampling::PENDING;

pub(super) fn run(dispatch: &Dispatch, memory: &mut Memory) {
    let params: Params = bytemuck::pod_read_unaligned(&dispatch.push);
    let [quads, words, steps, y, chosen] = dispatch.bindings[..] else {
        panic!("embed has five bindings")
    };
    let packing = planes::packing(dispatch, "embed", params.row_count, params.units, params.blocks);
    let width = packing.layout.row_len as usize;
    let column = dispatch.spec[3] as usize;
    let mut values = vec![0.0; width];
    memory.update(y, |memory, y| {
        for token in 0..dispatch.groups[0] as usize {
            let mut row = memory.words(steps)[4 * token + column];
            if column == 0 && row & PENDING != 0 {
                row = memory.words(chosen)[(row & !PENDING) as usize];
            }
            let row = row.wrapping_sub(params.row_first);
            if row >= params.row_count {
                continue;
            }
            let out = &mut y[token * params.y_stride as usize * 4..][..width];
            let (quads, words) = (memory.bytes_of(quads), memory.bytes_of(words));
            packing.unpack_row(quads, words, row.into(), &mut values);
            for (out, value) in out.iter_mut().zip(&values) {
                let value = params.factor * value;
                *out = if column > 0 { *out + value } else { value };
            }
        }
    });
}
