//! The recording of one step: a batch of tokens through all layers.

use super::Model;
use super::hyper::{Logits, NormKind, QkNorm, Residual};
use super::layers::{Head, Layer, Norm, Projection, Reads};
use super::lora_deltas::Update;
use super::scratch::Inputs;
use crate::gpu::{BufferSlice, Recording};
use crate::kernels::attention::{self, Attention};
use crate::kernels::attention_tiled;
use crate::kernels::layer_norm::{self, LayerNorm};
use crate::kernels::matmul::{self, Epilogue, Matmul};
use crate::kernels::penalise::{self, Penalise};
use crate::kernels::qkv_post::{self, QkvPost};
use crate::kernels::rms_norm::{self, RmsNorm};
use crate::kernels::{embed, gather_rows, mask, maxima, sample};
use crate::kv_cache::KvCache;

/// Shape of a batch: all that a recording depends on. Everything else is in the contents of
/// [`super::Inputs`] and the block tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BatchShape {
    /// Tokens of the batch.
    pub tokens: u32,
    /// Tiles of neighbouring tokens of one session.
    pub tiles: u32,
    /// Tile configuration of attention.
    pub attention: attention::AttentionTile,
    /// Tokens whose logits are wanted.
    pub logit_rows: u32,
    /// True if [`super::Inputs::encoded`] is wanted.
    pub encoded: bool,
    /// Adapters that a token of the batch uses, by the bits of their numbers.
    pub adapters: u32,
    /// Destination of the logits.
    pub choosing: Choosing,
    /// Which of [`Model::inputs`] it uses; pending tokens are in those of the other turn.
    pub buffer_set: usize,
}

/// Destination of a step's logits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Choosing {
    /// The host reads them.
    #[default]
    Host,
    /// The device chooses tokens.
    Device {
        /// Some logits change before.
        penalised: bool,
        /// Some tokens must not be chosen.
        masked: bool,
    },
}

impl Model {
    /// Tile configuration of attention for a batch of `tokens` tokens whose longest session has
    /// `keys` positions. Prompts use matrix units if reduced precision is enabled. Decode steps
    /// split positions across workgroups, with the number of splits rounded to a power of two to
    /// keep the number of recordings small, unless the workspace for partial results is too small.
    #[must_use]
    pub fn attention_shape(
        &self,
        one_token_each: bool,
        tokens: usize,
        keys: usize,
    ) -> attention::AttentionTile {
        let (caps, hyper) = (&self.capabilities, &self.hyper);
        let (head_dim, group) = (hyper.head_dim, hyper.heads / hyper.kv_heads);
        let shape = attention::AttentionTile::choose(caps, head_dim, group, one_token_each);
        if !one_token_each {
            let narrow =
                self.scratch.limits.reduced_precision && tokens >= attention_tiled::TOKENS_MIN;
            let tiled = narrow.then(|| attention_tiled::choose(caps, head_dim, group));
            return tiled.flatten().unwrap_or(shape);
        }
        let splits = keys.div_ceil(attention::SPLIT_TOKENS as usize).next_power_of_two() as u32;
        let split = attention::AttentionTile { splits, ..shape };
        let heads = (hyper.heads, hyper.kv_heads, head_dim);
        let bytes = split.partial_bytes(caps, heads, tokens as u64);
        if bytes <= self.scratch.partials.sums.bytes { split } else { shape }
    }

    /// Records a step of the given shape over the pages of `kv`.
    #[must_use]
    pub fn record_forward(&self, kv: &KvCache, shape: BatchShape) -> Recording {
        self.record(kv, shape, true)
    }

    /// The same with all matmuls in f32, each one dispatch.
    #[must_use]
    pub fn record_in_f32(&self, kv: &KvCache, shape: BatchShape) -> Recording {
        self.record(kv, shape, false)
    }

    fn record(&self, kv: &KvCache, shape: BatchShape, has_workspace: bool) -> Recording {
        let limits = self.scratch.limits;
        assert!(shape.tokens as usize <= limits.tokens_max, "a batch keeps to the limits");
        assert!(shape.logit_rows as usize <= limits.logit_rows_max, "a batch keeps to the limits");
        let mut recording = Recording::new();
        let step = Step { model: self, kv, shape, has_workspace };
        if shape.attention.splits > 1 {
            recording.zero(self.scratch.partials.done);
        }
        step.embed(&mut recording);
        for (index, layer) in self.layers.iter().enumerate() {
            step.layer(&mut recording, layer, index);
        }
        if shape.encoded {
            step.encoded(&mut recording);
        }
        if shape.logit_rows > 0 {
            step.logits(&mut recording);
        }
        recording
    }
}

/// One step being recorded.
pub(super) struct Step<'a> {
    pub model: &'a Model,
    pub kv: &'a KvCache,
    pub shape: BatchShape,
    /// True if matmuls may be made of more than one dispatch.
    pub has_workspace: bool,
}

/// Rows that a matmul reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Input {
    pub x: BufferSlice,
    /// Gain of an RMS norm that the matmul does in passing.
    pub gain: Option<BufferSlice>,
}

impl Input {
    /// Rows as they are.
    pub(super) fn bare(x: BufferSlice) -> Self {
        Self { x, gain: None }
    }
}

impl Step<'_> {
    fn inputs(&self) -> Inputs {
        self.model.scratch.inputs[self.shape.buffer_set]
    }

    fn embed(&self, recording: &mut Recording) {
        let (caps, scratch) = (&self.model.capabilities, &self.model.scratch);
        let (steps, stream) = (self.inputs().steps, scratch.stream);
        let factor = self.model.hyper.embedding_factor;
        let embeddings = &self.model.embeddings;
        let tokens = self.shape.tokens;
        let from = (steps, scratch.inputs[1 - self.shape.buffer_set].chosen);
        embed::record(recording, caps, &embeddings.tokens, from, stream, tokens, factor);
        if let Some(positions) = &embeddings.positions {
            embed::record_positions(recording, caps, positions, steps, stream, tokens);
        }
        if let Some(types) = &embeddings.types {
            embed::record_types(recording, caps, types, steps, stream, tokens);
        }
        if let Some(norm) = embeddings.norm {
            self.norm_stream(recording, norm);
        }
    }

    /// Puts the whole stream through a LayerNorm.
    fn norm_stream(&self, recording: &mut Recording, norm: Norm) {
        let scratch = &self.model.scratch;
        self.normed(recording, norm, scratch.stream, self.shape.tokens);
        let bytes = u64::from(self.shape.tokens) * self.model.hyper.embedding * 4;
        let [from, to] =
            [scratch.normed, scratch.stream].map(|slice| BufferSlice { bytes, ..slice });
        recording.copy(from, to);
    }

    fn layer(&self, recording: &mut Recording, layer: &Layer, index: usize) {
        let attended = self.model.scratch.attended;
        let attention_input = self.input(recording, layer.attention_reads);
        self.attention(recording, layer, index, attention_input);
        let join_attention = |recording: &mut Recording| {
            let out = (&layer.attention_out, &layer.lora_deltas.attention_out[..]);
            self.join_stream(recording, out, attended, layer.attention_after);
        };
        let parallel =
            matches!(self.model.hyper.residual, Residual::Parallel | Residual::ParallelOneNorm);
        if !parallel {
            join_attention(recording);
        }
        let input = match layer.feed_forward_reads {
            Reads::SameAsAttention => attention_input,
            reads => self.input(recording, reads),
        };
        self.feed_forward(recording, layer, input);
        if parallel {
            join_attention(recording); // not before: the feed-forward read the same stream
        }
    }

    /// The stream, as a block reads it.
    fn input(&self, recording: &mut Recording, reads: Reads) -> Input {
        let scratch = &self.model.scratch;
        match reads {
            Reads::Normed(norm) => self.normed(recording, norm, scratch.stream, self.shape.tokens),
            Reads::Stream => Input::bare(scratch.stream),
            Reads::SameAsAttention => unreachable!("attention reads before the feed-forward"),
        }
    }

    /// `rows` rows of `x` behind a norm.
    fn normed(&self, recording: &mut Recording, norm: Norm, x: BufferSlice, rows: u32) -> Input {
        if norm.kind == NormKind::Rms {
            return Input { x, gain: Some(norm.gain) };
        }
        let hyper = &self.model.hyper;
        let y = self.model.scratch.normed;
        let args = LayerNorm {
            x,
            gain: norm.gain,
            bias: norm.bias,
            y,
            dim: hyper.embedding,
            epsilon: hyper.epsilon,
        };
        layer_norm::record(recording, &self.model.capabilities, &args, rows);
        Input::bare(y)
    }

    /// Room for what is made of a matmul's x before.
    pub(super) fn workspace(&self, is_sliced: bool) -> Option<BufferSlice> {
        self.has_workspace.then(|| self.model.scratch.matmul_workspace(is_sliced)).flatten()
    }

    /// A matmul of all tokens' rows of `input` into `y`, whose rows have `y_width` values.
    pub(super) fn matmul(
        &self,
        recording: &mut Recording,
        projection: &Projection,
        input: Input,
        (y, y_width): (BufferSlice, u64),
        epilogue: Epilogue,
    ) {
        let scale = match epilogue {
            Epilogue::Residual => self.model.hyper.residual_factor,
            _ => 1.0,
        };
        let matmul = Matmul {
            weights: &projection.matrix,
            x: input.x,
            x_stride: projection.matrix.layout.row_len,
            y,
            y_stride: y_width,
            y_offset: projection.offset,
            tokens: self.shape.tokens,
            norm: input.gain.map(|gain| (gain, self.model.hyper.epsilon)),
            bias: projection.bias,
            scale,
            epilogue,
            workspace: self.workspace(projection.matrix.sliced),
        };
        matmul::record(recording, &self.model.capabilities, &matmul);
    }

    /// A block's last matmul: straight into the stream, or through a norm of its own.
    pub(super) fn join_stream(
        &self,
        recording: &mut Recording,
        (projection, lora_deltas): (&Projection, &[Update]),
        x: BufferSlice,
        after: Option<Norm>,
    ) {
        let (hyper, scratch) = (&self.model.hyper, &self.model.scratch);
        let width = hyper.embedding;
        let sum_first = hyper.residual == Residual::NormedSum;
        let Some(norm) = after.filter(|_| !sum_first) else {
            let stream = (scratch.stream, width);
            self.matmul(recording, projection, Input::bare(x), stream, Epilogue::Residual);
            self.update(recording, lora_deltas, Input::bare(x), stream, hyper.residual_factor);
            if let Some(norm) = after {
                self.norm_stream(recording, norm);
            }
            return;
        };
        assert!(norm.kind == NormKind::Rms && hyper.residual_factor == 1.0, "no family has both");
        let block = (scratch.block, width);
        self.matmul(recording, projection, Input::bare(x), block, Epilogue::Store);
        self.update(recording, lora_deltas, Input::bare(x), block, 1.0);
        let norm = RmsNorm {
            x: scratch.block,
            gain: norm.gain,
            y: scratch.stream,
            dim: width,
            epsilon: hyper.epsilon,
            residual: true,
        };
        rms_norm::record(recording, &self.model.capabilities, &norm, self.shape.tokens);
    }

    /// Attention of `input` into the buffer for what is attended to.
    fn attention(&self, recording: &mut Recording, layer: &Layer, index: usize, input: Input) {
        let (hyper, scratch) = (&self.model.hyper, &self.model.scratch);
        let caps = &self.model.capabilities;
        let spec = hyper.layers[index];
        let kv_layer = index % hyper.kv_layers();
        let rope = spec.rope.map(|rope| &self.model.ropes[rope]);
        let layout = self.kv.config().layout;
        let table_stride = u32::try_from(self.kv.config().table_stride())
            .expect("contexts are counted in 32 bits");
        let qkv_width = u64::from((hyper.heads + 2 * hyper.kv_heads) * hyper.head_dim);
        for projection in &layer.qkv {
            self.matmul(recording, projection, input, (scratch.qkv, qkv_width), Epilogue::Store);
        }
        self.update(recording, &layer.lora_deltas.qkv, input, (scratch.qkv, qkv_width), 1.0);
        let post = QkvPost {
            heads: hyper.heads,
            layout,
            neox: hyper.neox,
            rope_dim: if rope.is_some() { hyper.rope_dim } else { 0 },
            rope_coarse: rope.map_or(0, |rope| rope.coarse),
            table_stride,
            qkv: scratch.qkv,
            steps: self.inputs().steps,
            tables: self.kv.tables(),
            rope: rope.map(|rope| rope.slice),
            norms: layer.qk_gains.map(|gains| qkv_post::Norms {
                kind: match gains.kind {
                    QkNorm::None | QkNorm::Head => qkv_post::NormKind::Head,
                    QkNorm::Whole => qkv_post::NormKind::Whole,
                    QkNorm::LayerNormHead => qkv_post::NormKind::LayerNormHead,
                },
                q_gain: gains.q,
                k_gain: gains.k,
                epsilon: hyper.epsilon,
            }),
            q: scratch.q,
            kv: self.kv.layer(kv_layer),
        };
        qkv_post::record(recording, caps, &post, self.shape.tokens);
        let attend = Attention {
            heads: hyper.heads,
            layout,
            window: spec.window,
            causal: !hyper.encoder,
            scale: hyper.attention_scale,
            soft_cap: hyper.attention_soft_cap,
            table_stride,
            q: scratch.q,
            steps: self.inputs().steps,
            tiles: self.inputs().tiles,
            tables: self.kv.tables(),
            kv: self.kv.layer(kv_layer),
            y: scratch.attended,
            partials: Some(scratch.partials),
        };
        let (shape, tiles) = (self.shape.attention, self.shape.tiles);
        attention::record(recording, caps, &attend, shape, tiles);
    }

    /// Copies the hidden states after the last layer, and after the final norm if there is one, to
    /// the host.
    fn encoded(&self, recording: &mut Recording) {
        let (hyper, scratch) = (&self.model.hyper, &self.model.scratch);
        let from = match &self.model.head {
            None => scratch.stream,
            Some(Head { norm, .. }) if norm.kind == NormKind::Rms => {
                let norm = RmsNorm {
                    x: scratch.stream,
                    gain: norm.gain,
                    y: scratch.block,
                    dim: hyper.embedding,
                    epsilon: hyper.epsilon,
                    residual: false,
                };
                rms_norm::record(recording, &self.model.capabilities, &norm, self.shape.tokens);
                scratch.block
            }
            Some(head) => self.normed(recording, head.norm, scratch.stream, self.shape.tokens).x,
        };
        let bytes = u64::from(self.shape.tokens) * hyper.embedding * 4;
        let [from, to] = [from, self.inputs().encoded].map(|slice| BufferSlice { bytes, ..slice });
        recording.copy(from, to);
    }

    /// The head's matmul for the rows that are wanted, and the way back to the host.
    fn logits(&self, recording: &mut Recording) {
        let (hyper, scratch) = (&self.model.hyper, &self.model.scratch);
        let caps = &self.model.capabilities;
        let head = self.model.head.as_ref().expect("encoders are asked for no logits");
        let rows = self.shape.logit_rows;
        gather_rows::record(
            recording,
            caps,
            scratch.stream,
            self.inputs().rows,
            scratch.gathered,
            hyper.embedding,
            rows,
        );
        let input = self.normed(recording, head.norm, scratch.gathered, rows);
        let (scale, epilogue) = match hyper.logits {
            Logits::Scaled(scale) => (scale, Epilogue::Store),
            Logits::SoftCapped(cap) => (cap, Epilogue::SoftCap),
        };
        let matmul = Matmul {
            weights: &head.output,
            x: input.x,
            x_stride: hyper.embedding,
            y: scratch.logits,
            y_stride: self.model.embeddings.vocab(),
            y_offset: 0,
            tokens: rows,
            norm: input.gain.map(|gain| (gain, hyper.epsilon)),
            bias: head.output_bias,
            scale,
            epilogue,
            workspace: self.workspace(head.output.sliced),
        };
        matmul::record(recording, caps, &matmul);
        if self.shape.choosing != Choosing::Host {
            self.choose(recording);
            return;
        }
        let bytes = u64::from(rows) * self.model.embeddings.vocab() * 4;
        let from = BufferSlice { bytes, ..scratch.logits };
        recording.copy(from, BufferSlice { bytes, ..self.inputs().logits });
    }

    /// A token for each row of logits.
    fn choose(&self, recording: &mut Recording) {
        let (caps, scratch) = (&self.model.capabilities, &self.model.scratch);
        let Inputs { wanted, penalties, masks, chosen, .. } = self.inputs();
        let stride = u32::try_from(self.model.embeddings.vocab());
        let shape = (self.shape.logit_rows, stride.expect("Weights refuses longer ones"));
        let (logits, maxima) = (scratch.logits, scratch.maxima);
        let Choosing::Device { penalised, masked } = self.shape.choosing else { return };
        if penalised {
            let before = scratch.inputs[1 - self.shape.buffer_set].chosen;
            let penalise = Penalise { logits, wanted, listed: penalties, chosen: before };
            penalise::record(recording, caps, &penalise, shape);
        }
        if masked {
            mask::record(recording, caps, (logits, wanted, masks), shape);
        }
        maxima::record(recording, caps, logits, wanted, maxima, shape);
        sample::record(recording, caps, (logits, wanted, maxima), chosen, shape);
    }
}
