//! Blocks of 32 with one scale: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1.

use super::planes::{
    UnitSink, UnitSource, f16, fifth_bits, half_block_codes, le_u16, le_u32, nibbles, words_of,
};
use crate::tensor::DType;

pub(super) fn pack(dtype: DType, bytes: &[u8], sink: &mut UnitSink<'_>) {
    match dtype {
        DType::Q4_1 => {
            sink.word(0, le_u32(bytes));
            sink.quad(0, nibbles(half_block_codes(&bytes[4..])));
        }
        DType::Q5_1 => {
            sink.word(0, le_u32(bytes));
            sink.word(1, fifth_bits(le_u32(&bytes[4..])));
            sink.quad(0, nibbles(half_block_codes(&bytes[8..])));
        }
        _ => pack_pair(dtype, bytes, sink),
    }
}

/// Two blocks of 32 with one f16 scale each; a missing second block stays zero.
fn pack_pair(dtype: DType, bytes: &[u8], sink: &mut UnitSink<'_>) {
    let mut scales = 0;
    for (sub, block) in bytes.chunks_exact(dtype.block_bytes()).enumerate() {
        scales |= le_u16(block) << (16 * sub);
        match dtype {
            DType::Q4_0 => sink.quad(sub, nibbles(half_block_codes(&block[2..]))),
            DType::Q5_0 => {
                sink.word(1 + sub, fifth_bits(le_u32(&block[2..])));
                sink.quad(sub, nibbles(half_block_codes(&block[6..])));
            }
            _ => {
                // Signed bytes become unsigned ones with a zero point of 128.
                let flip = |half: &[u8]| words_of(half).map(|word| word ^ 0x8080_8080);
                sink.quad(2 * sub, flip(&block[2..18]));
                sink.quad(2 * sub + 1, flip(&block[18..34]));
            }
        }
    }
    sink.word(0, scales);
}

/// The unsigned values of block `sub`.
pub(super) fn values(dtype: DType, unit: &UnitSource<'_>, sub: usize) -> [i16; 32] {
    if dtype == DType::Q8_0 {
        return std::array::from_fn(|i| unit.byte(2 * sub + i / 16, i % 16).into());
    }
    let nibbles = unit.nibbles(0, sub);
    let fifth = match dtype {
        DType::Q5_0 => unit.word(1 + sub),
        DType::Q5_1 => unit.word(1),
        _ => 0,
    };
    std::array::from_fn(|i| nibbles[i] | ((fifth >> (8 * (i % 4) + i / 4) & 1) << 4) as i16)
}

/// Scale and bias of block `sub`.
pub(super) fn scale(dtype: DType, unit: &UnitSource<'_>, sub: usize, _: usize) -> (f32, f32) {
    if matches!(dtype, DType::Q4_1 | DType::Q5_1) {
        return (f16(unit.word(0) & 0xffff), f16(unit.word(0) >> 16));
    }
    let d = f16(unit.word(0) >> (16 * sub) & 0xffff);
    let zero_point = match dtype {
        DType::Q4_0 => -8.0,
        DType::Q5_0 => -16.0,
        _ => -128.0,
    };
    (d, zero_point * d)
}
