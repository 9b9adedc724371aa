//! Q4_K, Q5_K, Q6_K: superblocks of 256 whose groups have quantised scales of their own.

use super::{inverse, largest, put_f16};
use crate::tensor::DType;

/// Scale and minimum of a group: value = scale * q - min.
#[derive(Clone, Copy, Debug, Default)]
struct Affine {
    scale: f32,
    min: f32,
}

/// Eight groups of 32 with scales and minima of six bits.
pub(super) fn q45_k(dtype: DType, values: &[f32; 256], out: &mut Vec<u8>) {
    let top = if dtype == DType::Q4_K { 15.0 } else { 31.0 };
    let groups: &[[f32; 32]] = values.as_chunks().0;
    let fitted: Vec<Affine> = groups.iter().map(|group| fit_affine(group, top)).collect();
    let largest_scale = fitted.iter().fold(0.0_f32, |most, group| most.max(group.scale));
    let largest_min = fitted.iter().fold(0.0_f32, |most, group| most.max(group.min));
    let d = put_f16(out, largest_scale / 63.0);
    let dmin = put_f16(out, largest_min / 63.0);
    let six_bits = |value: f32, unit: f32| (value * inverse(unit)).round().clamp(0.0, 63.0) as u8;
    let scales: Vec<u8> = fitted.iter().map(|group| six_bits(group.scale, d)).collect();
    let mins: Vec<u8> = fitted.iter().map(|group| six_bits(group.min, dmin)).collect();
    out.extend(pack_scales(&scales, &mins));

    let mut codes = [0_u8; 256];
    for (group, (codes, values)) in codes.chunks_exact_mut(32).zip(groups).enumerate() {
        let (scale, min) = (d * f32::from(scales[group]), dmin * f32::from(mins[group]));
        let steps = inverse(scale);
        for (code, v) in codes.iter_mut().zip(values) {
            *code = ((v + min) * steps).round().clamp(0.0, top) as u8;
        }
    }
    if dtype == DType::Q5_K {
        let fifth = |l: usize, group: usize| (codes[32 * group + l] >> 4) << group;
        out.extend((0..32).map(|l| (0..8).fold(0, |byte, group| byte | fifth(l, group))));
    }
    for pair in codes.chunks_exact(64) {
        out.extend((0..32).map(|l| pair[l] & 15 | pair[32 + l] << 4));
    }
}

/// Twelve bytes of eight scales and eight minima of six bits, as `dequant` reads them.
fn pack_scales(scales: &[u8], mins: &[u8]) -> [u8; 12] {
    let mut packed = [0; 12];
    for i in 0..4 {
        packed[i] = scales[i] | scales[i + 4] >> 4 << 6;
        packed[i + 4] = mins[i] | mins[i + 4] >> 4 << 6;
        packed[i + 8] = scales[i + 4] & 15 | mins[i + 4] << 4;
    }
    packed
}

/// The scale and the minimum, not below 0, with which q from 0 to `top` come nearest to a group's
/// values. Steps a little finer and coarser than the range's are tried, and for the q of each the
/// best line through the values is solved for.
fn fit_affine(values: &[f32; 32], top: f32) -> Affine {
    let low = values.iter().fold(0.0_f32, |low, v| low.min(*v));
    let high = values.iter().fold(low, |high, v| high.max(*v));
    if high == low {
        return Affine { scale: 0.0, min: -low };
    }
    let spread = (values.iter().map(|v| v * v).sum::<f32>() / 32.0).sqrt();
    let weights = values.map(|v| spread + v.abs());
    let quants = |affine: Affine| {
        let steps = inverse(affine.scale);
        values.map(|v| ((v + affine.min) * steps).round().clamp(0.0, top))
    };
    let mut best = Affine { scale: (high - low) / top, min: -low };
    let mut least = error(values, &weights, &quants(best), best);
    for step in 0..=20 {
        let reach = top - 1.0 + 0.1 * step as f32;
        let tried = quants(Affine { scale: (high - low) / reach, min: -low });
        let Some(line) = solve(values, &weights, &tried) else { continue };
        let off = error(values, &weights, &tried, line);
        if off < least {
            (best, least) = (line, off);
        }
    }
    best
}

fn error(values: &[f32; 32], weights: &[f32; 32], quants: &[f32; 32], line: Affine) -> f32 {
    let off = |i: usize| weights[i] * (line.scale * quants[i] - line.min - values[i]).powi(2);
    (0..32).map(off).sum()
}

/// The weighted least squares line; through the origin where its minimum would be below 0, and
/// None where there is none with a rising slope.
fn solve(values: &[f32; 32], weights: &[f32; 32], quants: &[f32; 32]) -> Option<Affine> {
    let sum = |of: &dyn Fn(usize) -> f32| (0..32).map(|i| weights[i] * of(i)).sum::<f32>();
    let (w, q, qq) = (sum(&|_| 1.0), sum(&|i| quants[i]), sum(&|i| quants[i] * quants[i]));
    let (v, qv) = (sum(&|i| values[i]), sum(&|i| quants[i] * values[i]));
    let determinant = w * qq - q * q;
    if determinant <= 0.0 {
        return None;
    }
    let (scale, offset) = ((w * qv - q * v) / determinant, (qq * v - q * qv) / determinant);
    let line = if offset > 0.0 {
        Affine { scale: qv / qq, min: 0.0 }
    } else {
        Affine { scale, min: -offset }
    };
    (line.scale > 0.0).then_some(line)
}

/// Sixteen groups of 16 with signed scales of eight bits.
pub(super) fn q6_k(values: &[f32; 256], out: &mut Vec<u8>) {
    let groups: &[[f32; 16]] = values.as_chunks().0;
    let fitted: Vec<f32> = groups.iter().map(fit_symmetric).collect();
    let mut d_bytes = Vec::new();
    let d = put_f16(&mut d_bytes, largest(&fitted) / -128.0);
    let scale_of = |scale: f32| (scale * inverse(d)).round().clamp(-128.0, 127.0) as i8;
    let scales: Vec<i8> = fitted.iter().map(|scale| scale_of(*scale)).collect();
    let mut codes = [0_u8; 256];
    for (group, (codes, values)) in codes.chunks_exact_mut(16).zip(groups).enumerate() {
        let steps = inverse(d * f32::from(scales[group]));
        for (code, v) in codes.iter_mut().zip(values) {
            *code = ((v * steps).round().clamp(-32.0, 31.0) as i8 + 32) as u8;
        }
    }
    for half in codes.chunks_exact(128) {
        out.extend((0..64).map(|l| half[l] & 15 | half[64 + l] << 4));
    }
    for half in codes.chunks_exact(128) {
        let pair = |l: usize, quarter: usize| (half[32 * quarter + l] >> 4) << (2 * quarter);
        out.extend((0..32).map(|l| (0..4).fold(0, |byte, quarter| byte | pair(l, quarter))));
    }
    out.extend(scales.iter().map(|scale| *scale as u8));
    out.extend(d_bytes);
}

/// The scale with which q from -32 to 31 come nearest to a group's values, weighted by their
/// squares: of several roundings, the one whose best scale leaves least.
fn fit_symmetric(values: &[f32; 16]) -> f32 {
    let extreme = largest(values);
    if extreme == 0.0 {
        return 0.0;
    }
    let mut best = (0.0, 0.0); // scale, and how much of the squares it explains
    for step in -9..=9 {
        let steps = -(32.0 + 0.1 * step as f32) / extreme;
        let (mut qv, mut qq) = (0.0, 0.0);
        for v in values {
            let q = (v * steps).round().clamp(-32.0, 31.0);
            qv += v * v * q * v;
            qq += v * v * q * q;
        }
        if qq > 0.0 && qv * qv / qq > best.1 {
            best = (qv / qq, qv * qv / qq);
        }
    }
    best.0
}
