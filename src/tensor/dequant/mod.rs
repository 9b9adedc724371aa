//! Scalar dequantisation: rows of blocks to f32.
//!
//! The arithmetic is the format's own (`dequantize_row_*` in ggml, `quants.py` in gguf-py): f16
//! scales are widened to f32 and every product and sum is rounded once in f32, so the results are
//! equal to theirs bit for bit. Blocks are little endian and packed without padding.

mod k_quants;
mod legacy;
mod small;

use half::bf16;

use super::DType;
use super::quants::f16_at;
use k_quants::{q2_k, q3_k, q4_k, q5_k, q6_k};
use legacy::{q4_0, q4_1, q5_0, q5_1, q8_0};
use small::{iq1, iq2_or_3, iq4_nl, iq4_xs, mxfp4, ternary};

/// Widens `bytes`, whole blocks of `dtype`, into `out`.
///
/// `bytes`: `[out.len() / block_len]` blocks; `out`: `[row_len]`, or several rows that follow each
/// other. Every element of `out` is written.
///
/// # Panics
/// If `out` is not a whole number of blocks long, or `bytes` is not exactly those blocks.
pub fn dequantize_row(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    let wanted = dtype.row_bytes(out.len() as u64);
    assert_eq!(wanted, Some(bytes.len() as u64), "{dtype} row of {} elements", out.len());
    match dtype {
        DType::F32 => each_block::<4, 1>(bytes, out, |b, y| y[0] = f32::from_le_bytes(*b)),
        DType::F16 => each_block::<2, 1>(bytes, out, |b, y| y[0] = f16_at(b, 0)),
        DType::BF16 => {
            each_block::<2, 1>(bytes, out, |b, y| y[0] = bf16::from_le_bytes(*b).to_f32());
        }
        DType::Q8_0 => each_block::<34, 32>(bytes, out, q8_0),
        DType::Q4_0 => each_block::<18, 32>(bytes, out, q4_0),
        DType::Q4_1 => each_block::<20, 32>(bytes, out, q4_1),
        DType::Q5_0 => each_block::<22, 32>(bytes, out, q5_0),
        DType::Q5_1 => each_block::<24, 32>(bytes, out, q5_1),
        DType::Q4_K => each_block::<144, 256>(bytes, out, q4_k),
        DType::Q5_K => each_block::<176, 256>(bytes, out, q5_k),
        DType::Q6_K => each_block::<210, 256>(bytes, out, q6_k),
        DType::Q2_K => each_block::<84, 256>(bytes, out, q2_k),
        DType::Q3_K => each_block::<110, 256>(bytes, out, q3_k),
        DType::IQ4_NL => each_block::<18, 32>(bytes, out, iq4_nl),
        DType::IQ4_XS => each_block::<136, 256>(bytes, out, iq4_xs),
        DType::MXFP4 => each_block::<17, 32>(bytes, out, mxfp4),
        DType::TQ1_0 => each_block::<54, 256>(bytes, out, |b, y| ternary(dtype, b, y)),
        DType::TQ2_0 => each_block::<66, 256>(bytes, out, |b, y| ternary(dtype, b, y)),
        DType::IQ1_S => each_block::<50, 256>(bytes, out, |b, y| iq1(dtype, b, y)),
        DType::IQ1_M => each_block::<56, 256>(bytes, out, |b, y| iq1(dtype, b, y)),
        DType::IQ2_XXS => each_block::<66, 256>(bytes, out, |b, y| iq2_or_3(dtype, b, y)),
        DType::IQ2_XS => each_block::<74, 256>(bytes, out, |b, y| iq2_or_3(dtype, b, y)),
        DType::IQ2_S => each_block::<82, 256>(bytes, out, |b, y| iq2_or_3(dtype, b, y)),
        DType::IQ3_XXS => each_block::<98, 256>(bytes, out, |b, y| iq2_or_3(dtype, b, y)),
        DType::IQ3_S => each_block::<110, 256>(bytes, out, |b, y| iq2_or_3(dtype, b, y)),
    }
}

fn each_block<const BYTES: usize, const LEN: usize>(
    bytes: &[u8],
    out: &mut [f32],
    block: impl Fn(&[u8; BYTES], &mut [f32; LEN]),
) {
    let (blocks, _) = bytes.as_chunks::<BYTES>();
    let (outs, _) = out.as_chunks_mut::<LEN>();
    for (bytes, out) in blocks.iter().zip(outs) {
        block(bytes, out);
    }
}

#[cfg(test)]
mod tests;
