//! Rotation frequencies (RoPE): what a file says of them, and the tables of cosines and sines.
//!
//! The angle of position p is split as p = 64 a + b: the table holds the cosines and sines of 64 a
//! for every a of the context, and of b for every b below 64; the shader multiplies them together.
//! A few hundred rows serve any context, computed in f64, with no trigonometry on the device (whose
//! own may be off by 2^-11). Every kind of scaling changes a pair's frequency, or the size of all
//! cosines and sines, and so is part of the table.

use std::f64::consts::TAU;

use super::ModelLoadError;
use super::hyper::HyperParams;
use super::keys::Keys;
use super::loader::Loader;
use crate::gpu::{BufferDesc, BufferSlice, BufferUsage, DeviceError, Executor};

/// Positions of the fine half; `qkv_post.comp` knows it as a shift by 6.
const FINE: usize = 64;

/// Tensors that divide the frequencies, one factor a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeFactors {
    /// No rotation.
    None,
    /// `rope_freqs.weight`, where the file has it.
    OneSet,
    /// `rope_factors_long.weight` where the context is larger than this, else
    /// `rope_factors_short.weight`; where the file has them.
    ByContext(u32),
}

/// YaRN: pairs that turn often within the original context keep their frequency, those that turn
/// less than once are scaled, and between the two lies a ramp.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    /// Context that the frequencies were made for, in tokens.
    pub original_context: u32,
    /// Turns above which a frequency is kept.
    pub fast: f32,
    /// Turns below which it is scaled.
    pub slow: f32,
}

/// One set of rotation frequencies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeSpec {
    /// Base of the frequencies.
    pub base: f32,
    /// Factor of every frequency: 1 / the scaling factor.
    pub scale: f32,
    /// Factor of cosines and sines.
    pub magnitude: f32,
    /// Which frequencies are scaled, where not all are.
    pub yarn: Option<Yarn>,
    /// Divisors of the frequencies.
    pub factors: RopeFactors,
}

impl RopeSpec {
    /// Frequencies without scaling.
    #[must_use]
    pub fn plain(base: f32) -> Self {
        Self { base, scale: 1.0, magnitude: 1.0, yarn: None, factors: RopeFactors::None }
    }

    /// Reads the base and the scaling.
    pub(super) fn read(keys: &Keys<'_>, context_trained: u32) -> Result<Self, ModelLoadError> {
        let base = keys.opt_positive("rope.freq_base", false)?.unwrap_or(10_000.0);
        let kind = keys.metadata().opt_str(&keys.name("rope.scaling.type"))?.unwrap_or("linear");
        let factor = match keys.opt_positive("rope.scaling.factor", true)? {
            None => keys.opt_positive("rope.scale_linear", true)?,
            found => found,
        };
        // Some files carry a factor of 0 or 1 for "not scaled".
        let factor = factor.filter(|factor| *factor != 0.0).unwrap_or(1.0);
        let key = "rope.scaling.original_context_length";
        let original_context = keys.opt_count(key, u32::MAX)?.unwrap_or(context_trained);
        let magnitude = keys.opt_positive("rope.scaling.attn_factor", false)?.unwrap_or(1.0);
        let spec = Self { scale: 1.0 / factor, magnitude, ..Self::plain(base) };
        match kind {
            "none" => Ok(Self { scale: 1.0, ..spec }),
            "linear" => Ok(spec),
            "longrope" => Ok(Self { factors: RopeFactors::ByContext(original_context), ..spec }),
            "yarn" => {
                let turns = |key: &str, usual: f32| -> Result<f32, ModelLoadError> {
                    Ok(keys.opt_positive(key, false)?.unwrap_or(usual))
                };
                let fast = turns("rope.scaling.yarn_beta_fast", 32.0)?; // the paper's
                let slow = turns("rope.scaling.yarn_beta_slow", 1.0)?;
                let own = turns("rope.scaling.yarn_attn_factor", 1.0)?;
                let magnitude = magnitude * own * yarn_magnitude(factor, 1.0);
                let yarn = Some(Yarn { original_context, fast, slow });
                Ok(Self { magnitude, yarn, ..spec })
            }
            other => {
                let wanted = "none, linear, yarn or longrope";
                Err(keys.refuse("rope.scaling.type", wanted, format!("{other:?}")))
            }
        }
    }

    /// Radians that a pair turns from one position to the next.
    fn frequency(&self, pair: usize, rope_dim: u32, factor: f64) -> f64 {
        let exponent = -2.0 * pair as f64 / f64::from(rope_dim);
        let own = f64::from(self.base).powf(exponent) / factor;
        let scaled = own * f64::from(self.scale);
        let Some(yarn) = self.yarn else { return scaled };
        let (low, high) = yarn.ramp(self.base, rope_dim);
        let kept = 1.0 - ((pair as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
        scaled * (1.0 - kept) + own * kept
    }
}

impl Yarn {
    /// Pairs between which the ramp lies.
    fn ramp(&self, base: f32, rope_dim: u32) -> (f64, f64) {
        let dims = f64::from(rope_dim);
        let pair_of = |turns: f32| {
            let longest = f64::from(self.original_context) / (f64::from(turns) * TAU);
            dims * longest.ln() / (2.0 * f64::from(base).ln())
        };
        (pair_of(self.fast).floor().max(0.0), pair_of(self.slow).ceil().min(dims - 1.0))
    }
}

/// The paper's temperature of the softmax for a scaling factor, half of it on either side.
pub(super) fn yarn_magnitude(factor: f32, multiplier: f32) -> f32 {
    1.0 + 0.1 * multiplier * factor.max(1.0).ln()
}

/// Reads the factors that the sets of frequencies ask for, checks them, and leaves none of their
/// tensors unread.
pub(super) fn load_factors(
    loader: &mut Loader<'_>,
    hyper: &HyperParams,
    context_tokens: usize,
) -> Result<Option<Vec<f32>>, ModelLoadError> {
    let pairs = u64::from(hyper.rope_dim) / 2;
    let mut read = |name: &str| -> Result<Option<Vec<f32>>, ModelLoadError> {
        let Some(values) = loader.opt_vector_values(name, pairs)? else { return Ok(None) };
        if let Some(bad) = values.iter().find(|value| **value <= 0.0) {
            return Err(loader.refuse(name, "factors above 0", bad));
        }
        Ok(Some(values))
    };
    match hyper.ropes.first().map_or(RopeFactors::None, |rope| rope.factors) {
        RopeFactors::None => Ok(None),
        RopeFactors::OneSet => read("rope_freqs.weight"),
        RopeFactors::ByContext(original) => {
            let long = read("rope_factors_long.weight")?;
            let short = read("rope_factors_short.weight")?;
            Ok(if context_tokens > original as usize { long } else { short })
        }
    }
}

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
    let pairs = rope_dim as usize / 2;
    let frequencies: Vec<f64> = (0..pairs)
        .map(|pair| {
            let factor = factors.map_or(1.0, |factors| f64::from(factors[pair]));
            spec.frequency(pair, rope_dim, factor)
        })
        .collect();
    // The product of the two halves has the magnitude once.
    let coarse = (0..coarse).map(|a| (a * FINE, 1.0));
    let fine = (0..FINE).map(|b| (b, f64::from(spec.magnitude)));
    let mut values = Vec::with_capacity((coarse.len() + FINE) * pairs * 2);
    for (position, magnitude) in coarse.chain(fine) {
        for frequency in &frequencies {
            let angle = position as f64 * frequency;
            values.extend([(magnitude * angle.cos()) as f32, (magnitude * angle.sin()) as f32]);
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coarse_and_fine_multiply_to_the_angle_of_the_position() {
        let spec = RopeSpec { scale: 0.5, ..RopeSpec::plain(100_000.0) };
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

    #[test]
    fn yarn_keeps_fast_pairs_scales_slow_ones_and_ramps_between() {
        let yarn = Yarn { original_context: 512, fast: 32.0, slow: 1.0 };
        let spec = RopeSpec { scale: 0.25, yarn: Some(yarn), ..RopeSpec::plain(10_000.0) };
        // 64 ln(512 / (32 * 2 pi)) / (2 ln 10000) = 3.2, and 15.3 for one turn.
        assert_eq!(yarn.ramp(spec.base, 64), (3.0, 16.0));
        let own = |pair: usize| 10_000_f64.powf(-2.0 * pair as f64 / 64.0);
        for (pair, scale) in [(0, 1.0), (3, 1.0), (16, 0.25), (31, 0.25)] {
            assert!((spec.frequency(pair, 64, 1.0) / own(pair) - scale).abs() < 1e-12, "{pair}");
        }
        let middle = 0.25 * (6.0 / 13.0) + 7.0 / 13.0;
        assert!((spec.frequency(9, 64, 1.0) / own(9) - middle).abs() < 1e-12);
    }

    #[test]
    fn factors_divide_frequencies_and_the_magnitude_counts_once() {
        let spec = RopeSpec { magnitude: 1.5, ..RopeSpec::plain(10_000.0) };
        let values = table(spec, 4, 1, Some(&[2.0, 4.0]));
        assert_eq!(values[..4], [1.0, 0.0, 1.0, 0.0], "the coarse half of position 0");
        let row = &values[4 + 4..][..4]; // of position 1
        for (pair, angle) in [(0, 0.5_f64), (1, 0.01 / 4.0)] {
            assert!((f64::from(row[2 * pair]) - 1.5 * angle.cos()).abs() < 1e-6);
            assert!((f64::from(row[2 * pair + 1]) - 1.5 * angle.sin()).abs() < 1e-6);
        }
    }
}
