//! Twin of `shaders/read_stream.comp`.

use super::Memory;
use crate::gpu::Dispatch;
use crate::kernels::read_stream::Params;

pub(super) fn run(dispatch: &Dispatch, memory: &mut Memory) {
    let params: Params = bytemuck::pod_read_unaligned(&dispatch.push);
    let [x, y] = dispatch.bindings[..] else { panic!("read_stream has two bindings") };
    let (part, lanes) = (params.part as usize, dispatch.spec[0] as usize);
    memory.update_words(y, |memory, y| {
        let parts = memory.words(x).chunks_exact(4 * part);
        for (part, y) in parts.zip(y.chunks_exact_mut(lanes)).take(dispatch.groups[0] as usize) {
            y.fill(0);
            for (at, quad) in part.chunks_exact(4).enumerate() {
                y[at % lanes] ^= quad.iter().fold(0, |all, word| all ^ word);
            }
        }
    });
}
