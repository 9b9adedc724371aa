//! Sliced matrices: a layout for devices whose loads of one address by all lanes cost one load.
//!
//! A word holds the bits of one column for all eight rows of a group, lane by lane, so that the
//! kernel loads weights in the order of memory, and a lane's own weight is a mask away. The units
//! of a tile of [`TILE_GROUPS`] groups lie together, in the order in which a kernel reads them, so
//! that a tile is one stream of memory:
//!
//! ```text
//! quads[(tile * units + unit) * tile_quads + i]
//! ```
//!
//! Slicing is a permutation of the bits that [`Layout`] packs for one row: nothing is lost, and the
//! byte count is the file's. `shaders/include/sliced.glsl` is the other end. The unit of a tile is
//! the heads of its groups, then block by block the scales of all groups, their high bits, and
//! their bits. Of one group these are
//!
//! ```text
//! heads   4 words  Q4_0, Q5_0, Q8_0, Q6_K: f16 scales of two rows each
//!         8 words  Q4_1, Q5_1, Q4_K, Q5_K: f16 scale and minimum of a row each
//! scales  3 words  a block of Q4_K, Q5_K: low nibbles of scales, of minima, high bits of both
//!         4 words  a block of Q6_K: signed bytes of rows 0 to 3 and 4 to 7, for either half
//! high    8 words  a block of Q5_*: bit l of byte c of word j is the fifth bit of column 4 j + c
//!        16 words  a block of Q6_K: bits 5 and 6 of columns 2 j (low half) and 2 j + 1
//! bits   32 words  a block: nibble l of word k is row l of column k
//!        64 words  a block of Q8_0: rows 0 to 3 of four columns, then rows 4 to 7 of them
//! ```

use super::DType;
use super::layout::Layout;

/// Rows of a group: the lanes that share a word.
pub const LANES: usize = 8;
/// Groups that are interleaved.
pub const TILE_GROUPS: usize = 4;
/// Rows of a tile.
pub const TILE_ROWS: usize = LANES * TILE_GROUPS;

/// Flipped in the words whose top bit is a sign to the shader.
const SIGN: u32 = 0x8000_0000;

/// Words of the parts of a group's unit, and how many blocks of 32 it has.
#[derive(Clone, Copy)]
struct Parts {
    blocks: usize,
    head: usize,
    scales: usize,
    high: usize,
    bits: usize,
}

const fn parts(dtype: DType) -> Option<Parts> {
    let (blocks, head, scales, high, bits) = match dtype {
        DType::Q4_0 => (1, 4, 0, 0, 32),
        DType::Q4_1 => (1, 8, 0, 0, 32),
        DType::Q5_0 => (1, 4, 0, 8, 32),
        DType::Q5_1 => (1, 8, 0, 8, 32),
        DType::Q8_0 => (1, 4, 0, 0, 64),
        DType::Q4_K => (8, 8, 3, 0, 32),
        DType::Q5_K => (8, 8, 3, 8, 32),
        DType::Q6_K => (8, 4, 4, 16, 32),
        _ => return None,
    };
    Some(Parts { blocks, head, scales, high, bits })
}

impl Parts {
    /// Words of a group's unit.
    const fn words(&self) -> usize {
        self.head + self.blocks * (self.scales + self.high + self.bits)
    }

    /// Where the parts of `group` begin in a tile's unit, in words.
    fn of_group(&self, group: usize) -> Places {
        let heads = TILE_GROUPS * self.head;
        Places {
            head: group * self.head,
            scales: heads + group * self.scales,
            high: heads + TILE_GROUPS * self.scales + group * self.high,
            bits: heads + TILE_GROUPS * (self.scales + self.high) + group * self.bits,
            step: TILE_GROUPS * (self.scales + self.high + self.bits),
        }
    }
}

/// Where a group's parts begin in a tile's unit, in words.
struct Places {
    head: usize,
    /// Of block 0, as the following.
    scales: usize,
    high: usize,
    bits: usize,
    /// From block to block.
    step: usize,
}

/// Weights and words of a unit of a group; nothing for a type that is not sliced.
#[must_use]
pub const fn unit(dtype: DType) -> Option<(usize, usize)> {
    match parts(dtype) {
        Some(parts) => Some((32 * parts.blocks, parts.words())),
        None => None,
    }
}

/// How [`Layout`] packs a single row.
fn one_row(dtype: DType, row_len: u64) -> Layout {
    Layout { dtype, rows: 1, row_len, lanes: 1 }
}

/// The planes of one row, as [`Layout`] packs them for a single lane.
struct Row {
    quads: Vec<u8>,
    words: Vec<u8>,
}

impl Row {
    fn new(layout: &Layout) -> Self {
        Self {
            quads: vec![0; layout.group_quad_bytes() as usize],
            words: vec![0; layout.group_word_bytes() as usize],
        }
    }

    fn quad_word(&self, index: usize) -> u32 {
        word_at(&self.quads, index)
    }

    fn word(&self, index: usize) -> u32 {
        word_at(&self.words, index)
    }

    fn or_quad_word(&mut self, index: usize, bits: u32) {
        or_word(&mut self.quads, index, bits);
    }

    fn or_word(&mut self, index: usize, bits: u32) {
        or_word(&mut self.words, index, bits);
    }
}

fn word_at(bytes: &[u8], index: usize) -> u32 {
    let bytes = &bytes[4 * index..4 * index + 4];
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn or_word(bytes: &mut [u8], index: usize, bits: u32) {
    let word = word_at(bytes, index) | bits;
    bytes[4 * index..4 * index + 4].copy_from_slice(&word.to_le_bytes());
}

/// Packs up to [`TILE_ROWS`] whole rows of a file into a tile. Rows that are missing become zeros.
///
/// `rows`: the file's bytes. `out`: the tile's bytes; every one is written.
///
/// # Panics
/// If a length does not fit, or the type is not sliced: bugs of the caller.
pub fn pack_tile(dtype: DType, row_len: u64, rows: &[u8], out: &mut [u8]) {
    let layout = one_row(dtype, row_len);
    let (weights, words) = unit(dtype).expect("a sliced type");
    let units = row_len as usize / weights;
    let tile_bytes = TILE_GROUPS * words * 4;
    assert_eq!(out.len(), units * tile_bytes, "a tile's bytes");
    out.fill(0);
    let row_bytes = dtype.row_bytes(row_len).expect("whole blocks") as usize;
    let mut group_rows: Vec<Row> = (0..LANES).map(|_| Row::new(&layout)).collect();
    for group in 0..TILE_GROUPS {
        for (lane, row) in group_rows.iter_mut().enumerate() {
            let first = (group * LANES + lane) * row_bytes;
            match rows.get(first..first + row_bytes) {
                Some(bytes) => layout.pack_group(bytes, &mut row.quads, &mut row.words),
                None => {
                    row.quads.fill(0);
                    row.words.fill(0);
                }
            }
        }
        for index in 0..units {
            let tile = &mut out[index * tile_bytes..][..tile_bytes];
            slice_unit(dtype, &group_rows, index, group, tile);
        }
    }
}

/// The weights of `row` as f32, from whole tiles.
///
/// # Panics
/// If the tiles are too short for `row`, or `out` is not `row_len` long.
pub fn unpack_row(dtype: DType, row_len: u64, quads: &[u8], row: u64, out: &mut [f32]) {
    let layout = one_row(dtype, row_len);
    let (weights, words) = unit(dtype).expect("a sliced type");
    let units = row_len as usize / weights;
    let (tile, in_tile) = (row as usize / TILE_ROWS, row as usize % TILE_ROWS);
    let (group, lane) = (in_tile / LANES, in_tile % LANES);
    let tile_bytes = TILE_GROUPS * words * 4;
    let mut planes = Row::new(&layout);
    for index in 0..units {
        let unit = &quads[(tile * units + index) * tile_bytes..][..tile_bytes];
        join_unit(dtype, unit, (group, lane), index, &mut planes);
    }
    layout.unpack_row(&planes.quads, &planes.words, 0, out);
}

/// Where block `sub` of a superblock, or block `index` of a row, has its parts in the planes of one
/// row: words of the quads with the nibbles (bytes, for Q8_0), of the fifth or fifth and sixth
/// bits, and whether these are in the plane of words.
struct Place {
    bits: usize,
    high: usize,
    high_in_words: bool,
}

fn place(dtype: DType, index: usize, sub: usize) -> Place {
    let (bits, high, high_in_words) = match dtype {
        DType::Q8_0 => (8 * index, 0, false),
        DType::Q5_0 => (4 * index, 3 * (index / 2) + 1 + index % 2, true),
        DType::Q5_1 => (4 * index, 2 * index + 1, true),
        DType::Q4_K => (36 * index + 4 * (1 + sub), 0, false),
        DType::Q5_K => {
            let (unit, half) = (44 * index, sub / 4);
            (unit + 4 * (2 + half + sub), unit + 4 * (1 + 5 * half) + sub % 4, false)
        }
        DType::Q6_K => {
            let (unit, pair) = (52 * index, sub / 2);
            (unit + 4 * (2 + pair + sub), unit + 4 * (1 + 3 * pair) + 2 * (sub % 2), false)
        }
        _ => (4 * index, 0, false), // Q4_0, Q4_1
    };
    Place { bits, high, high_in_words }
}

/// Writes unit `index` of the eight rows of a group into the tile's unit, which is zero there.
fn slice_unit(dtype: DType, rows: &[Row], index: usize, group: usize, tile: &mut [u8]) {
    let parts = parts(dtype).expect("a sliced type");
    let at = parts.of_group(group);
    for (lane, row) in rows.iter().enumerate() {
        slice_head(dtype, row, (index, lane), &mut |word, bits| {
            or_word(tile, at.head + word, bits)
        });
        for sub in 0..parts.blocks {
            slice_scales(dtype, row, (index, sub, lane), &mut |word, bits| {
                or_word(tile, at.scales + sub * at.step + word, bits);
            });
            let place = place(dtype, index, sub);
            slice_high(dtype, row, &place, lane, &mut |word, bits| {
                or_word(tile, at.high + sub * at.step + word, bits);
            });
        }
    }
    for sub in 0..parts.blocks {
        let first = place(dtype, index, sub).bits;
        let bits = &mut tile[4 * (at.bits + sub * at.step)..][..4 * parts.bits];
        if dtype == DType::Q8_0 {
            slice_bytes(rows, first, bits);
        } else {
            slice_nibbles(rows, first, if has_high(dtype) { 0 } else { SIGN }, bits);
        }
    }
}

fn has_high(dtype: DType) -> bool {
    matches!(dtype, DType::Q5_0 | DType::Q5_1 | DType::Q5_K | DType::Q6_K)
}

/// Puts the bits that a lane adds to the words of the unit's head.
fn slice_head(
    dtype: DType,
    row: &Row,
    (index, lane): (usize, usize),
    put: &mut impl FnMut(usize, u32),
) {
    let half = |bits: u32| (lane / 2, (bits & 0xffff) << (16 * (lane % 2)));
    let (word, bits) = match dtype {
        DType::Q4_0 | DType::Q8_0 => half(row.word(index / 2) >> (16 * (index % 2))),
        DType::Q5_0 => half(row.word(3 * (index / 2)) >> (16 * (index % 2))),
        DType::Q4_1 => (lane, row.word(index)),
        DType::Q5_1 => (lane, row.word(2 * index)),
        DType::Q4_K => (lane, row.quad_word(36 * index)),
        DType::Q5_K => (lane, row.quad_word(44 * index)),
        DType::Q6_K => half(row.word(index)),
        _ => unreachable!("not sliced"),
    };
    put(word, bits);
}

/// Puts the bits that a lane adds to the scales of a block.
fn slice_scales(
    dtype: DType,
    row: &Row,
    (index, sub, lane): (usize, usize, usize),
    put: &mut impl FnMut(usize, u32),
) {
    match dtype {
        DType::Q4_K | DType::Q5_K => {
            let head = index * if dtype == DType::Q4_K { 36 } else { 44 };
            let nibble = |word: usize| row.quad_word(head + word) >> (4 * sub) & 15;
            let high = row.quad_word(head + 3);
            let pairs = (high >> (2 * sub) & 3) | (high >> (16 + 2 * sub) & 3) << 16;
            put(0, nibble(1) << (4 * lane));
            put(1, nibble(2) << (4 * lane));
            put(2, pairs << (2 * lane));
        }
        DType::Q6_K => {
            for part in 0..2 {
                let byte = 2 * sub + part;
                let scale = row.quad_word(52 * index + byte / 4) >> (8 * (byte % 4)) & 255;
                put(2 * part + lane / 4, scale << (8 * (lane % 4)));
            }
        }
        _ => {}
    }
}

/// Puts the bits that a lane adds to the fifth and sixth bits of a block.
fn slice_high(
    dtype: DType,
    row: &Row,
    place: &Place,
    lane: usize,
    put: &mut impl FnMut(usize, u32),
) {
    match dtype {
        DType::Q5_0 | DType::Q5_1 | DType::Q5_K => {
            let word =
                if place.high_in_words { row.word(place.high) } else { row.quad_word(place.high) };
            for j in 0..8 {
                put(j, (word >> j & 0x0101_0101) << lane);
            }
        }
        DType::Q6_K => {
            for k in 0..32 {
                let word = row.quad_word(place.high + k / 16);
                let pair = word >> (8 * (k % 4) + 2 * (k / 4 % 4)) & 3;
                put(k / 2, pair << (16 * (k % 2) + 2 * lane));
            }
        }
        _ => {}
    }
}

/// 32 words of nibbles of eight rows, from word `first` of their quads on.
fn slice_nibbles(rows: &[Row], first: usize, flip: u32, out: &mut [u8]) {
    for w in 0..4 {
        let mut words: [u32; LANES] = std::array::from_fn(|lane| rows[lane].quad_word(first + w));
        transpose_nibbles(&mut words);
        for (place, word) in words.into_iter().enumerate() {
            // Nibble 2 c + h of a row's word is column 4 h + c of its eight.
            let column = 8 * w + 4 * (place % 2) + place / 2;
            out[4 * column..4 * column + 4].copy_from_slice(&(word ^ flip).to_le_bytes());
        }
    }
}

/// 64 words of bytes of eight rows.
fn slice_bytes(rows: &[Row], first: usize, out: &mut [u8]) {
    for at in 0..8 {
        for half in 0..2 {
            let mut words: [u32; 4] =
                std::array::from_fn(|i| rows[4 * half + i].quad_word(first + at));
            transpose_bytes(&mut words);
            for (column, word) in words.into_iter().enumerate() {
                let to = 4 * (8 * at + 4 * half + column);
                out[to..to + 4].copy_from_slice(&(word ^ SIGN).to_le_bytes());
            }
        }
    }
}

/// Nibble l of word p becomes nibble p of word l.
fn transpose_nibbles(words: &mut [u32; 8]) {
    for (distance, shift, mask) in [(4, 16, 0xffff), (2, 8, 0x00ff_00ff), (1, 4, 0x0f0f_0f0f)] {
        for first in (0..8).filter(|i| i & distance == 0) {
            let swap = (words[first] >> shift ^ words[first + distance]) & mask;
            words[first + distance] ^= swap;
            words[first] ^= swap << shift;
        }
    }
}

/// Byte l of word p becomes byte p of word l.
fn transpose_bytes(words: &mut [u32; 4]) {
    for (distance, shift, mask) in [(2, 16, 0xffff), (1, 8, 0x00ff_00ff)] {
        for first in (0..4).filter(|i| i & distance == 0) {
            let swap = (words[first] >> shift ^ words[first + distance]) & mask;
            words[first + distance] ^= swap;
            words[first] ^= swap << shift;
        }
    }
}

/// Writes what a lane of a group has of a tile's unit into the planes of its row: the way back.
fn join_unit(
    dtype: DType,
    tile: &[u8],
    (group, lane): (usize, usize),
    index: usize,
    row: &mut Row,
) {
    let parts = parts(dtype).expect("a sliced type");
    let at = parts.of_group(group);
    join_head(dtype, &tile[4 * at.head..], lane, index, row);
    for sub in 0..parts.blocks {
        let word_of = |part: usize, word: usize| word_at(tile, part + sub * at.step + word);
        join_scales(dtype, &|word| word_of(at.scales, word), (index, sub, lane), row);
        let place = place(dtype, index, sub);
        join_high(dtype, &|word| word_of(at.high, word), &place, lane, row);
        for k in 0..32 {
            if dtype == DType::Q8_0 {
                let word = word_of(at.bits, 8 * (k / 4) + 4 * (lane / 4) + k % 4);
                let byte = (word ^ SIGN) >> (8 * (lane % 4)) & 255;
                row.or_quad_word(place.bits + k / 4, byte << (8 * (k % 4)));
            } else {
                let word = word_of(at.bits, k) ^ if has_high(dtype) { 0 } else { SIGN };
                let nibble = word >> (4 * lane) & 15;
                row.or_quad_word(place.bits + k / 8, nibble << (8 * (k % 4) + 4 * (k / 4 % 2)));
            }
        }
    }
}

fn join_head(dtype: DType, sliced: &[u8], lane: usize, index: usize, row: &mut Row) {
    let half = word_at(sliced, lane / 2) >> (16 * (lane % 2)) & 0xffff;
    match dtype {
        DType::Q4_0 | DType::Q8_0 => row.or_word(index / 2, half << (16 * (index % 2))),
        DType::Q5_0 => row.or_word(3 * (index / 2), half << (16 * (index % 2))),
        DType::Q4_1 => row.or_word(index, word_at(sliced, lane)),
        DType::Q5_1 => row.or_word(2 * index, word_at(sliced, lane)),
        DType::Q4_K => row.or_quad_word(36 * index, word_at(sliced, lane)),
        DType::Q5_K => row.or_quad_word(44 * index, word_at(sliced, lane)),
        DType::Q6_K => row.or_word(index, half),
        _ => unreachable!("not sliced"),
    }
}

fn join_scales(
    dtype: DType,
    scale: &dyn Fn(usize) -> u32,
    (index, sub, lane): (usize, usize, usize),
    row: &mut Row,
) {
    match dtype {
        DType::Q4_K | DType::Q5_K => {
            let head = index * if dtype == DType::Q4_K { 36 } else { 44 };
            let nibble = |word: usize| scale(word) >> (4 * lane) & 15;
            let pairs = scale(2) >> (2 * lane);
            row.or_quad_word(head + 1, nibble(0) << (4 * sub));
            row.or_quad_word(head + 2, nibble(1) << (4 * sub));
            row.or_quad_word(head + 3, (pairs & 3) << (2 * sub));
            row.or_quad_word(head + 3, (pairs >> 16 & 3) << (16 + 2 * sub));
        }
        DType::Q6_K => {
            for part in 0..2 {
                let byte = 2 * sub + part;
                let value = scale(2 * part + lane / 4) >> (8 * (lane % 4)) & 255;
                row.or_quad_word(52 * index + byte / 4, value << (8 * (byte % 4)));
            }
        }
        _ => {}
    }
}

fn join_high(dtype: DType, high: &dyn Fn(usize) -> u32, place: &Place, lane: usize, row: &mut Row) {
    match dtype {
        DType::Q5_0 | DType::Q5_1 | DType::Q5_K => {
            let word = (0..8).fold(0, |word, j| word | (high(j) >> lane & 0x0101_0101) << j);
            if place.high_in_words {
                row.or_word(place.high, word);
            } else {
                row.or_quad_word(place.high, word);
            }
        }
        DType::Q6_K => {
            for k in 0..32 {
                let pair = high(k / 2) >> (16 * (k % 2) + 2 * lane) & 3;
                let shift = 8 * (k % 4) + 2 * (k / 4 % 4);
                row.or_quad_word(place.high + k / 16, pair << shift);
            }
        }
        _ => {}
    }
}
