//! LoRA adapters with random values for any model file, and the model with their updates merged in.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // each test uses a part

use std::path::Path;

use hob::gguf::{GgufBuilder, GgufFile, Value};
use hob::tensor::{DType, dequantize_row};

use crate::random::Random;

/// What an adapter is to change, and how.
#[derive(Clone, Debug)]
pub struct Adapter {
    pub seed: u64,
    pub rank: u64,
    pub alpha: f32,
    /// Parts of layers' tensors.
    pub parts: Vec<&'static str>,
    pub dtype: DType,
}

/// Names and shapes of the base's tensors that the adapter changes.
fn targets(base: &GgufFile, adapter: &Adapter) -> Vec<(String, [u64; 2])> {
    let changed = |name: &str| {
        let part = name.rsplit('.').nth(1).unwrap_or_default();
        name.starts_with("blk.") && name.ends_with(".weight") && adapter.parts.contains(&part)
    };
    let tensors = base.tensors().iter().filter(|tensor| changed(&tensor.name));
    tensors.map(|tensor| (tensor.name.clone(), [tensor.row_len(), tensor.rows()])).collect()
}

/// The pairs: name, A and B in rows.
fn pairs(base: &GgufFile, adapter: &Adapter) -> Vec<(String, [u64; 2], [Vec<f32>; 2])> {
    let mut random = Random::new(adapter.seed);
    let mut pairs = Vec::new();
    for (name, [row_len, rows]) in targets(base, adapter) {
        let mut floats = |len: u64, bound: f32| -> Vec<f32> {
            let values = random.floats(len as usize, -bound, bound);
            // What F16 holds exactly, so that both types mean the same.
            values.iter().map(|value| half::f16::from_f32(*value).to_f32()).collect()
        };
        let a = floats(adapter.rank * row_len, (3.0 / row_len as f32).sqrt());
        let b = floats(rows * adapter.rank, 0.3);
        pairs.push((name, [row_len, rows], [a, b]));
    }
    pairs
}

fn bytes(dtype: DType, values: &[f32]) -> Vec<u8> {
    match dtype {
        DType::F16 => values.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
    }
}

/// The keys of an adapter for a model of this architecture.
pub fn keys(architecture: &str, alpha: f32) -> GgufBuilder {
    GgufBuilder::new()
        .metadata("general.type", "adapter")
        .metadata("general.architecture", architecture)
        .metadata("adapter.type", "lora")
        .metadata("adapter.lora.alpha", alpha)
}

/// An adapter's file.
pub fn build(base: &GgufFile, adapter: &Adapter) -> Vec<u8> {
    build_with(base, adapter, &[])
}

/// The same with further keys.
pub fn build_with(base: &GgufFile, adapter: &Adapter, further: &[(&str, Value)]) -> Vec<u8> {
    let architecture = base.metadata().str("general.architecture").unwrap();
    let mut builder = keys(architecture, adapter.alpha);
    for (key, value) in further {
        builder = builder.metadata(key, value.clone());
    }
    let (rank, dtype) = (adapter.rank, adapter.dtype);
    for (name, [row_len, rows], [a, b]) in pairs(base, adapter) {
        let (name_a, name_b) = (format!("{name}.lora_a"), format!("{name}.lora_b"));
        builder = builder.tensor(&name_a, dtype, &[row_len, rank], &bytes(dtype, &a));
        builder = builder.tensor(&name_b, dtype, &[rank, rows], &bytes(dtype, &b));
    }
    builder.build()
}

/// Writes the base as F32 with the updates of adapters, each with its scale, merged in.
pub fn merge(base: &GgufFile, adapters: &[(Adapter, f32)], path: &Path) {
    let mut builder = GgufBuilder::new();
    for (key, value) in base.metadata().iter() {
        builder = builder.metadata(key, value.clone());
    }
    let pairs: Vec<_> = adapters
        .iter()
        .flat_map(|(adapter, scale)| {
            let factor = scale * adapter.alpha / adapter.rank as f32;
            pairs(base, adapter).into_iter().map(move |pair| (pair, factor, adapter.rank as usize))
        })
        .collect();
    for tensor in base.tensors() {
        let mut raw = vec![0; tensor.bytes as usize];
        base.read_tensor(tensor, 0, &mut raw).unwrap();
        let mut values = vec![0.0; (tensor.row_len() * tensor.rows()) as usize];
        dequantize_row(tensor.supported_dtype().unwrap(), &raw, &mut values);
        for ((_, [row_len, _], [a, b]), factor, rank) in
            pairs.iter().filter(|((name, ..), ..)| *name == tensor.name)
        {
            let row_len = *row_len as usize;
            for (row, values) in values.chunks_exact_mut(row_len).enumerate() {
                for (column, value) in values.iter_mut().enumerate() {
                    let of = |at: usize| {
                        f64::from(b[row * rank + at]) * f64::from(a[at * row_len + column])
                    };
                    let sum: f64 = (0..*rank).map(of).sum();
                    *value += (f64::from(*factor) * sum) as f32;
                }
            }
        }
        builder =
            builder.tensor(&tensor.name, DType::F32, &tensor.dims, &bytes(DType::F32, &values));
    }
    std::fs::write(path, builder.build()).unwrap();
}
