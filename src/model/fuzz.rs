//! The entry point for fuzzers: what an adapter's file goes through.

use std::path::Path;
use std::sync::OnceLock;

use super::{AdapterFile, HyperParams, read_hyper_params};
use crate::gguf::{GgufBuilder, GgufFile};
use crate::tensor::DType;

/// A llama of one layer, whose matrices are small and all of other shapes.
fn base() -> &'static (GgufFile, HyperParams) {
    static BASE: OnceLock<(GgufFile, HyperParams)> = OnceLock::new();
    BASE.get_or_init(|| {
        let mut builder = GgufBuilder::new()
            .metadata("general.architecture", "llama")
            .metadata("llama.attention.layer_norm_rms_epsilon", 1e-5_f32);
        for (key, value) in [
            ("context_length", 64_u32),
            ("embedding_length", 32),
            ("feed_forward_length", 96),
            ("block_count", 1),
            ("attention.head_count", 4),
            ("attention.head_count_kv", 2),
            ("attention.key_length", 16),
        ] {
            builder = builder.metadata(&format!("llama.{key}"), value);
        }
        for (part, row_len, rows) in [
            ("attn_q", 32, 64),
            ("attn_k", 32, 32),
            ("attn_v", 32, 32),
            ("attn_output", 64, 32),
            ("ffn_gate", 32, 96),
            ("ffn_up", 32, 96),
            ("ffn_down", 96, 32),
        ] {
            let zeros = vec![0; row_len * rows * 4];
            let dims = [row_len as u64, rows as u64];
            builder = builder.tensor(&format!("blk.0.{part}.weight"), DType::F32, &dims, &zeros);
        }
        let file = GgufFile::from_bytes(Path::new("base.gguf"), builder.build()).expect("ours");
        let hyper = read_hyper_params(&file).expect("a llama");
        (file, hyper)
    })
}

/// Reads `data` as an adapter of a small model: must return, whatever the data.
pub fn fuzz_adapter(data: &[u8]) {
    let (base, hyper) = base();
    if let Ok(file) = GgufFile::from_bytes(Path::new("fuzz.gguf"), data.to_vec()) {
        let _ = AdapterFile::read(&file, base, hyper);
    }
}
