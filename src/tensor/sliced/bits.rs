//! The types whose weights are sliced bit by bit: a lane's own weight is a mask away.
//!
//! The unit of a tile is the heads of its groups, then block by block the scales of all groups,
//! their high bits, and their bits. Of one group these are
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

use super::{LANES, Row, TILE_GROUPS};
use crate::tensor::DType;

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

    /// Offsets of the parts of `group` in a tile's unit, in words.
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

/// Offsets of a group's parts in a tile's unit, in words.
struct Places {
    head: usize,
    /// Offset of the scale of block 0; the fields below likewise.
    scales: usize,
    high: usize,
    bits: usize,
    /// From block to block.
    step: usize,
}

/// Weights and words of a unit of a group; nothing for a type that is sliced otherwise.
pub(super) const fn unit(dtype: DType) -> Option<(usize, usize)> {
    match parts(dtype) {
        Some(parts) => Some((32 * parts.blocks, parts.words())),
        None => None,
    }
}

/// Offsets of a block's parts in the planes of one row (block `sub` of a superblock, or block
/// `index` of the row): words of the quads with the nibbles (bytes for Q8_0), words of the fifth,
/// or fifth and sixth, bits, and whether the latter are in the plane of words.
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
#[inline(always)] // with a type that is known, most of this goes
pub(super) fn slice_unit(
    dtype: DType,
    rows: &[Row; LANES],
    index: usize,
    group: usize,
    tile: &mut [u32],
) {
    let parts = parts(dtype).expect("a sliced type");
    let at = parts.of_group(group);
    let head = &mut tile[at.head..][..parts.head];
    for (lane, row) in rows.iter().enumerate() {
        slice_head(dtype, row, (index, lane), head);
    }
    for sub in 0..parts.blocks {
        let (step, place) = (sub * at.step, place(dtype, index, sub));
        let scales = &mut tile[at.scales + step..][..parts.scales];
        for (lane, row) in rows.iter().enumerate() {
            slice_scales(dtype, row, (index, sub, lane), scales);
        }
        slice_high(dtype, rows, &place, &mut tile[at.high + step..][..parts.high]);
        let bits = &mut tile[at.bits + step..][..parts.bits];
        if dtype == DType::Q8_0 {
            slice_bytes(rows, place.bits, bits);
        } else {
            slice_nibbles(rows, place.bits, if has_high(dtype) { 0 } else { SIGN }, bits);
        }
    }
}

fn has_high(dtype: DType) -> bool {
    matches!(dtype, DType::Q5_0 | DType::Q5_1 | DType::Q5_K | DType::Q6_K)
}

/// Puts the bits that a lane adds to the words of the unit's head.
#[inline(always)]
fn slice_head(dtype: DType, row: &Row, (index, lane): (usize, usize), out: &mut [u32]) {
    let half = |bits: u32| (lane / 2, (bits & 0xffff) << (16 * (lane % 2)));
    let (word, bits) = match dtype {
        DType::Q4_0 | DType::Q8_0 => half(row.words[index / 2] >> (16 * (index % 2))),
        DType::Q5_0 => half(row.words[3 * (index / 2)] >> (16 * (index % 2))),
        DType::Q4_1 => (lane, row.words[index]),
        DType::Q5_1 => (lane, row.words[2 * index]),
        DType::Q4_K => (lane, row.quads[36 * index]),
        DType::Q5_K => (lane, row.quads[44 * index]),
        DType::Q6_K => half(row.words[index]),
        _ => unreachable!("not sliced"),
    };
    out[word] |= bits;
}

/// Puts the bits that a lane adds to the scales of a block.
#[inline(always)]
fn slice_scales(
    dtype: DType,
    row: &Row,
    (index, sub, lane): (usize, usize, usize),
    out: &mut [u32],
) {
    match dtype {
        DType::Q4_K | DType::Q5_K => {
            let head = index * if dtype == DType::Q4_K { 36 } else { 44 };
            let nibble = |word: usize| row.quads[head + word] >> (4 * sub) & 15;
            let high = row.quads[head + 3];
            let pairs = (high >> (2 * sub) & 3) | (high >> (16 + 2 * sub) & 3) << 16;
            out[0] |= nibble(1) << (4 * lane);
            out[1] |= nibble(2) << (4 * lane);
            out[2] |= pairs << (2 * lane);
        }
        DType::Q6_K => {
            for part in 0..2 {
                let byte = 2 * sub + part;
                let scale = row.quads[52 * index + byte / 4] >> (8 * (byte % 4)) & 255;
                out[2 * part + lane / 4] |= scale << (8 * (lane % 4));
            }
        }
        _ => {}
    }
}

/// Puts the fifth and sixth bits of a block of eight rows.
#[inline(always)]
fn slice_high(dtype: DType, rows: &[Row; LANES], place: &Place, out: &mut [u32]) {
    match dtype {
        DType::Q5_0 | DType::Q5_1 | DType::Q5_K => {
            let plane = |row: &Row| match place.high_in_words {
                true => row.words[place.high],
                false => row.quads[place.high],
            };
            let mut words = [0; LANES];
            for (word, row) in words.iter_mut().zip(rows) {
                *word = plane(row);
            }
            transpose_bits(&mut words);
            out[..8].copy_from_slice(&words);
        }
        DType::Q6_K => {
            for half in 0..2 {
                slice_pairs(rows, place.high + half, &mut out[8 * half..][..8]);
            }
        }
        _ => {}
    }
}

/// Eight words of bit pairs, those of 16 columns: word j has columns 2 j (low half) and 2 j + 1.
#[inline(always)]
fn slice_pairs(rows: &[Row; LANES], word: usize, out: &mut [u32]) {
    const EVEN: u32 = 0x0003_0003;
    for (s, out) in out.chunks_exact_mut(2).enumerate() {
        // Of bytes 0 and 2, and of bytes 1 and 3, a half each.
        let (mut even, mut odd) = (0, 0);
        for (lane, row) in rows.iter().enumerate() {
            let pairs = row.quads[word] >> (2 * s);
            even |= (pairs & EVEN) << (2 * lane);
            odd |= (pairs >> 8 & EVEN) << (2 * lane);
        }
        out[0] = even & 0xffff | odd << 16;
        out[1] = even >> 16 | odd & 0xffff_0000;
    }
}

/// 32 words of nibbles of eight rows, from word `first` of their quads on.
#[inline(always)]
fn slice_nibbles(rows: &[Row; LANES], first: usize, flip: u32, out: &mut [u32]) {
    let mut words = [[0; 4]; LANES];
    for (words, row) in words.iter_mut().zip(rows) {
        words.copy_from_slice(&row.quads[first..first + 4]);
    }
    transpose_nibbles(&mut words);
    // Nibble 2 c + h of a row's word is column 4 h + c of its eight.
    let [a, e, b, f, c, g, d, h] = &words;
    for (w, out) in out.chunks_exact_mut(8).enumerate() {
        let columns = [a[w], b[w], c[w], d[w], e[w], f[w], g[w], h[w]];
        for (out, column) in out.iter_mut().zip(columns) {
            *out = column ^ flip;
        }
    }
}

/// 64 words of bytes of eight rows.
#[inline(always)]
fn slice_bytes(rows: &[Row; LANES], first: usize, out: &mut [u32]) {
    for at in [0, 4] {
        for (half, rows) in rows.chunks_exact(4).enumerate() {
            let mut words = [[0; 4]; 4];
            for (words, row) in words.iter_mut().zip(rows) {
                words.copy_from_slice(&row.quads[first + at..first + at + 4]);
            }
            transpose_bytes(&mut words);
            for (column, words) in words.iter().enumerate() {
                for (w, word) in words.iter().enumerate() {
                    out[8 * (at + w) + 4 * half + column] = word ^ SIGN;
                }
            }
        }
    }
}

/// Exchanges the bits of `mask` shifted by `shift` in words of `lower` with those of `mask` in
/// `upper`, of four words at once.
#[inline(always)]
fn exchange(lower: &mut [u32; 4], upper: &mut [u32; 4], shift: u32, mask: u32) {
    for (lower, upper) in lower.iter_mut().zip(upper) {
        let swap = (*lower >> shift ^ *upper) & mask;
        *upper ^= swap;
        *lower ^= swap << shift;
    }
}

/// Nibble l of word p becomes nibble p of word l.
#[inline(always)]
fn transpose_nibbles(words: &mut [[u32; 4]; 8]) {
    let [a, b, c, d, e, f, g, h] = words;
    for (lower, upper) in [(&mut *a, &mut *e), (b, f), (c, g), (d, h)] {
        exchange(lower, upper, 16, 0xffff);
    }
    let [a, b, c, d, e, f, g, h] = words;
    for (lower, upper) in [(&mut *a, &mut *c), (b, d), (e, g), (f, h)] {
        exchange(lower, upper, 8, 0x00ff_00ff);
    }
    let [a, b, c, d, e, f, g, h] = words;
    for (lower, upper) in [(&mut *a, &mut *b), (c, d), (e, f), (g, h)] {
        exchange(lower, upper, 4, 0x0f0f_0f0f);
    }
}

/// Byte l of word p becomes byte p of word l.
#[inline(always)]
fn transpose_bytes(words: &mut [[u32; 4]; 4]) {
    let [a, b, c, d] = words;
    exchange(a, c, 16, 0xffff);
    exchange(b, d, 16, 0xffff);
    exchange(a, b, 8, 0x00ff_00ff);
    exchange(c, d, 8, 0x00ff_00ff);
}

/// Transposes the bits of each of the four bytes: bit l of word p becomes bit p of word l.
#[inline(always)]
fn transpose_bits(words: &mut [u32; 8]) {
    for (distance, shift, mask) in [(4, 4, 0x0f0f_0f0f), (2, 2, 0x3333_3333), (1, 1, 0x5555_5555)] {
        for first in (0..8).filter(|i| i & distance == 0) {
            let swap = (words[first] >> shift ^ words[first + distance]) & mask;
            words[first + distance] ^= swap;
            words[first] ^= swap << shift;
        }
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
    let parts = parts(dtype).expect("a sliced type");
    let at = parts.of_group(group);
    join_head(dtype, &tile[at.head..], lane, index, row);
    for sub in 0..parts.blocks {
        let word_of = |part: usize, word: usize| tile[part + sub * at.step + word];
        join_scales(dtype, &|word| word_of(at.scales, word), (index, sub, lane), row);
        let place = place(dtype, index, sub);
        join_high(dtype, &|word| word_of(at.high, word), &place, lane, row);
        for k in 0..32 {
            if dtype == DType::Q8_0 {
                let word = word_of(at.bits, 8 * (k / 4) + 4 * (lane / 4) + k % 4);
                let byte = (word ^ SIGN) >> (8 * (lane % 4)) & 255;
                row.quads[place.bits + k / 4] |= byte << (8 * (k % 4));
            } else {
                let word = word_of(at.bits, k) ^ if has_high(dtype) { 0 } else { SIGN };
                let nibble = word >> (4 * lane) & 15;
                row.quads[place.bits + k / 8] |= nibble << (8 * (k % 4) + 4 * (k / 4 % 2));
            }
        }
    }
}

fn join_head(dtype: DType, sliced: &[u32], lane: usize, index: usize, row: &mut Row) {
    let half = sliced[lane / 2] >> (16 * (lane % 2)) & 0xffff;
    match dtype {
        DType::Q4_0 | DType::Q8_0 => row.words[index / 2] |= half << (16 * (index % 2)),
        DType::Q5_0 => row.words[3 * (index / 2)] |= half << (16 * (index % 2)),
        DType::Q4_1 => row.words[index] |= sliced[lane],
        DType::Q5_1 => row.words[2 * index] |= sliced[lane],
        DType::Q4_K => row.quads[36 * index] |= sliced[lane],
        DType::Q5_K => row.quads[44 * index] |= sliced[lane],
        DType::Q6_K => row.words[index] |= half,
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
            row.quads[head + 1] |= nibble(0) << (4 * sub);
            row.quads[head + 2] |= nibble(1) << (4 * sub);
            row.quads[head + 3] |= (pairs & 3) << (2 * sub);
            row.quads[head + 3] |= (pairs >> 16 & 3) << (16 + 2 * sub);
        }
        DType::Q6_K => {
            for part in 0..2 {
                let byte = 2 * sub + part;
                let value = scale(2 * part + lane / 4) >> (8 * (lane % 4)) & 255;
                row.quads[52 * index + byte / 4] |= value << (8 * (byte % 4));
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
                row.words[place.high] |= word;
            } else {
                row.quads[place.high] |= word;
            }
        }
        DType::Q6_K => {
            for k in 0..32 {
                let pair = high(k / 2) >> (16 * (k % 2) + 2 * lane) & 3;
                let shift = 8 * (k % 4) + 2 * (k / 4 % 4);
                row.quads[place.high + k / 16] |= pair << shift;
            }
        }
        _ => {}
    }
}
