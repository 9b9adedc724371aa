//! The weights of a transformer layer and of the model's two ends.

use super::ModelLoadError;
use super::feed_forward::FeedForward;
use super::hyper::{HyperParams, NormKind, QkNorm, Residual};
use super::loader::{Arrangement, Loader, Part};
use super::lora_deltas::LoraDeltas;
use crate::gpu::BufferSlice;
use crate::kernels::PackedMatrix;

/// A matrix, its bias, and the first column of the output it fills.
#[derive(Clone, Copy, Debug)]
pub(super) struct Projection {
    pub matrix: PackedMatrix,
    pub bias: Option<BufferSlice>,
    pub offset: u64,
}

impl Projection {
    pub(super) fn load(
        loader: &mut Loader<'_>,
        stem: &str,
        row_len: u64,
        rows: u64,
    ) -> Result<Self, ModelLoadError> {
        let matrix = loader.matrix(&format!("{stem}.weight"), row_len, rows)?;
        let bias = loader.opt_vector(&format!("{stem}.bias"), rows)?;
        Ok(Self { matrix, bias, offset: 0 })
    }
}

/// A norm of the stream's rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Norm {
    pub kind: NormKind,
    pub gain: BufferSlice,
    /// Not with [`NormKind::Rms`].
    pub bias: Option<BufferSlice>,
}

impl Norm {
    fn load(
        loader: &mut Loader<'_>,
        hyper: &HyperParams,
        stem: &str,
    ) -> Result<Self, ModelLoadError> {
        let (kind, width) = (hyper.norm, hyper.embedding);
        let gain = loader.vector(&format!("{stem}.weight"), width)?;
        let bias = match kind {
            NormKind::Rms => None,
            NormKind::Layer => loader.opt_vector(&format!("{stem}.bias"), width)?,
        };
        Ok(Self { kind, gain, bias })
    }
}

/// Input of attention or of the feed-forward.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reads {
    /// The stream through a norm of its own.
    Normed(Norm),
    /// The stream as it is.
    Stream,
    /// The same input as attention.
    SameAsAttention,
}

/// Gains of q and k.
#[derive(Clone, Copy, Debug)]
pub(super) struct QkGains {
    pub kind: QkNorm,
    pub q: BufferSlice,
    pub k: BufferSlice,
}

/// Weights of one layer.
#[derive(Clone, Debug)]
pub(super) struct Layer {
    pub attention_reads: Reads,
    /// q, k and v: one matrix where they have one type.
    pub qkv: Vec<Projection>,
    pub qk_gains: Option<QkGains>,
    pub attention_out: Projection,
    /// Norm of attention's result, before it joins the stream.
    pub attention_after: Option<Norm>,
    pub feed_forward_reads: Reads,
    pub feed_forward: FeedForward,
    /// Norm of the feed-forward's result, before it joins the stream.
    pub feed_forward_after: Option<Norm>,
    /// LoRA deltas of its matmuls.
    pub lora_deltas: LoraDeltas,
}

impl Layer {
    pub(super) fn load(
        loader: &mut Loader<'_>,
        hyper: &HyperParams,
        index: usize,
    ) -> Result<Self, ModelLoadError> {
        let name = |part: &str| format!("blk.{index}.{part}");
        let q_width = u64::from(hyper.heads) * u64::from(hyper.head_dim);
        let before = |loader: &mut Loader<'_>, part: &str| match hyper.norms_before {
            true => Ok::<_, ModelLoadError>(Reads::Normed(Norm::load(loader, hyper, &name(part))?)),
            false => Ok(Reads::Stream),
        };
        let after = |loader: &mut Loader<'_>, part: &str| match hyper.norms_after {
            true => Norm::load(loader, hyper, &name(part)).map(Some),
            false => Ok(None),
        };
        let [attention_norm, feed_forward_norm] = hyper.norm_names;
        let [attention_after, feed_forward_after] = hyper.norm_after_names;
        Ok(Self {
            attention_reads: before(loader, attention_norm)?,
            qkv: load_qkv(loader, hyper, index)?,
            qk_gains: load_qk_gains(loader, hyper, index)?,
            attention_out: Projection::load(
                loader,
                &name("attn_output"),
                q_width,
                hyper.embedding,
            )?,
            attention_after: after(loader, attention_after)?,
            feed_forward_reads: match hyper.residual {
                Residual::ParallelOneNorm => Reads::SameAsAttention,
                _ => before(loader, feed_forward_norm)?,
            },
            feed_forward: FeedForward::load(loader, hyper, index)?,
            feed_forward_after: after(loader, feed_forward_after)?,
            lora_deltas: LoraDeltas::default(),
        })
    }
}

/// Gains of the norms of q and k, in the shape that the architecture gives them.
fn load_qk_gains(
    loader: &mut Loader<'_>,
    hyper: &HyperParams,
    index: usize,
) -> Result<Option<QkGains>, ModelLoadError> {
    let kind = hyper.qk_norm;
    let head_dim = u64::from(hyper.head_dim);
    let mut load = |part: &str, heads: u32| {
        let name = format!("blk.{index}.{part}.weight");
        match kind {
            QkNorm::None => Ok(None),
            QkNorm::Head => loader.vector(&name, head_dim).map(Some),
            QkNorm::Whole => loader.vector(&name, head_dim * u64::from(heads)).map(Some),
            QkNorm::LayerNormHead => loader.table(&name, &[head_dim, u64::from(heads)]).map(Some),
        }
    };
    let q = load("attn_q_norm", hyper.heads)?;
    let k = load("attn_k_norm", hyper.kv_heads)?;
    Ok(q.zip(k).map(|(q, k)| QkGains { kind, q, k }))
}

/// q, k and v as one matrix where they are one tensor or have one type, else one by one.
fn load_qkv(
    loader: &mut Loader<'_>,
    hyper: &HyperParams,
    index: usize,
) -> Result<Vec<Projection>, ModelLoadError> {
    let head_dim = u64::from(hyper.head_dim);
    let (q_width, kv_width) =
        (u64::from(hyper.heads) * head_dim, u64::from(hyper.kv_heads) * head_dim);
    let whole = format!("blk.{index}.attn_qkv");
    if loader.has(&format!("{whole}.weight")) {
        let rows = q_width + 2 * kv_width;
        return Ok(vec![Projection::load(loader, &whole, hyper.embedding, rows)?]);
    }
    let parts = [("attn_q", q_width), ("attn_k", kv_width), ("attn_v", kv_width)];
    let mut tensors = Vec::with_capacity(parts.len());
    let mut biases = Vec::with_capacity(parts.len());
    for (part, rows) in parts {
        let stem = format!("blk.{index}.{part}");
        let tensor = loader.tensor(&format!("{stem}.weight"), &[hyper.embedding, rows])?;
        tensors.push(Part::whole(tensor));
        biases.push(loader.opt_vector_values(&format!("{stem}.bias"), rows)?);
    }
    let label = format!("{whole}.bias");
    if loader.can_join(&tensors) {
        let matrix = loader.pack(&tensors, Arrangement::Stacked)?;
        let bias = if biases.iter().any(Option::is_some) {
            // A part without a bias adds zeros.
            let values: Vec<f32> = biases
                .into_iter()
                .zip(parts)
                .flat_map(|(bias, (_, rows))| bias.unwrap_or_else(|| vec![0.0; rows as usize]))
                .collect();
            Some(loader.upload_vector(&label, &values)?)
        } else {
            None
        };
        return Ok(vec![Projection { matrix, bias, offset: 0 }]);
    }
    let mut projections = Vec::with_capacity(parts.len());
    let mut offset = 0;
    for (tensor, (bias, (_, rows))) in tensors.iter().zip(biases.into_iter().zip(parts)) {
        let matrix = loader.pack(&[*tensor], Arrangement::Stacked)?;
        let bias = bias.map(|values| loader.upload_vector(&label, &values)).transpose()?;
        projections.push(Projection { matrix, bias, offset });
        offset += rows;
    }
    Ok(projections)
}

/// Weights that turn token ids into the residual stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Embeddings {
    pub tokens: PackedMatrix,
    /// Learned position embeddings.
    pub positions: Option<PackedMatrix>,
    /// Token type embeddings; all tokens have type 0.
    pub types: Option<PackedMatrix>,
    /// Norm of their sum.
    pub norm: Option<Norm>,
}

/// Weights that turn the residual stream into logits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub norm: Norm,
    /// The token table again where the file has no `output.weight`.
    pub output: PackedMatrix,
    pub output_bias: Option<BufferSlice>,
}

impl Embeddings {
    pub(super) fn load(
        loader: &mut Loader<'_>,
        hyper: &HyperParams,
    ) -> Result<Self, ModelLoadError> {
        let (vocab, width) = (loader.vocab()?, hyper.embedding);
        let tokens = loader.matrix("token_embd.weight", width, vocab)?;
        let positions = if hyper.learned_positions {
            let rows = hyper.context_trained.into();
            Some(loader.matrix("position_embd.weight", width, rows)?)
        } else {
            None
        };
        if !hyper.encoder {
            return Ok(Self { tokens, positions, types: None, norm: None });
        }
        let types = match loader.rows_of("token_types.weight") {
            Some(rows) => Some(loader.matrix("token_types.weight", width, rows)?),
            None => None,
        };
        let norm = Some(Norm::load(loader, hyper, "token_embd_norm")?);
        Ok(Self { tokens, positions, types, norm })
    }

    pub(super) fn vocab(&self) -> u64 {
        self.tokens.layout.rows
    }
}

impl Head {
    pub(super) fn load(
        loader: &mut Loader<'_>,
        hyper: &HyperParams,
        embeddings: &Embeddings,
    ) -> Result<Self, ModelLoadError> {
        let vocab = embeddings.vocab();
        let norm = Norm::load(loader, hyper, "output_norm")?;
        let output = if loader.has("output.weight") {
            loader.matrix("output.weight", hyper.embedding, vocab)?
        } else {
            embeddings.tokens
        };
        let output_bias = loader.opt_vector("output.bias", vocab)?;
        Ok(Self { norm, output, output_bias })
    }
}
