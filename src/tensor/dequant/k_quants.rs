//! K quants: superblocks of 256 whose groups have scales of their own.

use super::f16_at;
use crate::tensor::quants::k::{Q2K, Q3K};

/// Value: d * scale * q - dmin * min.
pub(super) fn q2_k(block: &[u8; 84], out: &mut [f32; 256]) {
    let block = Q2K(block);
    let (d, dmin) = block.factors();
    let quants = block.quants();
    for (group, out) in out.chunks_exact_mut(16).enumerate() {
        let packed = block.scales()[group];
        let (d, m) = (d * f32::from(packed & 15), dmin * f32::from(packed >> 4));
        for (y, &q) in out.iter_mut().zip(&quants[16 * group..]) {
            *y = d * f32::from(q) - m;
        }
    }
}

/// Value: d * scale * (q - 4).
pub(super) fn q3_k(block: &[u8; 110], out: &mut [f32; 256]) {
    let block = Q3K(block);
    let (quants, scales) = (block.quants(), block.scales());
    for (group, out) in out.chunks_exact_mut(16).enumerate() {
        let d = block.factor() * f32::from(scales[group]);
        for (y, &q) in out.iter_mut().zip(&quants[16 * group..]) {
            *y = d * f32::from(q as i8 - 4);
        }
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
pub(super) fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
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
pub(super) fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
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
pub(super) fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
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
