//! SmolLM3: llama that does not rotate in every fourth layer.

use super::Family;

/// Fixed by the architecture: files have no key for it.
const LAYERS_TO_UNROTATED: usize = 4;

pub(super) const SMOLLM3: Family = Family {
    architecture: "smollm3",
    models: "SmolLM3",
    features: "no rotation in every fourth layer",
    read: |_, hyper| {
        let unrotated = hyper.layers.iter_mut().skip(LAYERS_TO_UNROTATED - 1);
        unrotated.step_by(LAYERS_TO_UNROTATED).for_each(|layer| layer.rope = None);
        Ok(())
    },
    ..Family::LIKE_LLAMA
};
