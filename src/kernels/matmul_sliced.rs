//! `shaders/matmul_sliced.comp`: products with sliced weights.

use super::matmul::{Matmul, Params};
use super::{by_format, or_unused, spirv, u32_of};
use crate::gpu::{Capabilities, Dispatch, Recording};
use crate::tensor::{DType, sliced};

const _: () = assert!(spirv::MATMUL_SLICED_Q4_0_PUSH_BYTES as usize == size_of::<Params>());
const _: () = assert!(spirv::MATMUL_SLICED_Q4_0_BINDINGS == 5);
const _: () = assert!(spirv::MATMUL_SLICED_Q4_0_SPECS == 8);

/// A slice of rows is a multiple of this many tiles.
const TILE_MULTIPLE: u64 = 1;

/// Columns of a tile: more than four would not stay in registers.
fn tile_tokens(tokens: u32) -> u32 {
    match tokens {
        1 | 2 => tokens,
        _ => 4,
    }
}

/// Whether matrices of a type are to be sliced on a device: not where one of the kernels that read
/// them computes wrongly.
#[must_use]
pub fn is_wanted(caps: &Capabilities, dtype: DType) -> bool {
    let format = dtype.name().to_ascii_lowercase();
    let readers = ["matmul_sliced", "embed_sliced"].map(|stem| format!("{stem}_{format}"));
    caps.slices_weights() && !readers.iter().any(|name| caps.avoided.contains(name.as_str()))
}

/// Appends the product: one dispatch for each slice of the weights that can be bound.
///
/// # Panics
/// If the weights are not sliced, or rows of x begin within a block of 32: bugs of the caller.
pub fn record(recording: &mut Recording, caps: &Capabilities, matmul: &Matmul<'_>) {
    assert!(matmul.weights.sliced, "sliced weights");
    assert!(matmul.x_stride.is_multiple_of(32), "rows of x are whole blocks");
    assert!(!(matmul.epilogue.is_glu() && matmul.bias.is_some()), "a GLU takes no bias");
    let columns = tile_tokens(matmul.tokens);
    for slice in matmul.weights.row_slices(caps, TILE_MULTIPLE) {
        let bias = matmul.bias_of(&slice);
        recording.dispatch(Dispatch {
            kernel: by_format("matmul_sliced", matmul.weights.layout.dtype, ""),
            spec: vec![
                caps.lanes,
                1,
                1,
                sliced::TILE_GROUPS as u32,
                columns,
                u32::from(matmul.norm.is_some()),
                u32::from(bias.is_some()),
                matmul.epilogue as u32,
            ],
            bindings: vec![
                slice.quads,
                matmul.x,
                or_unused(matmul.gain(), matmul.x),
                matmul.y,
                or_unused(bias, matmul.x),
            ],
            push: bytemuck::bytes_of(&matmul.params(&slice)).to_vec(),
            pointers: 3,
            groups: [matmul.tokens.div_ceil(columns), u32_of(slice.groups), 1],
        });
    }
}
