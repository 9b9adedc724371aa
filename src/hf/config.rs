//! `config.json`: the network's shape, in the keys that a GGUF file has for it.

use crate::gguf::Value;

use super::HfError;
use super::json::Object;

/// Architectures that folders are read of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Architecture {
    /// Llama and Mistral.
    Llama,
    Qwen2,
    Qwen3,
    Gemma2,
    Gemma3,
    Phi3,
}

/// By `model_type`.
const KNOWN: [(&str, Architecture); 8] = [
    ("llama", Architecture::Llama),
    ("mistral", Architecture::Llama),
    ("qwen2", Architecture::Qwen2),
    ("qwen3", Architecture::Qwen3),
    ("gemma2", Architecture::Gemma2),
    ("gemma3", Architecture::Gemma3),
    ("gemma3_text", Architecture::Gemma3),
    ("phi3", Architecture::Phi3),
];

impl Architecture {
    /// `general.architecture`, and the beginning of the keys.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
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
}

/// A small tensor that the configuration makes: its name and values.
pub(super) type MadeTensor = (&'static str, Vec<f32>);

/// What a configuration says.
#[derive(Debug)]
pub(super) struct Config {
    pub(super) architecture: Architecture,
    pub(super) heads: u32,
    pub(super) kv_heads: u32,
    /// Whether the head's matrix is that of the embeddings.
    pub(super) tied: bool,
    pub(super) metadata: Vec<(String, Value)>,
    pub(super) made: Vec<MadeTensor>,
}

impl Config {
    /// Reads a configuration; `root` is the whole file, whose `text_config` it may be.
    pub(super) fn read(root: &Object) -> Result<Self, HfError> {
        let object = root.object("text_config").unwrap_or_else(|| root.clone());
        if root.get("quantization_config").is_some() {
            let wanted =
                "no such key: weights of F32, F16 or BF16 (take --quantize, or a GGUF file)";
            return Err(root.refuse("quantization_config", wanted, "quantised weights"));
        }
        let kind = root.opt_str("model_type")?.unwrap_or_default();
        let Some((_, architecture)) = KNOWN.iter().find(|(known, _)| *known == kind) else {
            let wanted = format!("one of {}", KNOWN.map(|(known, _)| known).join(", "));
            return Err(root.refuse("model_type", &wanted, format!("{kind:?}")));
        };
        let heads = object.u32("num_attention_heads")?;
        let kv_heads = object.opt_u32("num_key_value_heads")?.unwrap_or(heads);
        let tied =
            object.opt_bool("tie_word_embeddings")?.or(root.opt_bool("tie_word_embeddings")?);
        let mut reader = Reader {
            object: &object,
            architecture: *architecture,
            metadata: Vec::new(),
            made: Vec::new(),
            head_dim: head_dim(&object, heads)?,
        };
        reader.shape(heads, kv_heads)?;
        reader.rotation()?;
        reader.differences(heads)?;
        let Reader { metadata, made, .. } = reader;
        Ok(Self {
            architecture: *architecture,
            heads,
            kv_heads,
            tied: tied.unwrap_or(architecture.is_gemma()),
            metadata,
            made,
        })
    }
}

fn head_dim(object: &Object, heads: u32) -> Result<u32, HfError> {
    if heads == 0 {
        return Err(object.refuse("num_attention_heads", "at least 1", 0));
    }
    let named = object.opt_u32("head_dim")?.filter(|dim| *dim > 0);
    Ok(named.unwrap_or(object.u32("hidden_size")? / heads))
}

struct Reader<'a> {
    object: &'a Object,
    architecture: Architecture,
    head_dim: u32,
    metadata: Vec<(String, Value)>,
    made: Vec<MadeTensor>,
}

impl Reader<'_> {
    fn add(&mut self, key: &str, value: impl Into<Value>) {
        self.metadata.push((format!("{}.{key}", self.architecture.name()), value.into()));
    }

    /// What every architecture has.
    fn shape(&mut self, heads: u32, kv_heads: u32) -> Result<(), HfError> {
        let object = self.object;
        let name = self.architecture.name();
        self.metadata.push(("general.architecture".to_owned(), name.into()));
        for (key, from) in [
            ("block_count", "num_hidden_layers"),
            ("context_length", "max_position_embeddings"),
            ("embedding_length", "hidden_size"),
            ("feed_forward_length", "intermediate_size"),
        ] {
            let value = object.u32(from)?;
            self.add(key, value);
        }
        self.add("attention.head_count", heads);
        self.add("attention.head_count_kv", kv_heads);
        self.add("attention.layer_norm_rms_epsilon", object.f32("rms_norm_eps")?);
        self.add("attention.key_length", self.head_dim);
        self.add("attention.value_length", self.head_dim);
        let wanted = if self.architecture.is_gemma() { "gelu_pytorch_tanh" } else { "silu" };
        let key = if object.get("hidden_activation").is_some() && self.architecture.is_gemma() {
            "hidden_activation"
        } else {
            "hidden_act"
        };
        match object.opt_str(key)? {
            Some(found) if found != wanted => Err(object.refuse(key, wanted, format!("{found:?}"))),
            _ => Ok(()),
        }
    }

    /// Base, width and scaling of the rotation.
    fn rotation(&mut self) -> Result<(), HfError> {
        let object = self.object;
        // Newer files have all of it in one object.
        let parameters = object.object("rope_parameters");
        let holder = parameters.as_ref().unwrap_or(object);
        let base = holder.opt_f32("rope_theta")?.or(object.opt_f32("rope_theta")?);
        let base = base.unwrap_or(10_000.0);
        self.add("rope.freq_base", base);
        let share = object.opt_f32("partial_rotary_factor")?;
        let share = share.or(holder.opt_f32("partial_rotary_factor")?).unwrap_or(1.0);
        let rope_dim = (self.head_dim as f32 * share) as u32;
        self.add("rope.dimension_count", rope_dim);
        let scaling = parameters.or_else(|| object.object("rope_scaling"));
        let Some(scaling) = scaling else { return Ok(()) };
        let kind = match scaling.opt_str("rope_type")? {
            Some(kind) => Some(kind),
            None => scaling.opt_str("type")?,
        };
        match kind {
            None | Some("default") => Ok(()),
            Some("linear") => {
                self.add("rope.scaling.type", "linear");
                self.add("rope.scaling.factor", scaling.f32("factor")?);
                Ok(())
            }
            Some("yarn") => {
                self.add("rope.scaling.type", "yarn");
                self.add("rope.scaling.factor", scaling.f32("factor")?);
                self.original_context(&scaling)?;
                Ok(())
            }
            Some("llama3") => self.llama3(&scaling, base, rope_dim),
            Some("longrope" | "su") => self.longrope(&scaling, rope_dim),
            Some(found) => {
                let wanted = "default, linear, yarn, llama3 or longrope";
                Err(object.refuse("rope_scaling.rope_type", wanted, format!("{found:?}")))
            }
        }
    }

    fn original_context(&mut self, scaling: &Object) -> Result<u32, HfError> {
        let key = "original_max_position_embeddings";
        let original = match scaling.opt_u32(key)? {
            Some(found) => Some(found),
            None => self.object.opt_u32(key)?,
        };
        let original = original.unwrap_or(self.object.u32("max_position_embeddings")?);
        self.add("rope.scaling.original_context_length", original);
        Ok(original)
    }

    /// Llama 3's scaling: a divisor for each frequency, by its wavelength.
    fn llama3(&mut self, scaling: &Object, base: f32, rope_dim: u32) -> Result<(), HfError> {
        let factor = f64::from(scaling.f32("factor")?);
        let low = f64::from(scaling.f32("low_freq_factor")?);
        let high = f64::from(scaling.f32("high_freq_factor")?);
        let original = f64::from(scaling.f32("original_max_position_embeddings")?);
        let divisors = (0..rope_dim / 2).map(|pair| {
            let exponent = f64::from(pair) * 2.0 / f64::from(rope_dim);
            let wavelength = std::f64::consts::TAU * f64::from(base).powf(exponent);
            if wavelength < original / high {
                return 1.0;
            }
            if wavelength > original / low {
                return factor as f32;
            }
            let smooth = (original / wavelength - low) / (high - low);
            (1.0 / ((1.0 - smooth) / factor + smooth)) as f32
        });
        self.made.push(("rope_freqs.weight", divisors.collect()));
        Ok(())
    }

    /// Phi 3's: divisors for short and for long contexts.
    fn longrope(&mut self, scaling: &Object, rope_dim: u32) -> Result<(), HfError> {
        let pairs = rope_dim as usize / 2;
        self.made.push(("rope_factors_long.weight", scaling.numbers("long_factor", pairs)?));
        self.made.push(("rope_factors_short.weight", scaling.numbers("short_factor", pairs)?));
        let original = self.original_context(scaling)?;
        let trained = self.object.u32("max_position_embeddings")?;
        let ratio = f64::from(trained) / f64::from(original.max(1));
        let growth = (1.0 + ratio.ln() / f64::from(original.max(2)).ln()).sqrt();
        let factor = if ratio <= 1.0 { 1.0 } else { growth as f32 };
        self.add("rope.scaling.attn_factor", factor);
        Ok(())
    }

    /// What only some architectures have.
    fn differences(&mut self, heads: u32) -> Result<(), HfError> {
        let object = self.object;
        match self.architecture {
            Architecture::Llama | Architecture::Phi3 => {}
            Architecture::Qwen2 | Architecture::Qwen3 => {
                if object.opt_bool("use_sliding_window")? == Some(true) {
                    return Err(object.refuse("use_sliding_window", "false", true));
                }
            }
            Architecture::Gemma2 => {
                for key in ["attn_logit_softcapping", "final_logit_softcapping"] {
                    let cap = object.opt_f32(key)?.unwrap_or(0.0);
                    self.add(key, cap);
                }
                self.add("attention.sliding_window", object.u32("sliding_window")?);
                self.check_attention_scale(heads)?;
            }
            Architecture::Gemma3 => {
                self.add("attention.sliding_window", object.u32("sliding_window")?);
                if let Some(local) = object.opt_f32("rope_local_base_freq")? {
                    self.add("rope.freq_base_swa", local);
                }
                if let Some(pattern) = object.opt_u32("sliding_window_pattern")? {
                    self.add("attention.sliding_window_pattern", pattern);
                }
                if let Some(cap) = object.opt_f32("final_logit_softcapping")? {
                    self.add("final_logit_softcapping", cap);
                }
                self.check_attention_scale(heads)?;
            }
        }
        Ok(())
    }

    /// Gemma's scores are scaled by a number of its own, which GGUF files do not carry: it is told
    /// by the number of layers there.
    fn check_attention_scale(&self, heads: u32) -> Result<(), HfError> {
        let key = "query_pre_attn_scalar";
        let Some(found) = self.object.opt_f32(key)? else { return Ok(()) };
        let layers = self.object.u32("num_hidden_layers")?;
        let is_largest = match self.architecture {
            Architecture::Gemma2 => layers == 46,
            _ => layers == 62,
        };
        let wanted =
            if is_largest { self.object.u32("hidden_size")? / heads } else { self.head_dim };
        if found == wanted as f32 {
            return Ok(());
        }
        Err(self.object.refuse(key, &wanted.to_string(), found))
    }
}
