//! What a model file says of the network's shape, checked.

use super::ModelLoadError;
use crate::gguf::{GgufFile, Metadata};

/// Activation of the feed-forward's gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// x * sigmoid(x)
    Silu,
    /// GELU's tanh form.
    Gelu,
}

/// One set of rotation frequencies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeSpec {
    /// Base of the frequencies.
    pub base: f32,
    /// Factor of every frequency: 1 / the linear scaling factor.
    pub scale: f32,
}

/// What differs from layer to layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerSpec {
    /// Positions a token sees, itself included; 0 for all.
    pub window: u32,
    /// Index into [`HyperParams::ropes`].
    pub rope: usize,
}

/// The network's shape and constants. Lengths count values.
#[derive(Clone, Debug, PartialEq)]
pub struct HyperParams {
    /// `general.architecture`.
    pub architecture: String,
    /// Width of the residual stream.
    pub embedding: u64,
    /// Width of the feed-forward.
    pub feed_forward: u64,
    /// Query heads, a multiple of `kv_heads`.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Dimensions of a head.
    pub head_dim: u32,
    /// Dimensions that are rotated.
    pub rope_dim: u32,
    /// Whether rotation pairs (i, i + rope_dim / 2) rather than (2 i, 2 i + 1).
    pub neox: bool,
    /// Context it was trained for, in tokens.
    pub context_trained: u32,
    /// Epsilon of the RMS norms.
    pub epsilon: f32,
    /// Factor of the token embeddings.
    pub embedding_factor: f32,
    /// Factor of the attention scores.
    pub attention_scale: f32,
    /// Activation of the gate.
    pub activation: Activation,
    /// Sets of rotation frequencies.
    pub ropes: Vec<RopeSpec>,
    /// The layers.
    pub layers: Vec<LayerSpec>,
}

/// Largest sizes accepted: far above any model, small enough that no product of two overflows.
const LAYERS_MAX: u32 = 1024;
const WIDTH_MAX: u32 = 1 << 20;
const HEADS_MAX: u32 = 4096;
const HEAD_DIM_MAX: u32 = 512;

/// Reads keys of one architecture, with its name in front.
pub(super) struct Keys<'a> {
    file: &'a GgufFile,
    architecture: &'a str,
}

impl<'a> Keys<'a> {
    pub(super) fn new(file: &'a GgufFile, architecture: &'a str) -> Self {
        Self { file, architecture }
    }

    pub(super) fn metadata(&self) -> &'a Metadata {
        self.file.metadata()
    }

    pub(super) fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    pub(super) fn refuse(&self, key: &str, wanted: &str, found: impl ToString) -> ModelLoadError {
        ModelLoadError::Value {
            path: self.file.path().to_owned(),
            key: self.name(key),
            wanted: wanted.to_owned(),
            found: found.to_string(),
        }
    }

    /// A count from 1 to `max`.
    pub(super) fn count(&self, key: &str, max: u32) -> Result<u32, ModelLoadError> {
        let found = self.metadata().u32(&self.name(key))?;
        self.within(key, found, max)
    }

    /// A count from 1 to `max`, or nothing.
    pub(super) fn opt_count(&self, key: &str, max: u32) -> Result<Option<u32>, ModelLoadError> {
        let found = self.metadata().opt_u32(&self.name(key))?;
        found.map(|found| self.within(key, found, max)).transpose()
    }

    fn within(&self, key: &str, found: u32, max: u32) -> Result<u32, ModelLoadError> {
        if (1..=max).contains(&found) {
            Ok(found)
        } else {
            Err(self.refuse(key, &format!("1 to {max}"), found))
        }
    }

    /// A finite number above 0 (or at 0, where `zero` says so), or nothing.
    pub(super) fn opt_positive(
        &self,
        key: &str,
        zero: bool,
    ) -> Result<Option<f32>, ModelLoadError> {
        let Some(found) = self.metadata().opt_f32(&self.name(key))? else { return Ok(None) };
        if found.is_finite() && (found > 0.0 || zero && found == 0.0) {
            return Ok(Some(found));
        }
        let wanted = if zero { "a finite number of at least 0" } else { "a finite number above 0" };
        Err(self.refuse(key, wanted, found))
    }
}

impl HyperParams {
    /// Reads what all supported architectures share; the family then changes what it does
    /// otherwise.
    pub(super) fn read(keys: &Keys<'_>) -> Result<Self, ModelLoadError> {
        let embedding = keys.count("embedding_length", WIDTH_MAX)?;
        let layers = keys.count("block_count", LAYERS_MAX)?;
        let feed_forward = keys.count("feed_forward_length", WIDTH_MAX)?;
        let heads = keys.count("attention.head_count", HEADS_MAX)?;
        let kv_heads = keys.opt_count("attention.head_count_kv", HEADS_MAX)?.unwrap_or(heads);
        if heads % kv_heads != 0 {
            let wanted = format!("a divisor of the {heads} of attention.head_count");
            return Err(keys.refuse("attention.head_count_kv", &wanted, kv_heads));
        }
        let head_dim = Self::read_head_dim(keys, embedding, heads)?;
        let rope_dim = keys.opt_count("rope.dimension_count", head_dim)?.unwrap_or(head_dim);
        if rope_dim % 2 != 0 {
            return Err(keys.refuse("rope.dimension_count", "an even number", rope_dim));
        }
        let key = "attention.layer_norm_rms_epsilon";
        let epsilon = keys
            .opt_positive(key, true)?
            .ok_or_else(|| keys.refuse(key, "a number", "no such key"))?;
        let base = keys.opt_positive("rope.freq_base", false)?.unwrap_or(10_000.0);
        let attention_scale = keys
            .opt_positive("attention.scale", false)?
            .unwrap_or_else(|| 1.0 / (head_dim as f32).sqrt());
        Ok(Self {
            architecture: keys.architecture.to_owned(),
            embedding: embedding.into(),
            feed_forward: feed_forward.into(),
            heads,
            kv_heads,
            head_dim,
            rope_dim,
            neox: false,
            context_trained: keys.count("context_length", u32::MAX)?,
            epsilon,
            embedding_factor: 1.0,
            attention_scale,
            activation: Activation::Silu,
            ropes: vec![RopeSpec { base, scale: Self::read_rope_scale(keys)? }],
            layers: vec![LayerSpec { window: 0, rope: 0 }; layers as usize],
        })
    }

    /// Dimensions of a head: `attention.key_length`, or the embedding shared by the heads.
    fn read_head_dim(keys: &Keys<'_>, embedding: u32, heads: u32) -> Result<u32, ModelLoadError> {
        let named = keys.opt_count("attention.key_length", HEAD_DIM_MAX)?;
        if named.is_none() && !embedding.is_multiple_of(heads) {
            let wanted = format!("a divisor of the {embedding} of embedding_length");
            return Err(keys.refuse("attention.head_count", &wanted, heads));
        }
        let head_dim = named.unwrap_or(embedding / heads);
        if head_dim % 8 != 0 || head_dim > HEAD_DIM_MAX {
            let wanted = format!("a multiple of 8 up to {HEAD_DIM_MAX} dimensions a head");
            return Err(keys.refuse("attention.key_length", &wanted, head_dim));
        }
        let value_dim = keys.opt_count("attention.value_length", HEAD_DIM_MAX)?;
        match value_dim {
            Some(value_dim) if value_dim != head_dim => {
                let wanted = format!("{head_dim}, as attention.key_length");
                Err(keys.refuse("attention.value_length", &wanted, value_dim))
            }
            _ => Ok(head_dim),
        }
    }

    /// Factor of the rotation frequencies: none or linear scaling.
    fn read_rope_scale(keys: &Keys<'_>) -> Result<f32, ModelLoadError> {
        let kind = keys.metadata().opt_str(&keys.name("rope.scaling.type"))?;
        let factor = match keys.opt_positive("rope.scaling.factor", true)? {
            None => keys.opt_positive("rope.scale_linear", true)?,
            found => found,
        };
        // Some files carry a factor of 0 or 1 for "not scaled".
        let factor = factor.filter(|factor| *factor != 0.0).unwrap_or(1.0);
        match kind {
            None | Some("none") => Ok(if kind.is_some() { 1.0 } else { 1.0 / factor }),
            Some("linear") => Ok(1.0 / factor),
            Some(other) => {
                Err(keys.refuse("rope.scaling.type", "none or linear", format!("{other:?}")))
            }
        }
    }
}
