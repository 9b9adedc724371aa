//! K quants: superblocks of 256 whose groups have scales of their own.

use super::planes::{
    UnitSink, UnitSource, bit_pairs, codes_of, f16, le_u16, le_u32, nibbles, single_bits, words_of,
};
use crate::tensor::DType;
use crate::tensor::quants::k::{Q2K, Q3K};

pub(super) fn pack(dtype: DType, bytes: &[u8], sink: &mut UnitSink<'_>) {
    match dtype {
        DType::Q2_K => pack_q2_k(bytes, sink),
        DType::Q3_K => pack_q3_k(bytes, sink),
        DType::Q6_K => pack_q6_k(bytes, sink),
        _ => pack_k45(dtype, bytes, sink),
    }
}

/// Quad 0: scales and minima as in the file; from quad 1 on: bit pairs; word: d and dmin.
fn pack_q2_k(bytes: &[u8], sink: &mut UnitSink<'_>) {
    let block = Q2K(bytes);
    sink.quad(0, words_of(block.scales()));
    sink.put_pairs(1, &block.quants());
    sink.word(0, le_u32(&bytes[80..]));
}

/// Quad 0: signed scales, a byte each; quads 1 and 2: third bits; then bit pairs; word: d.
fn pack_q3_k(bytes: &[u8], sink: &mut UnitSink<'_>) {
    let block = Q3K(bytes);
    sink.quad(0, words_of(&block.scales().map(|scale| scale as u8)));
    let quants = block.quants();
    sink.put_third_bits(1, &quants);
    sink.put_pairs(3, &quants);
    sink.word(0, le_u16(&bytes[108..]));
}

/// A superblock of Q4_K or Q5_K: d, dmin, 12 bytes of 6-bit scales and mins, (32 bytes of fifth
/// bits,) 128 bytes of nibbles.
///
/// Quad 0: d, dmin, the scales and mins; then (for every four blocks of 32 their fifth bits and)
/// the nibbles.
fn pack_k45(dtype: DType, bytes: &[u8], sink: &mut UnitSink<'_>) {
    let mut head = [le_u32(bytes), 0, 0, 0];
    for sub in 0..8 {
        let (scale, min) = scale_min_k4(&bytes[4..16], sub);
        head[1] |= u32::from(scale & 15) << (4 * sub);
        head[2] |= u32::from(min & 15) << (4 * sub);
        head[3] |= u32::from(scale >> 4) << (2 * sub) | u32::from(min >> 4) << (16 + 2 * sub);
    }
    sink.quad(0, head);
    let quants = &bytes[bytes.len() - 128..];
    for sub in 0..8 {
        let codes = codes_of(&quants[sub / 2 * 32..]).map(|word| word >> (4 * (sub % 2)));
        let before = if dtype == DType::Q5_K { 2 + sub / 4 } else { 1 };
        sink.quad(before + sub, nibbles(codes));
    }
    if dtype == DType::Q5_K {
        let high: [u32; 8] =
            std::array::from_fn(|sub| single_bits(codes_of(&bytes[16..]), sub as u32));
        sink.quad(1, [high[0], high[1], high[2], high[3]]);
        sink.quad(6, [high[4], high[5], high[6], high[7]]);
    }
}

/// The 6-bit scale and min of a sub-block of 32, as Q4_K and Q5_K store them.
fn scale_min_k4(packed: &[u8], sub: usize) -> (u8, u8) {
    if sub < 4 {
        (packed[sub] & 63, packed[sub + 4] & 63)
    } else {
        (
            packed[sub + 4] & 15 | packed[sub - 4] >> 6 << 4,
            packed[sub + 4] >> 4 | packed[sub] >> 6 << 4,
        )
    }
}

/// A superblock of Q6_K: 128 bytes of low nibbles, 64 of high bit pairs, 16 signed scales, d.
///
/// Quad 0: the scales; then for every two blocks of 32 their bit pairs and their nibbles, in the
/// order in which they are read: jumping about costs a third of the speed (lavapipe 26.1).
fn pack_q6_k(bytes: &[u8], sink: &mut UnitSink<'_>) {
    let (low, rest) = bytes.split_at(128);
    let (high, rest) = rest.split_at(64);
    sink.quad(0, words_of(&rest[..16]));
    sink.word(0, le_u16(&rest[16..]));
    // Weight w = 128 n + 32 q + l: its nibble is half q / 2 of low[64 n + 32 (q % 2) + l], its bit
    // pair is number q of high[32 n + l].
    let mut pairs = [[0_u32; 2]; 8];
    for (sub, pair) in pairs.iter_mut().enumerate() {
        let (n, q) = (sub / 4, sub % 4);
        let codes = codes_of(&low[64 * n + 32 * (q % 2)..]).map(|word| word >> (4 * (q / 2)));
        sink.quad(2 + sub + sub / 2, nibbles(codes));
        *pair = [0, 16]
            .map(|half| bit_pairs(words_of(&high[32 * n + half..]).map(|word| word >> (2 * q))));
    }
    for quad in 0..4 {
        let (a, b) = (pairs[2 * quad], pairs[2 * quad + 1]);
        sink.quad(1 + 3 * quad, [a[0], a[1], b[0], b[1]]);
    }
}

/// The unsigned values of block `sub`.
pub(super) fn values(dtype: DType, unit: &UnitSource<'_>, sub: usize) -> [i16; 32] {
    match dtype {
        DType::Q2_K => unit.pairs(1, sub),
        DType::Q3_K => {
            let (low, high) = (unit.pairs(3, sub), unit.third_bits(1, sub));
            std::array::from_fn(|i| low[i] | high[i] << 2)
        }
        DType::Q4_K => unit.nibbles(1, sub),
        DType::Q5_K => {
            let (low, high) =
                (unit.nibbles(2 + sub / 4, sub), unit.third_bits(1 + 4 * (sub / 4), sub));
            std::array::from_fn(|i| low[i] | high[i] << 4)
        }
        _ => {
            let (low, high) = (unit.nibbles(2 + sub / 2, sub), unit.pairs(1 + 2 * (sub / 2), sub));
            std::array::from_fn(|i| low[i] | high[i] << 4)
        }
    }
}

/// Scale and bias of 16 weights of block `sub`.
pub(super) fn scale(dtype: DType, unit: &UnitSource<'_>, sub: usize, part: usize) -> (f32, f32) {
    match dtype {
        DType::Q2_K => {
            let packed = unit.byte(0, 2 * sub + part);
            let (d, dmin) = (f16(unit.word(0) & 0xffff), f16(unit.word(0) >> 16));
            (d * f32::from(packed & 15), -(dmin * f32::from(packed >> 4)))
        }
        DType::Q4_K | DType::Q5_K => {
            let head = unit.quad(0);
            let scale = head[1] >> (4 * sub) & 15 | (head[3] >> (2 * sub) & 3) << 4;
            let min = head[2] >> (4 * sub) & 15 | (head[3] >> (16 + 2 * sub) & 3) << 4;
            (f16(head[0] & 0xffff) * scale as f32, -(f16(head[0] >> 16) * min as f32))
        }
        _ => {
            let zero_point = if dtype == DType::Q3_K { -4.0 } else { -32.0 };
            let scale = f16(unit.word(0)) * f32::from(unit.byte(0, 2 * sub + part) as i8);
            (scale, zero_point * scale)
        }
    }
}
