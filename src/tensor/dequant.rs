//! Scalar dequantisation: rows of blocks to f32.
//!
//! The arithmetic is the format's own (`dequantize_row_*` in ggml, `quants.py` in gguf-py): f16
//! scales are widened to f32 and every product and sum is rounded once in f32, so the results are
//! equal to theirs bit for bit. Blocks are little endian and packed without padding.

use half::{bf16, f16};

use super::DType;

/// Widens `bytes`, whole blocks of `dtype`, into `out`.
///
/// `bytes`: `[out.len() / block_len]` blocks; `out`: `[row_len]`, or several rows that follow each
/// other. Every element of `out` is written.
///
/// # Panics
/// If `out` is not a whole number of blocks long, or `bytes` is not exactly those blocks.
pub fn dequantize_row(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    let wanted = dtype.row_bytes(out.len() as u64);
    assert_eq!(wanted, Some(bytes.len() as u64), "{dtype} row of {} elements", out.len());
    match dtype {
        DType::F32 => each_block::<4, 1>(bytes, out, |b, y| y[0] = f32::from_le_bytes(*b)),
        DType::F16 => each_block::<2, 1>(bytes, out, |b, y| y[0] = f16_at(b, 0)),
        DType::BF16 => {
            each_block::<2, 1>(bytes, out, |b, y| y[0] = bf16::from_le_bytes(*b).to_f32());
        }
        DType::Q8_0 => each_block::<34, 32>(bytes, out, q8_0),
        DType::Q4_0 => each_block::<18, 32>(bytes, out, q4_0),
        DType::Q4_1 => each_block::<20, 32>(bytes, out, q4_1),
        DType::Q5_0 => each_block::<22, 32>(bytes, out, q5_0),
        DType::Q5_1 => each_block::<24, 32>(bytes, out, q5_1),
        DType::Q4_K => each_block::<144, 256>(bytes, out, q4_k),
        DType::Q5_K => each_block::<176, 256>(bytes, out, q5_k),
        DType::Q6_K => each_block::<210, 256>(bytes, out, q6_k),
    }
}

fn each_block<const BYTES: usize, const LEN: usize>(
    bytes: &[u8],
    out: &mut [f32],
    block: impl Fn(&[u8; BYTES], &mut [f32; LEN]),
) {
    let (blocks, _) = bytes.as_chunks::<BYTES>();
    let (outs, _) = out.as_chunks_mut::<LEN>();
    for (bytes, out) in blocks.iter().zip(outs) {
        block(bytes, out);
    }
}

fn f16_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Block: d f16, 32 x i8. Value: d * q.
fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    for (y, &q) in out.iter_mut().zip(&block[2..]) {
        *y = d * f32::from(q as i8);
    }
}

/// Block: d f16, 16 bytes whose low nibbles are elements 0..16 and high nibbles 16..32.
/// Value: d * (q - 8).
fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    let (low, high) = out.split_at_mut(16);
    for (j, &q) in block[2..].iter().enumerate() {
        low[j] = d * f32::from((q & 15) as i8 - 8);
        high[j] = d * f32::from((q >> 4) as i8 - 8);
    }
}

/// Block: d f16, m f16, nibbles as in Q4_0. Value: d * q + m.
fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (f16_at(block, 0), f16_at(block, 2));
    let (low, high) = out.split_at_mut(16);
    for (j, &q) in block[4..].iter().enumerate() {
        low[j] = d * f32::from(q & 15) + m;
        high[j] = d * f32::from(q >> 4) + m;
    }
}

/// The 5-bit values of elements `j` and `j + 16`: nibbles of `q`, fifth bits from `qh`.
fn five_bits(q: u8, qh: u32, j: usize) -> (u8, u8) {
    let low = (q & 15) | ((((qh >> j) & 1) as u8) << 4);
    let high = (q >> 4) | ((((qh >> (j + 16)) & 1) as u8) << 4);
    (low, high)
}

/// Block: d f16, qh u32 (bit i is the fifth bit of element i), nibbles as in Q4_0.
/// Value: d * (q - 16).
fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    let qh = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
    let (low, high) = out.split_at_mut(16);
    for (j, &q) in block[6..].iter().enumerate() {
        let (q0, q1) = five_bits(q, qh, j);
        low[j] = d * f32::from(q0 as i8 - 16);
        high[j] = d * f32::from(q1 as i8 - 16);
    }
}

/// Block: d f16, m f16, qh and nibbles as in Q5_0. Value: d * q + m.
fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m) = (f16_at(block, 0), f16_at(block, 2));
    let qh = u32::from_le_bytes([block[4], block[5], block[6], block[7]]);
    let (low, high) = out.split_at_mut(16);
    for (j, &q) in block[8..].iter().enumerate() {
        let (q0, q1) = five_bits(q, qh, j);
        low[j] = d * f32::from(q0) + m;
        high[j] = d * f32::from(q1) + m;
    }
}

/// The 6-bit scale and 6-bit minimum of group `group` (of eight) out of the twelve packed bytes
/// of Q4_K and Q5_K: groups 0..4 have a byte's low six bits each, groups 4..8 are put together
/// from nibbles of bytes 8..12 and the top bits of bytes 0..8.
fn scale_and_min(packed: &[u8], group: usize) -> (u8, u8) {
    if group < 4 {
        (packed[group] & 63, packed[group + 4] & 63)
    } else {
        let scale = (packed[group + 4] & 15) | ((packed[group - 4] >> 6) << 4);
        let min = (packed[group + 4] >> 4) | ((packed[group] >> 6) << 4);
        (scale, min)
    }
}

/// Block: d f16, dmin f16, 12 bytes of scales and minima, 128 bytes of nibbles: each 32 bytes hold
/// two groups of 32 elements, the first in the low nibbles.
/// Value: d * scale * q - dmin * min.
fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
    let (scales, qs) = (&block[4..16], &block[16..]);
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_and_min(scales, group);
        let (d, m) = (d * f32::from(scale), dmin * f32::from(min));
        let qs = &qs[group / 2 * 32..][..32];
        let shift = group % 2 * 4;
        for (y, &q) in out.iter_mut().zip(qs) {
            *y = d * f32::from((q >> shift) & 15) - m;
        }
    }
}

/// Block: as Q4_K, with 32 bytes of fifth bits before the nibbles: bit `group` of byte l belongs
/// to element l of the group. Value: d * scale * q - dmin * min.
fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
    let (scales, qh, qs) = (&block[4..16], &block[16..48], &block[48..]);
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_and_min(scales, group);
        let (d, m) = (d * f32::from(scale), dmin * f32::from(min));
        let qs = &qs[group / 2 * 32..][..32];
        let shift = group % 2 * 4;
        for ((y, &q), &high) in out.iter_mut().zip(qs).zip(qh) {
            let q = ((q >> shift) & 15) | (((high >> group) & 1) << 4);
            *y = d * f32::from(q) - m;
        }
    }
}

/// Block: ql 128 bytes (low four bits), qh 64 bytes (high two bits), 16 x i8 scales of 16 elements
/// each, d f16. Each half of the block (128 elements) has 64 bytes of ql and 32 of qh; its quarter
/// k takes nibble k / 2 of ql bytes 32 * (k % 2).. and bits 2k.. of qh. Value: d * scale * (q -
/// 32).
fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let (ql, qh, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let d = f16_at(block, 208);
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let (half, quarter) = (group / 4, group % 4);
        let ql = &ql[half * 64 + quarter % 2 * 32..][..32];
        let qh = &qh[half * 32..][..32];
        for (l, y) in out.iter_mut().enumerate() {
            let low = (ql[l] >> (quarter / 2 * 4)) & 15;
            let high = (qh[l] >> (quarter * 2)) & 3;
            let scale = scales[group * 2 + l / 16] as i8;
            *y = d * f32::from(scale) * f32::from((low | (high << 4)) as i8 - 32);
        }
    }
}

#[cfg(test)]
#[path = "dequant_tests.rs"]
mod tests;
