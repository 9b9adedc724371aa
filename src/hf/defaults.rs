//! Settings that `config.json` may leave out, as the configuration classes of transformers 5 have
//! them.
//!
//! Files leave them out where they are as here: Gemma 3's, with the text model inside, even the
//! numbers of heads.

use super::config::Architecture;

/// The defaults of a configuration class.
#[derive(Debug)]
pub(super) struct Defaults {
    pub(super) hidden_size: u32,
    pub(super) intermediate_size: u32,
    pub(super) num_hidden_layers: u32,
    pub(super) num_attention_heads: u32,
    /// `None`: as many as there are heads.
    pub(super) num_key_value_heads: Option<u32>,
    /// `None`: the embedding shared by the heads.
    pub(super) head_dim: Option<u32>,
    pub(super) max_position_embeddings: u32,
    pub(super) rms_norm_eps: f32,
    pub(super) tie_word_embeddings: bool,
    pub(super) sliding_window: Option<u32>,
    /// `None`: the positions that the model was trained for.
    pub(super) original_max_position_embeddings: Option<u32>,
    pub(super) rope_theta: f32,
}

const LLAMA: Defaults = Defaults {
    hidden_size: 4096,
    intermediate_size: 11008,
    num_hidden_layers: 32,
    num_attention_heads: 32,
    num_key_value_heads: None,
    head_dim: None,
    max_position_embeddings: 2048,
    rms_norm_eps: 1e-6,
    tie_word_embeddings: false,
    sliding_window: None,
    original_max_position_embeddings: None,
    rope_theta: 10_000.0,
};

const MISTRAL: Defaults = Defaults {
    intermediate_size: 14336,
    num_key_value_heads: Some(8),
    max_position_embeddings: 4096 * 32,
    sliding_window: Some(4096),
    ..LLAMA
};

const QWEN2: Defaults = Defaults {
    intermediate_size: 22016,
    num_key_value_heads: Some(32),
    max_position_embeddings: 32768,
    sliding_window: Some(4096),
    ..LLAMA
};

const QWEN3: Defaults = Defaults { head_dim: Some(128), ..QWEN2 };

const GEMMA2: Defaults = Defaults {
    hidden_size: 2304,
    intermediate_size: 9216,
    num_hidden_layers: 26,
    num_attention_heads: 8,
    num_key_value_heads: Some(4),
    head_dim: Some(256),
    max_position_embeddings: 8192,
    tie_word_embeddings: true,
    sliding_window: Some(4096),
    ..LLAMA
};

const GEMMA3: Defaults =
    Defaults { max_position_embeddings: 131_072, rope_theta: 1_000_000.0, ..GEMMA2 };

const PHI3: Defaults = Defaults {
    hidden_size: 3072,
    intermediate_size: 8192,
    max_position_embeddings: 4096,
    rms_norm_eps: 1e-5,
    original_max_position_embeddings: Some(4096),
    ..LLAMA
};

impl Defaults {
    /// Those of an architecture's class.
    pub(super) fn of(architecture: Architecture) -> &'static Self {
        match architecture {
            Architecture::Llama => &LLAMA,
            Architecture::Mistral => &MISTRAL,
            Architecture::Qwen2 => &QWEN2,
            Architecture::Qwen3 => &QWEN3,
            Architecture::Gemma2 => &GEMMA2,
            Architecture::Gemma3 => &GEMMA3,
            Architecture::Phi3 => &PHI3,
        }
    }
}
