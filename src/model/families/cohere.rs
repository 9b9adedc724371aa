//! Command R and its successors: attention and feed-forward side by side behind one LayerNorm
//! without bias, one matrix for embeddings and head, a factor on the logits.

use super::{Family, Windows};
use crate::model::ModelLoadError;
use crate::model::hyper::{HyperParams, Logits, NormKind, QkNorm, Residual, read_windowed};
use crate::model::keys::Keys;

pub(super) const COMMAND_R: Family = Family {
    architecture: "command-r",
    models: "Command R, Command R+, Aya",
    features: "LayerNorm, parallel attention and feed-forward, factor on logits; R+: norms of q and k",
    norm: NormKind::Layer,
    read: command_r,
    ..Family::LIKE_LLAMA
};

pub(super) const COHERE2: Family = Family {
    architecture: "cohere2",
    models: "Command R7B, Command A",
    features: "as command-r, sliding windows, no rotation in global layers",
    norm: NormKind::Layer,
    rope_factors: true,
    windows: Windows::Own,
    read: cohere2,
    ..Family::LIKE_LLAMA
};

fn common(keys: &Keys<'_>, hyper: &mut HyperParams) -> Result<(), ModelLoadError> {
    hyper.residual = Residual::ParallelOneNorm;
    // 0 stands for a factor that is not applied.
    let key = "logit_scale";
    let Some(scale) = keys.opt_positive(key, true)? else {
        return Err(keys.refuse(key, "a number", "no such key"));
    };
    hyper.logits = Logits::Scaled(if scale == 0.0 { 1.0 } else { scale });
    Ok(())
}

fn command_r(keys: &Keys<'_>, hyper: &mut HyperParams) -> Result<(), ModelLoadError> {
    const LAYERS_OF_PLUS: usize = 64;
    if hyper.layers.len() >= LAYERS_OF_PLUS || keys.has_tensor("blk.0.attn_q_norm.weight") {
        hyper.qk_norm = QkNorm::LayerNormHead;
    }
    common(keys, hyper)
}

/// Three layers with a window before each global one, which does not rotate.
fn cohere2(keys: &Keys<'_>, hyper: &mut HyperParams) -> Result<(), ModelLoadError> {
    let window = keys.count("attention.sliding_window", u32::MAX)?;
    hyper.layers.iter_mut().for_each(|layer| layer.rope = None);
    let windowed = read_windowed(keys, hyper.layers.len(), 4)?;
    hyper.window_layers(&windowed, window, 0);
    common(keys, hyper)
}
