//! Finding blocks whose values are no finite numbers, without widening them.
//!
//! A quantised value is finite where the scales of its block are: its code and the scales of parts
//! of the block are small whole numbers, and scales are f16.

use super::DType;

/// Exponent bits of f16: where all of them are set, the value is infinite or no number.
const F16: u16 = 0x7c00;
/// The same of BF16.
const BF16: u16 = 0x7f80;
/// The same of f32.
const F32: u32 = 0x7f80_0000;

/// From this exponent on, MXFP4's largest code (6, kept as 12 halves) is past the range of f32.
const MXFP4_EXPONENT: u8 = 253;

/// Blocks that are looked at together.
const CHUNK: usize = 64;

/// Index of the first block of `bytes`, whole blocks of `dtype`, that holds an infinity or a NaN.
#[must_use]
pub fn first_not_finite(dtype: DType, bytes: &[u8]) -> Option<usize> {
    match dtype {
        DType::F32 => first::<4>(bytes, |b| u32::from_le_bytes(*b) & F32 == F32),
        DType::F16 => first::<2>(bytes, |b| half(b, 0) & F16 == F16),
        DType::BF16 => first::<2>(bytes, |b| half(b, 0) & BF16 == BF16),
        DType::Q8_0 => first::<34>(bytes, |b| scale(b, 0)),
        DType::Q4_0 | DType::IQ4_NL => first::<18>(bytes, |b| scale(b, 0)),
        DType::Q4_1 => first::<20>(bytes, |b| scale(b, 0) | scale(b, 2)),
        DType::Q5_0 => first::<22>(bytes, |b| scale(b, 0)),
        DType::Q5_1 => first::<24>(bytes, |b| scale(b, 0) | scale(b, 2)),
        DType::Q4_K => first::<144>(bytes, |b| scale(b, 0) | scale(b, 2)),
        DType::Q5_K => first::<176>(bytes, |b| scale(b, 0) | scale(b, 2)),
        DType::Q6_K => first::<210>(bytes, |b| scale(b, 208)),
        DType::Q2_K => first::<84>(bytes, |b| scale(b, 80) | scale(b, 82)),
        DType::Q3_K => first::<110>(bytes, |b| scale(b, 108)),
        DType::IQ4_XS => first::<136>(bytes, |b| scale(b, 0)),
        DType::MXFP4 => first::<17>(bytes, |b| b[0] >= MXFP4_EXPONENT),
        DType::TQ1_0 => first::<54>(bytes, |b| scale(b, 52)),
        DType::TQ2_0 => first::<66>(bytes, |b| scale(b, 64)),
        DType::IQ1_S => first::<50>(bytes, |b| scale(b, 0)),
        // The scale's top bits are those of the last of four words, each of which has four of it.
        DType::IQ1_M => {
            first::<56>(bytes, |b| half(b, 54) & 0x7000 == 0x7000 && half(b, 52) & 0xc000 == 0xc000)
        }
        DType::IQ2_XXS => first::<66>(bytes, |b| scale(b, 0)),
        DType::IQ2_XS => first::<74>(bytes, |b| scale(b, 0)),
        DType::IQ2_S => first::<82>(bytes, |b| scale(b, 0)),
        DType::IQ3_XXS => first::<98>(bytes, |b| scale(b, 0)),
        DType::IQ3_S => first::<110>(bytes, |b| scale(b, 0)),
    }
}

fn half(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

/// True if the f16 at `at` is not finite.
fn scale(block: &[u8], at: usize) -> bool {
    half(block, at) & F16 == F16
}

/// The first of the blocks of `N` bytes for which `bad` holds. Compilers make vector code of a
/// chunk without a way out of it.
fn first<const N: usize>(bytes: &[u8], bad: impl Fn(&[u8; N]) -> bool) -> Option<usize> {
    let (blocks, _) = bytes.as_chunks::<N>();
    let any = |chunk: &[[u8; N]]| chunk.iter().fold(false, |any, block| any | bad(block));
    let chunk = blocks.chunks(CHUNK).position(any)?;
    let first = chunk * CHUNK;
    blocks[first..].iter().position(bad).map(|at| first + at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::dequantize_row;

    /// True if a block holds an infinity or a NaN once widened.
    fn is_bad(dtype: DType, block: &[u8]) -> bool {
        let mut values = vec![0.0; dtype.block_len()];
        dequantize_row(dtype, block, &mut values);
        values.iter().any(|value| !value.is_finite())
    }

    #[test]
    fn finds_what_widening_finds_in_every_type() {
        let mut state = 1_u64;
        let mut random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as u8
        };
        for dtype in DType::ALL {
            let (mut bad, mut good) = (0, 0);
            for _ in 0..20_000 {
                let mut block: Vec<u8> = (0..dtype.block_bytes()).map(|_| random()).collect();
                // Random bits seldom make an exponent of ones: some of the words are given one.
                if random() < 64 {
                    let at = usize::from(random()) % block.len().saturating_sub(1).max(1);
                    block[at..].iter_mut().take(2).for_each(|byte| *byte = 0xff);
                }
                let wanted = is_bad(dtype, &block);
                let found = first_not_finite(dtype, &block);
                assert_eq!(found.is_some(), wanted, "{dtype} {block:x?}");
                if wanted { bad += 1 } else { good += 1 }
            }
            assert!(bad > 20 && good > 1000, "{dtype}: {bad} {good}");
        }
    }

    #[test]
    fn names_the_first_block_wherever_it_stands() {
        for at in [0, 1, 63, 64, 65, 199] {
            let mut values = vec![1.0_f32; 200];
            values[at] = f32::NAN;
            values[199] = f32::INFINITY;
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            assert_eq!(first_not_finite(DType::F32, &bytes), Some(at));
        }
        assert_eq!(first_not_finite(DType::F32, &[0; 800]), None);
    }
}
