//! Types of few bits: values of a curve, three values, vectors of a grid.

use half::f16;

use super::f16_at;
use crate::tensor::DType;
use crate::tensor::quants::{four_bit, half_block_nibbles, iq, ternary as three};

/// Block: d f16, nibbles as in Q4_0. Value: d * curve\[q\].
pub(super) fn iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    for (y, q) in out.iter_mut().zip(half_block_nibbles(&block[2..])) {
        *y = d * f32::from(four_bit::CURVE[usize::from(q)]);
    }
}

/// Value: d * (scale - 32) * curve\[q\].
pub(super) fn iq4_xs(block: &[u8; 136], out: &mut [f32; 256]) {
    let block = four_bit::Iq4Xs(block);
    let (nibbles, scales) = (block.nibbles(), block.scales());
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let d = block.factor() * f32::from(scales[group] as i8 - 32);
        for (y, &q) in out.iter_mut().zip(&nibbles[32 * group..]) {
            *y = d * f32::from(four_bit::CURVE[usize::from(q)]);
        }
    }
}

/// Block: exponent of the scale u8, nibbles as in Q4_0. Value: scale * mxfp4\[q\].
pub(super) fn mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    let scale = four_bit::mxfp4_scale(block[0]);
    for (y, q) in out.iter_mut().zip(half_block_nibbles(&block[1..])) {
        *y = scale * f32::from(four_bit::MXFP4[usize::from(q)]);
    }
}

/// Value: d * (q - 1).
pub(super) fn ternary(dtype: DType, block: &[u8], out: &mut [f32; 256]) {
    let d = f16_at(block, three::factor_at(dtype));
    for (y, q) in out.iter_mut().zip(three::quants(dtype, block)) {
        *y = d * f32::from(q as i8 - 1);
    }
}

/// Value: d * factor * q.
pub(super) fn iq2_or_3(dtype: DType, block: &[u8], out: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    let quants = iq::quants(dtype, block);
    for (group, out) in out.chunks_exact_mut(16).enumerate() {
        let d = d * iq::factor(dtype, iq::scale(dtype, block, group));
        for (y, &q) in out.iter_mut().zip(&quants[16 * group..]) {
            *y = d * f32::from(q);
        }
    }
}

/// Value: d * (2 * scale + 1) * (q - 1 + or - delta).
pub(super) fn iq1(dtype: DType, block: &[u8], out: &mut [f32; 256]) {
    let d = f16::from_bits(iq::iq1_d(dtype, block)).to_f32();
    let quants = iq::iq1_quants(dtype, block);
    for (eight, out) in out.chunks_exact_mut(8).enumerate() {
        let d = d * f32::from(2 * iq::iq1_scale(dtype, block, eight / 2) + 1);
        let below = iq::iq1_is_below(dtype, block, eight);
        let delta = if below { -iq::IQ1_DELTA } else { iq::IQ1_DELTA };
        for (y, &q) in out.iter_mut().zip(&quants[8 * eight..]) {
            *y = d * (f32::from(q) - 1.0 + delta);
        }
    }
}
