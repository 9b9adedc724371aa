//! Gemma: GeGLU, embeddings times the root of the width, one matrix for embeddings and head.

use super::{Family, Windows};
use crate::model::ModelLoadError;
use crate::model::hyper::{HyperParams, Logits, Mlp, QkNorm, read_windowed};
use crate::model::keys::Keys;
use crate::model::rope::RopeSpec;

pub(super) const GEMMA: Family = Family {
    architecture: "gemma",
    models: "Gemma, CodeGemma",
    features: "GeGLU, scaled embeddings",
    read: |_, hyper| {
        common(hyper);
        Ok(())
    },
    ..Family::LIKE_LLAMA
};

pub(super) const GEMMA2: Family = Family {
    architecture: "gemma2",
    models: "Gemma 2",
    features: "as gemma, norms before and after, sliding windows, soft caps of scores and logits",
    windows: Windows::Own,
    read: gemma2,
    ..Family::LIKE_LLAMA
};

pub(super) const GEMMA3: Family = Family {
    architecture: "gemma3",
    models: "Gemma 3 (text)",
    features: "as gemma, norms before and after, norms of q and k, sliding windows, two RoPE bases",
    windows: Windows::Own,
    read: gemma3,
    ..Family::LIKE_LLAMA
};

fn common(hyper: &mut HyperParams) {
    hyper.neox = true;
    hyper.mlp = Mlp::GeGlu;
    hyper.embedding_factor = (hyper.embedding as f32).sqrt();
}

/// The scale of scores: by a head's width, in the largest models by the width it would have by
/// rights, or as the file says.
fn read_scale(
    keys: &Keys<'_>,
    hyper: &mut HyperParams,
    layers_of_largest: usize,
) -> Result<(), ModelLoadError> {
    if hyper.layers.len() == layers_of_largest {
        hyper.attention_scale = 1.0 / (hyper.embedding as f32 / hyper.heads as f32).sqrt();
    }
    let own = keys.opt_positive("attention.scale", true)?.filter(|scale| *scale != 0.0);
    hyper.attention_scale = own.unwrap_or(hyper.attention_scale);
    Ok(())
}

/// A soft cap; nothing where the file has 0.
fn read_cap(keys: &Keys<'_>, key: &str, usual: f32) -> Result<Option<f32>, ModelLoadError> {
    let cap = keys.opt_positive(key, true)?.unwrap_or(usual);
    Ok(Some(cap).filter(|cap| *cap > 0.0))
}

/// Norms of both results, soft caps of scores and logits, and a window in every other layer.
fn gemma2(keys: &Keys<'_>, hyper: &mut HyperParams) -> Result<(), ModelLoadError> {
    const LAYERS_OF_27B: usize = 46;
    common(hyper);
    hyper.norms_after = true;
    read_scale(keys, hyper, LAYERS_OF_27B)?;
    hyper.attention_soft_cap = read_cap(keys, "attn_logit_softcapping", 50.0)?.unwrap_or(0.0);
    if let Some(cap) = read_cap(keys, "final_logit_softcapping", 30.0)? {
        hyper.logits = Logits::SoftCapped(cap);
    }
    let base = keys.opt_positive("rope.freq_base_swa", false)?;
    let local = RopeSpec { base: base.unwrap_or(hyper.ropes[0].base), ..hyper.ropes[0] };
    hyper.ropes.push(local);
    let window = keys.opt_count("attention.sliding_window", u32::MAX)?.unwrap_or(4096);
    let windowed = read_windowed(keys, hyper.layers.len(), 2)?;
    hyper.window_layers(&windowed, window, 1);
    Ok(())
}

/// Norms of q and k and of both results, and five layers with a sliding window and a RoPE base of
/// their own before each global one.
fn gemma3(keys: &Keys<'_>, hyper: &mut HyperParams) -> Result<(), ModelLoadError> {
    const LAYERS_OF_27B: usize = 62;
    common(hyper);
    hyper.qk_norm = QkNorm::Head;
    hyper.norms_after = true;
    read_scale(keys, hyper, LAYERS_OF_27B)?;
    if let Some(cap) = read_cap(keys, "final_logit_softcapping", 0.0)? {
        hyper.logits = Logits::SoftCapped(cap);
    }
    let Some(window) = keys.opt_window()? else { return Ok(()) };
    let local = keys.opt_positive("rope.freq_base_swa", false)?.unwrap_or(10_000.0);
    hyper.ropes.push(RopeSpec::plain(local));
    let windowed = read_windowed(keys, hyper.layers.len(), 6)?;
    hyper.window_layers(&windowed, window, 1);
    Ok(())
}
