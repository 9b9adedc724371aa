//! The integers in a block, and the codes of their scales, as both `dequant` and `layout` need
//! them.
//!
//! A family of types is a file. What a block holds is taken apart here once: its quants as small
//! signed integers in the order of its weights, its scales as the numbers that are stored.

pub(super) mod four_bit;
pub(super) mod iq;
pub(super) mod k;
pub(super) mod ternary;

use half::f16;

/// Weights in a superblock.
pub(super) const SUPER: usize = 256;

pub(super) fn f16_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

pub(super) fn u16_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

pub(super) fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// Nibble `index` of `bytes`, the low one of a byte first.
pub(super) fn nibble(bytes: &[u8], index: usize) -> u8 {
    bytes[index / 2] >> (4 * (index % 2)) & 15
}

/// The nibbles of 32 weights where byte j has those of weights j (low) and j + 16 (high).
pub(super) fn half_block_nibbles(bytes: &[u8]) -> [u8; 32] {
    std::array::from_fn(|i| if i < 16 { bytes[i] & 15 } else { bytes[i - 16] >> 4 })
}

/// The bit pairs of a superblock in 64 bytes: each half (128 weights) has 32 bytes, its quarter k
/// bits 2 k of them.
pub(super) fn bit_pairs(bytes: &[u8]) -> [u8; SUPER] {
    std::array::from_fn(|i| bytes[i / 128 * 32 + i % 32] >> (2 * (i / 32 % 4)) & 3)
}
