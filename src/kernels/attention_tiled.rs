//! `shaders/attention_tiled.comp`: attention of many tokens by matrix units, in f16.
//!
//! It takes the place of `attention` where narrower numbers than f32 are wanted, for batches with
//! prompts, on devices whose cooperative matrices fit the heads.

use serde::{Deserialize, Serialize};

use super::attention::{Attention, AttentionTile, Params};
use super::spirv;
use super::tuned::{self, Batches};
use crate::gpu::{Capabilities, Dispatch, MatrixUnits};

const _: () = assert!(spirv::ATTENTION_TILED_PUSH_BYTES as usize == size_of::<Params>());
const _: () = assert!(spirv::ATTENTION_TILED_BINDINGS == 7 && spirv::ATTENTION_TILED_SPECS == 13);

/// Fewer tokens do not fill a fragment.
pub const TOKENS_MIN: usize = 16;

/// Rows of a workgroup, and positions that are staged at once, at most: more of them read less and
/// need more memory.
const ROWS_WANTED: [u32; 3] = [64, 32, 16];
const POSITIONS_WANTED: [u32; 2] = [32, 16];

/// Largest head of which q is kept in fragments, beside the sums; larger ones leave it in shared
/// memory.
const Q_KEPT_DIM_MAX: u32 = 128;

/// Largest head of which q in fragments takes so few registers that it is not worth shared memory.
const Q_SMALL_DIM_MAX: u32 = 64;

/// Sums that a lane has registers for.
const SUMS_MAX: u32 = 128;

/// Cut of a tile for matrix units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Cut {
    /// Subgroups, each with as many rows as a fragment.
    pub subgroups: u32,
    /// Positions of a block.
    pub positions: u32,
    /// True if q stays in shared memory; else it is kept in fragments, beside the sums.
    pub q_shared: bool,
}

impl Cut {
    /// True if the shader can take heads of so many dimensions in it, on a device.
    fn is_possible(self, caps: &Capabilities, units: MatrixUnits, head_dim: u32) -> bool {
        let MatrixUnits { m, n, k, subgroup } = units;
        let divides = [head_dim, self.positions]
            .iter()
            .all(|size| size.is_multiple_of(n) && size.is_multiple_of(k));
        // A lane owns a multiple of 8 positions of one row.
        let owned =
            subgroup.is_multiple_of(m) && self.positions.is_multiple_of(8 * (subgroup / m).max(1));
        self.subgroups > 0
            && divides
            && owned
            && self.subgroups * subgroup <= caps.workgroup_invocations_max
            && self.shared_bytes(units, head_dim) <= caps.shared_bytes_max
    }

    /// As the shader declares it.
    fn shared_bytes(self, units: MatrixUnits, head_dim: u32) -> u32 {
        let rows = self.subgroups * units.m;
        let staged = 2 * self.positions;
        let stage_rows = if self.q_shared { rows + staged } else { rows.max(staged) };
        let row_quads = (head_dim / 8) | 1;
        let score_quads = (self.positions / 4).max(self.positions / 8 + units.n / 4) | 1;
        16 * (stage_rows * row_quads + rows * score_quads)
    }
}

/// True if a device offers it, for heads that fit its units.
#[must_use]
pub fn is_offered(caps: &Capabilities) -> bool {
    caps.half_arithmetic && caps.subgroup_ops && caps.matrix_units.is_some()
}

impl Cut {
    /// The shape of a workgroup that is cut so. `group`: query heads of a kv head.
    fn shape(self, units: MatrixUnits, group: u32) -> AttentionTile {
        let rows = self.subgroups * units.m;
        let heads = group.div_ceil(group.div_ceil(rows));
        AttentionTile { tile_tokens: rows / heads, heads, splits: 1, matrix: Some(self) }
    }
}

/// The shape with so many rows at most; `None` where the device cannot run it.
///
/// `group`: query heads of a kv head.
#[must_use]
pub fn shape(caps: &Capabilities, head_dim: u32, group: u32, rows: u32) -> Option<AttentionTile> {
    let units = caps.matrix_units.filter(|_| is_offered(caps))?;
    let (subgroups, q_shared) = (rows / units.m, head_dim > Q_KEPT_DIM_MAX);
    let cuts = POSITIONS_WANTED.map(|positions| Cut { subgroups, positions, q_shared });
    let cut = cuts.into_iter().find(|cut| cut.is_possible(caps, units, head_dim))?;
    Some(cut.shape(units, group))
}

/// Every shape that may be the fastest on a device.
#[must_use]
pub fn shapes(caps: &Capabilities, head_dim: u32, group: u32) -> Vec<AttentionTile> {
    let Some(units) = caps.matrix_units.filter(|_| is_offered(caps)) else { return Vec::new() };
    let ways: &[bool] = match (head_dim <= Q_SMALL_DIM_MAX, head_dim <= Q_KEPT_DIM_MAX) {
        (true, _) => &[false],
        (false, true) => &[false, true],
        (false, false) => &[true],
    };
    let cuts = ROWS_WANTED.into_iter().flat_map(|rows| {
        let subgroups = rows / units.m;
        POSITIONS_WANTED.into_iter().flat_map(move |positions| {
            ways.iter().map(move |q_shared| Cut { subgroups, positions, q_shared: *q_shared })
        })
    });
    let possible = cuts.filter(|cut| cut.is_possible(caps, units, head_dim));
    possible.map(|cut| cut.shape(units, group)).collect()
}

/// The shape for batches with prompts: the one that was measured to be the fastest, else the
/// largest that fits. `None` where lanes compute it as well (software drivers) or were measured to
/// be faster, the device cannot, or computes wrongly.
#[must_use]
pub fn choose(caps: &Capabilities, head_dim: u32, group: u32) -> Option<AttentionTile> {
    let rule = by_rule(caps, head_dim, group)?;
    match tuned::attention(caps, head_dim, group, Batches::ReducedPrecisionPrompts) {
        Some(tile) => tile.matrix.map(|_| tile.shape(1)),
        None => Some(rule),
    }
}

/// The same whatever was measured.
#[must_use]
pub fn by_rule(caps: &Capabilities, head_dim: u32, group: u32) -> Option<AttentionTile> {
    let units = caps.matrix_units?;
    let keeps_sums = units.m * head_dim <= SUMS_MAX * units.subgroup;
    if caps.is_cpu() || caps.avoids(&spirv::ATTENTION_TILED) || !keeps_sums {
        return None;
    }
    ROWS_WANTED.into_iter().find_map(|rows| shape(caps, head_dim, group, rows))
}

/// The dispatch of [`super::attention::record`] for a shape with a cut.
///
/// # Panics
/// If the device has no matrix units: no shape of it has a cut then.
pub(super) fn dispatch(
    caps: &Capabilities,
    args: &Attention,
    (shape, cut): (AttentionTile, Cut),
    tiles: u32,
) -> Dispatch {
    let units = caps.matrix_units.expect("a cut is made for matrix units");
    let params = args.params(shape);
    let layout = args.layout;
    Dispatch {
        kernel: &spirv::ATTENTION_TILED,
        spec: vec![
            units.subgroup,
            cut.subgroups,
            1,
            layout.head_dim,
            layout.format.code(),
            layout.key_words,
            shape.heads,
            u32::from(args.causal),
            units.m,
            units.n,
            units.k,
            cut.positions,
            u32::from(cut.q_shared),
        ],
        bindings: vec![args.kv, args.q, args.steps, args.tiles, args.tables, args.kv, args.y],
        push: bytemuck::bytes_of(&params).to_vec(),
        pointers: 0,
        groups: [tiles, layout.kv_heads * params.head_parts, 1],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::{DeviceType, Executor as _};
    use crate::reference::ReferenceExecutor;

    /// A GPU with such units and so much shared memory.
    fn gpu([m, n, k, subgroup]: [u32; 4], shared_bytes_max: u32) -> Capabilities {
        Capabilities {
            device_type: DeviceType::Discrete,
            matrix_units: Some(MatrixUnits { m, n, k, subgroup }),
            shared_bytes_max,
            ..ReferenceExecutor::with_lanes(32).capabilities().clone()
        }
    }

    #[test]
    fn the_largest_tile_that_fits_is_chosen() {
        let amd = gpu([16, 16, 16, 32], 64 << 10);
        let nvidia = gpu([16, 16, 16, 32], 48 << 10);
        let intel = gpu([8, 16, 16, 16], 64 << 10);
        let of = |caps, head_dim, group| {
            let shape = choose(caps, head_dim, group)?;
            let cut = shape.matrix.expect("it is for matrix units");
            Some((shape.tile_tokens, shape.heads, cut.subgroups, cut.positions, cut.q_shared))
        };
        assert_eq!(of(&amd, 64, 3), Some((21, 3, 4, 32, false)));
        assert_eq!(of(&amd, 128, 4), Some((16, 4, 4, 32, false)));
        assert_eq!(of(&amd, 128, 100), Some((1, 50, 4, 32, false)), "more heads than rows");
        assert_eq!(of(&amd, 256, 4), Some((16, 4, 4, 16, true)));
        assert_eq!(of(&nvidia, 256, 4), Some((8, 4, 2, 16, true)), "less shared memory");
        assert_eq!(of(&intel, 128, 4), Some((16, 4, 8, 32, false)), "smaller fragments");
        assert_eq!(of(&amd, 72, 1), None, "no whole fragments");
        assert_eq!(of(&amd, 512, 1), None, "more sums than registers");
    }

    #[test]
    fn it_is_for_gpus_that_have_it_and_compute_it_rightly() {
        let caps = gpu([16, 16, 16, 32], 64 << 10);
        assert!(choose(&caps, 64, 1).is_some());
        let avoided = [spirv::ATTENTION_TILED.name].into();
        let unfit = [
            Capabilities { avoided, ..caps.clone() },
            Capabilities { device_type: DeviceType::Cpu, ..caps.clone() },
            Capabilities { matrix_units: None, ..caps.clone() },
            Capabilities { half_arithmetic: false, ..caps.clone() },
            Capabilities { shared_bytes_max: 2 << 10, ..caps.clone() },
            Capabilities { workgroup_invocations_max: 16, ..caps },
        ];
        for caps in unfit {
            assert_eq!(choose(&caps, 64, 1), None, "{caps:?}");
        }
    }
}
