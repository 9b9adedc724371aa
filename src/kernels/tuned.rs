//! Shapes of products that were measured, in place of the rules of `Shape::choose`.
//!
//! Products of one kernel over matrices of one size, for about as many tokens, are one
//! [`Work`]: they are cut alike. Which shapes there are to choose from is said here; who measures
//! them is the engine's matter.

use super::matmul::{Params, Shape};
use crate::gpu::{Capabilities, Command, Dispatch, Work};

/// Most tokens that works are told apart by.
pub const TOKENS_MAX: u32 = 64;

/// Numbers of tokens that stand for works: up to each, and more than the one before.
pub const TOKENS: [u32; 7] = [1, 2, 4, 8, 16, 32, TOKENS_MAX];

/// The work that a dispatch is; `None` where it is no product whose shape can be chosen.
#[must_use]
pub fn work_of(dispatch: &Dispatch) -> Option<Work> {
    let name = dispatch.kernel.name;
    if !name.starts_with("matmul_") || name.contains("_experts") {
        return None;
    }
    let params: Params = bytemuck::pod_read_unaligned(&dispatch.push);
    let tokens = params.tokens.next_power_of_two().min(TOKENS_MAX);
    let rows = u64::from(params.groups) * u64::from(dispatch.spec[0]);
    Some((name, [rows, u64::from(params.blocks) * 32, u64::from(tokens)]))
}

/// The shape that a product has.
#[must_use]
pub fn shape_of(dispatch: &Dispatch) -> Shape {
    Shape { rows: dispatch.spec[3], tokens: dispatch.spec[4], split: dispatch.spec[1] }
}

/// The product in another shape.
#[must_use]
pub fn reshaped(dispatch: &Dispatch, shape: Shape) -> Dispatch {
    let params: Params = bytemuck::pod_read_unaligned(&dispatch.push);
    let mut other = dispatch.clone();
    [other.spec[1], other.spec[3], other.spec[4]] = [shape.split, shape.rows, shape.tokens];
    let row_tiles = params.groups.div_ceil(shape.rows);
    other.groups = [params.tokens.div_ceil(shape.tokens), row_tiles, 1];
    other
}

/// Other shapes for a product, at most ten. Those with another `split` take sums in another order.
#[must_use]
pub fn candidates(caps: &Capabilities, dispatch: &Dispatch, other_orders: bool) -> Vec<Shape> {
    let own = shape_of(dispatch);
    let Some((name, [_, _, tokens])) = work_of(dispatch) else { return Vec::new() };
    let columns = [1, 2, 4, 8].into_iter().filter(|columns| u64::from(*columns) <= tokens);
    // The rows of sliced weights are those of a tile, and nothing shares their columns.
    let sliced = name.starts_with("matmul_sliced");
    let rows: &[u32] = if sliced { &[own.rows] } else { &[2, 4, 8] };
    let mut shapes = Vec::new();
    for tokens in columns {
        for &rows in rows {
            // More sums than that do not stay in registers.
            if rows * tokens <= 32 {
                shapes.push(Shape { rows, tokens, split: own.split });
            }
        }
    }
    if other_orders && !sliced {
        let fits = |split: &u32| split * caps.lanes <= caps.workgroup_invocations_max.min(256);
        let splits = [1, 2, 4, 8].into_iter().filter(fits);
        shapes.extend(splits.map(|split| Shape { split, ..own }));
    }
    let params: Params = bytemuck::pod_read_unaligned(&dispatch.push);
    let rows_max = caps.workgroup_count_max[1];
    shapes.retain(|shape| {
        let countable = params.groups.div_ceil(shape.rows) <= rows_max;
        *shape != own && countable && fits_shared(caps, *shape)
    });
    // The widest are the likeliest to be worth their time.
    shapes.reverse();
    shapes.truncate(CANDIDATES_MAX);
    shapes
}

const CANDIDATES_MAX: usize = 10;

/// Whether the partial sums of the rows of lanes fit a workgroup's memory.
fn fits_shared(caps: &Capabilities, shape: Shape) -> bool {
    let sums = shape.split * shape.tokens * (shape.rows * caps.lanes + 1);
    shape.split == 1 || 4 * sums <= caps.shared_bytes_max
}

/// Puts products into the shapes that were measured to be faster.
pub(super) fn apply(commands: &mut [Command], caps: &Capabilities) {
    if caps.tuned.is_empty() {
        return;
    }
    for command in commands {
        let Command::Dispatch(dispatch) = command else { continue };
        let choice = work_of(dispatch).and_then(|work| caps.tuned.get(&work));
        if let Some([rows, tokens, split]) = choice {
            let shape = Shape { rows: *rows, tokens: *tokens, split: *split };
            *dispatch = reshaped(dispatch, shape);
        }
    }
}
