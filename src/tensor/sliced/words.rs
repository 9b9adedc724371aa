//! The types that are sliced word by word: lane l of a group has every eighth word, and reads in
//! them what [`Layout`](crate::tensor::layout::Layout) packs for its row.
//!
//! ```text
//! words[(k * TILE_GROUPS + group) * LANES + lane]
//! ```
//!
//! where k counts the unit's words of the plane of words, then the words of its quads.

use super::{LANES, Row, TILE_GROUPS};
use crate::tensor::DType;
use crate::tensor::layout::Unit;

/// Weights and words of a unit of a group.
pub(super) const fn unit(dtype: DType) -> (usize, usize) {
    let unit = Unit::of(dtype);
    (unit.weights as usize, (unit.words + 4 * unit.quads) as usize * LANES)
}

/// Offset of word `k` of a group's first lane in a tile's unit.
fn place(k: usize, group: usize) -> usize {
    (k * TILE_GROUPS + group) * LANES
}

/// Ranges of a row in unit `index` of its plane of words and of its quads.
fn parts(dtype: DType, index: usize) -> [std::ops::Range<usize>; 2] {
    let unit = Unit::of(dtype);
    [unit.words as usize, 4 * unit.quads as usize].map(|words| index * words..(index + 1) * words)
}

/// Writes unit `index` of the eight rows of a group into the tile's unit.
pub(super) fn slice_unit(
    dtype: DType,
    rows: &[Row; LANES],
    index: usize,
    group: usize,
    tile: &mut [u32],
) {
    let [words, quads] = parts(dtype, index);
    let rows = rows.each_ref().map(|row| [&row.words[words.clone()], &row.quads[quads.clone()]]);
    let mut first = 0;
    for plane in 0..2 {
        for k in 0..rows[0][plane].len() {
            let out = &mut tile[place(first + k, group)..][..LANES];
            for (out, row) in out.iter_mut().zip(&rows) {
                *out = row[plane][k];
            }
        }
        first += rows[0][plane].len();
    }
}

/// Writes what a lane of a group has of a tile's unit into the planes of its row: the way back.
pub(super) fn join_unit(
    dtype: DType,
    tile: &[u32],
    (group, lane): (usize, usize),
    index: usize,
    row: &mut Row,
) {
    let [words, quads] = parts(dtype, index);
    let places = (0..).map(|k| tile[place(k, group) + lane]);
    let out = row.words[words].iter_mut().chain(&mut row.quads[quads]);
    out.zip(places).for_each(|(out, word)| *out = word);
}
