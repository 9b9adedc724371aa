//! Twin of `shaders/moe_route.comp`.

use super::Memory;
use crate::gpu::Dispatch;
use crate::kernels::moe_route::Params;

/// The smallest sum that weights are divided by.
const SUM_MIN: f32 = 6.103_515_6e-5;

pub(super) fn run(dispatch: &Dispatch, memory: &mut Memory) {
    let params: Params = bytemuck::pod_read_unaligned(&dispatch.push);
    let [logits, experts, weights] = dispatch.bindings[..] else {
        panic!("moe_route has three bindings")
    };
    let [count, used] = [3, 4].map(|at| dispatch.spec[at] as usize);
    let [sigmoid, normalise] = [5, 6].map(|at| dispatch.spec[at] == 1);
    let tokens = dispatch.groups[0] as usize;
    let mut all_chosen = Vec::with_capacity(tokens * used);
    memory.update(weights, |memory, weights| {
        let rows = memory.floats(logits).chunks_exact(count).zip(weights.chunks_exact_mut(used));
        for (logits, weights) in rows.take(tokens) {
            let mut order: Vec<usize> = (0..count).collect();
            order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a])); // stable: lower ones first
            order.truncate(used);
            let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let total: f32 = logits.iter().map(|logit| (logit - largest).exp()).sum();
            for (weight, expert) in weights.iter_mut().zip(&order) {
                let logit = logits[*expert];
                *weight = if sigmoid {
                    1.0 / (1.0 + (-logit).exp())
                } else {
                    (logit - largest).exp() / total
                };
            }
            let sum = if normalise { weights.iter().sum::<f32>().max(SUM_MIN) } else { 1.0 };
            weights.iter_mut().for_each(|weight| *weight = *weight / sum * params.scale);
            all_chosen.extend(order.iter().map(|expert| *expert as u32));
        }
    });
    memory.update_words(experts, |_, out| out[..all_chosen.len()].copy_from_slice(&all_chosen));
}
