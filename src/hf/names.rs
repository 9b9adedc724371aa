//! The tensors of a folder by the names that a GGUF file gives them.

use super::config::{Architecture, Config};

/// Difference of a tensor's values from the GGUF file's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Not at all.
    None,
    /// One is added: Gemma's norms are written as what they differ from one.
    PlusOne,
    /// The rows of each of so many heads are (0, h / 2, 1, h / 2 + 1, …) of the folder's, as
    /// llama's rotation of neighbours wants them.
    Pairs {
        /// Heads that the rows are of.
        heads: u32,
    },
}

/// Treatment of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It has this name already.
    Named(String, Change),
    /// Not needed.
    Left,
    /// Unknown.
    Unknown,
}

/// Modules of a layer, and their names in a GGUF file, that all architectures share.
const LAYER: [(&str, &str); 11] = [
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.qkv_proj", "attn_qkv"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.gate_up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

/// The norms of a layer: before attention and before the feed-forward.
const NORMS: [(&str, &str); 2] =
    [("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm")];

/// Gemma's norms, which stand behind attention and feed-forward too.
const GEMMA_NORMS: [(&str, &str); 4] = [
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "post_attention_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
];

/// Destination of the tensor called `name`.
pub(super) fn place(config: &Config, name: &str) -> Place {
    let architecture = config.architecture;
    let unneeded = ["vision_tower.", "multi_modal_projector.", "model.vision_tower."];
    if architecture == Architecture::Gemma3
        && (unneeded.iter().any(|start| name.starts_with(start))
            || name.starts_with("model.multi_modal_projector."))
    {
        return Place::Left;
    }
    // Models that also see have the language model inside.
    let name = ["language_model.model.", "model.language_model."]
        .iter()
        .find_map(|start| name.strip_prefix(start).map(|rest| format!("model.{rest}")))
        .unwrap_or_else(|| name.strip_prefix("language_model.").unwrap_or(name).to_owned());
    if name.ends_with(".rotary_emb.inv_freq") {
        return Place::Left;
    }
    let norm = if architecture.is_gemma() { Change::PlusOne } else { Change::None };
    match name.as_str() {
        "model.embed_tokens.weight" => named("token_embd.weight", Change::None),
        "model.norm.weight" => named("output_norm.weight", norm),
        "lm_head.weight" if config.tied => Place::Left,
        "lm_head.weight" => named("output.weight", Change::None),
        _ => name.strip_prefix("model.layers.").map_or(Place::Unknown, |rest| layer(config, rest)),
    }
}

fn named(name: &str, change: Change) -> Place {
    Place::Named(name.to_owned(), change)
}

/// `rest` is a layer's number, a module, and `weight` or `bias`.
fn layer(config: &Config, rest: &str) -> Place {
    let parts = || {
        let (index, rest) = rest.split_once('.')?;
        let (module, kind) = rest.rsplit_once('.')?;
        let index: u32 = index.parse().ok()?;
        matches!(kind, "weight" | "bias").then_some((index, module, kind))
    };
    let Some((index, module, kind)) = parts() else { return Place::Unknown };
    let is_gemma = config.architecture.is_gemma();
    let norms: &[_] = if is_gemma { &GEMMA_NORMS } else { &NORMS };
    let Some((_, name)) = LAYER.iter().chain(norms).find(|(known, _)| *known == module) else {
        return Place::Unknown;
    };
    let change = match *name {
        "attn_q" if config.architecture.is_llama() => Change::Pairs { heads: config.heads },
        "attn_k" if config.architecture.is_llama() => Change::Pairs { heads: config.kv_heads },
        name if is_gemma && name.ends_with("_norm") => Change::PlusOne,
        _ => Change::None,
    };
    Place::Named(format!("blk.{index}.{name}.{kind}"), change)
}

#[cfg(test)]
mod tests {
    use super::super::config::Biases;
    use super::*;

    fn config(architecture: Architecture) -> Config {
        let (metadata, made) = (Vec::new(), Vec::new());
        let biases = Biases { qkv: true, attention_output: true, mlp: true };
        Config { architecture, heads: 4, kv_heads: 2, tied: true, biases, metadata, made }
    }

    #[test]
    fn tensors_find_their_names() {
        for (architecture, name, wanted, change) in [
            (Architecture::Llama, "model.embed_tokens.weight", "token_embd.weight", Change::None),
            (
                Architecture::Llama,
                "model.layers.3.self_attn.k_proj.bias",
                "blk.3.attn_k.bias",
                Change::Pairs { heads: 2 },
            ),
            (
                Architecture::Qwen2,
                "model.layers.12.self_attn.q_proj.weight",
                "blk.12.attn_q.weight",
                Change::None,
            ),
            (
                Architecture::Llama,
                "model.layers.0.post_attention_layernorm.weight",
                "blk.0.ffn_norm.weight",
                Change::None,
            ),
            (
                Architecture::Gemma3,
                "language_model.model.layers.0.post_attention_layernorm.weight",
                "blk.0.post_attention_norm.weight",
                Change::PlusOne,
            ),
            (
                Architecture::Gemma3,
                "model.layers.0.self_attn.k_norm.weight",
                "blk.0.attn_k_norm.weight",
                Change::PlusOne,
            ),
            (
                Architecture::Phi3,
                "model.layers.1.mlp.gate_up_proj.weight",
                "blk.1.ffn_up.weight",
                Change::None,
            ),
        ] {
            assert_eq!(place(&config(architecture), name), named(wanted, change), "{name}");
        }
        let llama = config(Architecture::Llama);
        assert_eq!(place(&llama, "lm_head.weight"), Place::Left);
        for unknown in
            ["model.layers.x.mlp.up_proj.weight", "model.layers.0.mlp.experts.weight", ""]
        {
            assert_eq!(place(&llama, unknown), Place::Unknown, "{unknown}");
        }
        assert_eq!(place(&config(Architecture::Gemma3), "vision_tower.x.weight"), Place::Left);
    }
}
