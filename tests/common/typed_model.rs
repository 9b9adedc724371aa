//! Small llama models with random blocks of any tensor types, as `tests/data/types/make.py` makes
//! them too: both draw from SplitMix64 in one order.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // each test uses a part

use std::path::{Path, PathBuf};

use hob::gguf::{GgufBuilder, StrArray, Value};
use hob::tensor::DType;

use crate::blocks::random_rows;
use crate::random::Random;

const WIDTH: u64 = 256;
const VOCAB: u64 = 96;

const VECTORS: [&str; 3] = ["blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"];

/// Names and rows.
const MATRICES: [(&str, u64); 9] = [
    ("token_embd", VOCAB),
    ("blk.0.attn_q", 256),
    ("blk.0.attn_k", 128),
    ("blk.0.attn_v", 128),
    ("blk.0.attn_output", 256),
    ("blk.0.ffn_gate", 256),
    ("blk.0.ffn_up", 256),
    ("blk.0.ffn_down", 256),
    ("output", VOCAB),
];

/// The types that no file of the shared models has.
const NEW: &[DType] = DType::ALL.as_slice().split_at(11).1;

/// Writes the model that number `index` of the golden file, `name`, is about.
pub fn write(folder: &Path, index: usize, name: &str) -> PathBuf {
    let types = match name {
        "mixed-0" => NEW.to_vec(),
        "mixed-1" => [&NEW[9..], &NEW[..9]].concat(),
        name => vec![DType::from_name(name).unwrap()],
    };
    let path = folder.join(format!("{name}.gguf"));
    std::fs::write(&path, build(100 + index as u64, &types).build()).unwrap();
    path
}

/// A model whose matrices have `types` in turn.
pub fn build(seed: u64, types: &[DType]) -> GgufBuilder {
    let mut random = Random::new(seed);
    let mut gguf = metadata();
    for name in VECTORS {
        let values = random.floats(WIDTH as usize, 0.05, 0.15);
        let bytes = bytemuck::cast_slice(&values);
        gguf = gguf.tensor(&format!("{name}.weight"), DType::F32, &[WIDTH], bytes);
    }
    for ((name, rows), dtype) in MATRICES.into_iter().zip(types.iter().cycle()) {
        let bytes = random_rows(&mut random, *dtype, rows, WIDTH);
        gguf = gguf.tensor(&format!("{name}.weight"), *dtype, &[WIDTH, rows], &bytes);
    }
    gguf
}

fn metadata() -> GgufBuilder {
    let tokens: StrArray = (0..VOCAB).map(|token| format!("t{token}")).collect();
    let mut gguf = GgufBuilder::new()
        .metadata("general.architecture", "llama")
        .metadata("llama.attention.layer_norm_rms_epsilon", 1e-5_f32)
        .metadata("tokenizer.ggml.model", "llama")
        .metadata("tokenizer.ggml.tokens", tokens)
        .metadata("tokenizer.ggml.scores", vec![0.0_f32; VOCAB as usize]);
    for (key, value) in [
        ("context_length", 128),
        ("embedding_length", WIDTH as u32),
        ("feed_forward_length", 256),
        ("block_count", 1),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
    ] {
        gguf = gguf.metadata(&format!("llama.{key}"), Value::U32(value));
    }
    gguf
}
