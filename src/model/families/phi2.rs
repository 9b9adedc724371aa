//! Phi 1, 1.5 and 2: attention and a plain feed-forward side by side behind one LayerNorm, biases
//! everywhere, and rotation of a part of each head.

use super::Family;
use crate::model::hyper::{Mlp, NormKind, Residual};

pub(super) const PHI2: Family = Family {
    architecture: "phi2",
    models: "Phi 1, Phi 1.5, Phi 2",
    features: "LayerNorm, parallel attention and feed-forward, plain GELU, biases, partial RoPE",
    norm: NormKind::Layer,
    read: |_, hyper| {
        hyper.neox = true;
        hyper.residual = Residual::ParallelOneNorm;
        hyper.mlp = Mlp::Gelu;
        Ok(())
    },
    tensors: &["output_norm.bias", "output.weight", "output.bias"],
    layer_tensors: &[
        "attn_norm.bias",
        "attn_q.bias",
        "attn_k.bias",
        "attn_v.bias",
        "attn_output.bias",
        "ffn_up.bias",
        "ffn_down.bias",
    ],
    ..Family::LIKE_LLAMA
};
