//! llama and what shares its graph: RMS norms, SwiGLU, RoPE on (2 i, 2 i + 1).

use super::Family;
use crate::model::ModelLoadError;
use crate::model::experts::Mixture;
use crate::model::hyper::HyperParams;
use crate::model::keys::Keys;

pub(super) const LLAMA: Family = Family {
    architecture: "llama",
    models: "Llama 1 to 3, Mistral, Mixtral, SmolLM2, TinyLlama",
    features: "RoPE scaling: linear, YaRN, Llama 3's factors, longrope; experts",
    rope_factors: true,
    read,
    ..Family::LIKE_LLAMA
};

fn read(keys: &Keys<'_>, hyper: &mut HyperParams) -> Result<(), ModelLoadError> {
    hyper.mixture = Mixture::read(keys, hyper)?;
    Ok(())
}
