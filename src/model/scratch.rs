//! Buffers of a step: what the host writes, the activations, and the logits it reads back.

use super::experts::Mixture;
use super::hyper::{HyperParams, NormKind};
use crate::gpu::{BufferDesc, BufferSlice, BufferUsage, Capabilities, DeviceError, Executor};
use crate::kernels::attention::{self, Partials};
use crate::kernels::maxima;
use crate::kernels::sampling::{Penalty, Row, penalties_room};
use crate::kernels::{block_sums, quantize_x};

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
    /// Bytes of the adapters that will be added to it.
    pub adapter_bytes: u64,
    /// True if matmuls, and attention of prompts, may be made of narrower numbers than f32
    /// (`numerics = "fastest"`).
    pub reduced_precision: bool,
}

/// Buffers the host writes before a step, and those it reads after. There are two of each that
/// change hands, since the host writes those of a step while the one before runs.
#[derive(Clone, Copy, Debug)]
pub struct Inputs {
    /// u32 `[tokens, 4]`: token id, or [`PENDING`](crate::kernels::sampling::PENDING) and its row
    /// of the step before; position, row of the block tables, 0.
    pub steps: BufferSlice,
    /// u32 `[tiles, 4]`: first token, tokens, keys of the session, 0.
    pub tiles: BufferSlice,
    /// u32 `[rows]`: tokens whose logits are wanted.
    pub rows: BufferSlice,
    /// [`Row`] `[rows]`: how the tokens behind them are chosen.
    pub wanted: BufferSlice,
    /// [`Penalty`], lists of the rows: tokens whose logits change.
    pub penalties: BufferSlice,
    /// u32 `[rows, vocab / 32]`: tokens that may be chosen, a bit each.
    pub masks: BufferSlice,
    /// u32 `[rows]`: the tokens that were chosen.
    pub chosen: BufferSlice,
    /// f32 `[rows, vocab]`: their logits.
    pub logits: BufferSlice,
    /// f32 `[tokens, embedding]`: what the model makes of every token, before any logits.
    pub encoded: BufferSlice,
}

/// Activations; a row for each token unless said otherwise.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scratch {
    pub limits: Limits,
    /// Two buffer sets, used alternately.
    pub inputs: [Inputs; 2],
    /// Residual stream, `[embedding]`.
    pub stream: BufferSlice,
    /// `[(heads + 2 kv_heads) * head_dim]`.
    pub qkv: BufferSlice,
    /// `[heads * head_dim]`.
    pub q: BufferSlice,
    /// `[heads * head_dim]`.
    pub attended: BufferSlice,
    /// Partial results of split attention.
    pub partials: Partials,
    /// Result of a block before its own norm, `[embedding]`.
    pub block: BufferSlice,
    /// The stream behind a norm that no matmul does in passing, `[embedding]`; without such norms,
    /// one value each.
    pub normed: BufferSlice,
    /// Gate and up where they are not fused, `[2 * feed_forward]`.
    pub gate_up: BufferSlice,
    /// Hidden rows, f32 `[tokens, feed_forward]`.
    pub hidden: BufferSlice,
    /// Scratch of layers with experts.
    pub mixture: Option<MixtureScratch>,
    /// Rows of the stream whose logits are wanted, `[logit_rows_max, embedding]`.
    pub gathered: BufferSlice,
    /// Logits, f32 `[logit_rows_max, vocab]`.
    pub logits: BufferSlice,
    /// For what is made of a matmul's x before, where anything may be.
    workspace: Option<BufferSlice>,
    /// The largest logits of a row's chunks, u32 `[logit_rows_max, chunks, 2]`.
    pub maxima: BufferSlice,
}

impl Scratch {
    /// Room for what is made of a matmul's x before: sums where its weights are sliced, narrower
    /// numbers where these are wanted.
    pub(super) fn matmul_workspace(&self, is_sliced: bool) -> Option<BufferSlice> {
        self.workspace.filter(|_| is_sliced || self.limits.reduced_precision)
    }

    /// Bytes of the activations, by the same sum as [`Scratch::create`].
    pub(super) fn bytes(
        caps: &Capabilities,
        hyper: &HyperParams,
        vocab: u64,
        limits: &Limits,
    ) -> u64 {
        let widths = Widths::of(hyper);
        let per_token: u64 = widths.all().iter().sum();
        let tokens = limits.tokens_max as u64;
        let mixture: u64 = match &hyper.mixture {
            Some(mixture) => mixture_words(mixture, hyper.embedding, tokens).iter().sum(),
            None => 0,
        };
        workspace_bytes(caps, hyper, &widths, limits).unwrap_or(0)
            + 4 * (per_token * tokens
                + mixture
                + partial_words(caps, hyper, limits).iter().sum::<u64>()
                + (hyper.embedding + 2 * vocab + maxima_words(vocab))
                    * limits.logit_rows_max as u64)
    }

    pub(super) fn create(
        executor: &mut dyn Executor,
        hyper: &HyperParams,
        vocab: u64,
        limits: Limits,
    ) -> Result<Self, DeviceError> {
        let (tokens, rows) = (limits.tokens_max as u64, limits.logit_rows_max as u64);
        let widths = Widths::of(hyper);
        let caps = executor.capabilities();
        let [partial_sums, partials_done] = partial_words(caps, hyper, &limits);
        let workspace_bytes = workspace_bytes(caps, hyper, &widths, &limits);
        let mut buffer = |label: &str, words: u64, usage: BufferUsage| {
            let desc = BufferDesc { label: label.into(), bytes: words * 4, usage };
            let buffer = executor.create_buffer(&desc)?;
            Ok::<_, DeviceError>(BufferSlice { buffer, offset: 0, bytes: words * 4 })
        };
        let row_words = size_of::<Row>() as u64 / 4;
        let penalty_words = penalty_words(&limits);
        let mask_words = rows * vocab.div_ceil(32);
        // Of both turns: whoever wants these waits for the device anyway.
        let results = [
            buffer("logits readback", rows * vocab, BufferUsage::Readback)?,
            buffer("encoded", tokens * widths.stream, BufferUsage::Readback)?,
        ];
        let mut inputs = |results: [BufferSlice; 2]| {
            let [logits, encoded] = results;
            Ok::<_, DeviceError>(Inputs {
                steps: buffer("steps", 4 * tokens, BufferUsage::Upload)?,
                tiles: buffer("tiles", 4 * tokens, BufferUsage::Upload)?,
                rows: buffer("logit rows", rows, BufferUsage::Upload)?,
                wanted: buffer("wanted tokens", rows * row_words, BufferUsage::Upload)?,
                penalties: buffer("penalties", penalty_words, BufferUsage::Upload)?,
                masks: buffer("masks of tokens", mask_words, BufferUsage::Upload)?,
                chosen: buffer("chosen tokens", rows, BufferUsage::Readback)?,
                logits,
                encoded,
            })
        };
        let inputs = [inputs(results)?, inputs(results)?];
        let mut scratch = |label: &str, words: u64| buffer(label, words, BufferUsage::Scratch);
        Ok(Self {
            limits,
            inputs,
            stream: scratch("stream", tokens * widths.stream)?,
            qkv: scratch("qkv", tokens * widths.qkv)?,
            q: scratch("q", tokens * widths.q)?,
            attended: scratch("attended", tokens * widths.q)?,
            partials: Partials {
                sums: scratch("sums of splits", partial_sums)?,
                done: scratch("splits done", partials_done)?,
            },
            block: scratch("block", tokens * widths.stream)?,
            normed: scratch("normed", tokens * widths.normed)?,
            gate_up: scratch("gate and up", tokens * 2 * widths.hidden)?,
            hidden: scratch("hidden", tokens * widths.hidden)?,
            mixture: match &hyper.mixture {
                Some(mixture) => {
                    let words = mixture_words(mixture, hyper.embedding, tokens);
                    Some(MixtureScratch::create(words, &mut scratch)?)
                }
                None => None,
            },
            gathered: scratch("gathered", rows * widths.stream)?,
            logits: scratch("logits", rows * vocab)?,
            workspace: workspace_bytes
                .map(|bytes| scratch("rows made before", bytes / 4))
                .transpose()?,
            maxima: scratch("largest logits", rows * maxima_words(vocab))?,
        })
    }
}

/// Sessions of the longest context whose tokens' attention can be split, if that does not take more
/// than `PARTIAL_BYTES_MAX`: with many sessions, there is enough to do without.
const SPLIT_TOKENS_MAX: u64 = 32;
const PARTIAL_BYTES_MAX: u64 = 8 << 20;

/// Words of each buffer of [`Partials`], in order.
fn partial_words(caps: &Capabilities, hyper: &HyperParams, limits: &Limits) -> [u64; 2] {
    let HyperParams { heads, kv_heads, head_dim, .. } = *hyper;
    let splits = limits.context_tokens.div_ceil(attention::SPLIT_TOKENS as usize);
    let shape = attention::AttentionTile {
        splits: splits.next_power_of_two() as u32,
        ..attention::AttentionTile::choose(caps, head_dim, heads / kv_heads, true)
    };
    let bytes = |tokens| shape.partial_bytes(caps, (heads, kv_heads, head_dim), tokens);
    let sums = bytes(SPLIT_TOKENS_MAX).min(PARTIAL_BYTES_MAX).max(bytes(1));
    [sums.div_ceil(4), limits.tokens_max as u64 * u64::from(heads)]
}

/// Words of the lists of tokens whose logits change.
fn penalty_words(limits: &Limits) -> u64 {
    (size_of::<Penalty>() * penalties_room(limits.logit_rows_max)) as u64 / 4
}

/// Words of a row of [`Scratch::maxima`].
fn maxima_words(vocab: u64) -> u64 {
    // A row of more logits than that has no buffer.
    2 * u64::from(maxima::chunks(u32::try_from(vocab).unwrap_or(u32::MAX)))
}

/// Activations of layers with experts; a route is a token and one of its `used` experts.
#[derive(Clone, Copy, Debug)]
pub(super) struct MixtureScratch {
    /// Router logits, f32 `[tokens, experts]`.
    pub logits: BufferSlice,
    /// The expert of each route, u32 `[tokens, used]`.
    pub chosen: BufferSlice,
    /// And its weight, f32 `[tokens, used]`.
    pub weights: BufferSlice,
    /// The routes of each expert, u32 `[experts, 1 + tokens]`.
    pub lists: BufferSlice,
    /// Gate and up where they are not fused, f32 `[tokens, used, 2 * hidden]`.
    pub gate_up: BufferSlice,
    /// f32 `[tokens, used, hidden]`.
    pub hidden: BufferSlice,
    /// Expert outputs, f32 `[tokens, used, embedding]`.
    pub results: BufferSlice,
    /// Logits of the shared expert's weight, f32 `[tokens]`.
    pub shared_gates: BufferSlice,
}

/// Words of each buffer of [`MixtureScratch`], in order.
fn mixture_words(mixture: &Mixture, embedding: u64, tokens: u64) -> [u64; 8] {
    let (experts, used) = (u64::from(mixture.router.experts), u64::from(mixture.router.used));
    let (routes, hidden) = (tokens * used, mixture.hidden);
    [
        tokens * experts,
        routes,
        routes,
        experts * (1 + tokens),
        routes * 2 * hidden,
        routes * hidden,
        routes * embedding,
        tokens,
    ]
}

impl MixtureScratch {
    fn create(
        words: [u64; 8],
        scratch: &mut impl FnMut(&str, u64) -> Result<BufferSlice, DeviceError>,
    ) -> Result<Self, DeviceError> {
        let [logits, chosen, weights, lists, gate_up, hidden, results, shared_gates] = words;
        Ok(Self {
            logits: scratch("router logits", logits)?,
            chosen: scratch("chosen experts", chosen)?,
            weights: scratch("weights of experts", weights)?,
            lists: scratch("routes of experts", lists)?,
            gate_up: scratch("gate and up of experts", gate_up)?,
            hidden: scratch("hidden of experts", hidden)?,
            results: scratch("results of experts", results)?,
            shared_gates: scratch("gates of the shared expert", shared_gates)?,
        })
    }
}

/// Bytes of what may be made of the widest rows that matmuls read; `None` where nothing may.
fn workspace_bytes(
    caps: &Capabilities,
    hyper: &HyperParams,
    widths: &Widths,
    limits: &Limits,
) -> Option<u64> {
    let tokens = limits.tokens_max as u64;
    let narrow = limits.reduced_precision.then(|| quantized_x_bytes(hyper, widths, tokens));
    let sums = caps.slices_weights().then(|| sums_bytes(widths, tokens));
    narrow.max(sums)
}

/// Bytes of the sums of the widest rows that matmuls read, and of these times a norm's gain.
fn sums_bytes(widths: &Widths, tokens: u64) -> u64 {
    block_sums::bytes(tokens, widths.stream.max(widths.q).max(widths.hidden))
}

/// Bytes of the widest rows that matmuls read, in narrower numbers.
fn quantized_x_bytes(hyper: &HyperParams, widths: &Widths, tokens: u64) -> u64 {
    let plain = quantize_x::bytes(tokens, widths.stream.max(widths.q).max(widths.hidden));
    let of_routes = hyper.mixture.as_ref().map_or(0, |mixture| {
        quantize_x::bytes(tokens * u64::from(mixture.router.used), mixture.hidden)
    });
    plain.max(of_routes)
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
            hidden: match &hyper.mixture {
                Some(mixture) if mixture.dense_layers == 0 => mixture.shared_hidden.max(1),
                Some(mixture) => mixture.shared_hidden.max(hyper.feed_forward),
                None => hyper.feed_forward,
            },
        }
    }

    fn all(&self) -> [u64; 9] {
        let Self { stream, normed, qkv, q, hidden } = *self;
        [stream, qkv, q, q, stream, normed, 2 * hidden, hidden, stream]
    }
}
