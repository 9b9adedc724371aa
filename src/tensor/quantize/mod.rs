//! Scalar quantisation: rows of f32 to blocks.
//!
//! Scales are searched for, not only taken from the largest value: the blocks of a K quant keep the
//! scale, of several tried, with the least squared error, weighted towards large values. The search
//! is that of ggml's reference quantisers in idea; results are a pure function of the row.

mod k_quants;
mod legacy;

use half::f16;

use super::DType;

/// The types that rows can be quantised to.
pub const QUANTIZABLE: [DType; 5] =
    [DType::Q8_0, DType::Q4_0, DType::Q4_K, DType::Q5_K, DType::Q6_K];

/// Quantises `values`, whole blocks of finite numbers, and appends the blocks to `out`.
///
/// # Panics
/// If `dtype` is not one of [`QUANTIZABLE`], or `values` is not a whole number of blocks long.
pub fn quantize_row(dtype: DType, values: &[f32], out: &mut Vec<u8>) {
    let whole = values.len().is_multiple_of(dtype.block_len());
    assert!(whole, "{dtype} row of {} elements", values.len());
    match dtype {
        DType::Q8_0 => values.as_chunks().0.iter().for_each(|block| legacy::q8_0(block, out)),
        DType::Q4_0 => values.as_chunks().0.iter().for_each(|block| legacy::q4_0(block, out)),
        DType::Q4_K | DType::Q5_K => {
            values.as_chunks().0.iter().for_each(|block| k_quants::q45_k(dtype, block, out));
        }
        DType::Q6_K => values.as_chunks().0.iter().for_each(|block| k_quants::q6_k(block, out)),
        other => panic!("no quantiser for {other}"),
    }
}

/// Appends `value` as the nearest f16, the largest one beyond its range; returns what was written.
fn put_f16(out: &mut Vec<u8>, value: f32) -> f32 {
    let half = f16::from_f32(value.clamp(-65504.0, 65504.0));
    out.extend(half.to_le_bytes());
    half.to_f32()
}

/// 1 / value, and 0 for 0: what has no scale has quants of 0.
fn inverse(value: f32) -> f32 {
    if value == 0.0 { 0.0 } else { 1.0 / value }
}

/// The value of the largest magnitude.
fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |best: f32, &v| if v.abs() > best.abs() { v } else { best })
}

#[cfg(test)]
mod tests;
