//! What outputs are made of, and when two of them differ.

use std::fmt;

use half::f16;

use crate::gpu::Dispatch;
use crate::kernels::matmul_bytes;

/// Largest difference of two values, as a part of the larger of the value itself and of the root
/// mean square of all that was written. Sums of a few thousand matmuls in two orders, and a
/// driver's own exponentials, differ by less than a tenth of it; one matmul left out of a thousand
/// by more.
const TOLERANCE: f32 = 4e-3;

/// The same where activations were rounded to bytes.
const TOLERANCE_BYTES: f32 = 3e-2;

/// The same where sums of sixteen matmuls are in f16: of ten thousand rows of few columns, the
/// worst is off by 0.004, and behind a gate by 0.01.
const TOLERANCE_HALF: f32 = 1.5e-2;

/// The tolerance for what a dispatch makes.
pub(super) fn tolerance(dispatch: &Dispatch) -> f32 {
    match dispatch.kernel.name {
        name if name.starts_with("matmul_bytes") => TOLERANCE_BYTES,
        name if name.starts_with("matmul_tiled") && name.ends_with("_half") => TOLERANCE_HALF,
        _ => TOLERANCE,
    }
}

/// The number format of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    F32,
    F16,
    /// Bit for bit.
    U32,
    /// Bytes of which each may be off by one: quants.
    Bytes,
    /// Blocks of 32 quants that may be off by one, their scale, and the sums of both halves.
    QuantizedX,
    /// Scratch whose contents do not matter after the dispatch.
    Scratch,
}

impl Kind {
    pub(super) fn of(dispatch: &Dispatch, binding: usize) -> Self {
        let name = dispatch.kernel.name;
        match binding {
            7 | 8 if name.starts_with("attention") => Self::Scratch, // of its splits
            7 if name.starts_with("qkv_post") => match dispatch.spec[4] {
                0 => Self::F32,
                1 => Self::F16,
                _ => Self::Bytes,
            },
            2 if name == "quantize_x_f16" => Self::F16,
            2 if name == "quantize_x_int8" => Self::QuantizedX,
            1 if name.starts_with("moe_route") => Self::U32,
            1 if name.starts_with("moe_lists") => Self::U32,
            2 if name == "maxima" => Self::U32,
            3 if name == "sample" => Self::U32,
            _ => Self::F32,
        }
    }
}

/// Two values that should be one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    /// Index in the output.
    pub at: usize,
    /// Value computed by the device.
    pub found: f64,
    /// Value computed by the reference executor.
    pub wanted: f64,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}, {} wanted", self.found, self.at, self.wanted)
    }
}

/// The worst of what differs by more than is allowed. `before`: the output before it was written.
pub(super) fn compare(
    kind: Kind,
    tolerance: f32,
    before: &[u8],
    found: &[u8],
    wanted: &[u8],
) -> Option<Difference> {
    match kind {
        Kind::F32 => {
            let [before, found, wanted] = [before, found, wanted].map(floats);
            compare_floats(tolerance, &before, &found, &wanted)
        }
        Kind::F16 => {
            let [before, found, wanted] = [before, found, wanted].map(halves);
            compare_floats(tolerance, &before, &found, &wanted)
        }
        Kind::QuantizedX => compare_blocks(found, wanted),
        Kind::Scratch => None,
        Kind::U32 => {
            let word = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            let pairs = found.chunks_exact(4).zip(wanted.chunks_exact(4));
            let at = pairs.clone().position(|(found, wanted)| found != wanted)?;
            let [found, wanted] = [found, wanted].map(|all| word(&all[4 * at..]).into());
            Some(Difference { at, found, wanted })
        }
        Kind::Bytes => {
            let off = |(found, wanted): (&u8, &u8)| {
                let off = found.wrapping_sub(*wanted) as i8;
                off.unsigned_abs() > 1
            };
            let at = found.iter().zip(wanted).position(off)?;
            Some(Difference { at, found: found[at].into(), wanted: wanted[at].into() })
        }
    }
}

fn compare_floats(
    tolerance: f32,
    before: &[f32],
    found: &[f32],
    wanted: &[f32],
) -> Option<Difference> {
    let written = wanted
        .iter()
        .zip(before)
        .filter(|(wanted, before)| wanted.to_bits() != before.to_bits() && wanted.is_finite());
    let (mut squares, mut count) = (0.0_f64, 0_u32);
    for (value, _) in written {
        squares += f64::from(*value) * f64::from(*value);
        count += 1;
    }
    let scale = (squares / f64::from(count.max(1))).sqrt() as f32;
    let excess = |(found, wanted): (&f32, &f32)| {
        let same = found.to_bits() == wanted.to_bits() || found.is_nan() && wanted.is_nan();
        if same {
            return 0.0;
        }
        let off = (found - wanted).abs() / (tolerance * wanted.abs().max(scale));
        if off.is_nan() { f32::INFINITY } else { off }
    };
    let worst = found.iter().zip(wanted).map(excess).enumerate().max_by(|a, b| a.1.total_cmp(&b.1));
    let (at, _) = worst.filter(|(_, excess)| *excess > 1.0)?;
    Some(Difference { at, found: found[at].into(), wanted: wanted[at].into() })
}

fn compare_blocks(found: &[u8], wanted: &[u8]) -> Option<Difference> {
    const BYTES: usize = matmul_bytes::BLOCK_BYTES as usize;
    let blocks = found.chunks_exact(BYTES).zip(wanted.chunks_exact(BYTES));
    blocks.enumerate().find_map(|(block, (found, wanted))| {
        let quants = compare(Kind::Bytes, 0.0, &[], &found[..32], &wanted[..32]);
        let [found, wanted] = [found, wanted].map(|block| floats(&block[32..]));
        // Each of a half's quants may be off by one.
        let scale = wanted[0].abs();
        let allowed = [1e-5 * scale, 16.1 * scale, 16.1 * scale, 0.0];
        let off = |at: &usize| {
            let off = (found[*at] - wanted[*at]).abs();
            found[*at].to_bits() != wanted[*at].to_bits() && (off.is_nan() || off > allowed[*at])
        };
        let floats = (0..4).find(off).map(|at| {
            let [found, wanted] = [found[at], wanted[at]].map(f64::from);
            Difference { at: 32 + 4 * at, found, wanted }
        });
        let difference = quants.or(floats)?;
        Some(Difference { at: block * BYTES + difference.at, ..difference })
    })
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let words = bytes.chunks_exact(4);
    words.map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
}

fn halves(bytes: &[u8]) -> Vec<f32> {
    let pairs = bytes.chunks_exact(2);
    pairs.map(|pair| f16::from_le_bytes([pair[0], pair[1]]).to_f32()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    fn differ(found: &[f32], wanted: &[f32]) -> Option<usize> {
        let before = vec![0; 4 * wanted.len()];
        let difference = compare(Kind::F32, TOLERANCE, &before, &bytes(found), &bytes(wanted));
        difference.map(|difference| difference.at)
    }

    #[test]
    fn floats_differ_by_more_than_rounding() {
        assert_eq!(differ(&[1.0, -3.0, 1e-4], &[1.001, -3.001, 0.0]), None);
        assert_eq!(differ(&[1.0, -3.0, 0.5], &[1.0, -3.0, 0.0]), Some(2));
        assert_eq!(differ(&[1.0, f32::NAN], &[1.0, 2.0]), Some(1));
        assert_eq!(differ(&[f32::NAN], &[f32::NAN]), None);
        assert_eq!(differ(&[0.1, 0.0], &[0.0, 0.0]), Some(0), "where nothing is to be written");
    }

    /// A block's matmuls of pairs as the shader sums them.
    fn f16_matmuls(weights: &[f32], x: &[f32]) -> f32 {
        let mut sums = [f16::ZERO; 2];
        for (weights, x) in weights.chunks_exact(2).zip(x.chunks_exact(2)) {
            for (sum, (weight, x)) in sums.iter_mut().zip(weights.iter().zip(x)) {
                let [weight, x] = [*weight, 16.0 * x].map(|v| f16::from_f32(v).to_f32());
                *sum = f16::from_f32(sum.to_f32() + weight * x);
            }
        }
        (sums[0].to_f32() + sums[1].to_f32()) / 16.0
    }

    #[test]
    fn sums_in_halves_pass_and_a_product_left_out_does_not() {
        let mut floats = crate::probe::floats();
        let (mut found, mut wanted, mut lacking) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..4000 {
            let mut row = || floats.by_ref().take(32).collect::<Vec<f32>>();
            let [weights, x] = [row(), row()];
            found.push(f16_matmuls(&weights, &x));
            wanted.push(weights.iter().zip(&x).map(|(weight, x)| weight * x).sum::<f32>());
            lacking.push(f16_matmuls(&weights[..30], &x[..30]));
        }
        let before = vec![0; 4 * wanted.len()];
        let differ = |found: &[f32]| {
            compare(Kind::F32, TOLERANCE_HALF, &before, &bytes(found), &bytes(&wanted))
        };
        assert_eq!(differ(&found), None);
        assert!(differ(&lacking).is_some());
    }

    #[test]
    fn blocks_of_quants_differ_by_one_quant() {
        let block = |quant: u8, scale: f32, sum: f32| {
            let mut bytes = vec![quant; 32];
            bytes.extend([scale, sum, sum, 0.0].into_iter().flat_map(f32::to_le_bytes));
            bytes
        };
        let wanted = [block(9, 0.5, 72.0), block(7, 0.25, 28.0)].concat();
        let differ = |second: Vec<u8>| {
            let found = [block(9, 0.5, 72.0), second].concat();
            compare(Kind::QuantizedX, 0.0, &[], &found, &wanted).map(|difference| difference.at)
        };
        assert_eq!(differ(block(8, 0.25, 32.0)), None);
        assert_eq!(differ(block(9, 0.25, 28.0)), Some(48));
        assert_eq!(differ(block(7, 0.26, 28.0)), Some(48 + 32));
        assert_eq!(differ(block(7, 0.25, 33.0)), Some(48 + 36));
    }

    #[test]
    fn whole_numbers_differ_by_one() {
        let [one, two] = [1_u32, 2].map(u32::to_le_bytes);
        assert_eq!(compare(Kind::U32, 0.0, &one, &one, &one), None);
        assert!(compare(Kind::U32, 0.0, &one, &two, &one).is_some());
        assert_eq!(compare(Kind::Bytes, 0.0, &[0, 0], &[255, 7], &[0, 8]), None);
        assert!(compare(Kind::Bytes, 0.0, &[0], &[3], &[1]).is_some());
    }
}
