//! Twin of `shaders/fma_peak.comp`.

use super::Memory;
use crate::gpu::Dispatch;
use crate::kernels::fma_peak::Params;

pub(super) fn run(dispatch: &Dispatch, memory: &mut Memory) {
    let params: Params = bytemuck::pod_read_unaligned(&dispatch.push);
    let (lanes, sums) = (dispatch.spec[0] as usize, dispatch.spec[3]);
    let value = |lane: usize| -> f32 {
        let c = 1.0 + lane as f32 / 64.0;
        let end = |i: u32| (0..params.rounds).fold(i as f32 / 8.0, |v, _| v * params.factor + c);
        (0..sums).map(end).sum()
    };
    let lane_values: Vec<f32> = (0..lanes).map(value).collect();
    memory.update(dispatch.bindings[0], |_, y| {
        for y in y.chunks_exact_mut(lanes).take(dispatch.groups[0] as usize) {
            y.copy_from_slice(&lane_values);
        }
    });
}
