//! Falcon: LayerNorm, attention and a plain feed-forward side by side, behind one norm (7B) or two
//! (40B and 180B).

use super::Family;
use crate::model::hyper::{Mlp, NormKind, Residual};

pub(super) const FALCON: Family = Family {
    architecture: "falcon",
    models: "Falcon 7B, 40B, 180B",
    features: "LayerNorm, parallel attention and feed-forward, plain GELU",
    norm: NormKind::Layer,
    read: |keys, hyper| {
        hyper.neox = true;
        hyper.mlp = Mlp::Gelu;
        hyper.residual = Residual::ParallelOneNorm;
        if keys.has_tensor("blk.0.attn_norm_2.weight") {
            hyper.residual = Residual::Parallel;
            hyper.norm_names = ["attn_norm_2", "attn_norm"];
        }
        Ok(())
    },
    tensors: &["output_norm.bias"],
    layer_tensors: &["attn_norm.bias", "attn_qkv.weight"],
    ..Family::LIKE_LLAMA
};
