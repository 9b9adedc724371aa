//! Twin of `shaders/gather_rows.comp`.

use super::Memory;
use crate::gpu::Dispatch;
use crate::kernels::gather_rows::Params;

pub(super) fn run(dispatch: &Dispatch, memory: &mut Memory) {
    let params: Params = bytemuck::pod_read_unaligned(&dispatch.push);
    let [x, rows, y] = dispatch.bindings[..] else { panic!("gather_rows has three bindings") };
    let width = 4 * params.dim as usize;
    memory.update(y, |memory, y| {
        let rows = &memory.words(rows)[..dispatch.groups[0] as usize];
        for (out, row) in y.chunks_exact_mut(width).zip(rows) {
            out.copy_from_slice(&memory.floats(x)[*row as usize * width..][..width]);
        }
    });
}
