//! GPT-NeoX: LayerNorm, a plain feed-forward beside attention or behind it, biases everywhere, and
//! rotation of a part of each head.

use super::Family;
use crate::model::hyper::{Mlp, NormKind, Residual};

pub(super) const GPTNEOX: Family = Family {
    architecture: "gptneox",
    models: "GPT-NeoX, Pythia, RedPajama-INCITE, Dolly 2",
    features: "LayerNorm, parallel attention and feed-forward, plain GELU, biases, partial RoPE",
    norm: NormKind::Layer,
    read: |keys, hyper| {
        hyper.neox = true;
        hyper.mlp = Mlp::Gelu;
        if keys.bool("use_parallel_residual")? {
            hyper.residual = Residual::Parallel;
        }
        Ok(())
    },
    tensors: &["output_norm.bias", "output.weight"],
    layer_tensors: &[
        "attn_norm.bias",
        "attn_qkv.weight",
        "attn_qkv.bias",
        "attn_output.bias",
        "ffn_norm.bias",
        "ffn_up.bias",
        "ffn_down.bias",
    ],
    ..Family::LIKE_LLAMA
};
