//! What adapters add to a model's matmuls: their matrices on the device, and their part of a
//! recording.

use super::ModelLoadError;
use super::adapter::{ADAPTERS_MAX, AdapterFile, Pair, Part, zeros_name};
use super::feed_forward::{FeedForward, Hidden};
use super::forward::{Input, Step};
use super::hyper::HyperParams;
use super::layers::Layer;
use super::loader::{Arrangement, Loader, Part as Rows};
use super::{Model, Progress};
use crate::gpu::{BufferDesc, BufferSlice, BufferUsage, DeviceError, Executor, Recording};
use crate::kernels::PackedMatrix;
use crate::kernels::matmul::{self, Epilogue, Matmul};
use crate::kernels::moe_combine::{self, MoeCombine};

/// Alignment of the rows of scales, in floats: the largest alignment any device requires.
const SCALES_STEP: u64 = 64;

/// One update on the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Update {
    /// Number of the adapter.
    adapter: usize,
    a: PackedMatrix,
    b: PackedMatrix,
    scale: f32,
    /// First column of the result that it is added to.
    offset: u64,
}

/// Updates of a layer's matmuls.
#[derive(Clone, Debug, Default)]
pub(super) struct LoraDeltas {
    pub qkv: Vec<Update>,
    pub attention_out: Vec<Update>,
    pub gate_up: Vec<Update>,
    pub down: Vec<Update>,
}

impl LoraDeltas {
    fn all_mut(&mut self) -> [&mut Vec<Update>; 4] {
        [&mut self.qkv, &mut self.attention_out, &mut self.gate_up, &mut self.down]
    }
}

impl Model {
    /// Puts an adapter that was opened for this model on the device, as its number `number`.
    /// Recordings made so far are of no use then.
    ///
    /// # Errors
    /// [`ModelLoadError`]: the device lacks memory, or failed; nothing of the adapter is left then.
    ///
    /// # Panics
    /// If the number is taken, or not below [`ADAPTERS_MAX`]: the caller counts.
    pub fn add_adapter(
        &mut self,
        executor: &mut dyn Executor,
        number: usize,
        adapter: &AdapterFile,
    ) -> Result<(), ModelLoadError> {
        assert!(number < ADAPTERS_MAX, "a step names adapters by the bits of a word");
        assert!(self.adapters >> number & 1 == 0, "its number is free");
        let memory = executor.memory();
        let free_bytes = memory.budget_bytes.saturating_sub(memory.used_bytes);
        let needed_bytes = adapter.bytes(self.capabilities.lanes.into());
        if needed_bytes > free_bytes {
            let path = adapter.path().to_owned();
            return Err(ModelLoadError::AdapterTooLarge { path, needed_bytes, free_bytes });
        }
        self.make_adapter_scratch(executor, adapter.rank_max())?;
        let added = self.add_lora_deltas(executor, number, adapter);
        if added.is_err() {
            self.remove_lora_deltas(executor, number);
        }
        added?;
        self.adapters |= 1 << number;
        Ok(())
    }

    /// Takes an adapter off the device. Recordings made so far are of no use then.
    pub fn remove_adapter(&mut self, executor: &mut dyn Executor, number: usize) {
        self.adapters &= !(1 << number);
        self.remove_lora_deltas(executor, number);
    }

    fn add_lora_deltas(
        &mut self,
        executor: &mut dyn Executor,
        number: usize,
        adapter: &AdapterFile,
    ) -> Result<(), ModelLoadError> {
        let progress: Progress<'_> = &mut |_, _| {};
        let mut loader = Loader::new(executor, &adapter.padded, progress);
        for pair in &adapter.pairs {
            add_pair(&mut loader, &self.hyper, number, pair, &mut self.layers[pair.layer])?;
        }
        Ok(())
    }

    fn remove_lora_deltas(&mut self, executor: &mut dyn Executor, number: usize) {
        for lora_deltas in self.layers.iter_mut().flat_map(|layer| layer.lora_deltas.all_mut()) {
            for update in lora_deltas.extract_if(.., |update| update.adapter == number) {
                for matrix in [update.a, update.b] {
                    executor.destroy_buffer(matrix.quads);
                    matrix.words.into_iter().for_each(|buffer| executor.destroy_buffer(buffer));
                }
            }
        }
    }

    /// Allocates the scratch buffers for adapters of this rank.
    fn make_adapter_scratch(
        &mut self,
        executor: &mut dyn Executor,
        rank: u64,
    ) -> Result<(), DeviceError> {
        let old = self.adapter_scratch;
        if old.is_some_and(|scratch| scratch.rank >= rank) {
            return Ok(());
        }
        let tokens_max = self.scratch.limits.tokens_max as u64;
        self.adapter_scratch = Some(AdapterScratch::create(executor, rank, tokens_max)?);
        for slice in old.into_iter().flat_map(|old| [old.low, old.scaled, old.scales]) {
            executor.destroy_buffer(slice.buffer);
        }
        Ok(())
    }
}

/// Puts a pair on the device, as an update of its layer.
fn add_pair(
    loader: &mut Loader<'_>,
    hyper: &HyperParams,
    number: usize,
    pair: &Pair,
    layer: &mut Layer,
) -> Result<(), ModelLoadError> {
    let head_dim = u64::from(hyper.head_dim);
    let (q_width, kv_width) =
        (u64::from(hyper.heads) * head_dim, u64::from(hyper.kv_heads) * head_dim);
    let joined = match &layer.feed_forward {
        FeedForward::Dense(dense) => matches!(dense.hidden, Hidden::Gated(_)),
        FeedForward::Experts(_) => false,
    };
    let a = loader.matrix(&format!("{}.lora_a", pair.name), pair.row_len, pair.rank)?;
    let name = format!("{}.lora_b", pair.name);
    let b = match pair.part {
        Part::Gate | Part::Up if joined => joined_b(loader, hyper, &name, pair)?,
        _ => loader.matrix(&name, pair.rank, pair.rows)?,
    };
    let lora_deltas = &mut layer.lora_deltas;
    let (place, offset) = match pair.part {
        Part::Q | Part::Qkv => (&mut lora_deltas.qkv, 0),
        Part::K => (&mut lora_deltas.qkv, q_width),
        Part::V => (&mut lora_deltas.qkv, q_width + kv_width),
        Part::AttentionOut => (&mut lora_deltas.attention_out, 0),
        Part::Up if !joined && !hyper.gate_in_up => (&mut lora_deltas.gate_up, hyper.feed_forward),
        Part::Gate | Part::Up => (&mut lora_deltas.gate_up, 0),
        Part::Down => (&mut lora_deltas.down, 0),
    };
    place.push(Update { adapter: number, a, b, scale: pair.scale, offset });
    Ok(())
}

/// B for a matrix that has groups of gate and up in turn: zeros stand where the other one's are.
fn joined_b(
    loader: &mut Loader<'_>,
    hyper: &HyperParams,
    name: &str,
    pair: &Pair,
) -> Result<PackedMatrix, ModelLoadError> {
    let dims = [pair.rank, pair.rows];
    let own = loader.tensor(name, &dims)?;
    let parts = if hyper.gate_in_up {
        let rows = pair.rows / 2;
        [Rows { tensor: own, first: 0, rows }, Rows { tensor: own, first: rows, rows }]
    } else {
        let zeros = zeros_name(own.supported_dtype()?, dims);
        let zeros = Rows::whole(loader.tensor(&zeros, &dims)?);
        match pair.part {
            Part::Gate => [Rows::whole(own), zeros],
            _ => [zeros, Rows::whole(own)],
        }
    };
    loader.pack(&parts, Arrangement::Alternating)
}

/// Buffers of steps that use adapters.
#[derive(Clone, Copy, Debug)]
pub(super) struct AdapterScratch {
    /// The largest rank that they are for.
    rank: u64,
    /// A x, f32 `[tokens, rank]`.
    low: BufferSlice,
    /// The same times the rows' scales.
    scaled: BufferSlice,
    /// f32 `[adapters, scales_stride]`: scales of the tokens, written by the host.
    scales: BufferSlice,
    /// Floats between adapters.
    scales_stride: u64,
}

impl AdapterScratch {
    fn create(
        executor: &mut dyn Executor,
        rank: u64,
        tokens_max: u64,
    ) -> Result<Self, DeviceError> {
        let scales_stride = tokens_max.next_multiple_of(SCALES_STEP);
        let mut create = |label: &str, floats: u64, usage| {
            let desc = BufferDesc { label: label.to_owned(), bytes: 4 * floats, usage };
            let buffer = executor.create_buffer(&desc)?;
            Ok::<_, DeviceError>(BufferSlice { buffer, offset: 0, bytes: 4 * floats })
        };
        let scales = ADAPTERS_MAX as u64 * scales_stride;
        Ok(Self {
            rank,
            low: create("adapter rows", tokens_max * rank, BufferUsage::Scratch)?,
            scaled: create("scaled adapter rows", tokens_max * rank, BufferUsage::Scratch)?,
            scales: create("adapter scales", scales, BufferUsage::Upload)?,
            scales_stride,
        })
    }

    /// The scales of the tokens for one adapter.
    pub(super) fn scales_of(&self, adapter: usize) -> BufferSlice {
        let bytes = 4 * self.scales_stride;
        let offset = self.scales.offset + adapter as u64 * bytes;
        BufferSlice { buffer: self.scales.buffer, offset, bytes }
    }
}

impl Step<'_> {
    /// True if the step uses one of these updates.
    pub(super) fn uses(&self, lora_deltas: &[Update]) -> bool {
        lora_deltas.iter().any(|update| self.shape.adapters >> update.adapter & 1 == 1)
    }

    /// Adds to `y` what the step's adapters make of `input`, times `factor`.
    pub(super) fn update(
        &self,
        recording: &mut Recording,
        lora_deltas: &[Update],
        input: Input,
        (y, y_width): (BufferSlice, u64),
        factor: f32,
    ) {
        let Some(scratch) = self.model.adapter_scratch else { return };
        let (caps, tokens) = (&self.model.capabilities, self.shape.tokens);
        let used =
            lora_deltas.iter().filter(|update| self.shape.adapters >> update.adapter & 1 == 1);
        for Update { adapter, a, b, scale, offset } in used {
            let rank = b.layout.row_len;
            let narrow = Matmul {
                weights: a,
                x: input.x,
                x_stride: a.layout.row_len,
                y: scratch.low,
                y_stride: rank,
                y_offset: 0,
                tokens,
                norm: input.gain.map(|gain| (gain, self.model.hyper.epsilon)),
                bias: None,
                scale: 1.0,
                epilogue: Epilogue::Store,
                workspace: None,
            };
            matmul::record(recording, caps, &narrow);
            let rows = MoeCombine {
                x: scratch.low,
                weights: scratch.scales_of(*adapter),
                shared: None,
                y: scratch.scaled,
                dim: rank,
                used: 1,
                factor: *scale,
                residual: false,
            };
            moe_combine::record(recording, caps, &rows, tokens);
            let wide = Matmul {
                weights: b,
                x: scratch.scaled,
                x_stride: rank,
                y,
                y_stride: y_width,
                y_offset: *offset,
                norm: None,
                scale: factor,
                epilogue: Epilogue::Residual,
                ..narrow
            };
            matmul::record(recording, caps, &wide);
        }
    }
}
