//! The network's shape, and the features that architectures choose from.

use super::experts::Mixture;
use super::keys::{Keys, WIDTH_MAX};
use super::{ModelLoadError, RopeSpec};
use crate::gguf::{Array, Value};

/// Normalisation of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// Divided by the root of their mean square, times a gain.
    Rms,
    /// Less their mean, divided by their deviation, times a gain, plus a bias where there is one.
    Layer,
}

/// Arrangement of attention and feed-forward around the residual stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residual {
    /// x += attention(norm(x)), then x += feed_forward(norm(x)).
    Sequential,
    /// Both read the same x, each through a norm of its own.
    Parallel,
    /// Both read the same x through the same norm.
    ParallelOneNorm,
    /// x = norm(x + attention(x)), then x = norm(x + feed_forward(x)).
    NormedSum,
}

/// Normalisation of queries and keys before RoPE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// Not at all.
    None,
    /// Each head by its mean square, all by one gain.
    Head,
    /// All heads together by their mean square.
    Whole,
    /// Each head by its mean and deviation, with a gain of its own.
    LayerNormHead,
}

/// The feed-forward's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mlp {
    /// down(silu(gate x) * up x)
    SwiGlu,
    /// down(gelu(gate x) * up x), by GELU's tanh form.
    GeGlu,
    /// down(gelu(up x)), by GELU's tanh form.
    Gelu,
}

/// Pooling of a text's token rows into one embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Mean of all rows.
    Mean,
    /// The first, of the token that stands for the whole text.
    First,
    /// Row of the last token.
    Last,
}

/// Transformation of the head's output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Logits {
    /// Times a factor.
    Scaled(f32),
    /// cap * tanh(x / cap)
    SoftCapped(f32),
}

/// Parameters that differ between layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerSpec {
    /// Positions a token sees, itself included; 0 for all.
    pub window: u32,
    /// Index into [`HyperParams::ropes`], or nothing where positions are not rotated.
    pub rope: Option<usize>,
}

/// The network's shape and constants. Lengths count values.
#[derive(Clone, Debug, PartialEq)]
pub struct HyperParams {
    /// Value of `general.architecture`.
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
    /// True if rotation pairs (i, i + rope_dim / 2) rather than (2 i, 2 i + 1).
    pub neox: bool,
    /// Context it was trained for, in tokens.
    pub context_trained: u32,
    /// Positions past which hob cannot compute it, where there are such.
    pub context_max: Option<u32>,
    /// Kind of all norms of the stream.
    pub norm: NormKind,
    /// Epsilon of all norms.
    pub epsilon: f32,
    /// True if attention and feed-forward read the stream through a norm.
    pub norms_before: bool,
    /// Stems of the tensors of these two norms.
    pub norm_names: [&'static str; 2],
    /// Stems of the tensors of the norms behind the two.
    pub norm_after_names: [&'static str; 2],
    /// True if their results join it through a norm.
    pub norms_after: bool,
    /// Arrangement of attention and feed-forward around the residual stream.
    pub residual: Residual,
    /// Norm of queries and keys.
    pub qk_norm: QkNorm,
    /// The feed-forward's shape.
    pub mlp: Mlp,
    /// Experts in place of the feed-forward, where layers have them.
    pub mixture: Option<Mixture>,
    /// True if `ffn_up` holds the rows of the gate before its own.
    pub gate_in_up: bool,
    /// True if it makes no logits but reads a whole text at once, every token seeing all.
    pub encoder: bool,
    /// Default pooling of a text's rows.
    pub pooling: Pooling,
    /// True if an embedding of the position is added to the token's.
    pub learned_positions: bool,
    /// Factor of the token embeddings.
    pub embedding_factor: f32,
    /// Factor of the attention scores.
    pub attention_scale: f32,
    /// Soft cap of the attention scores; 0 for none.
    pub attention_soft_cap: f32,
    /// Factor of what attention and feed-forward add to the stream.
    pub residual_factor: f32,
    /// Transformation of the head's output.
    pub logits: Logits,
    /// Sets of rotation frequencies.
    pub ropes: Vec<RopeSpec>,
    /// Parameters of each layer, in order.
    pub layers: Vec<LayerSpec>,
}

/// Largest sizes accepted: far above any model, small enough that no product of two overflows.
const LAYERS_MAX: u32 = 1024;
const HEADS_MAX: u32 = 4096;
const HEAD_DIM_MAX: u32 = 512;

impl HyperParams {
    /// Reads what all supported architectures share, as llama has it; the family then changes what
    /// it does otherwise.
    pub(super) fn read(keys: &Keys<'_>, norm: NormKind) -> Result<Self, ModelLoadError> {
        let embedding = keys.count("embedding_length", WIDTH_MAX)?;
        let layers = keys.count("block_count", LAYERS_MAX)?;
        let feed_forward = keys.count_of_layers("feed_forward_length", WIDTH_MAX)?;
        let heads = keys.count_of_layers("attention.head_count", HEADS_MAX)?;
        let kv_heads =
            keys.opt_count_of_layers("attention.head_count_kv", HEADS_MAX)?.unwrap_or(heads);
        if heads % kv_heads != 0 {
            let wanted = format!("a divisor of the {heads} of attention.head_count");
            return Err(keys.refuse("attention.head_count_kv", &wanted, kv_heads));
        }
        let head_dim = Self::read_head_dim(keys, embedding, heads)?;
        let rope_dim = keys.opt_count("rope.dimension_count", head_dim)?.unwrap_or(head_dim);
        if rope_dim % 2 != 0 {
            return Err(keys.refuse("rope.dimension_count", "an even number", rope_dim));
        }
        let key = match norm {
            NormKind::Rms => "attention.layer_norm_rms_epsilon",
            NormKind::Layer => "attention.layer_norm_epsilon",
        };
        let epsilon = keys
            .opt_positive(key, true)?
            .ok_or_else(|| keys.refuse(key, "a number", "no such key"))?;
        let context_trained = keys.count("context_length", u32::MAX)?;
        Ok(Self {
            architecture: keys.architecture().to_owned(),
            embedding: embedding.into(),
            feed_forward: feed_forward.into(),
            heads,
            kv_heads,
            head_dim,
            rope_dim,
            neox: false,
            context_trained,
            context_max: None,
            norm,
            epsilon,
            norms_before: true,
            norm_names: ["attn_norm", "ffn_norm"],
            norms_after: false,
            norm_after_names: ["post_attention_norm", "post_ffw_norm"],
            residual: Residual::Sequential,
            qk_norm: QkNorm::None,
            mlp: Mlp::SwiGlu,
            mixture: None,
            gate_in_up: false,
            encoder: false,
            pooling: read_pooling(keys, Pooling::Last)?,
            learned_positions: false,
            embedding_factor: 1.0,
            attention_scale: 1.0 / (head_dim as f32).sqrt(),
            attention_soft_cap: 0.0,
            residual_factor: 1.0,
            logits: Logits::Scaled(1.0),
            ropes: vec![RopeSpec::read(keys, context_trained)?],
            layers: vec![LayerSpec { window: 0, rope: Some(0) }; layers as usize],
        })
    }

    /// Layers whose keys and values are kept side by side: an encoder needs those of a layer only
    /// while it computes it.
    #[must_use]
    pub fn kv_layers(&self) -> usize {
        if self.encoder { 1 } else { self.layers.len() }
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

    /// Gives layers a window, and a set of rotation frequencies; `windowed` says which.
    pub(super) fn window_layers(&mut self, windowed: &[bool], window: u32, rope: usize) {
        for (layer, _) in self.layers.iter_mut().zip(windowed).filter(|(_, windowed)| **windowed) {
            (layer.window, layer.rope) = (window, Some(rope));
        }
    }
}

/// The model's own pooling, or `usual` where it says nothing.
pub(super) fn read_pooling(keys: &Keys<'_>, usual: Pooling) -> Result<Pooling, ModelLoadError> {
    let key = "pooling_type";
    match keys.metadata().opt_u32(&keys.name(key))? {
        None | Some(0) => Ok(usual),
        Some(1) => Ok(Pooling::Mean),
        Some(2) => Ok(Pooling::First),
        Some(3) => Ok(Pooling::Last),
        Some(other) => Err(keys.refuse(key, "0 to 3: none, mean, CLS or last", other)),
    }
}

/// For each layer, true if it has a window: as the file lists them, or all but every so manyth, by
/// the key's number or `usual`.
pub(super) fn read_windowed(
    keys: &Keys<'_>,
    layers: usize,
    usual: u32,
) -> Result<Vec<bool>, ModelLoadError> {
    if let Some(listed) = read_listed_windows(keys, layers)? {
        return Ok(listed);
    }
    let period = keys.opt_count(WINDOW_PATTERN, LAYERS_MAX)?.unwrap_or(usual) as usize;
    Ok((0..layers).map(|index| index % period < period - 1).collect())
}

const WINDOW_PATTERN: &str = "attention.sliding_window_pattern";

/// The layers that have a window, where the file lists them.
fn read_listed_windows(
    keys: &Keys<'_>,
    layers: usize,
) -> Result<Option<Vec<bool>>, ModelLoadError> {
    let name = keys.name(WINDOW_PATTERN);
    let Some(Value::Array(Array::Bool(listed))) = keys.metadata().get(&name) else {
        return Ok(None);
    };
    if listed.len() != layers {
        let wanted = format!("true or false for each of the {layers} layers");
        let found = format!("{} values", listed.len());
        return Err(keys.refuse(WINDOW_PATTERN, &wanted, found));
    }
    Ok(Some(listed.clone()))
}

/// Follows the window of an architecture that usually has none, in the layers that the file lists.
/// A window without such a list that would be seen within the trained context is refused where
/// `refuses` says so.
pub(super) fn read_listed_window(
    keys: &Keys<'_>,
    hyper: &mut HyperParams,
    refuses: bool,
) -> Result<(), ModelLoadError> {
    let Some(window) = keys.opt_window()? else { return Ok(()) };
    if let Some(windowed) = read_listed_windows(keys, hyper.layers.len())? {
        for (layer, _) in hyper.layers.iter_mut().zip(windowed).filter(|(_, windowed)| *windowed) {
            layer.window = window;
        }
    } else if refuses && window < hyper.context_trained {
        let wanted = format!("no such key, or the layers that have a window in {WINDOW_PATTERN}");
        return Err(keys.refuse("attention.sliding_window", &wanted, window));
    }
    Ok(())
}
