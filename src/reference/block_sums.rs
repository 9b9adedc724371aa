//! Twin of `shaders/block_sums.comp`.

use super::Memory;
use crate::gpu::Dispatch;
use crate::kernels::quantize_x::Params;

pub(super) fn run(dispatch: &Dispatch, memory: &mut Memory) {
    let params: Params = bytemuck::pod_read_unaligned(&dispatch.push);
    let [x, gain, gained, sums] = dispatch.bindings[..] else { panic!("four bindings") };
    let (norm, width) = (dispatch.spec[3] == 1, 32 * params.blocks as usize);
    let rows = dispatch.groups[0] as usize;
    let gain = norm.then(|| memory.floats(gain)[..width].to_vec());
    let (mut values, mut all_sums) = (Vec::new(), Vec::new());
    for row in memory.floats(x).chunks(4 * params.x_stride as usize).take(rows) {
        let row = &row[..width];
        let squares: f32 = row.iter().map(|v| v * v).sum();
        let factor = match norm {
            true => 1.0 / (squares / width as f32 + params.epsilon).sqrt(),
            false => 1.0,
        };
        let first = values.len();
        match &gain {
            Some(gain) => values.extend(row.iter().zip(gain).map(|(v, g)| v * g)),
            None => values.extend_from_slice(row),
        }
        for (block, values) in values[first..].chunks_exact(32).enumerate() {
            let [low, high] = [&values[..16], &values[16..]].map(|half| half.iter().sum::<f32>());
            all_sums.extend([low + high, low, high, if block == 0 { factor } else { 0.0 }]);
        }
    }
    if norm {
        memory.update(gained, |_, out| out[..values.len()].copy_from_slice(&values));
    }
    memory.update(sums, |_, out| out[..all_sums.len()].copy_from_slice(&all_sums));
}
