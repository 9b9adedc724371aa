//! Q2_K and Q3_K: superblocks of 256 with a scale for every 16 weights.

use super::{SUPER, bit_pairs, f16_at, nibble};

/// A block of Q2_K: 16 bytes of scales and minima, 64 bytes of bit pairs, d f16, dmin f16.
pub(in crate::tensor) struct Q2K<'a>(pub(in crate::tensor) &'a [u8]);

impl Q2K<'_> {
    /// 0 to 3.
    pub(in crate::tensor) fn quants(&self) -> [u8; SUPER] {
        bit_pairs(&self.0[16..80])
    }

    /// A byte for every 16 weights: the scale in the low nibble, the minimum in the high one.
    pub(in crate::tensor) fn scales(&self) -> &[u8] {
        &self.0[..16]
    }

    /// d and dmin.
    pub(in crate::tensor) fn factors(&self) -> (f32, f32) {
        (f16_at(self.0, 80), f16_at(self.0, 82))
    }
}

/// A block of Q3_K: 32 bytes of third bits, 64 bytes of bit pairs, 12 bytes of scales, d f16.
pub(in crate::tensor) struct Q3K<'a>(pub(in crate::tensor) &'a [u8]);

impl Q3K<'_> {
    /// 0 to 7, where 4 stands for a weight of 0. Bit i of byte l of the third bits belongs to
    /// weight 32 i + l.
    pub(in crate::tensor) fn quants(&self) -> [u8; SUPER] {
        let pairs = bit_pairs(&self.0[32..96]);
        std::array::from_fn(|i| pairs[i] | (self.0[i % 32] >> (i / 32) & 1) << 2)
    }

    /// A signed scale of six bits for every 16 weights: nibbles of eight bytes hold the low four
    /// (the low nibbles come first), pairs of four bytes the high two.
    pub(in crate::tensor) fn scales(&self) -> [i8; 16] {
        let (low, high) = self.0[96..108].split_at(8);
        std::array::from_fn(|i| {
            let low = nibble(low, i % 8 * 2 + i / 8);
            (low | (high[i % 4] >> (2 * (i / 4)) & 3) << 4) as i8 - 32
        })
    }

    /// The block's scale d.
    pub(in crate::tensor) fn factor(&self) -> f32 {
        f16_at(self.0, 108)
    }
}
