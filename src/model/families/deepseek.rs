//! DeepSeek's first models: llama, with experts in the layers behind some dense ones, beside an
//! expert that all tokens share.

use super::Family;
use crate::model::ModelLoadError;
use crate::model::experts::{EXPERTS_MAX, Mixture};
use crate::model::hyper::HyperParams;
use crate::model::keys::Keys;

pub(super) const DEEPSEEK: Family = Family {
    architecture: "deepseek",
    models: "DeepSeek (dense), DeepSeek MoE",
    features: "as llama; experts, shared experts",
    rope_factors: true,
    read,
    tensors: &["output.weight"],
    ..Family::LIKE_LLAMA
};

fn read(keys: &Keys<'_>, hyper: &mut HyperParams) -> Result<(), ModelLoadError> {
    let key = "leading_dense_block_count";
    let dense = keys.metadata().opt_u32(&keys.name(key))?.unwrap_or(0) as usize;
    if dense >= hyper.layers.len() {
        // No layer has experts.
        keys.pass_over(&[
            "expert_count",
            "expert_used_count",
            "expert_shared_count",
            "expert_weights_norm",
            "expert_weights_scale",
        ]);
        return Ok(());
    }
    let mut mixture = Mixture::require(keys, hyper)?;
    mixture.dense_layers = dense;
    mixture.hidden = keys.width("expert_feed_forward_length")?;
    let key = "expert_shared_count";
    let shared = match keys.metadata().opt_u32(&keys.name(key))? {
        None | Some(0) => 0,
        Some(_) => keys.count(key, EXPERTS_MAX)?,
    };
    mixture.shared_hidden = u64::from(shared) * mixture.hidden;
    mixture.router.scale = keys.opt_positive("expert_weights_scale", true)?.unwrap_or(1.0);
    if mixture.router.scale == 0.0 {
        mixture.router.scale = 1.0; // stands for none
    }
    mixture.router.normalise = keys.opt_bool("expert_weights_norm")?.unwrap_or(false);
    hyper.mixture = Some(mixture);
    Ok(())
}
