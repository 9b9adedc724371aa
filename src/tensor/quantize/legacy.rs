//! Q8_0 and Q4_0: blocks of 32 with one scale.

use super::{inverse, largest, put_f16};

/// The largest magnitude is 127 steps.
pub(super) fn q8_0(values: &[f32; 32], out: &mut Vec<u8>) {
    let d = put_f16(out, largest(values).abs() / 127.0);
    let steps = inverse(d);
    out.extend(values.map(|v| (v * steps).round().clamp(-127.0, 127.0) as i8 as u8));
}

/// The value of the largest magnitude is -8 steps, the one end that reaches further; of the scales
/// around that one, the one with the least error, weighted by the squares of the values.
pub(super) fn q4_0(values: &[f32; 32], out: &mut Vec<u8>) {
    let extreme = largest(values);
    let quants = |d: f32| {
        let steps = inverse(d);
        values.map(|v| (v * steps).round().clamp(-8.0, 7.0))
    };
    let error = |d: f32| {
        let off = |(v, q): (&f32, f32)| v * v * (v - d * q).powi(2);
        values.iter().zip(quants(d)).map(off).sum::<f32>()
    };
    let tried = (-4..=4).map(|step| extreme / (-8.0 + 0.1 * step as f32));
    let best = tried.min_by(|a, b| error(*a).total_cmp(&error(*b))).expect("nine are tried");
    let d = put_f16(out, best);
    let codes = quants(d).map(|q| (q as i8 + 8) as u8);
    out.extend((0..16).map(|j| codes[j] | codes[j + 16] << 4));
}
