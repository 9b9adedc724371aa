//! StableLM: llama with LayerNorm and rotation of a part of each head; the 12B with norms of q and
//! k, and attention and feed-forward side by side.

use super::Family;
use crate::model::hyper::{NormKind, QkNorm, Residual};

pub(super) const STABLELM: Family = Family {
    architecture: "stablelm",
    models: "StableLM 3B, StableLM 2",
    features: "LayerNorm, partial RoPE; 12B: norms of q and k, parallel feed-forward",
    norm: NormKind::Layer,
    read: |keys, hyper| {
        hyper.neox = true;
        if keys.has_tensor("blk.0.attn_q_norm.weight") {
            hyper.qk_norm = QkNorm::LayerNormHead;
        }
        if !keys.has_tensor("blk.0.ffn_norm.weight") {
            hyper.residual = Residual::ParallelOneNorm;
        }
        Ok(())
    },
    tensors: &["output_norm.bias", "output.weight"],
    layer_tensors: &["attn_norm.bias"],
    ..Family::LIKE_LLAMA
};
