//! `shaders/matmul_tiled.comp`: matmuls of many tokens in f16, by matrix units or without; and
//! which tiers there are beside that of f32, `shaders/matmul_bytes.comp` included.
//!
//! A matmul is recorded in f32 first; what is here makes two dispatches of it: one that narrows x
//! (`narrow`), and one that multiplies tiles. Matmuls with experts are no others, where each
//! workgroup takes the list of one.

use super::matmul::{Operands, Tier, TileConfig};
use super::matmul_experts::Params;
use super::quantize_x::{self, QuantizedX};
use super::{by_name, matmul_bytes, spirv};
use crate::gpu::{BufferSlice, Capabilities, Dispatch, Kernel, MatrixUnits};

const _: () = assert!(spirv::MATMUL_TILED_Q4_0_MATRIX_PUSH_BYTES as usize == size_of::<Params>());
const _: () = assert!(spirv::MATMUL_TILED_Q4_0_MATRIX_BINDINGS == 6);
const _: () = assert!(spirv::MATMUL_TILED_Q4_0_MATRIX_SPECS == 13);
const _: () = assert!(spirv::MATMUL_TILED_Q4_0_HALF_PUSH_BYTES as usize == size_of::<Params>());
const _: () = assert!(spirv::MATMUL_TILED_Q4_0_HALF_BINDINGS == 6);
const _: () = assert!(spirv::MATMUL_TILED_Q4_0_HALF_SPECS == 8);

/// All tiers but that of f32.
pub const REDUCED_TIERS: [Tier; 3] = [Tier::Matrix, Tier::Half, Tier::Bytes];

/// Fewer tokens do not fill a tile: then only a measurement chooses one.
pub const TOKENS_MIN: u32 = 16;

/// Fewer columns (tokens, or routes of an expert on average) do not half fill one.
pub const COLUMNS_MIN: u32 = 8;

/// Rows that a tile should have, and columns, at most: larger ones read less and need more
/// registers.
const ROWS_WANTED: [u32; 2] = [128, 64];
const TOKENS_WANTED: [u32; 3] = [64, 32, 16];

/// Workgroups that keep a large GPU busy: with fewer, tiles are made smaller.
const WORKGROUPS_WANTED: u64 = 96;

/// Columns of a lane, in the tier without matrix units.
const COLUMNS: u32 = 8;

/// Bytes of a block of 32 in shared memory, with f16, and how many blocks of a row are there.
const BLOCK_BYTES: u32 = 80;
const STAGES: u32 = 2;

fn block_bytes(tier: Tier) -> u32 {
    if tier == Tier::Bytes { matmul_bytes::BLOCK_BYTES } else { BLOCK_BYTES }
}

/// True if a device offers a tier.
#[must_use]
pub fn is_offered(caps: &Capabilities, tier: Tier) -> bool {
    match tier {
        Tier::Scalar => true,
        Tier::Summed => caps.slices_weights(),
        Tier::Matrix => caps.half_arithmetic && caps.subgroup_ops && caps.matrix_units.is_some(),
        Tier::Half => caps.half_arithmetic && caps.subgroup_ops,
        Tier::Bytes => caps.int8_dot_accelerated && caps.subgroup_ops,
    }
}

/// True if a device offers any tier but that of f32.
#[must_use]
pub fn is_any_offered(caps: &Capabilities) -> bool {
    REDUCED_TIERS.iter().any(|tier| is_offered(caps, *tier))
}

/// The kernel of a tier for a matmul recorded in f32; `None` where its weights have none, or it
/// computes wrongly.
fn kernel(caps: &Capabilities, matmul: &Dispatch, tier: Tier) -> Option<&'static Kernel> {
    let params = Params::of(matmul);
    // The route of a workgroup's own is one column.
    if params.has_experts() && !params.is_listed() {
        return None;
    }
    let name = matmul.kernel.name.strip_prefix("matmul_")?;
    let format = ["_pointers", "_shared", "_experts"]
        .iter()
        .fold(name, |name, suffix| name.strip_suffix(suffix).unwrap_or(name));
    let kernel = match tier {
        Tier::Bytes => by_name(&format!("matmul_bytes_{format}")),
        _ => by_name(&format!("matmul_tiled_{format}_{}", tier.name())),
    }?;
    let avoided = caps.avoids(kernel) || caps.avoids(quantize_x::kernel(tier));
    (!avoided).then_some(kernel)
}

/// Division of a tile among subgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Spread {
    across: u32,
    down: u32,
}

impl Spread {
    /// The way in which a subgroup loads the fewest fragments, and keeps the fewest; `None` where
    /// they do not fill it.
    fn of(units: MatrixUnits, rows: u32, tokens: u32, subgroups: u32) -> Option<Self> {
        let across = (0..).map(|shift| 1_u32 << shift).take_while(|across| *across <= subgroups);
        let all = across.map(|across| Self { across, down: subgroups / across });
        let fits = |spread: &Self| {
            spread.across * spread.down == subgroups
                && rows.is_multiple_of(spread.down * units.m)
                && tokens.is_multiple_of(spread.across * units.n)
        };
        let loads = |spread: &Self| {
            let columns = tokens / (spread.across * units.n);
            (rows / (spread.down * units.m) + columns, columns)
        };
        all.filter(fits).min_by_key(loads)
    }

    /// Division for a tile configuration.
    fn of_shape(caps: &Capabilities, shape: TileConfig) -> Option<Self> {
        let units = caps.matrix_units?;
        let threads = shape.split * caps.lanes;
        let whole = threads.is_multiple_of(units.subgroup);
        whole.then_some(())?;
        Self::of(units, shape.rows * caps.lanes, shape.tokens, threads / units.subgroup)
    }
}

/// A shape of a tier with so many rows and columns, where the device can run it.
fn shape(caps: &Capabilities, tier: Tier, rows: u32, tokens: u32) -> Option<TileConfig> {
    let groups = (rows / caps.lanes).clamp(2, super::matmul::GROUP_MULTIPLE as u32);
    let split = match (tier, caps.matrix_units) {
        (Tier::Matrix, Some(units)) => (4 * units.subgroup).div_ceil(caps.lanes),
        _ => tokens / COLUMNS,
    };
    let shape = TileConfig { rows: groups, tokens, split, tier };
    is_possible(caps, shape).then_some(shape)
}

/// True if a device can run a shape.
fn is_possible(caps: &Capabilities, shape: TileConfig) -> bool {
    let rows = shape.rows * caps.lanes;
    let fits = shape.split * caps.lanes <= caps.workgroup_invocations_max
        && STAGES * block_bytes(shape.tier) * (rows + shape.tokens) <= caps.shared_bytes_max;
    let divides = match shape.tier {
        Tier::Scalar | Tier::Summed => false,
        Tier::Matrix => Spread::of_shape(caps, shape).is_some_and(|spread| {
            let units = caps.matrix_units.expect("it has a spread");
            // Results of a column of fragments pass through the same memory.
            spread.across * units.n * (4 * rows + 16)
                <= STAGES * BLOCK_BYTES * (rows + shape.tokens)
        }),
        Tier::Half | Tier::Bytes => shape.tokens.is_multiple_of(shape.split),
    };
    is_offered(caps, shape.tier) && fits && divides && shape.rows.is_multiple_of(2)
}

/// True if a shape is among those that a matmul may have in its tier.
pub(super) fn is_wanted(caps: &Capabilities, wanted: TileConfig) -> bool {
    let mut all = TOKENS_WANTED.into_iter().flat_map(|tokens| {
        ROWS_WANTED.into_iter().filter_map(move |rows| shape(caps, wanted.tier, rows, tokens))
    });
    all.any(|shape| shape == wanted)
}

/// Shapes of a tier that may be the fastest for a matmul recorded in f32.
#[must_use]
pub fn shapes(caps: &Capabilities, matmul: &Dispatch, tier: Tier) -> Vec<TileConfig> {
    let params = Params::of(matmul);
    let columns = params.columns();
    if columns < COLUMNS_MIN || kernel(caps, matmul, tier).is_none() {
        return Vec::new();
    }
    let mut found: Vec<TileConfig> = Vec::new();
    let tokens_max = 2 * columns.max(TOKENS_MIN);
    for tokens in TOKENS_WANTED.into_iter().filter(|tokens| *tokens < tokens_max) {
        for rows in ROWS_WANTED {
            found.extend(shape(caps, tier, rows, tokens).filter(|shape| !found.contains(shape)));
        }
    }
    found
}

/// The workgroups of a shape: with experts, as many for each as its routes fill tiles on average.
fn grid(params: &Params, shape: TileConfig) -> [u32; 3] {
    let row_tiles = params.matmul.groups.div_ceil(shape.rows);
    let column_tiles = params.columns().div_ceil(shape.tokens);
    match params.has_experts() {
        true => [params.expert_count, row_tiles, column_tiles],
        false => [column_tiles, row_tiles, 1],
    }
}

/// The shape for a matmul recorded in f32 that may be made of narrower numbers: the largest tile
/// of which there are enough. Bytes are less exact: only the tuner takes them. Software drivers
/// have no use for any.
#[must_use]
pub fn choose(caps: &Capabilities, matmul: &Dispatch) -> Option<TileConfig> {
    if caps.is_cpu() {
        return None;
    }
    let params = Params::of(matmul);
    if !params.has_experts() && params.columns() < TOKENS_MIN {
        return None;
    }
    let found = [Tier::Matrix, Tier::Half].map(|tier| shapes(caps, matmul, tier));
    let found = found.into_iter().find(|shapes| !shapes.is_empty())?;
    let workgroups =
        |shape: &&TileConfig| grid(&params, **shape).into_iter().map(u64::from).product::<u64>();
    let enough = found.iter().find(|shape| workgroups(shape) >= WORKGROUPS_WANTED);
    enough.or(found.iter().max_by_key(workgroups)).copied()
}

/// A matmul recorded in f32 in another tier: x narrowed into `workspace`, then the tiles. `None`
/// where the device cannot run that, or there is not enough room.
#[must_use]
pub fn tiled(
    caps: &Capabilities,
    matmul: &Dispatch,
    shape: TileConfig,
    workspace: BufferSlice,
) -> Option<[Dispatch; 2]> {
    let kernel = kernel(caps, matmul, shape.tier).filter(|_| is_possible(caps, shape))?;
    let mut params = Params::of(matmul);
    let block_quads = if shape.tier == Tier::Bytes { 3 } else { 4 };
    params.matmul.x_stride = params.matmul.blocks * block_quads;
    let quantized = QuantizedX::place(matmul, u64::from(params.matmul.x_stride) * 16, workspace)?;
    let Operands { quads, words, y, bias, x, .. } = Operands::of(matmul);
    let (listed, has_bias, epilogue) =
        (u32::from(params.is_listed()), matmul.spec[6], matmul.spec[7]);
    let mut spec =
        vec![caps.lanes, shape.split, 1, shape.rows, shape.tokens, listed, has_bias, epilogue];
    if let (Tier::Matrix, Some(units)) = (shape.tier, caps.matrix_units) {
        let Spread { across, down } = Spread::of_shape(caps, shape)?;
        spec.extend([units.m, units.n, units.k, across, down]);
    }
    let beside = if has_bias + listed > 0 { bias } else { quantized.factors };
    debug_assert!(x.buffer != quantized.x.buffer, "x is read before it is narrowed");
    let tiles = Dispatch {
        kernel,
        spec,
        bindings: vec![quads, words, quantized.x, y, quantized.factors, beside],
        push: bytemuck::bytes_of(&params).to_vec(),
        pointers: 0,
        groups: grid(&params, shape),
    };
    Some([quantize_x::of_matmul(caps, matmul, shape.tier, &quantized), tiles])
}
