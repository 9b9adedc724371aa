//! Random weights of every type, in the blocks of a file.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // each test uses a part

use half::{bf16, f16};
use hob::tensor::DType;

use crate::random::Random;

/// A file's bytes of `rows` random rows, with weights between about -2 and 2.
pub fn random_rows(random: &mut Random, dtype: DType, rows: u64, row_len: u64) -> Vec<u8> {
    let bytes = (dtype.row_bytes(row_len).unwrap() * rows) as usize;
    let mut out: Vec<u8> = (0..bytes).map(|_| random.next() as u8).collect();
    for block in out.chunks_exact_mut(dtype.block_bytes()) {
        let mut half_at = |at: usize, low: f32, high: f32| {
            let value = f16::from_f32(random.between(low, high));
            block[at..at + 2].copy_from_slice(&value.to_le_bytes());
        };
        match dtype {
            DType::F32 => block.copy_from_slice(&random.between(-1.0, 1.0).to_le_bytes()),
            DType::F16 => half_at(0, -1.0, 1.0),
            DType::BF16 => {
                let value = bf16::from_f32(random.between(-1.0, 1.0));
                block.copy_from_slice(&value.to_le_bytes());
            }
            DType::Q8_0 => half_at(0, -0.008, 0.008),
            DType::Q4_0 => half_at(0, -0.12, 0.12),
            DType::Q5_0 => half_at(0, -0.06, 0.06),
            DType::Q4_1 => {
                half_at(0, 0.0, 0.12);
                half_at(2, -1.0, 0.0);
            }
            DType::Q5_1 => {
                half_at(0, 0.0, 0.06);
                half_at(2, -1.0, 0.0);
            }
            DType::Q4_K => {
                half_at(0, 0.0, 0.002);
                half_at(2, 0.0, 0.02);
            }
            DType::Q5_K => {
                half_at(0, 0.0, 0.001);
                half_at(2, 0.0, 0.02);
            }
            DType::Q6_K => half_at(208, -0.0005, 0.0005),
            DType::Q2_K => {
                half_at(80, 0.0, 0.04);
                half_at(82, 0.0, 0.06);
            }
            DType::Q3_K => half_at(108, -0.015, 0.015),
            DType::IQ4_NL => half_at(0, -0.015, 0.015),
            DType::IQ4_XS => half_at(0, -0.0005, 0.0005),
            // Scales of 2^-10 to 2^-3, of values up to 12.
            DType::MXFP4 => block[0] = 118 + (block[0] & 7),
            DType::TQ1_0 => half_at(52, -1.0, 1.0),
            DType::TQ2_0 => half_at(64, -1.0, 1.0),
            DType::IQ1_S => half_at(0, -0.1, 0.1),
            // Each of four words ends in a nibble of d: an f16 of 2^-5 to 2^-4.
            DType::IQ1_M => {
                block[53] = block[53] & 0x3f | 0x80;
                block[55] = block[55] & 0x0f | 0x20;
            }
            DType::IQ2_XXS | DType::IQ2_XS | DType::IQ2_S => half_at(0, -0.01, 0.01),
            DType::IQ3_XXS | DType::IQ3_S => half_at(0, -0.004, 0.004),
        }
    }
    out
}
