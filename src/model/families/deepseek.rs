//! DeepSeek's first models: llama, whose layers are dense up to a number of them.

use super::Family;
use crate::model::ModelLoadError;
use crate::model::hyper::HyperParams;
use crate::model::keys::Keys;

pub(super) const DEEPSEEK: Family = Family {
    architecture: "deepseek",
    models: "DeepSeek (dense)",
    features: "as llama",
    rope_factors: true,
    read,
    tensors: &["output.weight"],
    ..Family::LIKE_LLAMA
};

fn read(keys: &Keys<'_>, hyper: &mut HyperParams) -> Result<(), ModelLoadError> {
    let key = "leading_dense_block_count";
    let dense = keys.metadata().opt_u32(&keys.name(key))?.unwrap_or(0);
    if (dense as usize) < hyper.layers.len() {
        let wanted = format!(
            "all {} layers: mixtures of experts are not supported here",
            hyper.layers.len()
        );
        return Err(keys.refuse(key, &wanted, dense));
    }
    hyper.read_attention_scale(keys)
}
