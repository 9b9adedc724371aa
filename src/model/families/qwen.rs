//! Qwen 2 and 3: llama with RoPE on (i, i + rope_dim / 2), and biases on q, k and v (2) or norms of
//! q and k (3).

use super::Family;
use crate::model::hyper::QkNorm;

pub(super) const QWEN2: Family = Family {
    architecture: "qwen2",
    models: "Qwen 1.5, Qwen 2, Qwen 2.5",
    features: "biases on q, k and v",
    read: |_, hyper| {
        hyper.neox = true;
        Ok(())
    },
    layer_tensors: &["attn_q.bias", "attn_k.bias", "attn_v.bias"],
    ..Family::LIKE_LLAMA
};

pub(super) const QWEN3: Family = Family {
    architecture: "qwen3",
    models: "Qwen 3",
    features: "norms of q and k",
    read: |_, hyper| {
        hyper.neox = true;
        hyper.qk_norm = QkNorm::Head;
        Ok(())
    },
    ..Family::LIKE_LLAMA
};
