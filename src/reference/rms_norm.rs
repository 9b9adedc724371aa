//! Twin of `shaders/rms_norm.comp`.

use super::Memory;
use crate::gpu::Dispatch;
use crate::kernels::rms_norm::Params;

pub(super) fn run(dispatch: &Dispatch, memory: &mut Memory) {
    let params: Params = bytemuck::pod_read_unaligned(&dispatch.push);
    let [x, gain, y] = dispatch.bindings[..] else { panic!("rms_norm has three bindings") };
    let dim = 4 * params.dim as usize;
    memory.update(y, |memory, y| {
        let rows = memory.floats(x).chunks_exact(dim).zip(y.chunks_exact_mut(dim));
        for (x, y) in rows.take(dispatch.groups[0] as usize) {
            let squares: f32 = x.iter().map(|v| v * v).sum();
            let factor = 1.0 / (squares / dim as f32 + params.epsilon).sqrt();
            for (y, (x, gain)) in y.iter_mut().zip(x.iter().zip(memory.floats(gain))) {
                let value = x * factor * gain;
                *y = if dispatch.spec[3] == 1 { *y + value } else { value };
            }
        }
    });
}
