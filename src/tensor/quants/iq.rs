//! IQ1, IQ2 and IQ3: superblocks of 256 weights, in vectors of eight or four out of a grid.

use super::{SUPER, nibble, u16_at, u32_at};
use crate::tensor::{DType, grids};

/// The magnitudes in the grids of IQ2.
pub(in crate::tensor) const IQ2_VALUES: [i8; 3] = [8, 25, 43];

/// Offset that the grids of IQ1 add to or subtract from weights.
pub(in crate::tensor) const IQ1_DELTA: f32 = 0.125;

/// Index `at` of vector `number` of a grid with vectors of eight and indices of two bits.
fn of_three(grid: &[u8], number: usize, at: usize) -> u8 {
    grid[2 * number + at / 4] >> (2 * (at % 4)) & 3
}

/// Index `at` of vector `number` of a grid with vectors of four and indices of four bits.
fn of_eight(grid: &[u8], number: usize, at: usize) -> u8 {
    nibble(&grid[2 * number..], at)
}

/// Eight signs out of seven bits: their number is even.
fn even_signs(bits: u32) -> u8 {
    let bits = (bits & 127) as u8;
    bits | ((bits.count_ones() & 1) as u8) << 7
}

/// The signed quants of a block of IQ2 or IQ3.
pub(in crate::tensor) fn quants(dtype: DType, block: &[u8]) -> [i8; SUPER] {
    std::array::from_fn(|i| {
        let (eight, at) = (i / 8, i % 8);
        let signs = match dtype {
            DType::IQ2_XXS => even_signs(u32_at(block, 6 + i / 32 * 8) >> (7 * (eight % 4))),
            DType::IQ2_XS => even_signs(u32::from(u16_at(block, 2 + 2 * eight)) >> 9),
            DType::IQ2_S => block[34 + eight],
            DType::IQ3_XXS => even_signs(u32_at(block, 66 + i / 32 * 4) >> (7 * (eight % 4))),
            _ => block[74 + eight], // IQ3_S
        };
        let value = magnitude(dtype, block, i);
        if signs >> at & 1 == 1 { -value } else { value }
    })
}

/// The magnitude of quant `i` of a block of IQ2 or IQ3.
fn magnitude(dtype: DType, block: &[u8], i: usize) -> i8 {
    let (eight, four) = (i / 8, i / 4);
    let index = match dtype {
        DType::IQ2_XXS => {
            let number = usize::from(block[2 + i / 32 * 8 + eight % 4]);
            of_three(&grids::IQ2_XXS, number, i % 8)
        }
        DType::IQ2_XS => {
            let number = usize::from(u16_at(block, 2 + 2 * eight) & 511);
            of_three(&grids::IQ2_XS, number, i % 8)
        }
        DType::IQ2_S => {
            let high = block[66 + i / 32] >> (2 * (eight % 4)) & 3;
            of_three(&grids::IQ2_S, number(block[2 + eight], high), i % 8)
        }
        DType::IQ3_XXS => of_eight(&grids::IQ3_XXS, usize::from(block[2 + four]), i % 4),
        _ => {
            let high = block[66 + i / 32] >> (four % 8) & 1;
            of_eight(&grids::IQ3_S, number(block[2 + four], high), i % 4)
        }
    };
    match dtype {
        DType::IQ3_XXS if index == 7 => 62, // not 60
        DType::IQ3_XXS => 8 * index as i8 + 4,
        DType::IQ3_S => 2 * index as i8 + 1,
        _ => IQ2_VALUES[usize::from(index)],
    }
}

fn number(low: u8, high: u8) -> usize {
    usize::from(low) | usize::from(high) << 8
}

/// The scale of four bits of weights 16 `group` .. of a block of IQ2 or IQ3.
pub(in crate::tensor) fn scale(dtype: DType, block: &[u8], group: usize) -> u8 {
    match dtype {
        DType::IQ2_XXS => block[9 + group / 2 * 8] >> 4,
        DType::IQ2_XS => nibble(&block[66..], group),
        DType::IQ2_S => nibble(&block[74..], group),
        DType::IQ3_XXS => block[69 + group / 2 * 4] >> 4,
        _ => nibble(&block[106..], group / 2),
    }
}

/// Factor of IQ2 and IQ3 quants, multiplied by d. Exact.
pub(in crate::tensor) fn factor(dtype: DType, scale: u8) -> f32 {
    let scale = f32::from(scale);
    match dtype {
        DType::IQ3_S => 1.0 + 2.0 * scale,
        DType::IQ3_XXS => (0.5 + scale) * 0.5,
        _ => (0.5 + scale) * 0.25,
    }
}

/// The quants of a block of IQ1, one more than the value in the grid: 0, 1, 2.
pub(in crate::tensor) fn iq1_quants(dtype: DType, block: &[u8]) -> [u8; SUPER] {
    std::array::from_fn(|i| {
        let eight = i / 8;
        let (low, high) = if dtype == DType::IQ1_S {
            let high = u16_at(block, 34 + i / 32 * 2) >> (3 * (eight % 4)) & 7;
            (block[2 + eight], high as u8)
        } else {
            (block[eight], nibble(&block[32..48], eight) & 7)
        };
        of_three(&grids::IQ1, number(low, high), i % 8)
    })
}

/// The scale of three bits of weights 16 `group` .. of a block of IQ1.
pub(in crate::tensor) fn iq1_scale(dtype: DType, block: &[u8], group: usize) -> u8 {
    let bits = if dtype == DType::IQ1_S {
        u16_at(block, 34 + group / 2 * 2) >> 12
    } else {
        u16_at(block, 48 + group / 4 * 2) >> (3 * (group % 4))
    };
    (bits & 7) as u8
}

/// True if the delta of weights 8 `eight` .. of a block of IQ1 is taken away.
pub(in crate::tensor) fn iq1_is_below(dtype: DType, block: &[u8], eight: usize) -> bool {
    if dtype == DType::IQ1_S {
        block[35 + eight / 4 * 2] >> 7 == 1
    } else {
        nibble(&block[32..48], eight) >> 3 == 1
    }
}

/// The bits of d of a block of IQ1, f16. IQ1_M has a nibble of them in each 16 bits of scales.
pub(in crate::tensor) fn iq1_d(dtype: DType, block: &[u8]) -> u16 {
    if dtype == DType::IQ1_S {
        return u16_at(block, 0);
    }
    (0..4).fold(0, |d, i| d | (u16_at(block, 48 + 2 * i) >> 12) << (4 * i))
}
