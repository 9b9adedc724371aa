//! GPT-2: LayerNorm, a plain feed-forward, biases everywhere, and learned embeddings of positions
//! in place of rotation.

use super::Family;
use crate::model::hyper::{Mlp, NormKind};

pub(super) const GPT2: Family = Family {
    architecture: "gpt2",
    models: "GPT-2",
    features: "LayerNorm, plain GELU, biases, learned positions",
    norm: NormKind::Layer,
    read: |_, hyper| {
        hyper.mlp = Mlp::Gelu;
        hyper.learned_positions = true;
        hyper.context_max = Some(hyper.context_trained);
        hyper.layers.iter_mut().for_each(|layer| layer.rope = None);
        Ok(())
    },
    tensors: &["output_norm.bias"],
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
