//! Blocks of 32 with one scale: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1.

use super::f16_at;

/// Block: d f16, 32 x i8. Value: d * q.
pub(super) fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    for (y, &q) in out.iter_mut().zip(&block[2..]) {
        *y = d * f32::from(q as i8);
    }
}

/// Block: d f16, 16 bytes whose low nibbles are elements 0..16 and high nibbles 16..32.
/// Value: d * (q - 8).
pub(super) fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    let (low, high) = out.split_at_mut(16);
    for (j, &q) in block[2..].iter().enumerate() {
        low[j] = d * f32::from((q & 15) as i8 - 8);
        high[j] = d * f32::from((q >> 4) as i8 - 8);
    }
}

/// Block: d f16, m f16, nibbles as in Q4_0. Value: d * q + m.
pub(super) fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
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
pub(super) fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
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
pub(super) fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m) = (f16_at(block, 0), f16_at(block, 2));
    let qh = u32::from_le_bytes([block[4], block[5], block[6], block[7]]);
    let (low, high) = out.split_at_mut(16);
    for (j, &q) in block[8..].iter().enumerate() {
        let (q0, q1) = five_bits(q, qh, j);
        low[j] = d * f32::from(q0) + m;
        high[j] = d * f32::from(q1) + m;
    }
}
