//! Tiny models with random weights, made by the test itself.
#![allow(dead_code, unreachable_pub)] // each test uses a part

use std::path::PathBuf;

use half::f16;
use hob::gguf::{GgufBuilder, StrArray};
use hob::tensor::DType;

use crate::random::Random;

pub const VOCAB: u32 = 96;
const WIDTH: u64 = 64;
const HIDDEN: u64 = 192;
const HEADS: u64 = 6;
const KV_HEADS: u64 = 2;
const HEAD_DIM: u64 = 32; // a whole block of bytes
const LAYERS: u32 = 4;
/// Of the windowed model: less than a page, and no multiple of any number of lanes.
const WINDOW: u32 = 11;

struct Builder {
    gguf: GgufBuilder,
    random: Random,
    matrix_type: DType,
}

impl Builder {
    fn vector(&mut self, name: &str, len: u64) {
        let values = self.random.floats(len as usize, 0.5, 1.5);
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.tensor(name, DType::F32, &[len], &bytes);
    }

    /// Weights of a variance that keeps the size of what they are multiplied with.
    fn matrix(&mut self, name: &str, row_len: u64, rows: u64) {
        let bound = (3.0 / row_len as f32).sqrt();
        let bytes: Vec<u8> = match self.matrix_type {
            DType::F16 => {
                let values = self.random.floats((row_len * rows) as usize, -bound, bound);
                values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect()
            }
            DType::Q8_0 => (0..row_len * rows / 32)
                .flat_map(|_| {
                    let mut block = f16::from_f32(bound / 127.0).to_le_bytes().to_vec();
                    block.extend((0..32).map(|_| self.random.next() as u8));
                    block
                })
                .collect(),
            other => panic!("no tiny models of {other}"),
        };
        self.tensor(name, self.matrix_type, &[row_len, rows], &bytes);
    }

    fn tensor(&mut self, name: &str, dtype: DType, dims: &[u64], bytes: &[u8]) {
        self.gguf = std::mem::take(&mut self.gguf).tensor(name, dtype, dims, bytes);
    }

    fn meta(&mut self, key: &str, value: impl Into<hob::gguf::Value>) {
        self.gguf = std::mem::take(&mut self.gguf).metadata(key, value);
    }
}

/// A model of the family, with matrices of a type.
fn build(architecture: &str, matrix_type: DType, seed: u64) -> Vec<u8> {
    let windowed = architecture == "gemma3";
    let mut builder = Builder { gguf: GgufBuilder::new(), random: Random::new(seed), matrix_type };
    builder.meta("general.architecture", architecture);
    let lengths = [
        ("context_length", 256),
        ("embedding_length", WIDTH as u32),
        ("feed_forward_length", HIDDEN as u32),
        ("block_count", LAYERS),
        ("attention.head_count", HEADS as u32),
        ("attention.head_count_kv", KV_HEADS as u32),
        ("attention.key_length", HEAD_DIM as u32),
    ];
    for (key, value) in lengths {
        builder.meta(&format!("{architecture}.{key}"), value);
    }
    builder.meta(&format!("{architecture}.attention.layer_norm_rms_epsilon"), 1e-5_f32);
    if windowed {
        builder.meta("gemma3.attention.sliding_window", WINDOW);
        builder.meta("gemma3.attention.sliding_window_pattern", 2_u32);
    }
    let tokens: StrArray = (0..VOCAB).map(|token| format!("t{token}")).collect();
    builder.meta("tokenizer.ggml.model", "llama");
    builder.meta("tokenizer.ggml.tokens", tokens);
    builder.meta("tokenizer.ggml.scores", vec![0.0_f32; VOCAB as usize]);
    builder.matrix("token_embd.weight", WIDTH, VOCAB.into());
    builder.vector("output_norm.weight", WIDTH);
    for layer in 0..LAYERS {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        builder.vector(&name("attn_norm"), WIDTH);
        builder.vector(&name("ffn_norm"), WIDTH);
        builder.matrix(&name("attn_q"), WIDTH, HEADS * HEAD_DIM);
        builder.matrix(&name("attn_k"), WIDTH, KV_HEADS * HEAD_DIM);
        builder.matrix(&name("attn_v"), WIDTH, KV_HEADS * HEAD_DIM);
        builder.matrix(&name("attn_output"), HEADS * HEAD_DIM, WIDTH);
        builder.matrix(&name("ffn_gate"), WIDTH, HIDDEN);
        builder.matrix(&name("ffn_up"), WIDTH, HIDDEN);
        builder.matrix(&name("ffn_down"), HIDDEN, WIDTH);
        if windowed {
            builder.vector(&name("attn_q_norm"), HEAD_DIM);
            builder.vector(&name("attn_k_norm"), HEAD_DIM);
            builder.vector(&name("post_attention_norm"), WIDTH);
            builder.vector(&name("post_ffw_norm"), WIDTH);
        }
    }
    builder.gguf.build()
}

/// How many models there are.
pub const COUNT: usize = 2;

/// Writes the models to `folder`: one plain, one with windows and norms in every place.
pub fn write(folder: &std::path::Path) -> [PathBuf; COUNT] {
    [("llama", DType::F16), ("gemma3", DType::Q8_0)].map(|(architecture, dtype)| {
        let path = folder.join(format!("{architecture}.gguf"));
        std::fs::write(&path, build(architecture, dtype, 7))
            .expect("a temporary folder takes a file");
        path
    })
}

/// The plain model with other weights: a file of the same size, which differs in its tensors alone.
pub fn other() -> Vec<u8> {
    build("llama", DType::F16, 8)
}
