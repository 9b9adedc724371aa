//! `config.json`: the network's shape, in the keys that a GGUF file has for it.
//!
//! Its measure is transformers: what a configuration class there says, and what the model there
//! makes of it. A setting that changes results is followed or refused by its key. Keys that the
//! class does not have pass, as they do there: nothing in the model reads them.

use crate::gguf::{Array, Value};

use super::HfError;
use super::defaults::Defaults;
use super::json::Object;

/// Widest head, as `model` has it.
const HEAD_DIM_MAX: u32 = 512;
/// Most layers, as `model` has it.
const LAYERS_MAX: u32 = 1024;

/// Model types that folders are read of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Architecture {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
    Gemma2,
    Gemma3,
    Phi3,
}

/// By `model_type`.
const KNOWN: [(&str, Architecture); 8] = [
    ("llama", Architecture::Llama),
    ("mistral", Architecture::Mistral),
    ("qwen2", Architecture::Qwen2),
    ("qwen3", Architecture::Qwen3),
    ("gemma2", Architecture::Gemma2),
    ("gemma3", Architecture::Gemma3),
    ("gemma3_text", Architecture::Gemma3),
    ("phi3", Architecture::Phi3),
];

/// Flags that are refused where they are set.
const FALSE: [(&str, &str); 2] = [
    ("use_bidirectional_attention", "false: hob generates with causal attention"),
    ("is_encoder_decoder", "false: hob runs decoders alone"),
];

/// Settings that are refused wherever they are.
const REFUSED: [(&str, &str, &str); 3] = [
    (
        "quantization_config",
        "no such key: weights of F32, F16 or BF16 (take --quantize, or a GGUF file)",
        "quantised weights",
    ),
    ("compression_config", "no such key: weights of F32, F16 or BF16", "compressed weights"),
    ("per_layer_config", "no such key: hob has no layers of different shapes", "one"),
];

impl Architecture {
    /// `general.architecture`, and the beginning of the keys.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Llama | Self::Mistral => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Gemma2 => "gemma2",
            Self::Gemma3 => "gemma3",
            Self::Phi3 => "phi3",
        }
    }

    pub(super) fn is_gemma(self) -> bool {
        matches!(self, Self::Gemma2 | Self::Gemma3)
    }

    /// True if rotation takes neighbouring dimensions in the GGUF file, and halves in the folder.
    pub(super) fn is_llama(self) -> bool {
        matches!(self, Self::Llama | Self::Mistral)
    }
}

/// A small tensor that the configuration makes: its name and values.
pub(super) type MadeTensor = (&'static str, Vec<f32>);

/// Biases that the network has, by the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Biases {
    pub(super) qkv: bool,
    pub(super) attention_output: bool,
    pub(super) mlp: bool,
}

/// Contents of a configuration.
#[derive(Debug)]
pub(super) struct Config {
    pub(super) architecture: Architecture,
    pub(super) heads: u32,
    pub(super) kv_heads: u32,
    /// True if the head's matrix is that of the embeddings.
    pub(super) tied: bool,
    pub(super) biases: Biases,
    pub(super) metadata: Vec<(String, Value)>,
    pub(super) made: Vec<MadeTensor>,
}

impl Config {
    /// Reads a configuration; `root` is the whole file, of which Gemma 3's `text_config` is a part.
    pub(super) fn read(root: &Object) -> Result<Self, HfError> {
        let kind = root.opt_str("model_type")?.unwrap_or_default();
        let Some((_, architecture)) = KNOWN.iter().find(|(known, _)| *known == kind) else {
            let wanted = format!("one of {}", KNOWN.map(|(known, _)| known).join(", "));
            return Err(root.refuse("model_type", &wanted, format!("{kind:?}")));
        };
        let inner = if kind == "gemma3" { root.opt_object("text_config")? } else { None };
        let object = inner.unwrap_or_else(|| root.clone());
        check_fixed(root)?;
        check_fixed(&object)?;
        let defaults = Defaults::of(*architecture);
        let heads = object.count("num_attention_heads", defaults.num_attention_heads)?;
        let kv_heads = match object.u32_or("num_key_value_heads", defaults.num_key_value_heads)? {
            Some(0) => return Err(object.refuse("num_key_value_heads", "at least 1", 0)),
            found => found.unwrap_or(heads),
        };
        let tied = match object.opt_bool("tie_word_embeddings")? {
            None => root.opt_bool("tie_word_embeddings")?,
            found => found,
        };
        let mut reader = Reader {
            object: &object,
            architecture: *architecture,
            defaults,
            metadata: Vec::new(),
            made: Vec::new(),
            head_dim: head_dim(&object, defaults, heads)?,
            layers: object.count("num_hidden_layers", defaults.num_hidden_layers)?,
            context: object.count("max_position_embeddings", defaults.max_position_embeddings)?,
        };
        reader.shape(heads, kv_heads)?;
        reader.rotation()?;
        reader.windows()?;
        reader.scores(heads)?;
        let biases = reader.biases()?;
        let Reader { metadata, made, .. } = reader;
        Ok(Self {
            architecture: *architecture,
            heads,
            kv_heads,
            tied: tied.unwrap_or(defaults.tie_word_embeddings),
            biases,
            metadata,
            made,
        })
    }
}

fn check_fixed(object: &Object) -> Result<(), HfError> {
    for (key, wanted, found) in REFUSED {
        if object.get(key).is_some() {
            return Err(object.refuse(key, wanted, found));
        }
    }
    for (key, wanted) in FALSE {
        if object.opt_bool(key)? == Some(true) {
            return Err(object.refuse(key, wanted, true));
        }
    }
    Ok(())
}

fn head_dim(object: &Object, defaults: &Defaults, heads: u32) -> Result<u32, HfError> {
    let named = object.u32_or("head_dim", defaults.head_dim)?.filter(|dim| *dim > 0);
    let width = object.count("hidden_size", defaults.hidden_size)?;
    match named.unwrap_or(width / heads) {
        dim if dim <= HEAD_DIM_MAX => Ok(dim),
        dim => Err(object.refuse("head_dim", &format!("up to {HEAD_DIM_MAX}"), dim)),
    }
}

/// Reads a configuration part by part.
pub(super) struct Reader<'a> {
    pub(super) object: &'a Object,
    pub(super) architecture: Architecture,
    pub(super) defaults: &'static Defaults,
    pub(super) head_dim: u32,
    pub(super) layers: u32,
    pub(super) context: u32,
    pub(super) metadata: Vec<(String, Value)>,
    pub(super) made: Vec<MadeTensor>,
}

impl Reader<'_> {
    pub(super) fn add(&mut self, key: &str, value: impl Into<Value>) {
        self.metadata.push((format!("{}.{key}", self.architecture.name()), value.into()));
    }

    /// The shape that every architecture has.
    fn shape(&mut self, heads: u32, kv_heads: u32) -> Result<(), HfError> {
        let (object, defaults) = (self.object, self.defaults);
        let name = self.architecture.name();
        self.metadata.push(("general.architecture".to_owned(), name.into()));
        if self.layers > LAYERS_MAX {
            let wanted = format!("up to {LAYERS_MAX}");
            return Err(object.refuse("num_hidden_layers", &wanted, self.layers));
        }
        self.add("block_count", self.layers);
        self.add("context_length", self.context);
        self.add("embedding_length", object.count("hidden_size", defaults.hidden_size)?);
        let width = object.count("intermediate_size", defaults.intermediate_size)?;
        self.add("feed_forward_length", width);
        self.add("attention.head_count", heads);
        self.add("attention.head_count_kv", kv_heads);
        let epsilon = object.opt_f32("rms_norm_eps")?.unwrap_or(defaults.rms_norm_eps);
        self.add("attention.layer_norm_rms_epsilon", epsilon);
        self.add("attention.key_length", self.head_dim);
        self.add("attention.value_length", self.head_dim);
        // GELU's tanh form has several names.
        let (key, wanted): (_, &[&str]) = match self.architecture.is_gemma() {
            true => ("hidden_activation", &["gelu_pytorch_tanh", "gelu_new", "gelu_fast"]),
            false => ("hidden_act", &["silu", "swish"]),
        };
        match object.opt_str(key)? {
            Some(found) if !wanted.contains(&found) => {
                Err(object.refuse(key, wanted[0], format!("{found:?}")))
            }
            _ => Ok(()),
        }
    }

    /// Which layers see a window of positions, and how many.
    fn windows(&mut self) -> Result<(), HfError> {
        let object = self.object;
        let window = object.u32_or("sliding_window", self.defaults.sliding_window)?;
        let windowed: Vec<bool> = match self.architecture {
            Architecture::Llama => return Ok(()),
            Architecture::Mistral | Architecture::Phi3 => {
                vec![window.is_some(); self.layers as usize]
            }
            Architecture::Qwen2 | Architecture::Qwen3 => {
                let uses = object.opt_bool("use_sliding_window")? == Some(true);
                let first = object.opt_u32("max_window_layers")?.unwrap_or(28);
                let first = if uses && window.is_some() { first } else { u32::MAX };
                let listed = self.layer_types()?.filter(|listed| listed.contains(&true));
                if listed.is_some() && !uses {
                    let wanted = "true, as layer_types has layers with a window";
                    return Err(object.refuse("use_sliding_window", wanted, false));
                }
                match self.layer_types()? {
                    Some(listed) => listed,
                    None => (0..self.layers).map(|layer| layer >= first).collect(),
                }
            }
            Architecture::Gemma2 | Architecture::Gemma3 => {
                let period = match self.architecture {
                    Architecture::Gemma2 => 2,
                    _ => object.count("sliding_window_pattern", 6)?,
                };
                let usual = || (1..=self.layers).map(|layer| layer % period != 0).collect();
                self.layer_types()?.unwrap_or_else(usual)
            }
        };
        let is_usual = windowed.contains(&true) || self.architecture.is_gemma();
        if !is_usual {
            return Ok(());
        }
        let Some(window) = window.filter(|window| *window > 0) else {
            return Err(object.refuse("sliding_window", "at least 1", "none or 0"));
        };
        self.add("attention.sliding_window", window);
        let listed = Value::Array(Array::Bool(windowed));
        self.add("attention.sliding_window_pattern", listed);
        Ok(())
    }

    /// For each layer, true if it has a window; where the file lists the layers' kinds.
    fn layer_types(&self) -> Result<Option<Vec<bool>>, HfError> {
        let key = "layer_types";
        let Some(listed) = self.object.get(key) else { return Ok(None) };
        let wanted = format!("{} of \"full_attention\" and \"sliding_attention\"", self.layers);
        let of = |kind: &serde_json::Value| match kind.as_str() {
            Some("full_attention") => Ok(false),
            Some("sliding_attention") => Ok(true),
            _ => Err(self.object.refuse(key, &wanted, kind)),
        };
        let listed = listed.as_array().map_or(&[][..], Vec::as_slice);
        if listed.len() != self.layers as usize {
            return Err(self.object.refuse(key, &wanted, format!("{} values", listed.len())));
        }
        listed.iter().map(of).collect::<Result<_, _>>().map(Some)
    }

    /// Gemma's scale and soft caps of the attention scores and of the logits.
    fn scores(&mut self, heads: u32) -> Result<(), HfError> {
        if !self.architecture.is_gemma() {
            return Ok(());
        }
        let object = self.object;
        let is_second = self.architecture == Architecture::Gemma2;
        if is_second {
            let cap = object.f32_or("attn_logit_softcapping", Some(50.0))?.unwrap_or(0.0);
            self.add("attn_logit_softcapping", cap);
        }
        let usual = is_second.then_some(30.0);
        let cap = object.f32_or("final_logit_softcapping", usual)?.unwrap_or(0.0);
        self.add("final_logit_softcapping", cap);
        let scalar = object.opt_positive("query_pre_attn_scalar")?.unwrap_or(256.0);
        // Readers know the usual one by the number of layers.
        let is_largest = self.layers == if is_second { 46 } else { 62 };
        let width = object.count("hidden_size", self.defaults.hidden_size)?;
        let usual = if is_largest { width / heads } else { self.head_dim };
        if scalar != usual as f32 {
            self.add("attention.scale", 1.0 / scalar.sqrt());
        }
        Ok(())
    }

    /// The biases of projections.
    fn biases(&self) -> Result<Biases, HfError> {
        let flag = |key: &str| Ok::<_, HfError>(self.object.opt_bool(key)?.unwrap_or(false));
        Ok(match self.architecture {
            Architecture::Mistral | Architecture::Phi3 => {
                Biases { qkv: false, attention_output: false, mlp: false }
            }
            Architecture::Qwen2 => Biases { qkv: true, attention_output: false, mlp: false },
            _ => {
                let attention = flag("attention_bias")?;
                let mlp = self.architecture == Architecture::Llama && flag("mlp_bias")?;
                Biases { qkv: attention, attention_output: attention, mlp }
            }
        })
    }
}
