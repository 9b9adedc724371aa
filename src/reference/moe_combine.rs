//! Twin of `shaders/moe_combine.comp`.

use super::Memory;
use crate::gpu::Dispatch;
use crate::kernels::moe_combine::Params;

pub(super) fn run(dispatch: &Dispatch, memory: &mut Memory) {
    let params: Params = bytemuck::pod_read_unaligned(&dispatch.push);
    let [x, weights, shared, gate, y] = dispatch.bindings[..] else {
        panic!("moe_combine has five bindings")
    };
    let (dim, used) = (4 * params.dim as usize, params.used as usize);
    let (shares, residual) = (dispatch.spec[3], dispatch.spec[4] == 1);
    memory.update(y, |memory, y| {
        let (x, weights) = (memory.floats(x), memory.floats(weights));
        for (token, y) in y.chunks_exact_mut(dim).take(dispatch.groups[0] as usize).enumerate() {
            let share =
                if shares == 2 { 1.0 / (1.0 + (-memory.floats(gate)[token]).exp()) } else { 1.0 };
            for (i, y) in y.iter_mut().enumerate() {
                let routes = token * used..(token + 1) * used;
                let mut sum: f32 = routes.map(|route| weights[route] * x[route * dim + i]).sum();
                if shares > 0 {
                    sum += share * memory.floats(shared)[token * dim + i];
                }
                sum *= params.factor;
                *y = if residual { *y + sum } else { sum };
            }
        }
    });
}
