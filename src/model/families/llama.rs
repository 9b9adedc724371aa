//! llama and what shares its graph: RMS norms, SwiGLU, RoPE on (2 i, 2 i + 1).

use super::Family;
use crate::model::ModelLoadError;
use crate::model::experts::Mixture;
use crate::model::hyper::HyperParams;
use crate::model::keys::Keys;
use crate::model::rope::yarn_magnitude;

pub(super) const LLAMA: Family = Family {
    architecture: "llama",
    models: "Llama 1 to 3, Mistral, Mixtral, SmolLM2, TinyLlama",
    features: "RoPE scaling: linear, YaRN, Llama 3's factors, longrope; experts",
    rope_factors: true,
    read,
    ..Family::LIKE_LLAMA
};

pub(super) const MISTRAL3: Family = Family {
    architecture: "mistral3",
    models: "Mistral Small 3.1 and later, Ministral 3 (text)",
    features: "as llama; contexts up to the one before YaRN where attention has a temperature",
    read: mistral3,
    ..LLAMA
};

fn read(keys: &Keys<'_>, hyper: &mut HyperParams) -> Result<(), ModelLoadError> {
    hyper.mixture = Mixture::read(keys, hyper)?;
    Ok(())
}

/// llama, with YaRN's factor of cosines and sines counted once or not at all, and scores that grow
/// with the number of original contexts before a position: not at all within the first.
fn mistral3(keys: &Keys<'_>, hyper: &mut HyperParams) -> Result<(), ModelLoadError> {
    let temperature = keys.opt_positive("attention.temperature_scale", true)?.unwrap_or(0.0);
    let rope = &mut hyper.ropes[0];
    if let Some(yarn) = rope.yarn {
        let log_multiplier = keys.opt_positive("rope.scaling.yarn_log_multiplier", true)?;
        rope.magnitude /= yarn_magnitude(1.0 / rope.scale, log_multiplier.unwrap_or(0.0));
        hyper.context_max = (temperature != 0.0).then_some(yarn.original_context);
    } else if temperature != 0.0 {
        hyper.context_max = Some(hyper.context_trained);
    }
    read(keys, hyper)
}
