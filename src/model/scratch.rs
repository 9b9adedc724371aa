//! Buffers of a step: what the host writes, the activations, and the logits it reads back.

use super::hyper::{HyperParams, NormKind};
use crate::gpu::{BufferDesc, BufferSlice, BufferUsage, DeviceError, Executor};

/// Sizes that a model's buffers are made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most tokens of a step.
    pub tokens_max: usize,
    /// Most tokens of a step whose logits are wanted.
    pub logit_rows_max: usize,
    /// Positions of the longest session.
    pub context_tokens: usize,
    /// Bytes the KV cache will take beside the model.
    pub kv_bytes: u64,
}

/// Buffers the host writes before a step, and the one it reads after.
#[derive(Clone, Copy, Debug)]
pub struct Inputs {
    /// u32 `[tokens, 4]`: token id, position, row of the block tables, 0.
    pub steps: BufferSlice,
    /// u32 `[tiles, 4]`: first token, tokens, 0, 0.
    pub tiles: BufferSlice,
    /// u32 `[rows]`: tokens whose logits are wanted.
    pub rows: BufferSlice,
    /// f32 `[rows, vocab]`: their logits.
    pub logits: BufferSlice,
}

/// Activations; a row for each token unless said otherwise.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scratch {
    pub limits: Limits,
    pub inputs: Inputs,
    /// Residual stream, `[embedding]`.
    pub stream: BufferSlice,
    /// `[(heads + 2 kv_heads) * head_dim]`.
    pub qkv: BufferSlice,
    /// `[heads * head_dim]`.
    pub q: BufferSlice,
    /// `[heads * head_dim]`.
    pub attended: BufferSlice,
    /// Result of a block before its own norm, `[embedding]`.
    pub block: BufferSlice,
    /// The stream behind a norm that no product does in passing, `[embedding]`; without such norms,
    /// one value each.
    pub normed: BufferSlice,
    /// Gate and up where they are not fused, `[2 * feed_forward]`.
    pub gate_up: BufferSlice,
    /// `[feed_forward]`.
    pub hidden: BufferSlice,
    /// Rows of the stream whose logits are wanted, `[logit_rows_max, embedding]`.
    pub gathered: BufferSlice,
    /// `[logit_rows_max, vocab]`.
    pub logits: BufferSlice,
}

impl Scratch {
    /// Bytes of the activations, by the same sum as [`Scratch::create`].
    pub(super) fn bytes(hyper: &HyperParams, vocab: u64, limits: &Limits) -> u64 {
        let widths = Widths::of(hyper);
        let per_token: u64 = widths.all().iter().sum();
        4 * (per_token * limits.tokens_max as u64
            + (hyper.embedding + 2 * vocab) * limits.logit_rows_max as u64)
    }

    pub(super) fn create(
        executor: &mut dyn Executor,
        hyper: &HyperParams,
        vocab: u64,
        limits: Limits,
    ) -> Result<Self, DeviceError> {
        let (tokens, rows) = (limits.tokens_max as u64, limits.logit_rows_max as u64);
        let widths = Widths::of(hyper);
        let mut buffer = |label: &str, words: u64, usage: BufferUsage| {
            let desc = BufferDesc { label: label.into(), bytes: words * 4, usage };
            let buffer = executor.create_buffer(&desc)?;
            Ok::<_, DeviceError>(BufferSlice { buffer, offset: 0, bytes: words * 4 })
        };
        let inputs = Inputs {
            steps: buffer("steps", 4 * tokens, BufferUsage::Upload)?,
            tiles: buffer("tiles", 4 * tokens, BufferUsage::Upload)?,
            rows: buffer("logit rows", rows, BufferUsage::Upload)?,
            logits: buffer("logits readback", rows * vocab, BufferUsage::Readback)?,
        };
        let mut scratch = |label: &str, words: u64| buffer(label, words, BufferUsage::Scratch);
        Ok(Self {
            limits,
            inputs,
            stream: scratch("stream", tokens * widths.stream)?,
            qkv: scratch("qkv", tokens * widths.qkv)?,
            q: scratch("q", tokens * widths.q)?,
            attended: scratch("attended", tokens * widths.q)?,
            block: scratch("block", tokens * widths.stream)?,
            normed: scratch("normed", tokens * widths.normed)?,
            gate_up: scratch("gate and up", tokens * 2 * widths.hidden)?,
            hidden: scratch("hidden", tokens * widths.hidden)?,
            gathered: scratch("gathered", rows * widths.stream)?,
            logits: scratch("logits", rows * vocab)?,
        })
    }
}

/// Floats of a token in each activation.
struct Widths {
    stream: u64,
    normed: u64,
    qkv: u64,
    q: u64,
    hidden: u64,
}

impl Widths {
    fn of(hyper: &HyperParams) -> Self {
        let head_dim = u64::from(hyper.head_dim);
        Self {
            stream: hyper.embedding,
            normed: if hyper.norm == NormKind::Layer { hyper.embedding } else { 1 },
            qkv: u64::from(hyper.heads + 2 * hyper.kv_heads) * head_dim,
            q: u64::from(hyper.heads) * head_dim,
            hidden: hyper.feed_forward,
        }
    }

    fn all(&self) -> [u64; 8] {
        let Self { stream, normed, qkv, q, hidden } = *self;
        [stream, qkv, q, q, stream, normed, 2 * hidden, hidden]
    }
}
