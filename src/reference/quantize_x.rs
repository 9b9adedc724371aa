//! Twin of `shaders/quantize_x.comp`.

use half::f16;

use super::Memory;
use crate::gpu::Dispatch;
use crate::kernels::quantize_x::{Params, is_int8};

pub(super) fn run(dispatch: &Dispatch, memory: &mut Memory) {
    let params: Params = bytemuck::pod_read_unaligned(&dispatch.push);
    let [x, gain, quantized, factors] = dispatch.bindings[..] else { panic!("four bindings") };
    let (norm, width) = (dispatch.spec[3] == 1, 32 * params.blocks as usize);
    let rows = dispatch.groups[0] as usize;
    let bytes = is_int8(dispatch);
    let mut words = Vec::with_capacity(rows * width / 2);
    let mut all_factors = Vec::with_capacity(rows);
    let gain = norm.then(|| memory.floats(gain)[..width].to_vec());
    for row in memory.floats(x).chunks(4 * params.x_stride as usize).take(rows) {
        let row = &row[..width];
        let squares: f32 = row.iter().map(|v| v * v).sum();
        let factor = match norm {
            true => 1.0 / (squares / width as f32 + params.epsilon).sqrt(),
            false => 1.0,
        };
        let values: Vec<f32> = match &gain {
            Some(gain) => row.iter().zip(gain).map(|(v, g)| v * g).collect(),
            None => row.to_vec(),
        };
        if bytes {
            words.extend(values.chunks_exact(32).flat_map(block));
            all_factors.push(factor);
            continue;
        }
        let exponent = exponent_to_sixteen(values.iter().fold(0.0, |most, v| v.abs().max(most)));
        let scale = f32::from_bits(exponent << 23);
        words.extend(values.chunks_exact(2).map(|pair| {
            let [low, high] = [pair[0], pair[1]].map(|v| u32::from(half(v * scale).to_bits()));
            low | high << 16
        }));
        all_factors.push(factor * f32::from_bits((254 - exponent) << 23));
    }
    memory.update_words(quantized, |_, out| out[..words.len()].copy_from_slice(&words));
    memory.update(factors, |_, out| out[..rows].copy_from_slice(&all_factors));
}

/// Bits of the exponent of the power of two that brings a positive number to 8 .. 16.
fn exponent_to_sixteen(v: f32) -> u32 {
    257_u32.saturating_sub(v.to_bits() >> 23).clamp(1, 253)
}

/// The nearest f16, and past its range the largest.
fn half(v: f32) -> f16 {
    f16::from_f32(v.clamp(-65504.0, 65504.0))
}

/// Below it a block is nothing.
const LEAST: f32 = 1e-30;

/// A block of 32 values as bytes, their scale, and the sums of both halves so rounded.
fn block(values: &[f32]) -> [u32; 12] {
    let largest = values.iter().fold(0.0_f32, |most, v| v.abs().max(most));
    let inverse = if largest < LEAST { 0.0 } else { 127.0 / largest };
    let scale = largest / 127.0;
    let quants: Vec<i8> = values.iter().map(|v| (v * inverse).round_ties_even() as i8).collect();
    let mut words = [0; 12];
    for (word, quants) in words.iter_mut().zip(quants.chunks_exact(4)) {
        let bytes = [quants[0], quants[1], quants[2], quants[3]];
        *word = u32::from_le_bytes(bytes.map(i8::cast_unsigned));
    }
    let sum = |quants: &[i8]| scale * quants.iter().map(|q| i32::from(*q)).sum::<i32>() as f32;
    let floats = [scale, sum(&quants[..16]), sum(&quants[16..])];
    words[8..11].copy_from_slice(&floats.map(f32::to_bits));
    words
}
