//! Qwen 2 and 3: llama with RoPE on (i, i + rope_dim / 2), and biases on q, k and v (2) or norms of
//! q and k (3); in the mixtures, experts in every layer, beside one that all tokens share (2).

use super::Family;
use crate::model::ModelLoadError;
use crate::model::experts::Mixture;
use crate::model::hyper::{HyperParams, QkNorm};
use crate::model::keys::Keys;

pub(super) const QWEN2: Family = Family {
    architecture: "qwen2",
    models: "Qwen 1.5, Qwen 2, Qwen 2.5",
    features: "biases on q, k and v",
    read: |_, hyper| {
        hyper.neox = true;
        Ok(())
    },
    layer_tensors: &["attn_q.bias", "attn_k.bias", "attn_v.bias"],
    ..Family::LIKE_LLAMA
};

pub(super) const QWEN3: Family = Family {
    architecture: "qwen3",
    models: "Qwen 3",
    features: "norms of q and k",
    read: |_, hyper| {
        hyper.neox = true;
        hyper.qk_norm = QkNorm::Head;
        Ok(())
    },
    ..Family::LIKE_LLAMA
};

pub(super) const QWEN2MOE: Family = Family {
    architecture: "qwen2moe",
    models: "Qwen 1.5 MoE, Qwen 2 MoE",
    features: "as qwen2; experts, a shared expert with a gate",
    read: |keys, hyper| {
        hyper.neox = true;
        let mut mixture = experts(keys, hyper)?;
        mixture.router.normalise = false;
        let shared = keys.opt_width("expert_shared_feed_forward_length")?;
        mixture.shared_hidden = shared.unwrap_or(hyper.feed_forward);
        mixture.shared_gate = true;
        hyper.mixture = Some(mixture);
        Ok(())
    },
    ..QWEN2
};

pub(super) const QWEN3MOE: Family = Family {
    architecture: "qwen3moe",
    models: "Qwen 3 MoE",
    features: "as qwen3; experts",
    read: |keys, hyper| {
        hyper.neox = true;
        hyper.qk_norm = QkNorm::Head;
        hyper.mixture = Some(experts(keys, hyper)?);
        Ok(())
    },
    ..QWEN3
};

/// Experts of a width of their own, or that share the width of a dense layer.
fn experts(keys: &Keys<'_>, hyper: &HyperParams) -> Result<Mixture, ModelLoadError> {
    let mut mixture = Mixture::require(keys, hyper)?;
    let hidden = keys.opt_width("expert_feed_forward_length")?;
    mixture.hidden = hidden.unwrap_or(hyper.feed_forward / u64::from(mixture.router.used));
    Ok(mixture)
}
