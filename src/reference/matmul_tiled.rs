//! Twin of `shaders/matmul_tiled.comp`: products of the narrowed x with weights as they are.

use half::f16;

use super::Memory;
use super::matmul::{all_products, packing, write_row};
use crate::gpu::Dispatch;
use crate::kernels::matmul::{Operands, Params};

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
    let Operands { quads, words, x, y, gain: factors, bias } = Operands::of(dispatch);
    let params: Params = bytemuck::pod_read_unaligned(&dispatch.push);
    let packing = packing(dispatch, &params);
    let tokens = params.tokens as usize;
    let x = values(&memory.bytes_of(x)[..tokens * 16 * params.x_stride as usize]);
    let factors = memory.floats(factors)[..tokens].to_vec();
    let products = all_products(memory, &packing, quads, words, &x, tokens);
    let bias = (dispatch.spec[6] == 1).then(|| memory.floats(bias).to_vec());
    memory.update(y, |_, y| {
        for (token, factor) in factors.iter().enumerate() {
            let value = |row: usize| {
                products[row * tokens + token] * factor
                    + bias.as_ref().map_or(0.0, |bias| bias[row])
            };
            write_row(y, token, dispatch, &params, value);
        }
    });
}
