//! Runs batches: the executor, the model and its KV cache, and the recordings prepared so far.

mod wanted;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::gpu::{BufferSlice, Choice, DeviceError, Executor, PreparedId, Recording, Ticket, Work};
use crate::kernels::mask;
use crate::kernels::work::{self, Positions};
use crate::kv_cache::{KvCache, KvLease};
use crate::model::{ADAPTERS_MAX, AdapterFile, BatchShape, Choosing, Model, ModelLoadError};
use crate::scheduler::{Batch, Pace, TokenSpan, pace};

pub use wanted::Wanted;

/// Recordings kept ready. A decode step of each batch size and a few prefill sizes recur; the odd
/// tail of a prompt does not.
const PREPARED_MAX: usize = 48;

/// A step takes well under a second by the scheduler's choice; a driver that builds shaders in its
/// first one may take many.
pub(super) const STEP_TIMEOUT: Duration = Duration::from_secs(120);

/// Tolerated difference from the ideal number of submissions before a recording is divided anew:
/// dividing takes milliseconds, one submission more or less costs little.
const PARTS_TOO_FEW: usize = 2;
const PARTS_TOO_MANY: usize = 2;

/// Adapters that a session uses, by their numbers in the model, and their scales.
pub type Mix = Vec<(usize, f32)>;

/// A step of one shape, ready to submit.
struct Ready {
    shape: BatchShape,
    recording: Recording,
    /// Cost of each command.
    costs: Vec<f64>,
    /// The recording in parts, each of which a device does in one go.
    parts: Vec<PreparedId>,
    /// The choice of tokens, where it waits for masks.
    choice: Option<PreparedId>,
}

/// Results requested from a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Results<'a> {
    /// Rows of logits.
    Logits,
    /// Hidden states of every token, and rows of logits.
    Encoded,
    /// A token for each of its rows of logits.
    Tokens(&'a [Wanted]),
}

/// A batch that runs on the device.
#[derive(Debug)]
#[must_use]
pub struct Flight {
    ticket: Ticket,
    shape: BatchShape,
    cost: f64,
    started: Instant,
    /// What is submitted once the masks are known.
    choice: Option<PreparedId>,
}

/// A loaded model, ready to run batches.
pub struct Runner {
    executor: Box<dyn Executor>,
    model: Model,
    kv: KvCache,
    /// Least recently used first.
    prepared: Vec<Ready>,
    pace: Pace,
    logits: Vec<f32>,
    /// Tokens that the device chose in the batch that was finished last.
    chosen: Vec<u32>,
    /// The turn of the batch that was started last and has not been finished.
    flying: Option<usize>,
    /// When a batch was last finished.
    finished: Instant,
}

impl std::fmt::Debug for Runner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runner").field("model", &self.model).finish_non_exhaustive()
    }
}

impl Runner {
    /// Puts a model and its cache on top of the executor that holds them.
    #[must_use]
    pub fn new(executor: Box<dyn Executor>, model: Model, kv: KvCache) -> Self {
        let pace = Pace::new(executor.capabilities().is_cpu());
        Self {
            executor,
            model,
            kv,
            prepared: Vec::new(),
            pace,
            logits: Vec::new(),
            chosen: Vec::new(),
            flying: None,
            finished: Instant::now(),
        }
    }

    /// Loaded model.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Executor of the device.
    #[must_use]
    pub fn executor(&self) -> &dyn Executor {
        &*self.executor
    }

    /// KV cache.
    #[must_use]
    pub fn kv(&self) -> &KvCache {
        &self.kv
    }

    /// The cache, with the executor that its changes go through.
    pub fn kv_mut(&mut self) -> (&mut KvCache, &mut dyn Executor) {
        (&mut self.kv, &mut *self.executor)
    }

    /// Makes the cache's pool one of `pages` pages; `leases` are all there are.
    ///
    /// # Errors
    /// [`DeviceError`]; the cache is then of no use.
    pub fn resize_kv(
        &mut self,
        pages: usize,
        leases: &mut [&mut KvLease],
    ) -> Result<(), DeviceError> {
        self.forget_recordings(); // they name the pool's buffers
        self.kv.resize(&mut *self.executor, pages, leases)
    }

    /// Runs a batch and waits for it. Rows of logits are then at [`Runner::logits`].
    ///
    /// # Errors
    /// [`DeviceError`]; the positions of the batch are then undefined in the cache.
    ///
    /// # Panics
    /// If the batch is empty or passes the model's limits: bugs of the scheduler.
    pub fn step(&mut self, batch: &Batch) -> Result<(), DeviceError> {
        self.step_with(batch, &[])
    }

    /// Runs a batch whose spans use adapters: the mix of each, or none at all.
    ///
    /// # Errors
    /// As [`Self::step`].
    ///
    /// # Panics
    /// As [`Self::step`], and if the model has no such adapter.
    pub fn step_with(&mut self, batch: &Batch, mixes: &[Mix]) -> Result<(), DeviceError> {
        let flight = self.start(batch, mixes, Results::Logits)?;
        self.finish(flight).map(drop)
    }

    /// Runs a batch whose tokens the device chooses, and waits for it: a token for each row of
    /// logits, or [`NONE`](crate::kernels::sampling::NONE) where the host has to choose.
    ///
    /// # Errors
    /// As [`Self::step`].
    ///
    /// # Panics
    /// As [`Self::step`], and if there are more or fewer `wanted` than rows of logits.
    pub fn step_to_tokens(
        &mut self,
        batch: &Batch,
        wanted: &[Wanted],
    ) -> Result<&[u32], DeviceError> {
        let flight = self.start(batch, &[], Results::Tokens(wanted))?;
        self.finish(flight)?;
        Ok(&self.chosen)
    }

    /// Starts a batch. While it runs another may be started, whose pending tokens are rows of this
    /// one's.
    ///
    /// # Errors
    /// [`DeviceError`].
    ///
    /// # Panics
    /// As [`Self::step_with`], and if there are more or fewer tokens wanted than rows of logits.
    pub fn start(
        &mut self,
        batch: &Batch,
        mixes: &[Mix],
        results: Results<'_>,
    ) -> Result<Flight, DeviceError> {
        let buffer_set = self.flying.map_or(0, |buffer_set| 1 - buffer_set);
        let shape = BatchShape {
            adapters: self.upload_scales(batch, mixes)?,
            buffer_set,
            choosing: match results {
                Results::Tokens(wanted) => {
                    assert_eq!(wanted.len(), batch.logit_count(), "each row is wanted somehow");
                    self.upload_wanted(buffer_set, wanted)?
                }
                _ => Choosing::Host,
            },
            ..self.shape_of(batch, results == Results::Encoded)
        };
        self.prepare(shape)?;
        self.upload_inputs(batch, shape)?;
        let started = Instant::now();
        let ready = self.prepared.last().expect("a step was prepared");
        let mut ticket = Ticket(0);
        for part in &ready.parts {
            ticket = self.executor.submit(*part)?;
        }
        self.flying = Some(shape.buffer_set);
        let (cost, choice) = (ready.costs.iter().sum(), ready.choice);
        Ok(Flight { ticket, shape, cost, started, choice })
    }

    /// Waits for a batch, the one that was started first, and reads its results; how long it took.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn finish(&mut self, flight: Flight) -> Result<Duration, DeviceError> {
        let Flight { ticket, shape, cost, started, .. } = flight;
        self.executor.wait(ticket, STEP_TIMEOUT)?;
        let now = Instant::now();
        let elapsed = now - started.max(self.finished); // before that, another one ran
        self.finished = now;
        self.pace.learn(cost, elapsed);
        self.forget(&flight);
        let inputs = self.model.inputs(shape.buffer_set);
        let rows = shape.logit_rows as usize;
        if rows > 0 && shape.choosing == Choosing::Host {
            self.logits.resize(rows * self.model.vocab(), 0.0);
            let out = bytemuck::cast_slice_mut(&mut self.logits);
            self.executor.read(inputs.logits.buffer, 0, out)?;
        } else if rows > 0 {
            self.chosen.resize(rows, 0);
            let out = bytemuck::cast_slice_mut(&mut self.chosen);
            self.executor.read(inputs.chosen.buffer, 0, out)?;
        }
        Ok(elapsed)
    }

    /// Gives up the results of a batch: whatever is started later runs behind it.
    pub(super) fn forget(&mut self, flight: &Flight) {
        self.flying = self.flying.filter(|buffer_set| *buffer_set != flight.shape.buffer_set);
    }

    /// The token of row `row` of the batch that was finished last.
    pub(super) fn chosen(&self, row: usize) -> u32 {
        self.chosen[row]
    }

    /// Sets the autotuner's choices; recordings are made anew.
    pub(super) fn set_tuned(&mut self, tuned: BTreeMap<Work, Choice>) {
        self.model.set_tuned(tuned);
        self.forget_recordings();
    }

    /// Puts an adapter on the device; see [`Model::add_adapter`].
    ///
    /// # Errors
    /// As [`Model::add_adapter`].
    pub fn add_adapter(
        &mut self,
        number: usize,
        adapter: &AdapterFile,
    ) -> Result<(), ModelLoadError> {
        self.forget_recordings();
        self.model.add_adapter(&mut *self.executor, number, adapter)
    }

    /// Takes an adapter off the device.
    pub fn remove_adapter(&mut self, number: usize) {
        self.forget_recordings();
        self.model.remove_adapter(&mut *self.executor, number);
    }

    fn forget_recordings(&mut self) {
        for ready in std::mem::take(&mut self.prepared) {
            self.release(&ready);
        }
    }

    /// Shape of a batch without adapters, the key of its recording.
    pub(super) fn shape_of(&self, batch: &Batch, encoded: bool) -> BatchShape {
        let one_token_each = batch.spans.iter().all(|span| span.tokens.len() == 1);
        assert!(batch.token_count() > 0, "a batch has tokens");
        let end = |span: &TokenSpan| span.position as usize + span.tokens.len();
        let keys = batch.spans.iter().map(end).max().unwrap_or(0);
        let attention = self.model.attention_shape(one_token_each, batch.token_count(), keys);
        BatchShape {
            tokens: batch.token_count() as u32,
            tiles: batch.tiles(attention.tile_tokens).len() as u32,
            attention,
            logit_rows: batch.logit_count() as u32,
            encoded,
            adapters: 0,
            choosing: Choosing::Host,
            buffer_set: 0,
        }
    }

    /// Fills the buffers that carry what changes from step to step.
    pub(super) fn upload_inputs(
        &mut self,
        batch: &Batch,
        shape: BatchShape,
    ) -> Result<(), DeviceError> {
        let inputs = self.model.inputs(shape.buffer_set);
        let (steps, tiles) = (batch.steps(), batch.tiles(shape.attention.tile_tokens));
        self.upload(inputs.steps, bytemuck::cast_slice(&steps))?;
        self.upload(inputs.tiles, bytemuck::cast_slice(&tiles))?;
        self.upload(inputs.rows, bytemuck::cast_slice(&batch.logit_rows()))
    }

    /// Runs a batch, and returns what the model makes of every token behind its last norm: f32
    /// `[tokens, embedding]`. An encoder's batch has whole texts.
    ///
    /// # Errors
    /// [`DeviceError`].
    ///
    /// # Panics
    /// If the batch is empty or passes the model's limits: bugs of the caller.
    pub fn encode(&mut self, batch: &Batch) -> Result<Vec<f32>, DeviceError> {
        let flight = self.start(batch, &[], Results::Encoded)?;
        let encoded = self.model.inputs(flight.shape.buffer_set).encoded;
        self.finish(flight)?;
        let width = self.model.hyper().embedding as usize;
        let mut rows = vec![0.0; batch.token_count() * width];
        self.executor.read(encoded.buffer, encoded.offset, bytemuck::cast_slice_mut(&mut rows))?;
        Ok(rows)
    }

    /// Logits of row `row` of the last batch: f32 `[vocab]`.
    pub fn logits(&mut self, row: usize) -> &mut [f32] {
        let vocab = self.model.vocab();
        &mut self.logits[row * vocab..][..vocab]
    }

    /// Has the device evaluate a token, so that the first request does not wait for a driver that
    /// compiles, and no request for one that computes nonsense.
    ///
    /// # Errors
    /// [`DeviceError`]; [`DeviceError::WrongResult`] if what it makes of it is no number.
    ///
    /// # Panics
    /// If sessions have taken every page: it is for the start.
    pub fn try_out(&mut self) -> Result<(), DeviceError> {
        let mut lease = self.kv.lease().expect("nobody has a lease yet");
        let grown = self.kv.grow(&mut *self.executor, &mut lease, 0, 1)?;
        grown.expect("nobody has a page yet");
        let logits = usize::from(!self.model.hyper().encoder);
        let span = TokenSpan { table: lease.table(), position: 0, tokens: vec![0], logits };
        let batch = Batch { spans: vec![span] };
        let values = match self.model.hyper().encoder {
            true => self.encode(&batch),
            false => self.step(&batch).map(|()| self.logits(0).to_vec()),
        };
        self.kv.release(lease);
        let values = values?;
        let bad = values.iter().find(|value| !value.is_finite()).copied();
        let flat = values.iter().all(|value| *value == values[0]);
        match bad {
            Some(value) => Err(DeviceError::WrongResult { what: format!("a value of {value}") }),
            None if flat => Err(DeviceError::WrongResult { what: "the same for all".into() }),
            None => Ok(()),
        }
    }

    /// Writes the scales of every token for each adapter that the batch uses; which these are.
    pub(super) fn upload_scales(
        &mut self,
        batch: &Batch,
        mixes: &[Mix],
    ) -> Result<u32, DeviceError> {
        let mut used = 0;
        let loaded = self.model.adapters();
        for adapter in (0..ADAPTERS_MAX).filter(|number| loaded >> number & 1 == 1) {
            let mut any = false;
            let scales: Vec<f32> = batch
                .spans
                .iter()
                .zip(mixes)
                .flat_map(|(span, mix)| {
                    let scale = mix.iter().find(|(number, _)| *number == adapter);
                    any |= scale.is_some();
                    std::iter::repeat_n(scale.map_or(0.0, |(_, scale)| *scale), span.tokens.len())
                })
                .collect();
            if any {
                self.upload(self.model.adapter_scales(adapter), bytemuck::cast_slice(&scales))?;
                used |= 1 << adapter;
            }
        }
        Ok(used)
    }

    fn upload(&mut self, to: BufferSlice, bytes: &[u8]) -> Result<(), DeviceError> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.executor
            .write(to.buffer, to.offset, bytes.len(), &mut |out| out.copy_from_slice(bytes))
    }

    /// Puts the recordings of a shape at the end of the prepared ones, cut to the device's pace.
    fn prepare(&mut self, shape: BatchShape) -> Result<(), DeviceError> {
        let known = self.prepared.iter().position(|ready| ready.shape == shape);
        let mut ready = match known {
            Some(at) => self.prepared.remove(at),
            None => self.record(shape),
        };
        let choice_at = mask::first_in(&ready.recording).unwrap_or(ready.costs.len());
        let parts = self.pace.cut(&ready.costs[..choice_at]);
        let (wanted, there) = (parts.len(), ready.parts.len());
        if wanted > PARTS_TOO_FEW * there || wanted * PARTS_TOO_MANY <= there {
            self.release(&ready);
            ready.parts.clear();
            ready.choice = None;
            let mut commands = &ready.recording.commands[..];
            for count in parts {
                let (part, rest) = commands.split_at(count);
                commands = rest;
                let part = Recording { commands: part.to_vec() };
                ready.parts.push(self.executor.prepare(&part)?);
            }
            if !commands.is_empty() {
                let choice = Recording { commands: commands.to_vec() };
                ready.choice = Some(self.executor.prepare(&choice)?);
            }
        }
        if self.prepared.len() == PREPARED_MAX {
            let oldest = self.prepared.remove(0);
            self.release(&oldest);
        }
        self.prepared.push(ready);
        Ok(())
    }

    fn record(&self, shape: BatchShape) -> Ready {
        let recording = self.model.record_forward(&self.kv, shape);
        // What the caches hold before is not known here; at most it doubles a step's cost.
        let positions = [Positions { first: 0, count: shape.tokens.into() }];
        let cost = |command| {
            let work = work::of(command, &positions).unwrap_or_default();
            pace::cost(work.bytes(), work.flops)
        };
        let costs = recording.commands.iter().map(cost).collect();
        Ready { shape, recording, costs, parts: Vec::new(), choice: None }
    }

    fn release(&mut self, ready: &Ready) {
        ready.parts.iter().chain(&ready.choice).for_each(|part| self.executor.release(*part));
    }
}
