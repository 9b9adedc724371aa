//! Shapes of matmuls and of attention that were measured, in place of the rules of their
//! `TileConfig::choose`.
//!
//! Matmuls of one kernel over matrices of one size, for about as many columns (tokens, or the
//! routes that an expert has on average), are one [`Work`]: they are cut alike. Which shapes
//! there are to choose from is said here; who measures them is the engine's matter.

use serde::{Deserialize, Serialize};

use super::attention;
use super::attention_tiled::{self, Cut};
use super::matmul::{Tier, TileConfig};
use super::matmul_experts::Params;
use super::matmul_sliced;
use super::matmul_tiled::{self, REDUCED_TIERS};
use crate::gpu::{BufferSlice, Capabilities, Choice, Command, Dispatch, Recording, Work};

/// Most tokens that works are told apart by.
pub const TOKENS_MAX: u32 = 64;

/// Numbers of tokens that stand for works: up to each, and more than the one before.
pub const TOKENS: [u32; 7] = [1, 2, 4, 8, 16, 32, TOKENS_MAX];

/// Tokens of the steps in which there is every work of a model, in ascending order. `experts`: how
/// many of how many a token has, where it has any.
#[must_use]
pub fn step_tokens(experts: Option<[u32; 2]>, tokens_max: u32) -> Vec<u32> {
    let mut all: Vec<u32> = TOKENS.into_iter().filter(|tokens| *tokens <= tokens_max).collect();
    if let Some([used, of]) = experts {
        all.extend(TOKENS.map(|columns| (columns * of / used).min(tokens_max)));
    }
    all.sort_unstable();
    all.dedup();
    all
}

/// The work that a dispatch is; `None` where it is no matmul in f32 whose shape can be chosen.
#[must_use]
pub fn work_of(dispatch: &Dispatch) -> Option<Work> {
    let name = dispatch.kernel.name;
    let other = ["_tiled", "_bytes"].iter().any(|part| name.contains(part));
    if !name.starts_with("matmul_") || other {
        return None;
    }
    let params = Params::of(dispatch);
    let columns = params.columns().next_power_of_two().min(TOKENS_MAX);
    let rows = u64::from(params.matmul.groups) * u64::from(dispatch.spec[0]);
    Some((name, [rows, u64::from(params.matmul.blocks) * 32, u64::from(columns)]))
}

/// The shape that a matmul in f32 has.
#[must_use]
pub fn shape_of(dispatch: &Dispatch) -> TileConfig {
    TileConfig::scalar(dispatch.spec[3], dispatch.spec[4], dispatch.spec[1])
}

/// A shape as [`Capabilities::tuned`] has it.
#[must_use]
pub fn choice_of(shape: TileConfig) -> Choice {
    [shape.rows, shape.tokens, shape.split, shape.tier as u32]
}

fn chosen(choice: Choice) -> Option<TileConfig> {
    let [rows, tokens, split, tier] = choice;
    let tier = *Tier::ALL.get(tier as usize)?;
    Some(TileConfig { rows, tokens, split, tier })
}

/// A matmul in f32 in another shape, as the dispatches that it takes. `workspace`: for what one of
/// them makes of x; where there is none for a shape that needs it, the matmul stays what it is.
#[must_use]
pub fn reshaped(
    caps: &Capabilities,
    dispatch: &Dispatch,
    shape: TileConfig,
    workspace: Option<BufferSlice>,
) -> Vec<Dispatch> {
    let pair = |workspace| match shape.tier {
        Tier::Summed => matmul_sliced::summed(caps, dispatch, shape, workspace),
        _ => matmul_tiled::tiled(caps, dispatch, shape, workspace),
    };
    match shape.tier {
        Tier::Scalar => vec![reshaped_scalar(dispatch, shape)],
        _ => workspace.and_then(pair).map_or_else(|| vec![dispatch.clone()], Vec::from),
    }
}

/// True if a dispatch is the first of a matmul's two: what it makes of x is overwritten by the next
/// such dispatch.
#[must_use]
pub fn is_made_before(dispatch: &Dispatch) -> bool {
    ["block_sums", "quantize_x"].iter().any(|stem| dispatch.kernel.name.starts_with(stem))
}

fn reshaped_scalar(dispatch: &Dispatch, shape: TileConfig) -> Dispatch {
    let params = Params::of(dispatch);
    let mut other = dispatch.clone();
    [other.spec[1], other.spec[3], other.spec[4]] = [shape.split, shape.rows, shape.tokens];
    // With experts, a workgroup goes through all tiles of columns.
    if !params.has_experts() {
        other.groups[0] = params.matmul.tokens.div_ceil(shape.tokens);
    }
    other.groups[1] = params.matmul.groups.div_ceil(shape.rows);
    other
}

/// Other shapes for a matmul in f32, at most ten of its own tier and six of each other. With
/// `other_orders` also those that take sums in another order, or multiply other numbers.
#[must_use]
pub fn candidates(caps: &Capabilities, dispatch: &Dispatch, other_orders: bool) -> Vec<TileConfig> {
    let own = shape_of(dispatch);
    let Some((_, [_, _, tokens])) = work_of(dispatch) else { return Vec::new() };
    let mut shapes = shapes_in_f32(caps, dispatch);
    shapes.retain(|shape| match shape.split == own.split {
        true => u64::from(shape.tokens) <= tokens && *shape != own,
        false => other_orders,
    });
    // The widest are the likeliest to be worth their time.
    shapes.reverse();
    shapes.truncate(CANDIDATES_MAX);
    if other_orders {
        for tier in REDUCED_TIERS {
            shapes.extend(matmul_tiled::shapes(caps, dispatch, tier));
        }
    }
    shapes
}

/// All shapes that a matmul in f32 may have on a device and stay in f32.
fn shapes_in_f32(caps: &Capabilities, dispatch: &Dispatch) -> Vec<TileConfig> {
    let own = shape_of(dispatch);
    // The rows of sliced weights are those of a tile, and nothing shares their columns.
    let sliced = matmul_sliced::is_sliced(dispatch);
    let rows: &[u32] = if sliced { &[own.rows] } else { &[2, 4, 8] };
    let mut shapes = Vec::new();
    for tokens in [1, 2, 4, 8] {
        for &rows in rows {
            // More sums than that do not stay in registers.
            if rows * tokens <= 32 {
                let shape = TileConfig::scalar(rows, tokens, own.split);
                shapes.push(shape);
                shapes.extend(sliced.then_some(TileConfig { tier: Tier::Summed, ..shape }));
            }
        }
    }
    if !sliced {
        let fits = |split: &u32| {
            *split != own.split && split * caps.lanes <= caps.workgroup_invocations_max.min(256)
        };
        let splits = [1, 2, 4, 8].into_iter().filter(fits);
        shapes.extend(splits.map(|split| TileConfig { split, ..own }));
    }
    let groups = Params::of(dispatch).matmul.groups;
    let rows_max = caps.workgroup_count_max[1];
    shapes.retain(|shape| groups.div_ceil(shape.rows) <= rows_max && fits_shared(caps, *shape));
    shapes
}

/// True if a choice, which may come from a file, is one that a matmul can have: whatever else it
/// says is not taken.
fn is_possible(caps: &Capabilities, dispatch: &Dispatch, shape: TileConfig) -> bool {
    match shape.tier {
        Tier::Scalar | Tier::Summed => {
            shape == shape_of(dispatch) || shapes_in_f32(caps, dispatch).contains(&shape)
        }
        Tier::Matrix | Tier::Half | Tier::Bytes => matmul_tiled::is_wanted(caps, shape),
    }
}

const CANDIDATES_MAX: usize = 10;

/// True if the partial sums of the rows of lanes fit a workgroup's memory.
fn fits_shared(caps: &Capabilities, shape: TileConfig) -> bool {
    let sums = shape.split * shape.tokens * (shape.rows * caps.lanes + 1);
    shape.split == 1 || 4 * sums <= caps.shared_bytes_max
}

/// The shape for a matmul in f32: the one that was measured to be the fastest, else by the rules,
/// which know of narrower numbers, and of sums of x, only where there is room for them.
pub(super) fn best(caps: &Capabilities, dispatch: &Dispatch, has_workspace: bool) -> TileConfig {
    let measured = work_of(dispatch).and_then(|work| caps.tuned.get(&work));
    let before =
        || matmul_sliced::choose_summed(dispatch).or_else(|| matmul_tiled::choose(caps, dispatch));
    let by_rule = || has_workspace.then(before).flatten();
    let measured = measured.and_then(|choice| chosen(*choice));
    let shape = measured.filter(|shape| is_possible(caps, dispatch, *shape)).or_else(by_rule);
    shape.unwrap_or_else(|| shape_of(dispatch))
}

/// Appends matmuls recorded in f32, all in one shape.
///
/// # Panics
/// If the device cannot run it, or there is not enough room: the caller asked.
pub(super) fn append_in(
    recording: &mut Recording,
    caps: &Capabilities,
    plain: Recording,
    workspace: Option<BufferSlice>,
    shape: TileConfig,
) {
    // What is made of x is a dispatch more.
    let wanted = plain.commands.len() + usize::from(shape.tier != Tier::Scalar);
    let before = recording.commands.len();
    append(recording, caps, plain, workspace, |_| shape);
    assert_eq!(recording.commands.len() - before, wanted, "{shape:?} runs on the device");
}

/// Appends matmuls recorded in f32, in other shapes. `workspace`: for what is made of x before.
pub(super) fn append(
    recording: &mut Recording,
    caps: &Capabilities,
    plain: Recording,
    workspace: Option<BufferSlice>,
    shape: impl Fn(&Dispatch) -> TileConfig,
) {
    let mut is_made = false;
    for command in plain.commands {
        let Command::Dispatch(dispatch) = command else { continue };
        let mut dispatches = reshaped(caps, &dispatch, shape(&dispatch), workspace);
        // All slices of the weights have one x.
        if dispatches.len() > 1 && std::mem::replace(&mut is_made, true) {
            dispatches.remove(0);
        }
        dispatches.into_iter().for_each(|dispatch| recording.dispatch(dispatch));
    }
}

/// A shape of anything that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum AnyTileConfig {
    /// Tile configuration of a matmul.
    Matmul(TileConfig),
    /// Tile of attention.
    Attention(Tile),
}

/// The parts of [`attention::AttentionTile`] that the autotuner times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tile {
    /// Neighbouring tokens of a session that a workgroup takes at most.
    pub tile_tokens: u32,
    /// Query heads of one kv head that it takes.
    pub heads: u32,
    /// Cut for matrix units, if they are used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matrix: Option<Cut>,
}

impl Tile {
    /// Division for a tile configuration.
    #[must_use]
    pub fn of(shape: attention::AttentionTile) -> Self {
        Self { tile_tokens: shape.tile_tokens, heads: shape.heads, matrix: shape.matrix }
    }

    /// The shape with so many splits.
    #[must_use]
    pub fn shape(self, splits: u32) -> attention::AttentionTile {
        let Self { tile_tokens, heads, matrix } = self;
        attention::AttentionTile { tile_tokens, heads, splits, matrix }
    }
}

/// Batches whose attention is cut alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batches {
    /// Prompts and prefill chunks.
    Prompts = 0,
    /// Decode steps: one token per session.
    Single = 1,
    /// Of prompts of [`attention_tiled::TOKENS_MIN`] tokens or more, where narrower numbers than
    /// f32 are wanted and there are matrix units.
    ReducedPrecisionPrompts = 2,
}

impl Batches {
    /// Batch kinds of the f32 path.
    #[must_use]
    pub fn plain(one_token_each: bool) -> Self {
        if one_token_each { Self::Single } else { Self::Prompts }
    }
}

/// The work that attention is, whatever its pages hold: a runner has pages of one kind. Heads of
/// so many dimensions, `group` to a kv head.
#[must_use]
pub fn attention_work(head_dim: u32, group: u32, batches: Batches) -> Work {
    ("attention", [head_dim.into(), group.into(), batches as u64])
}

/// A tile as [`Capabilities::tuned`] has it.
#[must_use]
pub fn choice_of_tile(tile: Tile) -> Choice {
    let [subgroups, block] = tile
        .matrix
        .map_or([0, 0], |cut| [cut.subgroups, 2 * cut.positions + u32::from(cut.q_shared)]);
    [tile.tile_tokens, tile.heads, subgroups, block]
}

/// The tile that was measured to be the fastest.
pub(super) fn attention(
    caps: &Capabilities,
    head_dim: u32,
    group: u32,
    batches: Batches,
) -> Option<Tile> {
    let [tile_tokens, heads, subgroups, block] =
        *caps.tuned.get(&attention_work(head_dim, group, batches))?;
    let cut = Cut { subgroups, positions: block / 2, q_shared: block % 2 == 1 };
    let tile = Tile { tile_tokens, heads, matrix: (subgroups > 0).then_some(cut) };
    // What comes from a file is taken only where it can be.
    let others = || all_tiles(caps, head_dim, group, batches);
    let is_possible =
        tile_by_rule(caps, head_dim, group, batches) == Some(tile) || others().contains(&tile);
    is_possible.then_some(tile)
}

/// The tile for attention whatever was measured; `None` where no batch is one of these.
#[must_use]
pub fn tile_by_rule(
    caps: &Capabilities,
    head_dim: u32,
    group: u32,
    batches: Batches,
) -> Option<Tile> {
    let shape = match batches {
        Batches::ReducedPrecisionPrompts => attention_tiled::by_rule(caps, head_dim, group)?,
        plain => attention::AttentionTile::by_rule(caps, head_dim, group, plain == Batches::Single),
    };
    Some(Tile::of(shape))
}

/// Other tiles for attention, at most ten. Those of matrix units also compete with that of lanes.
#[must_use]
pub fn tiles(caps: &Capabilities, head_dim: u32, group: u32, batches: Batches) -> Vec<Tile> {
    let other = (batches == Batches::ReducedPrecisionPrompts)
        .then(|| Tile::of(attention::AttentionTile::choose(caps, head_dim, group, false)));
    let rule = tile_by_rule(caps, head_dim, group, batches);
    let mut found = all_tiles(caps, head_dim, group, batches);
    found.retain(|tile| Some(*tile) != rule && Some(*tile) != other);
    found.retain(|tile| batches != Batches::ReducedPrecisionPrompts || tile.matrix.is_some());
    // The widest are the likeliest to be worth their time.
    found.sort_by_key(|tile| std::cmp::Reverse(tile.heads * tile.tile_tokens));
    found.truncate(CANDIDATES_MAX - other.iter().len());
    found.extend(other);
    found
}

/// All tiles that attention may have on a device.
fn all_tiles(caps: &Capabilities, head_dim: u32, group: u32, batches: Batches) -> Vec<Tile> {
    let mut found = tiles_of_lanes(caps, head_dim, group, batches == Batches::Single);
    if batches == Batches::ReducedPrecisionPrompts {
        let of_units = attention_tiled::shapes(caps, head_dim, group);
        found.extend(of_units.into_iter().map(Tile::of));
        found.push(Tile::of(attention::AttentionTile::by_rule(caps, head_dim, group, false)));
    }
    found
}

/// None needs more memory where positions are split than the rule's, which has the room.
fn tiles_of_lanes(
    caps: &Capabilities,
    head_dim: u32,
    group: u32,
    one_token_each: bool,
) -> Vec<Tile> {
    let rule = attention::AttentionTile::by_rule(caps, head_dim, group, one_token_each);
    let padded = |heads: u32| group.div_ceil(heads) * heads;
    let mut heads: Vec<u32> = (1..=group).map(|parts| group.div_ceil(parts)).collect();
    heads.dedup();
    heads.retain(|heads| padded(*heads) <= padded(rule.heads));
    let own_rows = rule.heads * rule.tile_tokens;
    // Without subgroup operations rows pass through a workgroup's memory.
    let rows_max = if caps.subgroup_ops { (2 * own_rows).max(8) } else { own_rows };
    let tokens: &[u32] = if one_token_each { &[1] } else { &[1, 2, 4, 8] };
    let all = heads.iter().flat_map(|heads| {
        let tile =
            |tile_tokens: &u32| Tile { tile_tokens: *tile_tokens, heads: *heads, matrix: None };
        tokens.iter().map(tile)
    });
    all.filter(|tile| tile.heads * tile.tile_tokens <= rows_max).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::{BufferHandle, Executor as _};
    use crate::kernels::PackedMatrix;
    use crate::kernels::matmul::{self, Epilogue, Matmul};
    use crate::reference::ReferenceExecutor;
    use crate::tensor::DType;
    use crate::tensor::layout::Layout;

    /// A matmul of five tokens on a device of which this was measured.
    fn matmul(caps: &Capabilities, sliced: bool) -> Dispatch {
        let layout = Layout { dtype: DType::Q4_0, rows: 64, row_len: 64, lanes: 8 };
        let words = (!sliced).then_some(BufferHandle(1));
        let weights = PackedMatrix { layout, sliced, quads: BufferHandle(0), words };
        let slice =
            |buffer| BufferSlice { buffer: BufferHandle(buffer), offset: 0, bytes: 1 << 20 };
        let matmul = Matmul {
            weights: &weights,
            x: slice(2),
            x_stride: 64,
            y: slice(3),
            y_stride: 64,
            y_offset: 0,
            tokens: 5,
            norm: None,
            bias: None,
            scale: 1.0,
            epilogue: Epilogue::Store,
            workspace: Some(slice(4)),
        };
        let mut recording = Recording::new();
        matmul::record(&mut recording, caps, &matmul);
        let Some(Command::Dispatch(dispatch)) = recording.commands.pop() else {
            panic!("a matmul is a dispatch")
        };
        dispatch
    }

    #[test]
    fn choices_that_no_product_can_have_are_not_taken() {
        let caps = ReferenceExecutor::with_lanes(8).capabilities().clone();
        for sliced in [false, true] {
            let usual = matmul(&caps, sliced);
            let work = work_of(&usual).expect("a matmul");
            let with = |choice| {
                let tuned = [(work, choice)].into();
                matmul(&Capabilities { tuned, ..caps.clone() }, sliced)
            };
            let [rows, tokens, split, _] = choice_of(shape_of(&usual));
            for choice in [
                [0, tokens, split, 0],
                [3, tokens, split, 0],
                [rows, 0, split, 0],
                [rows, 4_000_000_000, split, 0],
                [rows, tokens, 0, 0],
                [rows, tokens, 3, 0],
                [16, 16, 4, 1],
                [rows, 0, split, 3],
                [rows, 0, split, 4],
                [2, tokens, split, 4],
                [rows, tokens, split, 9],
            ] {
                assert_eq!(with(choice).spec, usual.spec, "{choice:?}, sliced: {sliced}");
            }
            assert_eq!(with([rows, 2, split, 0]).spec[4], 2);
        }
    }

    #[test]
    fn tiles_that_attention_cannot_have_are_not_taken() {
        let caps = ReferenceExecutor::with_lanes(8).capabilities().clone();
        let usual = attention::AttentionTile::choose(&caps, 64, 3, false);
        let with = |choice| {
            let tuned = [(attention_work(64, 3, Batches::Prompts), choice)].into();
            attention::AttentionTile::choose(&Capabilities { tuned, ..caps.clone() }, 64, 3, false)
        };
        for choice in [[0, 3, 0, 0], [1, 0, 0, 0], [1, 99, 0, 0], [1000, 3, 0, 0], [1, 3, 7, 5]] {
            assert_eq!(with(choice), usual, "{choice:?}");
        }
        assert_eq!(
            with([1, 1, 0, 0]),
            attention::AttentionTile { tile_tokens: 1, heads: 1, ..usual }
        );
    }
}
