//! IQ4_NL, IQ4_XS and MXFP4: nibbles that number the values of a curve.

use super::{SUPER, f16_at, half_block_nibbles, nibble, u16_at};

/// The values that the nibbles of IQ4_NL and IQ4_XS stand for (`kvalues_iq4nl` in ggml).
pub(in crate::tensor) const CURVE: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Twice the values that the nibbles of MXFP4 stand for: floats of two bits of exponent and one of
/// mantissa.
pub(in crate::tensor) const MXFP4: [i8; 16] =
    [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Half of the scale that a byte of MXFP4 is the exponent of: 2^(exponent - 128).
pub(in crate::tensor) fn mxfp4_scale(exponent: u8) -> f32 {
    let exponent = u32::from(exponent);
    f32::from_bits(if exponent < 2 { 0x0020_0000 << exponent } else { (exponent - 1) << 23 })
}

/// A block of IQ4_XS: d f16, 2 bytes of high bits of scales, 4 of low nibbles, 128 of nibbles: 16
/// bytes for every 32 weights, as in Q4_0.
pub(in crate::tensor) struct Iq4Xs<'a>(pub(in crate::tensor) &'a [u8]);

impl Iq4Xs<'_> {
    /// Numbers of values of the curve.
    pub(in crate::tensor) fn nibbles(&self) -> [u8; SUPER] {
        let groups: [[u8; 32]; 8] =
            std::array::from_fn(|group| half_block_nibbles(&self.0[8 + 16 * group..]));
        std::array::from_fn(|i| groups[i / 32][i % 32])
    }

    /// A scale of six bits for every 32 weights, of which 32 is to be taken away.
    pub(in crate::tensor) fn scales(&self) -> [u8; 8] {
        let high = u16_at(self.0, 2);
        std::array::from_fn(|i| nibble(&self.0[4..8], i) | ((high >> (2 * i) & 3) as u8) << 4)
    }

    /// The block's scale d.
    pub(in crate::tensor) fn factor(&self) -> f32 {
        f16_at(self.0, 0)
    }
}
