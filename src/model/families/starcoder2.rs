//! StarCoder 2: LayerNorm, a plain feed-forward, biases everywhere.

use super::Family;
use crate::model::hyper::{Mlp, NormKind};

pub(super) const STARCODER2: Family = Family {
    architecture: "starcoder2",
    models: "StarCoder 2",
    features: "LayerNorm, plain GELU, biases",
    norm: NormKind::Layer,
    read: |_, hyper| {
        hyper.neox = true;
        hyper.mlp = Mlp::Gelu;
        Ok(())
    },
    tensors: &["output_norm.bias"],
    layer_tensors: &[
        "attn_norm.bias",
        "attn_output.bias",
        "ffn_norm.bias",
        "ffn_up.bias",
        "ffn_down.bias",
    ],
    ..Family::LIKE_LLAMA
};
