//! TQ1_0 and TQ2_0: superblocks of 256 weights of -1, 0 or 1 and one scale.

use super::{SUPER, bit_pairs};
use crate::tensor::DType;

/// The quants of a block, one more than the weight: 0, 1, 2 (TQ2_0 can hold a 3 too).
///
/// TQ2_0: 64 bytes of bit pairs, d f16. TQ1_0: 48 bytes of five digits of base 3 each, 4 bytes of
/// four digits, d f16. The digits of a byte are those of the fraction byte / 256, and go through
/// the block with the stride of the bytes beside it (32, 16, 4).
pub(in crate::tensor) fn quants(dtype: DType, block: &[u8]) -> [u8; SUPER] {
    if dtype == DType::TQ2_0 {
        return bit_pairs(&block[..64]);
    }
    std::array::from_fn(|i| match i {
        0..160 => digit(block[i % 32], i / 32),
        160..240 => digit(block[32 + i % 16], (i - 160) / 16),
        _ => digit(block[48 + i % 4], (i - 240) / 4),
    })
}

/// Digit `index` after the point of byte / 256 in base 3.
fn digit(byte: u8, index: usize) -> u8 {
    let shifted = byte.wrapping_mul([1, 3, 9, 27, 81][index]);
    ((u16::from(shifted) * 3) >> 8) as u8
}

/// Byte offset of d in a block.
pub(in crate::tensor) fn factor_at(dtype: DType) -> usize {
    dtype.block_bytes() - 2
}
