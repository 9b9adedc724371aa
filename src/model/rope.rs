//! Tables of RoPE's cosines and sines.
//!
//! The angle of position p is split as p = 64 a + b: the table holds the cosines and sines of 64 a
//! for every a of the context, and of b for every b below 64; the shader multiplies them together.
//! A few hundred rows serve any context, computed in f64, with no trigonometry on the device (whose
//! own may be off by 2^-11).

use super::RopeSpec;
use crate::gpu::{BufferDesc, BufferSlice, BufferUsage, DeviceError, Executor};

/// Positions of the fine half; `qkv_post.comp` knows it as a shift by 6.
const FINE: usize = 64;

/// A table on the device: f32 `[coarse + 64, rope_dim / 2, 2]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct RopeTable {
    pub slice: BufferSlice,
    /// Rows of the coarse half.
    pub coarse: u32,
}

impl RopeTable {
    /// Computes and uploads the table for positions below `context_tokens`.
    ///
    /// `factors`: divisors of the `rope_dim / 2` frequencies, as `rope_freqs.weight` holds them.
    pub(super) fn create(
        executor: &mut dyn Executor,
        spec: RopeSpec,
        rope_dim: u32,
        context_tokens: usize,
        factors: Option<&[f32]>,
    ) -> Result<Self, DeviceError> {
        let coarse = context_tokens.div_ceil(FINE);
        let values = table(spec, rope_dim, coarse, factors);
        let bytes = (values.len() * 4) as u64;
        let buffer = executor.create_buffer(&BufferDesc {
            label: format!("rope base {}", spec.base),
            bytes,
            usage: BufferUsage::Weights,
        })?;
        executor.write(buffer, 0, values.len() * 4, &mut |out| {
            out.copy_from_slice(bytemuck::cast_slice(&values));
        })?;
        let coarse = u32::try_from(coarse).expect("contexts are counted in 32 bits");
        Ok(Self { slice: BufferSlice { buffer, offset: 0, bytes }, coarse })
    }
}

fn table(spec: RopeSpec, rope_dim: u32, coarse: usize, factors: Option<&[f32]>) -> Vec<f32> {
    let positions = (0..coarse).map(|a| a * FINE).chain(0..FINE);
    let pairs = rope_dim as usize / 2;
    let mut values = Vec::with_capacity((coarse + FINE) * pairs * 2);
    for position in positions {
        for pair in 0..pairs {
            let exponent = -2.0 * pair as f64 / f64::from(rope_dim);
            let factor = factors.map_or(1.0, |factors| f64::from(factors[pair]));
            let frequency = f64::from(spec.base).powf(exponent) / factor;
            let angle = position as f64 * frequency * f64::from(spec.scale);
            values.extend([angle.cos() as f32, angle.sin() as f32]);
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coarse_and_fine_multiply_to_the_angle_of_the_position() {
        let spec = RopeSpec { base: 100_000.0, scale: 0.5 };
        let coarse = 128;
        let values = table(spec, 64, coarse, None);
        let row = |row: usize, pair: usize| {
            (values[(row * 32 + pair) * 2], values[(row * 32 + pair) * 2 + 1])
        };
        for position in [0_usize, 1, 63, 64, 1000, 8191] {
            for pair in [0, 7, 31] {
                let (c, s) = row(position / 64, pair);
                let (fc, fs) = row(coarse + position % 64, pair);
                let angle = position as f64 * 0.5 * 100_000_f64.powf(-2.0 * pair as f64 / 64.0);
                assert!(
                    (f64::from(c * fc - s * fs) - angle.cos()).abs() < 5e-7,
                    "{position} {pair}"
                );
                assert!(
                    (f64::from(s * fc + c * fs) - angle.sin()).abs() < 5e-7,
                    "{position} {pair}"
                );
            }
        }
    }
}
