//! Twin of `shaders/glu.comp`, and the activation functions.

use super::Memory;
use crate::gpu::Dispatch;
use crate::kernels::glu::Params;

pub(super) fn silu(v: f32) -> f32 {
    v / (1.0 + (-v).exp())
}

/// GELU in its tanh form.
pub(super) fn gelu(v: f32) -> f32 {
    const SQRT_2_OVER_PI: f32 = 0.797_884_6;
    0.5 * v * (1.0 + (SQRT_2_OVER_PI * v * (1.0 + 0.044_715 * v * v)).tanh())
}

pub(super) fn run(dispatch: &Dispatch, memory: &mut Memory) {
    let params: Params = bytemuck::pod_read_unaligned(&dispatch.push);
    let [x, y] = dispatch.bindings[..] else { panic!("glu has two bindings") };
    let (dim, group) = (params.dim as usize, params.group as usize);
    memory.update(y, |memory, y| {
        let x = memory.floats(x);
        for token in 0..dispatch.groups[0] as usize {
            let pairs = x[token * 2 * dim..][..2 * dim].chunks_exact(2 * group);
            for (out, pair) in y[token * dim..][..dim].chunks_exact_mut(group).zip(pairs) {
                let (gate, up) = pair.split_at(group);
                for (out, (gate, up)) in out.iter_mut().zip(gate.iter().zip(up)) {
                    let activation = if dispatch.spec[3] == 1 { gelu(*gate) } else { silu(*gate) };
                    *out = activation * up;
                }
            }
        }
    });
}
