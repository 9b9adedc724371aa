//! The weights of a transformer layer and of the model's two ends.

use super::families::layer_parts_required;
use super::loader::{Arrangement, Loader};
use super::{Activation, HyperParams, ModelLoadError};
use crate::gpu::BufferSlice;
use crate::kernels::PackedMatrix;
use crate::kernels::matmul::Epilogue;

/// A matrix, its bias, and the first column of the output it fills.
#[derive(Clone, Copy, Debug)]
pub(super) struct Projection {
    pub matrix: PackedMatrix,
    pub bias: Option<BufferSlice>,
    pub offset: u64,
}

/// Gate and up of a feed-forward.
#[derive(Clone, Debug)]
pub(super) enum GateUp {
    /// Groups of gate and up in turn: the activation is an epilogue of the product.
    Fused(PackedMatrix, Epilogue),
    /// Two products, then the activation.
    Split([Projection; 2]),
}

/// One layer.
#[derive(Clone, Debug)]
pub(super) struct Layer {
    pub attention_norm: BufferSlice,
    /// q, k and v: one matrix where they have one type.
    pub qkv: Vec<Projection>,
    /// Gains of q and k.
    pub qk_norms: Option<(BufferSlice, BufferSlice)>,
    pub attention_out: Projection,
    /// Norm of attention's result, before it joins the stream.
    pub post_attention_norm: Option<BufferSlice>,
    pub feed_forward_norm: BufferSlice,
    pub gate_up: GateUp,
    pub down: Projection,
    /// Norm of the feed-forward's result, before it joins the stream.
    pub post_feed_forward_norm: Option<BufferSlice>,
}

impl Layer {
    pub(super) fn load(
        loader: &mut Loader<'_>,
        hyper: &HyperParams,
        index: usize,
    ) -> Result<Self, ModelLoadError> {
        let name = |part: &str| format!("blk.{index}.{part}");
        for part in layer_parts_required(&hyper.architecture) {
            if !loader.has(&name(part)) {
                let wanted = format!("a tensor, as every {} layer has", hyper.architecture);
                return Err(loader.refuse(&name(part), &wanted, "no such tensor"));
            }
        }
        let (width, head_dim) = (hyper.embedding, u64::from(hyper.head_dim));
        let q_width = u64::from(hyper.heads) * head_dim;
        let q_norm = loader.opt_vector(&name("attn_q_norm.weight"), head_dim)?;
        let k_norm = loader.opt_vector(&name("attn_k_norm.weight"), head_dim)?;
        if q_norm.is_some() != k_norm.is_some() {
            let missing =
                if q_norm.is_some() { "attn_k_norm.weight" } else { "attn_q_norm.weight" };
            return Err(loader.refuse(&name(missing), "both q and k norms", "no such tensor"));
        }
        Ok(Self {
            attention_norm: loader.vector(&name("attn_norm.weight"), width)?,
            qkv: load_qkv(loader, hyper, index)?,
            qk_norms: q_norm.zip(k_norm),
            attention_out: projection(loader, &name("attn_output"), q_width, width)?,
            post_attention_norm: loader.opt_vector(&name("post_attention_norm.weight"), width)?,
            feed_forward_norm: loader.vector(&name("ffn_norm.weight"), width)?,
            gate_up: load_gate_up(loader, hyper, index)?,
            down: projection(loader, &name("ffn_down"), hyper.feed_forward, width)?,
            post_feed_forward_norm: loader.opt_vector(&name("post_ffw_norm.weight"), width)?,
        })
    }
}

fn projection(
    loader: &mut Loader<'_>,
    stem: &str,
    row_len: u64,
    rows: u64,
) -> Result<Projection, ModelLoadError> {
    let matrix = loader.matrix(&format!("{stem}.weight"), row_len, rows)?;
    let bias = loader.opt_vector(&format!("{stem}.bias"), rows)?;
    Ok(Projection { matrix, bias, offset: 0 })
}

/// q, k and v as one matrix where they have one type, else one by one.
fn load_qkv(
    loader: &mut Loader<'_>,
    hyper: &HyperParams,
    index: usize,
) -> Result<Vec<Projection>, ModelLoadError> {
    let head_dim = u64::from(hyper.head_dim);
    let kv_width = u64::from(hyper.kv_heads) * head_dim;
    let parts =
        [("attn_q", u64::from(hyper.heads) * head_dim), ("attn_k", kv_width), ("attn_v", kv_width)];
    let mut tensors = Vec::with_capacity(parts.len());
    let mut biases = Vec::with_capacity(parts.len());
    for (part, rows) in parts {
        let stem = format!("blk.{index}.{part}");
        tensors.push(loader.tensor(&format!("{stem}.weight"), &[hyper.embedding, rows])?);
        biases.push(loader.opt_vector_values(&format!("{stem}.bias"), rows)?);
    }
    let label = format!("blk.{index}.attn_qkv.bias");
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
        let matrix = loader.pack(&[tensor], Arrangement::Stacked)?;
        let bias = bias.map(|values| loader.upload_vector(&label, &values)).transpose()?;
        projections.push(Projection { matrix, bias, offset });
        offset += rows;
    }
    Ok(projections)
}

/// Gate and up as one alternating matrix where type and bias allow it.
fn load_gate_up(
    loader: &mut Loader<'_>,
    hyper: &HyperParams,
    index: usize,
) -> Result<GateUp, ModelLoadError> {
    let stems = ["ffn_gate", "ffn_up"].map(|part| format!("blk.{index}.{part}"));
    let (width, hidden) = (hyper.embedding, hyper.feed_forward);
    let has_bias = stems.iter().any(|stem| loader.has(&format!("{stem}.bias")));
    if !has_bias {
        let gate = loader.tensor(&format!("{}.weight", stems[0]), &[width, hidden])?;
        let up = loader.tensor(&format!("{}.weight", stems[1]), &[width, hidden])?;
        if loader.can_join(&[gate, up]) {
            let matrix = loader.pack(&[gate, up], Arrangement::Alternating)?;
            let epilogue = match hyper.activation {
                Activation::Silu => Epilogue::SwiGlu,
                Activation::Gelu => Epilogue::GeGlu,
            };
            return Ok(GateUp::Fused(matrix, epilogue));
        }
    }
    let gate = projection(loader, &stems[0], width, hidden)?;
    let up = projection(loader, &stems[1], width, hidden)?;
    Ok(GateUp::Split([gate, Projection { offset: hidden, ..up }]))
}

/// The model's two ends: token table, last norm, and the head that makes logits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub embeddings: PackedMatrix,
    pub norm: BufferSlice,
    /// The token table again where the file has no `output.weight`.
    pub output: PackedMatrix,
    pub output_bias: Option<BufferSlice>,
}

impl Head {
    pub(super) fn load(
        loader: &mut Loader<'_>,
        hyper: &HyperParams,
    ) -> Result<Self, ModelLoadError> {
        let vocab = loader.vocab()?;
        let embeddings = loader.matrix("token_embd.weight", hyper.embedding, vocab)?;
        let norm = loader.vector("output_norm.weight", hyper.embedding)?;
        let output = if loader.has("output.weight") {
            loader.matrix("output.weight", hyper.embedding, vocab)?
        } else {
            embeddings
        };
        let output_bias = loader.opt_vector("output.bias", vocab)?;
        Ok(Self { embeddings, norm, output, output_bias })
    }

    pub(super) fn vocab(&self) -> u64 {
        self.embeddings.layout.rows
    }
}
