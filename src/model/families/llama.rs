//! llama and what shares its graph: RMS norms, SwiGLU, RoPE on (2 i, 2 i + 1).

use super::Family;
use crate::model::ModelLoadError;
use crate::model::hyper::HyperParams;
use crate::model::keys::Keys;

pub(super) const LLAMA: Family = Family {
    architecture: "llama",
    models: "Llama 1 to 3, Mistral, SmolLM2, TinyLlama",
    features: "RoPE scaling: linear, YaRN, Llama 3's factors, longrope",
    rope_factors: true,
    read,
    ..Family::LIKE_LLAMA
};

fn read(keys: &Keys<'_>, hyper: &mut HyperParams) -> Result<(), ModelLoadError> {
    for key in ["expert_count", "expert_used_count"] {
        match keys.metadata().opt_u32(&keys.name(key))? {
            None | Some(0) => {}
            Some(found) => {
                return Err(keys.refuse(key, "0: mixtures of experts are not supported", found));
            }
        }
    }
    hyper.read_attention_scale(keys)
}
