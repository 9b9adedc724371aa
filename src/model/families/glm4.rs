//! GLM 4 (0414): norms before and behind attention and feed-forward, gate and up in one tensor,
//! rotation of a part of each head.

use super::Family;
use crate::model::ModelLoadError;
use crate::model::hyper::HyperParams;
use crate::model::keys::Keys;

pub(super) const GLM4: Family = Family {
    architecture: "glm4",
    models: "GLM 4 9B and 32B (0414)",
    features: "norms before and after, joined gate and up, partial RoPE",
    read,
    ..Family::LIKE_LLAMA
};

fn read(keys: &Keys<'_>, hyper: &mut HyperParams) -> Result<(), ModelLoadError> {
    let key = "rope.dimension_sections";
    if keys.metadata().get(&keys.name(key)).is_some() {
        return Err(keys.refuse(key, "no such key: images are not supported", "sections"));
    }
    hyper.norms_after = true;
    hyper.gate_in_up = true;
    Ok(())
}
