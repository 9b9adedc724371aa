//! `shaders/matmul_sliced.comp`: matmuls with sliced weights.

use super::block_sums::{self, Summed};
use super::matmul::{Matmul, Operands, Params, Tier, TileConfig};
use super::{by_format, or_unused, spirv, u32_of};
use crate::gpu::{BufferSlice, Capabilities, Dispatch, Recording};
use crate::tensor::{DType, sliced};

const _: () = assert!(spirv::MATMUL_SLICED_Q4_0_PUSH_BYTES as usize == size_of::<Params>());
const _: () = assert!(spirv::MATMUL_SLICED_Q4_0_BINDINGS == 5);
const _: () = assert!(spirv::MATMUL_SLICED_Q4_0_SPECS == 9);

/// A slice of rows is a multiple of this many tiles.
const TILE_MULTIPLE: u64 = 1;

/// Multiplications of a matmul from which on a dispatch more, that adds up x for all workgroups,
/// costs less than each of them doing it.
const SUMMED_MIN: u64 = 4 << 20;

/// Columns of a tile: more than four would not stay in registers.
fn tile_tokens(tokens: u32) -> u32 {
    match tokens {
        1 | 2 => tokens,
        _ => 4,
    }
}

/// Columns of a tile at most where x is added up before.
const SUMMED_TOKENS_MAX: u32 = 8;

/// True if a dispatch is a matmul with sliced weights.
#[must_use]
pub fn is_sliced(dispatch: &Dispatch) -> bool {
    dispatch.kernel.name.starts_with("matmul_sliced")
}

/// True if a matmul has the sums of x's blocks bound, in place of a norm's gain.
#[must_use]
pub fn is_summed(matmul: &Dispatch) -> bool {
    is_sliced(matmul) && matmul.spec[8] == 1
}

/// The shape of a matmul with sliced weights that is worth a dispatch which adds up x.
#[must_use]
pub fn choose_summed(matmul: &Dispatch) -> Option<TileConfig> {
    if !is_sliced(matmul) {
        return None;
    }
    let Params { groups, blocks, tokens, .. } = bytemuck::pod_read_unaligned(&matmul.push);
    let lanes = matmul.spec[0];
    let work = [groups * lanes, blocks * 32, tokens].map(u64::from).into_iter().product::<u64>();
    let shape = TileConfig { tier: Tier::Summed, ..TileConfig::scalar(4, SUMMED_TOKENS_MAX, 1) };
    (work >= SUMMED_MIN).then_some(shape)
}

/// A matmul with sliced weights as two dispatches: x added up into `workspace`, then the matmul,
/// with the same bits as by itself. Tiles have at most the shape's columns, and about as many each:
/// one that is half empty takes as long as a full one. `None` where the first dispatch computes
/// wrongly on the device, or there is not enough room.
#[must_use]
pub fn summed(
    caps: &Capabilities,
    matmul: &Dispatch,
    shape: TileConfig,
    workspace: BufferSlice,
) -> Option<[Dispatch; 2]> {
    if !is_sliced(matmul) || caps.avoids(&spirv::BLOCK_SUMS) {
        return None;
    }
    let summed = Summed::place(matmul, workspace)?;
    let mut params: Params = bytemuck::pod_read_unaligned(&matmul.push);
    let Operands { quads, y, bias, x, .. } = Operands::of(matmul);
    // Only what is multiplied by a gain stands apart, row by row.
    if summed.x != x {
        params.x_stride = params.blocks * 8;
    }
    let mut after = matmul.clone();
    after.push = bytemuck::bytes_of(&params).to_vec();
    after.bindings = vec![quads, summed.x, summed.sums, y, bias];
    let tiles = params.tokens.div_ceil(shape.tokens);
    [after.spec[4], after.spec[8]] = [params.tokens.div_ceil(tiles), 1];
    after.groups[0] = tiles;
    Some([block_sums::of_matmul(caps, matmul, &summed), after])
}

/// True if matrices of a type are to be sliced on a device: not where one of the kernels that read
/// them computes wrongly.
#[must_use]
pub fn is_wanted(caps: &Capabilities, dtype: DType) -> bool {
    let format = dtype.name().to_ascii_lowercase();
    let readers = ["matmul_sliced", "embed_sliced"].map(|stem| format!("{stem}_{format}"));
    caps.slices_weights() && !readers.iter().any(|name| caps.avoided.contains(name.as_str()))
}

/// Appends the matmul: one dispatch for each slice of the weights that can be bound.
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
                0,
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
