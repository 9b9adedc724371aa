//! The architectures: one file a family, each saying how it differs from the common reading of a
//! file.
//!
//! A family has no code that computes: it chooses among the features of [`HyperParams`], which
//! `layers.rs` and `forward.rs` know how to load and to record.

mod bert;
mod cohere;
mod deepseek;
mod exaone;
mod falcon;
mod gemma;
mod glm4;
mod gpt2;
mod gptneox;
mod granite;
mod internlm2;
mod llama;
mod olmo2;
mod olmoe;
mod phi2;
mod phi3;
mod qwen;
mod smollm3;
mod stablelm;
mod starcoder2;

use super::ModelLoadError;
use super::hyper::{HyperParams, NormKind, read_listed_window};
use super::keys::Keys;
use super::rope::RopeFactors;
use crate::gguf::GgufFile;

/// An architecture that hob runs.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// `general.architecture` of its files.
    pub architecture: &'static str,
    /// Models of it that people know.
    pub models: &'static str,
    /// Distinguishing features, for the README's table.
    pub features: &'static str,
    /// Kind of its norms, which says where their epsilon stands.
    norm: NormKind,
    /// True if `rope_freqs.weight`, or long and short factors, divide its rotation frequencies.
    rope_factors: bool,
    /// Who reads `attention.sliding_window`.
    windows: Windows,
    /// Changes the common reading.
    read: fn(&Keys<'_>, &mut HyperParams) -> Result<(), ModelLoadError>,
    /// Tensors that others do without but this architecture does not: without them a file would
    /// load and answer nonsense. Those of a layer stand without `blk.N.` in front.
    tensors: &'static [&'static str],
    layer_tensors: &'static [&'static str],
}

/// How a family takes windows of positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Windows {
    /// It has them in some layers, by rules of its own.
    Own,
    /// Where a file lists the layers that have one.
    Listed,
    /// The same, and a window without such a list is refused.
    Unusual,
}

impl Family {
    /// A family that reads its files as llama does.
    const LIKE_LLAMA: Self = Self {
        architecture: "",
        models: "",
        features: "",
        norm: NormKind::Rms,
        rope_factors: false,
        windows: Windows::Unusual,
        read: |_, _| Ok(()),
        tensors: &[],
        layer_tensors: &[],
    };
}

/// The supported architectures.
pub const FAMILIES: [Family; 30] = [
    llama::LLAMA,
    llama::MISTRAL3,
    qwen::QWEN2,
    qwen::QWEN3,
    qwen::QWEN2MOE,
    qwen::QWEN3MOE,
    gemma::GEMMA,
    gemma::GEMMA2,
    gemma::GEMMA3,
    phi2::PHI2,
    phi3::PHI3,
    starcoder2::STARCODER2,
    gpt2::GPT2,
    gptneox::GPTNEOX,
    falcon::FALCON,
    stablelm::STABLELM,
    olmo2::OLMO2,
    olmoe::OLMOE,
    granite::GRANITE,
    granite::GRANITEMOE,
    granite::MINICPM,
    cohere::COMMAND_R,
    cohere::COHERE2,
    smollm3::SMOLLM3,
    glm4::GLM4,
    exaone::EXAONE,
    internlm2::INTERNLM2,
    deepseek::DEEPSEEK,
    bert::BERT,
    bert::NOMIC_BERT,
];

/// The family of a name, if hob knows it.
#[must_use]
pub fn family(architecture: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.architecture == architecture)
}

/// Reads and checks the network's shape; of the tensors, only whether they are there.
///
/// # Errors
/// [`ModelLoadError`] for an unknown architecture, a value that makes no sense, or a missing
/// tensor.
pub fn read_hyper_params(file: &GgufFile) -> Result<HyperParams, ModelLoadError> {
    let name = file.metadata().str("general.architecture")?;
    let Some(family) = family(name) else {
        return Err(ModelLoadError::Architecture {
            path: file.path().to_owned(),
            found: name.to_owned(),
            supported: FAMILIES.map(|family| family.architecture).join(", "),
        });
    };
    let keys = Keys::new(file, name);
    let mut hyper = HyperParams::read(&keys, family.norm)?;
    let rope = &mut hyper.ropes[0];
    if family.rope_factors && rope.factors == RopeFactors::None {
        rope.factors = RopeFactors::OneSet;
    } else if !family.rope_factors && rope.factors != RopeFactors::None {
        let wanted = format!("none, linear or yarn, as {name} has no long and short factors");
        return Err(keys.refuse("rope.scaling.type", &wanted, "longrope"));
    }
    (family.read)(&keys, &mut hyper)?;
    if family.windows != Windows::Own {
        read_listed_window(&keys, &mut hyper, family.windows == Windows::Unusual)?;
    }
    if !hyper.encoder && keys.opt_bool("attention.causal")? == Some(false) {
        let wanted = format!("true: hob runs {name} as a model that generates");
        return Err(keys.refuse("attention.causal", &wanted, false));
    }
    check_tensors(file, family, hyper.layers.len())?;
    keys.check_unread()?;
    Ok(hyper)
}

fn check_tensors(file: &GgufFile, family: &Family, layers: usize) -> Result<(), ModelLoadError> {
    let of_layers = (0..layers).flat_map(|index| {
        family.layer_tensors.iter().map(move |part| format!("blk.{index}.{part}"))
    });
    let all = family.tensors.iter().map(ToString::to_string).chain(of_layers);
    for name in all {
        // One bias for q, k and v joined stands for the three.
        let joined = ["attn_q.bias", "attn_k.bias", "attn_v.bias"]
            .iter()
            .find_map(|part| name.strip_suffix(part))
            .is_some_and(|layer| file.tensor(&format!("{layer}attn_qkv.bias")).is_some());
        if file.tensor(&name).is_none() && !joined {
            return Err(ModelLoadError::Tensor {
                path: file.path().to_owned(),
                tensor: name,
                wanted: format!("a tensor, as every {} model has", family.architecture),
                found: "no such tensor".to_owned(),
            });
        }
    }
    Ok(())
}
