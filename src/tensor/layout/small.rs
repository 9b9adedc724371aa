//! Types of few bits, as codes that need no table.
//!
//! - IQ4_NL, IQ4_XS: numbers of values of the curve, which the shader takes from a polynomial.
//! - MXFP4: 12 + value, five bits; the exponents of the scales of two blocks.
//! - TQ1_0, TQ2_0, IQ1: 1 + value, two bits; IQ1_M's deltas are a bit for every eight weights.
//! - IQ2: signed values in their order, three bits: -43, -25, -8, 8, 25, 43.
//! - IQ3: signed values in their order, four bits: -62 and 62, and the multiples of 8 plus 4
//!   between (IQ3_XXS); the odd numbers from -15 to 15 (IQ3_S).

use super::planes::{UnitSink, UnitSource, codes_of, f16, le_u16, nibbles, single_bits};
use crate::tensor::DType;
use crate::tensor::quants::{four_bit, half_block_nibbles, iq, ternary};

pub(super) fn pack(dtype: DType, bytes: &[u8], sink: &mut UnitSink<'_>) {
    match dtype {
        DType::IQ4_NL | DType::MXFP4 => pack_pair(dtype, bytes, sink),
        DType::IQ4_XS => {
            let block = four_bit::Iq4Xs(bytes);
            let scales = block.scales();
            sink.put_nibbles(0, &block.nibbles());
            sink.word(0, le_u16(bytes) | fold(8, |i| u32::from(scales[i] >> 4) << (16 + 2 * i)));
            sink.word(1, fold(8, |i| u32::from(scales[i] & 15) << (4 * i)));
        }
        DType::TQ1_0 | DType::TQ2_0 => {
            sink.put_pairs(0, &ternary::quants(dtype, bytes));
            sink.word(0, le_u16(&bytes[ternary::factor_at(dtype)..]));
        }
        DType::IQ1_S | DType::IQ1_M => pack_iq1(dtype, bytes, sink),
        _ => pack_grid(dtype, bytes, sink),
    }
}

/// ORs the words that `of` gives for the first `count` numbers.
fn fold(count: usize, of: impl Fn(usize) -> u32) -> u32 {
    (0..count).fold(0, |word, i| word | of(i))
}

/// Two blocks of 32; a missing second one stays zero.
fn pack_pair(dtype: DType, bytes: &[u8], sink: &mut UnitSink<'_>) {
    let mut scales = 0;
    for (sub, block) in bytes.chunks_exact(dtype.block_bytes()).enumerate() {
        if dtype == DType::IQ4_NL {
            let codes = half_block_nibbles(&block[2..]);
            scales |= le_u16(block) << (16 * sub);
            sink.quad(sub, nibbles(codes_of(&codes)));
        } else {
            let codes = half_block_nibbles(&block[1..])
                .map(|q| (four_bit::MXFP4[usize::from(q)] + 12) as u8);
            scales |= u32::from(block[0]) << (16 * sub);
            sink.word(1 + sub, single_bits(codes_of(&codes), 4));
            sink.quad(sub, nibbles(codes_of(&codes)));
        }
    }
    sink.word(0, scales);
}

/// IQ1_S: bit pairs; words: d, and a nibble for every 32 weights, the scale and whether the delta
/// is below. IQ1_M: the quad 0 has d, a bit for every eight weights whether the delta is above, and
/// a nibble for every 16 weights; then bit pairs.
fn pack_iq1(dtype: DType, bytes: &[u8], sink: &mut UnitSink<'_>) {
    let codes = iq::iq1_quants(dtype, bytes);
    let d = u32::from(iq::iq1_d(dtype, bytes));
    let scale = |group: usize| u32::from(iq::iq1_scale(dtype, bytes, group));
    let below = |eight: usize| u32::from(iq::iq1_is_below(dtype, bytes, eight));
    if dtype == DType::IQ1_S {
        sink.put_pairs(0, &codes);
        sink.word(0, d);
        sink.word(1, fold(8, |i| (scale(2 * i) | below(4 * i) << 3) << (4 * i)));
    } else {
        let scales = |first: usize| fold(8, |i| scale(first + i) << (4 * i));
        let above = fold(32, |i| (below(i) ^ 1) << i);
        sink.quad(0, [d, above, scales(0), scales(8)]);
        sink.put_pairs(1, &codes);
    }
}

/// IQ2: third bits, bit pairs. IQ3: nibbles. Words: d, then a nibble of scale for every 16 weights,
/// or 32 where that many have one.
fn pack_grid(dtype: DType, bytes: &[u8], sink: &mut UnitSink<'_>) {
    let codes = iq::quants(dtype, bytes).map(|value| match dtype {
        DType::IQ3_XXS => ((i16::from(value) + 62) / 8) as u8, // -60 and 60 are -62 and 62
        DType::IQ3_S => ((value + 15) / 2) as u8,
        _ => ((i16::from(value) + 44) / 17) as u8, // see the shader's decoding
    });
    if matches!(dtype, DType::IQ3_XXS | DType::IQ3_S) {
        sink.put_nibbles(0, &codes);
    } else {
        sink.put_third_bits(0, &codes);
        sink.put_pairs(2, &codes);
    }
    let scale = |group: usize| u32::from(iq::scale(dtype, bytes, group));
    sink.word(0, le_u16(bytes));
    if matches!(dtype, DType::IQ2_XS | DType::IQ2_S) {
        sink.word(1, fold(8, |i| scale(i) << (4 * i)));
        sink.word(2, fold(8, |i| scale(8 + i) << (4 * i)));
    } else {
        sink.word(1, fold(8, |i| scale(2 * i) << (4 * i)));
    }
}

/// The values of block `sub`, as `expand` of the shader gives them.
pub(super) fn values(dtype: DType, unit: &UnitSource<'_>, sub: usize) -> [i16; 32] {
    match dtype {
        DType::IQ4_NL | DType::IQ4_XS => {
            unit.nibbles(0, sub).map(|code| four_bit::CURVE[code as usize].into())
        }
        DType::MXFP4 => {
            let (low, high) = (unit.nibbles(0, sub), unit.word(1 + sub));
            std::array::from_fn(|i| low[i] | ((high >> (8 * (i % 4) + i / 4) & 1) << 4) as i16)
        }
        DType::TQ1_0 | DType::TQ2_0 | DType::IQ1_S => unit.pairs(0, sub),
        DType::IQ1_M => {
            let (codes, above) = (unit.pairs(1, sub), unit.quad(0)[1]);
            std::array::from_fn(|i| codes[i] << 3 | ((above >> (4 * sub + i / 8) & 1) << 1) as i16)
        }
        DType::IQ3_S => unit.nibbles(0, sub),
        DType::IQ3_XXS => {
            unit.nibbles(0, sub).map(|code| 4 * code + i16::from(code != 0) + i16::from(code == 15))
        }
        _ => {
            let (low, high) = (unit.pairs(2, sub), unit.third_bits(0, sub));
            std::array::from_fn(|i| {
                let code = low[i] | high[i] << 2;
                17 * code + ((code ^ code >> 1) & 1)
            })
        }
    }
}

/// Scale and bias of 16 weights of block `sub`.
pub(super) fn scale(dtype: DType, unit: &UnitSource<'_>, sub: usize, part: usize) -> (f32, f32) {
    let of_32 = || unit.word(1) >> (4 * sub) & 15;
    match dtype {
        DType::IQ4_NL => (f16(unit.word(0) >> (16 * sub)), 0.0),
        DType::IQ4_XS => {
            let scale = of_32() | (unit.word(0) >> (16 + 2 * sub) & 3) << 4;
            (f16(unit.word(0)) * (scale as f32 - 32.0), 0.0)
        }
        DType::MXFP4 => {
            let scale = four_bit::mxfp4_scale((unit.word(0) >> (16 * sub)) as u8);
            (scale, -12.0 * scale)
        }
        DType::TQ1_0 | DType::TQ2_0 => (f16(unit.word(0)), -f16(unit.word(0))),
        DType::IQ1_S => {
            let scale = f16(unit.word(0)) * (2 * (of_32() & 7) + 1) as f32;
            let delta = if of_32() >> 3 == 1 { -iq::IQ1_DELTA } else { iq::IQ1_DELTA };
            (scale, scale * (delta - 1.0))
        }
        DType::IQ1_M => {
            let head = unit.quad(0);
            let scale = head[2 + sub / 4] >> (8 * (sub % 4) + 4 * part) & 15;
            let scale = f16(head[0]) * (2 * scale + 1) as f32 * iq::IQ1_DELTA;
            (scale, -9.0 * scale)
        }
        DType::IQ3_XXS | DType::IQ3_S => {
            let scale = 2.0 * f16(unit.word(0)) * iq::factor(dtype, of_32() as u8);
            (scale, if dtype == DType::IQ3_S { -7.5 } else { -31.0 } * scale)
        }
        _ => {
            let scale = if dtype == DType::IQ2_XXS {
                of_32()
            } else {
                unit.word(1 + sub / 4) >> (8 * (sub % 4) + 4 * part) & 15
            };
            let scale = f16(unit.word(0)) * iq::factor(dtype, scale as u8);
            (scale, -43.0 * scale)
        }
    }
}
