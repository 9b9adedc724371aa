//! Granite, and MiniCPM before it: llama with factors on embeddings, attention, residuals and
//! logits (muP).

use super::Family;
use crate::model::ModelLoadError;
use crate::model::experts::Mixture;
use crate::model::hyper::{HyperParams, Logits};
use crate::model::keys::Keys;

pub(super) const GRANITE: Family = Family {
    architecture: "granite",
    models: "Granite 3",
    features: "factors on embeddings, attention, residuals and logits",
    rope_factors: true,
    read: granite,
    ..Family::LIKE_LLAMA
};

pub(super) const GRANITEMOE: Family = Family {
    architecture: "granitemoe",
    models: "Granite 3 MoE",
    features: "as granite; experts, a shared expert",
    read: granitemoe,
    ..GRANITE
};

pub(super) const MINICPM: Family = Family {
    architecture: "minicpm",
    models: "MiniCPM 1 and 2",
    features: "factors on embeddings, residuals and logits",
    rope_factors: true,
    read: minicpm,
    ..Family::LIKE_LLAMA
};

/// Files name the divisor of the logits, and leave out factors of 1.
fn granite(keys: &Keys<'_>, hyper: &mut HyperParams) -> Result<(), ModelLoadError> {
    hyper.logits = Logits::Scaled(1.0 / keys.positive("logit_scale")?);
    hyper.residual_factor = factor(keys, "residual_scale", 1.0)?;
    hyper.embedding_factor = factor(keys, "embedding_scale", 1.0)?;
    if keys.opt_bool("rope.scaling.finetuned")? == Some(false) {
        hyper.layers.iter_mut().for_each(|layer| layer.rope = None);
    }
    // 0 stands for the usual scale, as it does for a factor of 1.
    let scale = keys.opt_positive("attention.scale", true)?.filter(|scale| *scale != 0.0);
    hyper.attention_scale = scale.unwrap_or(hyper.attention_scale);
    Ok(())
}

fn granitemoe(keys: &Keys<'_>, hyper: &mut HyperParams) -> Result<(), ModelLoadError> {
    granite(keys, hyper)?;
    let mut mixture = Mixture::require(keys, hyper)?;
    mixture.shared_hidden = keys.opt_width("expert_shared_feed_forward_length")?.unwrap_or(0);
    hyper.mixture = Some(mixture);
    Ok(())
}

/// Files from before the keys were written mean the factors of the first models.
fn minicpm(keys: &Keys<'_>, hyper: &mut HyperParams) -> Result<(), ModelLoadError> {
    let layers = hyper.layers.len() as f32;
    let divisor = factor(keys, "logit_scale", 256.0 / hyper.embedding as f32)?;
    hyper.logits = Logits::Scaled(1.0 / divisor);
    hyper.residual_factor = factor(keys, "residual_scale", 1.4 / layers.sqrt())?;
    hyper.embedding_factor = factor(keys, "embedding_scale", 12.0)?;
    Ok(())
}

/// A key's factor; 0 stands for one that is not applied.
fn factor(keys: &Keys<'_>, key: &str, usual: f32) -> Result<f32, ModelLoadError> {
    let found = keys.opt_positive(key, true)?.unwrap_or(usual);
    Ok(if found == 0.0 { 1.0 } else { found })
}
