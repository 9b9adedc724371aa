//! Encoders that make embeddings of texts: BERT, and Nomic's with rotation and a gated feed-forward
//! in place of learned positions and biases.

use super::Family;
use crate::model::ModelLoadError;
use crate::model::hyper::{HyperParams, Mlp, NormKind, Pooling, Residual, read_pooling};
use crate::model::keys::Keys;

pub(super) const BERT: Family = Family {
    architecture: "bert",
    models: "BERT, MiniLM, BGE, E5, GTE, Arctic Embed",
    features: "embeddings alone; LayerNorm behind sums, learned positions",
    norm: NormKind::Layer,
    read: |keys, hyper| {
        read(keys, hyper)?;
        hyper.mlp = Mlp::Gelu;
        hyper.learned_positions = true;
        hyper.context_max = Some(hyper.context_trained);
        hyper.layers.iter_mut().for_each(|layer| layer.rope = None);
        Ok(())
    },
    tensors: &["token_embd_norm.bias"],
    layer_tensors: &[
        "attn_output.bias",
        "attn_output_norm.bias",
        "ffn_up.bias",
        "ffn_down.bias",
        "layer_output_norm.bias",
    ],
    ..Family::LIKE_LLAMA
};

pub(super) const NOMIC_BERT: Family = Family {
    architecture: "nomic-bert",
    models: "Nomic Embed 1 and 1.5",
    features: "embeddings alone; as bert, with RoPE and SwiGLU",
    norm: NormKind::Layer,
    read: |keys, hyper| {
        hyper.neox = true;
        read(keys, hyper)
    },
    ..Family::LIKE_LLAMA
};

fn read(keys: &Keys<'_>, hyper: &mut HyperParams) -> Result<(), ModelLoadError> {
    if keys.opt_bool("attention.causal")? == Some(true) {
        return Err(keys.refuse("attention.causal", "false, as encoders see whole texts", "true"));
    }
    hyper.encoder = true;
    // The mean is what sentence transformers do where nothing is said.
    hyper.pooling = read_pooling(keys, Pooling::Mean)?;
    hyper.residual = Residual::NormedSum;
    hyper.norms_before = false;
    hyper.norms_after = true;
    hyper.norm_after_names = ["attn_output_norm", "layer_output_norm"];
    Ok(())
}
