//! The recording of one step: a batch of tokens through all layers.

use super::Model;
use super::layers::{GateUp, Layer, Projection};
use crate::gpu::{BufferSlice, Recording};
use crate::kernels::attention::{self, Attention};
use crate::kernels::matmul::{self, Epilogue, Matmul};
use crate::kernels::qkv_post::{self, QkvPost};
use crate::kernels::rms_norm::{self, RmsNorm};
use crate::kernels::{embed, gather_rows, glu};
use crate::kv_cache::KvCache;

/// What a recording depends on; all else is in the contents of [`super::Inputs`] and the block
/// tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BatchShape {
    /// Tokens of the batch.
    pub tokens: u32,
    /// Tiles of neighbouring tokens of one session.
    pub tiles: u32,
    /// Most tokens of a tile.
    pub tile_tokens: u32,
    /// Tokens whose logits are wanted.
    pub logit_rows: u32,
}

impl Model {
    /// How many neighbouring tokens of a session make an attention tile.
    #[must_use]
    pub fn tile_tokens(&self, one_token_each: bool) -> u32 {
        self.attention_shape(one_token_each).tile_tokens
    }

    fn attention_shape(&self, one_token_each: bool) -> attention::Shape {
        let group = self.hyper.heads / self.hyper.kv_heads;
        attention::Shape::choose(&self.capabilities, self.hyper.head_dim, group, one_token_each)
    }

    /// Records a step of the given shape over the pages of `kv`.
    #[must_use]
    pub fn record_forward(&self, kv: &KvCache, shape: BatchShape) -> Recording {
        let limits = self.scratch.limits;
        assert!(shape.tokens as usize <= limits.tokens_max, "a batch keeps to the limits");
        assert!(shape.logit_rows as usize <= limits.logit_rows_max, "a batch keeps to the limits");
        let mut recording = Recording::new();
        let step = Step { model: self, kv, shape };
        embed::record(
            &mut recording,
            &self.capabilities,
            &self.head.embeddings,
            self.scratch.inputs.steps,
            self.scratch.stream,
            shape.tokens,
            self.hyper.embedding_factor,
        );
        for (index, layer) in self.layers.iter().enumerate() {
            step.attention(&mut recording, layer, index);
            step.feed_forward(&mut recording, layer);
        }
        if shape.logit_rows > 0 {
            step.logits(&mut recording);
        }
        recording
    }
}

/// One step being recorded.
struct Step<'a> {
    model: &'a Model,
    kv: &'a KvCache,
    shape: BatchShape,
}

impl Step<'_> {
    /// A product of all tokens' rows of `x`, `x_width` wide, into `y`, `y_width` wide.
    fn product(
        &self,
        recording: &mut Recording,
        projection: &Projection,
        (x, y): (BufferSlice, BufferSlice),
        y_width: u64,
        norm: Option<BufferSlice>,
        epilogue: Epilogue,
    ) {
        let matmul = Matmul {
            weights: &projection.matrix,
            x,
            x_stride: projection.matrix.layout.row_len,
            y,
            y_stride: y_width,
            y_offset: projection.offset,
            tokens: self.shape.tokens,
            norm: norm.map(|gain| (gain, self.model.hyper.epsilon)),
            bias: projection.bias,
            epilogue,
        };
        matmul::record(recording, &self.model.capabilities, &matmul);
    }

    /// A block's last product: straight into the stream, or through a norm of its own.
    fn join_stream(
        &self,
        recording: &mut Recording,
        projection: &Projection,
        x: BufferSlice,
        post_norm: Option<BufferSlice>,
    ) {
        let scratch = &self.model.scratch;
        let hyper = &self.model.hyper;
        let width = hyper.embedding;
        let Some(gain) = post_norm else {
            let out = (x, scratch.stream);
            self.product(recording, projection, out, width, None, Epilogue::Residual);
            return;
        };
        self.product(recording, projection, (x, scratch.block), width, None, Epilogue::Store);
        let norm = RmsNorm {
            x: scratch.block,
            gain,
            y: scratch.stream,
            dim: width,
            epsilon: hyper.epsilon,
            residual: true,
        };
        rms_norm::record(recording, &self.model.capabilities, &norm, self.shape.tokens);
    }

    fn attention(&self, recording: &mut Recording, layer: &Layer, index: usize) {
        let (hyper, scratch) = (&self.model.hyper, &self.model.scratch);
        let caps = &self.model.capabilities;
        let spec = hyper.layers[index];
        let rope = &self.model.ropes[spec.rope];
        let kv_half = self.kv.config().layout.half;
        let table_stride = u32::try_from(self.kv.config().table_stride())
            .expect("contexts are counted in 32 bits");
        let qkv_width = u64::from((hyper.heads + 2 * hyper.kv_heads) * hyper.head_dim);
        for projection in &layer.qkv {
            let (io, norm) = ((scratch.stream, scratch.qkv), Some(layer.attention_norm));
            self.product(recording, projection, io, qkv_width, norm, Epilogue::Store);
        }
        let post = QkvPost {
            heads: hyper.heads,
            kv_heads: hyper.kv_heads,
            head_dim: hyper.head_dim,
            kv_half,
            neox: hyper.neox,
            rope_dim: hyper.rope_dim,
            rope_coarse: rope.coarse,
            table_stride,
            qkv: scratch.qkv,
            steps: scratch.inputs.steps,
            tables: self.kv.tables(),
            rope: rope.slice,
            norms: layer.qk_norms.map(|(q, k)| (q, k, hyper.epsilon)),
            q: scratch.q,
            kv: self.kv.layer(index),
        };
        qkv_post::record(recording, caps, &post, self.shape.tokens);
        let attend = Attention {
            heads: hyper.heads,
            kv_heads: hyper.kv_heads,
            head_dim: hyper.head_dim,
            kv_half,
            window: spec.window,
            scale: hyper.attention_scale,
            soft_cap: 0.0,
            table_stride,
            q: scratch.q,
            steps: scratch.inputs.steps,
            tiles: scratch.inputs.tiles,
            tables: self.kv.tables(),
            kv: self.kv.layer(index),
            y: scratch.attended,
        };
        let shape = attention::Shape {
            tile_tokens: self.shape.tile_tokens,
            ..self.model.attention_shape(self.shape.tile_tokens == 1)
        };
        attention::record(recording, caps, &attend, shape, self.shape.tiles);
        self.join_stream(
            recording,
            &layer.attention_out,
            scratch.attended,
            layer.post_attention_norm,
        );
    }

    fn feed_forward(&self, recording: &mut Recording, layer: &Layer) {
        let (hyper, scratch) = (&self.model.hyper, &self.model.scratch);
        let width = hyper.feed_forward;
        let norm = Some(layer.feed_forward_norm);
        match &layer.gate_up {
            GateUp::Fused(matrix, epilogue) => {
                let projection = Projection { matrix: *matrix, bias: None, offset: 0 };
                let io = (scratch.stream, scratch.hidden);
                self.product(recording, &projection, io, width, norm, *epilogue);
            }
            GateUp::Split(projections) => {
                for projection in projections {
                    let io = (scratch.stream, scratch.gate_up);
                    self.product(recording, projection, io, 2 * width, norm, Epilogue::Store);
                }
                glu::record(
                    recording,
                    &self.model.capabilities,
                    scratch.gate_up,
                    scratch.hidden,
                    width,
                    hyper.activation == super::Activation::Gelu,
                    self.shape.tokens,
                );
            }
        }
        self.join_stream(recording, &layer.down, scratch.hidden, layer.post_feed_forward_norm);
    }

    /// The head's product for the rows that are wanted, and the way back to the host.
    fn logits(&self, recording: &mut Recording) {
        let (hyper, scratch) = (&self.model.hyper, &self.model.scratch);
        let caps = &self.model.capabilities;
        let head = &self.model.head;
        let rows = self.shape.logit_rows;
        gather_rows::record(
            recording,
            caps,
            scratch.stream,
            scratch.inputs.rows,
            scratch.gathered,
            hyper.embedding,
            rows,
        );
        let matmul = Matmul {
            weights: &head.output,
            x: scratch.gathered,
            x_stride: hyper.embedding,
            y: scratch.logits,
            y_stride: head.vocab(),
            y_offset: 0,
            tokens: rows,
            norm: Some((head.norm, hyper.epsilon)),
            bias: head.output_bias,
            epilogue: Epilogue::Store,
        };
        matmul::record(recording, caps, &matmul);
        let bytes = u64::from(rows) * head.vocab() * 4;
        let from = BufferSlice { bytes, ..scratch.logits };
        recording.copy(from, BufferSlice { bytes, ..scratch.inputs.logits });
    }
}
