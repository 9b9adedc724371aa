//! Twin of `shaders/layer_norm.comp`.

use super::Memory;
use crate::gpu::Dispatch;
use crate::kernels::layer_norm::Params;

pub(super) fn run(dispatch: &Dispatch, memory: &mut Memory) {
    let params: Params = bytemuck::pod_read_unaligned(&dispatch.push);
    let [x, gain, bias, y] = dispatch.bindings[..] else { panic!("layer_norm has four bindings") };
    let dim = 4 * params.dim as usize;
    memory.update(y, |memory, y| {
        let (gain, bias) = (memory.floats(gain), memory.floats(bias));
        let rows = memory.floats(x).chunks_exact(dim).zip(y.chunks_exact_mut(dim));
        for (x, y) in rows.take(dispatch.groups[0] as usize) {
            let mean = x.iter().sum::<f32>() / dim as f32;
            let squares: f32 = x.iter().map(|v| (v - mean) * (v - mean)).sum();
            let factor = 1.0 / (squares / dim as f32 + params.epsilon).sqrt();
            for (i, (y, x)) in y.iter_mut().zip(x).enumerate() {
                let value = (x - mean) * factor * gain[i];
                *y = if dispatch.spec[3] == 1 { value + bias[i] } else { value };
            }
        }
    });
}
