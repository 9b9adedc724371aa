//! Phi 3 and 4: llama with q, k and v in one tensor and gate and up in another, and rotation
//! factors that depend on the context.

use super::{Family, Windows};
use crate::model::ModelLoadError;
use crate::model::hyper::HyperParams;
use crate::model::keys::Keys;
use crate::model::rope::RopeFactors;

pub(super) const PHI3: Family = Family {
    architecture: "phi3",
    models: "Phi 3, Phi 3.5, Phi 4",
    features: "joined q, k and v, joined gate and up, longrope; no sliding window",
    rope_factors: true,
    windows: Windows::Listed,
    read,
    ..Family::LIKE_LLAMA
};

/// `attention.sliding_window` is applied where the file lists the layers that have it, as hob makes
/// it of a folder. Otherwise it is not: files carry it with values that their models were not
/// trained with, and llama.cpp, which they are made for, ignores it too.
fn read(keys: &Keys<'_>, hyper: &mut HyperParams) -> Result<(), ModelLoadError> {
    hyper.neox = true;
    hyper.gate_in_up = true;
    let key = "rope.scaling.original_context_length";
    let original = keys.opt_count(key, u32::MAX)?.unwrap_or(hyper.context_trained);
    hyper.ropes[0].factors = RopeFactors::ByContext(original);
    Ok(())
}
