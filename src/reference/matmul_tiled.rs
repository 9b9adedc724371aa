//! Twin of `shaders/matmul_tiled.comp`: matmuls of the narrowed x with weights as they are.

use half::f16;

use super::Memory;
use super::matmul::{all_matmuls, packing, write_row};
use super::matmul_experts::{Part, parts};
use crate::gpu::Dispatch;
use crate::kernels::matmul::Operands;
use crate::kernels::matmul_experts::Params;

pub(super) fn run(dispatch: &Dispatch, memory: &mut Memory) {
    run_with(dispatch, memory, |bytes| {
        let pairs = bytes.chunks_exact(2);
        pairs.map(|pair| f16::from_le_bytes([pair[0], pair[1]]).to_f32()).collect()
    });
}

/// The same for another form of x, whose rows stand one behind the other.
pub(super) fn run_with(
    dispatch: &Dispatch,
    memory: &mut Memory,
    values: impl Fn(&[u8]) -> Vec<f32>,
) {
    let Operands { x, y, gain: factors, bias, .. } = Operands::of(dispatch);
    let params = Params::of(dispatch);
    let packing = packing(dispatch, &params.matmul);
    let (x_rows, used) = (params.x_rows() as usize, params.used as usize);
    let width = packing.layout.row_len as usize;
    let x = values(&memory.bytes_of(x)[..x_rows * 16 * params.matmul.x_stride as usize]);
    let factors = memory.floats(factors)[..x_rows].to_vec();
    let bias = (dispatch.spec[6] == 1).then(|| memory.floats(bias).to_vec());
    for Part { quads, words, rows } in parts(dispatch, memory, &packing) {
        let own: Vec<f32> =
            rows.iter().flat_map(|row| &x[row / used * width..][..width]).copied().collect();
        let matmuls = all_matmuls(memory, &packing, quads, words, &own, rows.len());
        memory.update(y, |_, y| {
            for (column, row) in rows.iter().enumerate() {
                let value = |of_w: usize| {
                    matmuls[of_w * rows.len() + column] * factors[row / used]
                        + bias.as_ref().map_or(0.0, |bias| bias[of_w])
                };
                write_row(y, *row, dispatch, &params.matmul, value);
            }
        });
    }
}
