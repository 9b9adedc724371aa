//! The architectures: how each differs from the common reading of a file.

use super::ModelLoadError;
use super::hyper::{Activation, HyperParams, Keys, RopeSpec};
use crate::gguf::GgufFile;

type Family = fn(&Keys<'_>, &mut HyperParams) -> Result<(), ModelLoadError>;

const FAMILIES: [(&str, Family); 4] =
    [("llama", llama), ("gemma3", gemma3), ("qwen2", qwen), ("qwen3", qwen)];

/// Names of the supported architectures.
pub const SUPPORTED: [&str; FAMILIES.len()] = {
    let mut names = [""; FAMILIES.len()];
    let mut i = 0;
    while i < names.len() {
        names[i] = FAMILIES[i].0;
        i += 1;
    }
    names
};

/// Reads and checks the network's shape, without touching a tensor.
///
/// # Errors
/// [`ModelLoadError`] for an unknown architecture or a value that makes no sense.
pub fn read_hyper_params(file: &GgufFile) -> Result<HyperParams, ModelLoadError> {
    let name = file.metadata().str("general.architecture")?;
    let Some((_, family)) = FAMILIES.iter().find(|(known, _)| *known == name) else {
        return Err(ModelLoadError::Architecture {
            path: file.path().to_owned(),
            found: name.to_owned(),
            supported: SUPPORTED.join(", "),
        });
    };
    let keys = Keys::new(file, name);
    let mut hyper = HyperParams::read(&keys)?;
    family(&keys, &mut hyper)?;
    Ok(hyper)
}

/// Tensors of a layer that others do without but this architecture does not: without them the file
/// would load and answer nonsense.
pub(super) fn layer_parts_required(architecture: &str) -> &'static [&'static str] {
    match architecture {
        "gemma3" => &[
            "attn_q_norm.weight",
            "attn_k_norm.weight",
            "post_attention_norm.weight",
            "post_ffw_norm.weight",
        ],
        "qwen2" => &["attn_q.bias", "attn_k.bias", "attn_v.bias"],
        "qwen3" => &["attn_q_norm.weight", "attn_k_norm.weight"],
        _ => &[],
    }
}

/// llama and what shares its graph (Mistral, SmolLM2): RMS norms, SwiGLU, RoPE on (2 i, 2 i + 1).
fn llama(keys: &Keys<'_>, _hyper: &mut HyperParams) -> Result<(), ModelLoadError> {
    for key in ["expert_count", "expert_used_count"] {
        match keys.metadata().opt_u32(&keys.name(key))? {
            None | Some(0) => {}
            Some(found) => {
                return Err(keys.refuse(key, "0: mixtures of experts are not supported", found));
            }
        }
    }
    Ok(())
}

/// Gemma 3: GELU, embeddings times sqrt(width), q and k norms, norms behind attention and
/// feed-forward, and five layers with a sliding window and a RoPE base of their own before each
/// global one.
fn gemma3(keys: &Keys<'_>, hyper: &mut HyperParams) -> Result<(), ModelLoadError> {
    const LAYERS_OF_27B: usize = 62;
    hyper.neox = true;
    hyper.activation = Activation::Gelu;
    hyper.embedding_factor = (hyper.embedding as f32).sqrt();
    if hyper.layers.len() == LAYERS_OF_27B {
        // The largest model scales by the width a head would have by rights, not by its own.
        hyper.attention_scale = 1.0 / (hyper.embedding as f32 / hyper.heads as f32).sqrt();
    }
    let window = keys.opt_count("attention.sliding_window", u32::MAX)?.unwrap_or(0);
    if window == 0 {
        return Ok(());
    }
    let pattern = keys.opt_count("attention.sliding_window_pattern", 1024)?.unwrap_or(6) as usize;
    let local = keys.opt_positive("rope.freq_base_swa", false)?.unwrap_or(10_000.0);
    hyper.ropes.push(RopeSpec { base: local, scale: 1.0 });
    for (index, layer) in hyper.layers.iter_mut().enumerate() {
        if index % pattern < pattern - 1 {
            (layer.window, layer.rope) = (window, 1);
        }
    }
    Ok(())
}

/// Qwen 2 and 3: llama with RoPE on (i, i + rope_dim / 2), biases on q, k and v (2) or q and k
/// norms (3).
fn qwen(_keys: &Keys<'_>, hyper: &mut HyperParams) -> Result<(), ModelLoadError> {
    hyper.neox = true;
    Ok(())
}
