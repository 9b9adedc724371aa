//! OLMoE: llama with norms of q and k over all heads together, and experts whose weights are not
//! normalised.

use super::Family;
use crate::model::ModelLoadError;
use crate::model::experts::Mixture;
use crate::model::hyper::{HyperParams, QkNorm};
use crate::model::keys::Keys;

pub(super) const OLMOE: Family = Family {
    architecture: "olmoe",
    models: "OLMoE",
    features: "norms of q and k over all heads, experts",
    read,
    tensors: &["output.weight"],
    ..Family::LIKE_LLAMA
};

fn read(keys: &Keys<'_>, hyper: &mut HyperParams) -> Result<(), ModelLoadError> {
    hyper.neox = true;
    hyper.qk_norm = QkNorm::Whole;
    let mut mixture = Mixture::require(keys, hyper)?;
    mixture.router.normalise = false;
    hyper.mixture = Some(mixture);
    Ok(())
}
