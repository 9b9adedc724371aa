//! Sliced matrices: a layout for devices whose loads of one address by all lanes cost one load.
//!
//! Such devices run in software: a load of an address of its own for each lane costs a load and
//! more for each lane. A sliced matrix is read in the order of memory instead. The units of a tile
//! of [`TILE_GROUPS`] groups of [`LANES`] rows lie together, in the order in which a kernel reads
//! them, so that a tile is one stream of memory:
//!
//! ```text
//! quads[(tile * units + unit) * tile_quads + i]
//! ```
//!
//! Most types are sliced bit by bit (`bits.rs`): a word holds the bits of a column for all rows of
//! a group. The others are sliced word by word (`words.rs`): eight neighbouring words are of eight
//! rows. Slicing is a permutation of the bits that [`Layout`] packs for one row: nothing is lost,
//! and no byte is added. `shaders/include/sliced.glsl` is the other end.

mod bits;
mod words;

use super::DType;
use super::layout::Layout;

/// Rows of a group: the lanes that share a word.
pub const LANES: usize = 8;
/// Groups that are interleaved.
pub const TILE_GROUPS: usize = 4;
/// Rows of a tile.
pub const TILE_ROWS: usize = LANES * TILE_GROUPS;

/// Weights and words of a unit of a group.
#[must_use]
pub const fn unit(dtype: DType) -> (usize, usize) {
    match bits::unit(dtype) {
        Some(unit) => unit,
        None => words::unit(dtype),
    }
}

/// Layout of a single row.
fn one_row(dtype: DType, row_len: u64) -> Layout {
    Layout { dtype, rows: 1, row_len, lanes: 1 }
}

/// The planes of one row, as [`Layout`] packs them for a single lane, in words.
struct Row {
    quads: Vec<u32>,
    words: Vec<u32>,
}

impl Row {
    fn new(layout: &Layout) -> Self {
        Self {
            quads: vec![0; layout.group_quad_bytes() as usize / 4],
            words: vec![0; layout.group_word_bytes() as usize / 4],
        }
    }

    /// Packs the file's bytes of the row; without any it is zero.
    fn pack(&mut self, layout: &Layout, bytes: Option<&[u8]>) {
        let quads = bytemuck::cast_slice_mut(&mut self.quads);
        let words = bytemuck::cast_slice_mut(&mut self.words);
        layout.pack_group(bytes.unwrap_or_default(), quads, words);
    }
}

/// Packs up to [`TILE_ROWS`] whole rows of a file into a tile. Rows that are missing become zeros.
///
/// `rows`: the file's bytes. `out`: the tile's bytes; every one is written.
///
/// # Panics
/// If a length does not fit: a bug of the caller.
pub fn pack_tile(dtype: DType, row_len: u64, rows: &[u8], out: &mut [u8]) {
    let layout = one_row(dtype, row_len);
    let (weights, words) = unit(dtype);
    let units = row_len as usize / weights;
    let tile_words = TILE_GROUPS * words;
    assert_eq!(out.len(), units * tile_words * 4, "a tile's bytes");
    let row_bytes = dtype.row_bytes(row_len).expect("whole blocks") as usize;
    let mut tile = vec![0; units * tile_words];
    let mut group_rows: [Row; LANES] = std::array::from_fn(|_| Row::new(&layout));
    for group in 0..TILE_GROUPS {
        for (lane, row) in group_rows.iter_mut().enumerate() {
            let first = (group * LANES + lane) * row_bytes;
            row.pack(&layout, rows.get(first..first + row_bytes));
        }
        slice_group(dtype, &group_rows, group, &mut tile);
    }
    out.copy_from_slice(bytemuck::cast_slice(&tile));
}

/// Writes a group of rows into the tile's units, each type by code of its own.
fn slice_group(dtype: DType, rows: &[Row; LANES], group: usize, tile: &mut [u32]) {
    let tile_words = TILE_GROUPS * unit(dtype).1;
    let units = tile.chunks_exact_mut(tile_words).enumerate();
    macro_rules! slice {
        ($($dtype:ident),*) => {
            match dtype {
                $(DType::$dtype => units.for_each(|(index, unit)| {
                    bits::slice_unit(DType::$dtype, rows, index, group, unit);
                }),)*
                _ => units.for_each(|(index, unit)| {
                    words::slice_unit(dtype, rows, index, group, unit);
                }),
            }
        };
    }
    slice!(Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K);
}

/// The weights of `row` as f32, from whole tiles.
///
/// # Panics
/// If the tiles are too short for `row`, or `out` is not `row_len` long.
pub fn unpack_row(dtype: DType, row_len: u64, quads: &[u8], row: u64, out: &mut [f32]) {
    let layout = one_row(dtype, row_len);
    let (weights, words) = unit(dtype);
    let units = row_len as usize / weights;
    let (tile, in_tile) = (row as usize / TILE_ROWS, row as usize % TILE_ROWS);
    let (group, lane) = (in_tile / LANES, in_tile % LANES);
    let tile_words = TILE_GROUPS * words;
    let mut planes = Row::new(&layout);
    let mut unit = vec![0; tile_words];
    for index in 0..units {
        let at = 4 * (tile * units + index) * tile_words;
        bytemuck::cast_slice_mut(&mut unit).copy_from_slice(&quads[at..at + 4 * tile_words]);
        if bits::unit(dtype).is_some() {
            bits::join_unit(dtype, &unit, (group, lane), index, &mut planes);
        } else {
            words::join_unit(dtype, &unit, (group, lane), index, &mut planes);
        }
    }
    let (quads, words) = (bytemuck::cast_slice(&planes.quads), bytemuck::cast_slice(&planes.words));
    layout.unpack_row(quads, words, 0, out);
}
