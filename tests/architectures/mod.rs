//! Tiny models of every architecture with random weights, made by the test itself, and what
//! llama.cpp computes of them (`tests/data/architectures/`).
#![allow(dead_code, unreachable_pub, unused_imports, clippy::unwrap_used)] // each test uses a part

mod models;

use std::path::{Path, PathBuf};

use hob::gguf::{GgufBuilder, StrArray, Value};
use hob::tensor::DType;
use serde::Deserialize;

use crate::common::{Driven, argmax, log_softmax};
use crate::random::Random;

pub use models::MODELS;

pub const VOCAB: u64 = 288;
/// Ids of tokens with a meaning, which no prompt has.
const SPECIALS: u64 = 3;
/// Of all contexts but those that a model is about.
pub const CONTEXT: usize = 256;
const WIDTH: u64 = 64;
const HIDDEN: u64 = 96;
const HEADS: u64 = 4;
const HEAD_DIM: u64 = 16;

/// What a tiny model is made of; tensors by their names in the file, those of a layer without
/// `blk.N.` in front.
#[derive(Clone, Copy)]
pub struct Tiny {
    pub name: &'static str,
    pub architecture: &'static str,
    pub context: usize,
    pub layers: u32,
    pub kv_heads: u64,
    pub ends: &'static str,
    pub parts: &'static str,
    /// The last part of the key of epsilon.
    pub epsilon: &'static str,
    pub metadata: fn(&mut Maker),
}

impl Tiny {
    /// llama, which the others differ from.
    pub const LLAMA: Self = Self {
        name: "llama",
        architecture: "llama",
        context: CONTEXT,
        layers: 2,
        kv_heads: 2,
        ends: "output_norm.weight output.weight",
        parts: "attn_norm.weight attn_q.weight attn_k.weight attn_v.weight attn_output.weight \
                ffn_norm.weight ffn_gate.weight ffn_up.weight ffn_down.weight",
        epsilon: "layer_norm_rms_epsilon",
        metadata: |_| {},
    };

    /// The file's bytes.
    pub fn build(&self) -> Vec<u8> {
        let seed =
            self.name.bytes().fold(1, |seed, byte| (31 * seed + u64::from(byte)) % 1_000_003);
        let (gguf, random) = (GgufBuilder::new(), Random::new(seed));
        let architecture = self.architecture;
        let mut maker = Maker { gguf, random, architecture, kv_heads: self.kv_heads, up: HIDDEN };
        maker.set("general.architecture", architecture);
        for (key, value) in [
            ("context_length", 256),
            ("embedding_length", WIDTH as u32),
            ("feed_forward_length", HIDDEN as u32),
            ("block_count", self.layers),
            ("attention.head_count", HEADS as u32),
            ("attention.head_count_kv", self.kv_heads as u32),
        ] {
            maker.key(key, value);
        }
        maker.key(&format!("attention.{}", self.epsilon), 1e-5_f32);
        maker.vocabulary();
        (self.metadata)(&mut maker);
        maker.tensor("token_embd.weight", "");
        for name in self.ends.split_whitespace() {
            maker.tensor(name, "");
        }
        for layer in 0..self.layers {
            for part in self.parts.split_whitespace() {
                maker.tensor(part, &format!("blk.{layer}."));
            }
        }
        maker.gguf.build()
    }

    pub fn write(&self, folder: &Path) -> PathBuf {
        let path = folder.join(format!("{}.gguf", self.name));
        std::fs::write(&path, self.build()).expect("a temporary folder takes a file");
        path
    }

    /// Seeded token ids, past those with a meaning.
    pub fn prompt(&self) -> Vec<u32> {
        let mut random = Random::new(u64::from(self.layers) + 77);
        let ids = (VOCAB - SPECIALS) as u32;
        (0..PROMPT_TOKENS).map(|_| SPECIALS as u32 + random.below(ids)).collect()
    }
}

/// Some pages of the cache, several windows, and more than one step.
const PROMPT_TOKENS: usize = 75;

/// A file in the making.
pub struct Maker {
    gguf: GgufBuilder,
    random: Random,
    architecture: &'static str,
    kv_heads: u64,
    /// Rows of `ffn_up`.
    up: u64,
}

impl Maker {
    fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.gguf = std::mem::take(&mut self.gguf).metadata(key, value);
    }

    /// A key of the architecture.
    pub fn key(&mut self, key: &str, value: impl Into<Value>) {
        self.set(&format!("{}.{key}", self.architecture), value);
    }

    /// Has `ffn_up` hold the gate too.
    pub fn join_gate_and_up(&mut self) {
        self.up = 2 * HIDDEN;
    }

    fn vocabulary(&mut self) {
        // llama.cpp looks up tokens of bytes.
        let names = ["<unk>", "<s>", "</s>"].map(String::from).into_iter();
        let bytes = (0..=255).map(|byte| format!("<0x{byte:02X}>"));
        let others = (SPECIALS + 256..VOCAB).map(|token| format!("t{token}"));
        let tokens: StrArray = names.chain(bytes).chain(others).collect();
        let mut kinds = vec![1; VOCAB as usize];
        kinds[..3].copy_from_slice(&[2, 3, 3]);
        kinds[3..][..256].fill(6);
        self.set("tokenizer.ggml.model", "llama");
        self.set("tokenizer.ggml.tokens", tokens);
        self.set("tokenizer.ggml.scores", vec![0.0_f32; VOCAB as usize]);
        self.set("tokenizer.ggml.token_type", kinds);
        self.set("tokenizer.ggml.add_bos_token", false);
    }

    fn dims(&self, name: &str) -> Vec<u64> {
        let (q, kv) = (HEADS * HEAD_DIM, self.kv_heads * HEAD_DIM);
        let (stem, kind) = name.rsplit_once('.').unwrap();
        let (row_len, rows) = match stem {
            "token_embd" | "output" => (WIDTH, VOCAB),
            "position_embd" => (WIDTH, 256),
            "attn_q" => (WIDTH, q),
            "attn_k" | "attn_v" => (WIDTH, kv),
            "attn_qkv" => (WIDTH, q + 2 * kv),
            "attn_output" => (q, WIDTH),
            "ffn_gate" => (WIDTH, HIDDEN),
            "ffn_up" => (WIDTH, self.up),
            "ffn_down" => (HIDDEN, WIDTH),
            "rope_freqs" | "rope_factors_long" | "rope_factors_short" => return vec![HEAD_DIM / 2],
            "attn_q_norm" => return self.norm_dims(HEADS),
            "attn_k_norm" => return self.norm_dims(self.kv_heads),
            _ => return vec![WIDTH],
        };
        if kind == "bias" { vec![rows] } else { vec![row_len, rows] }
    }

    /// Of a norm of q or k: a gain for all heads, for each, or over the whole row.
    fn norm_dims(&self, heads: u64) -> Vec<u64> {
        match self.architecture {
            "olmo2" => vec![HEAD_DIM * heads],
            "stablelm" | "command-r" => vec![HEAD_DIM, heads],
            _ => vec![HEAD_DIM],
        }
    }

    /// A tensor with values of the size that its place asks for.
    fn tensor(&mut self, name: &str, front: &str) {
        let dims = self.dims(name);
        let count = dims.iter().product::<u64>() as usize;
        let (low, high) = match name {
            "rope_factors_long.weight" => (1.0, 8.0),
            _ if name.starts_with("rope_") => (0.5, 4.0),
            _ if name.ends_with(".bias") => (-0.5, 0.5),
            _ if dims.len() == 1 || name.ends_with("_norm.weight") => (0.5, 1.5),
            // Their variance keeps the size of what they are multiplied with; logits spread wider.
            _ => {
                let bound = (3.0 / dims[0] as f32).sqrt();
                let bound = if name == "output.weight" { 2.5 * bound } else { bound };
                let bound = if name.ends_with("embd.weight") { 1.0 } else { bound };
                (-bound, bound)
            }
        };
        let values = self.random.floats(count, low, high);
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let name = format!("{front}{name}");
        self.gguf = std::mem::take(&mut self.gguf).tensor(&name, DType::F32, &dims, &bytes);
    }
}

/// What llama.cpp makes of a prompt.
#[derive(Debug, Deserialize)]
pub struct Golden {
    pub tokens: Vec<u32>,
    pub steps: Vec<Step>,
}

/// The ten most likely tokens behind the prompt's token `at`, with their natural-log probabilities.
#[derive(Debug, Deserialize)]
pub struct Step {
    pub at: usize,
    pub top: Vec<(u32, f32)>,
}

pub fn golden(name: &str) -> Golden {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/architectures");
    let path = Path::new(folder).join(format!("{name}.json"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| {
        panic!("{}: {error}; README.md beside it says how to make it", path.display())
    });
    serde_json::from_str(&text).expect("a golden file is a prompt and steps")
}

/// Holds a model against its golden file; gives the worst difference of a log probability, or where
/// one is too large.
pub fn check(model: &mut Driven, tiny: &Tiny, tolerance: f32) -> Result<f32, String> {
    let golden = golden(tiny.name);
    assert_eq!(golden.tokens, tiny.prompt(), "{}: the golden file is of this prompt", tiny.name);
    let lease = model.lease(golden.tokens.len());
    let first = golden.steps[0].at;
    let wanted = golden.tokens.len() - first;
    let rows = model.evaluate(&lease, 0, &golden.tokens, wanted, 64);
    model.release(lease);
    let mut worst = 0.0_f32;
    for step in &golden.steps {
        let row = &rows[step.at - first];
        let ours = log_softmax(row);
        for (id, wanted) in &step.top {
            worst = worst.max((ours[*id as usize] - wanted).abs());
        }
        let clear = step.top[0].1 - step.top[1].1 > 0.05;
        if worst > tolerance || clear && argmax(row) != step.top[0].0 {
            return Err(format!("{} behind token {}: off by {worst}", tiny.name, step.at));
        }
    }
    Ok(worst)
}
