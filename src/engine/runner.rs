//! Runs batches: the executor, the model and its KV cache, and the recordings prepared so far.

use std::time::Duration;

use crate::gpu::{BufferSlice, DeviceError, Executor, PreparedId};
use crate::kv_cache::KvCache;
use crate::model::{BatchShape, Model};
use crate::scheduler::{Batch, TokenSpan};

/// Recordings kept ready. A decode step of each batch size and a few prefill sizes recur; the odd
/// tail of a prompt does not.
const PREPARED_MAX: usize = 48;

/// A step takes well under a second by the scheduler's choice; a driver that builds shaders in its
/// first one may take many.
const STEP_TIMEOUT: Duration = Duration::from_secs(120);

/// A loaded model, ready to run batches.
pub struct Runner {
    executor: Box<dyn Executor>,
    model: Model,
    kv: KvCache,
    /// Least recently used first.
    prepared: Vec<(BatchShape, PreparedId)>,
    logits: Vec<f32>,
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
        Self { executor, model, kv, prepared: Vec::new(), logits: Vec::new() }
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The executor.
    #[must_use]
    pub fn executor(&self) -> &dyn Executor {
        &*self.executor
    }

    /// The cache.
    #[must_use]
    pub fn kv(&self) -> &KvCache {
        &self.kv
    }

    /// The cache, with the executor that its changes go through.
    pub fn kv_mut(&mut self) -> (&mut KvCache, &mut dyn Executor) {
        (&mut self.kv, &mut *self.executor)
    }

    /// Runs a batch and waits for it. Rows of logits are then at [`Runner::logits`].
    ///
    /// # Errors
    /// [`DeviceError`]; the positions of the batch are then undefined in the cache.
    ///
    /// # Panics
    /// If the batch is empty or passes the model's limits: bugs of the scheduler.
    pub fn step(&mut self, batch: &Batch) -> Result<(), DeviceError> {
        let one_token_each = batch.spans.iter().all(|span| span.tokens.len() == 1);
        let tile_tokens = self.model.tile_tokens(one_token_each);
        let (steps, tiles) = (batch.steps(), batch.tiles(tile_tokens));
        let rows = batch.logit_rows();
        assert!(!steps.is_empty(), "a batch has tokens");
        let shape = BatchShape {
            tokens: steps.len() as u32,
            tiles: tiles.len() as u32,
            tile_tokens,
            logit_rows: rows.len() as u32,
        };
        let prepared = self.prepare(shape)?;
        let inputs = self.model.inputs();
        self.upload(inputs.steps, bytemuck::cast_slice(&steps))?;
        self.upload(inputs.tiles, bytemuck::cast_slice(&tiles))?;
        self.upload(inputs.rows, bytemuck::cast_slice(&rows))?;
        let ticket = self.executor.submit(prepared)?;
        self.executor.wait(ticket, STEP_TIMEOUT)?;
        self.logits.resize(rows.len() * self.model.vocab(), 0.0);
        if !rows.is_empty() {
            let out = bytemuck::cast_slice_mut(&mut self.logits);
            self.executor.read(inputs.logits.buffer, 0, out)?;
        }
        Ok(())
    }

    /// Runs a batch of whole texts through an encoder, and returns what it makes of every token:
    /// f32 `[tokens, embedding]`.
    ///
    /// # Errors
    /// [`DeviceError`].
    ///
    /// # Panics
    /// If the model is no encoder, or the batch passes its limits: bugs of the caller.
    pub fn encode(&mut self, batch: &Batch) -> Result<Vec<f32>, DeviceError> {
        let encoded = self.model.inputs().encoded.expect("an encoder");
        self.step(batch)?;
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
    /// [`DeviceError`]; [`DeviceError::WrongResult`] if its logits are not numbers.
    ///
    /// # Panics
    /// If sessions have taken every page: it is for the start.
    pub fn try_out(&mut self) -> Result<(), DeviceError> {
        let mut lease = self.kv.lease().expect("nobody has a lease yet");
        let grown = self.kv.grow(&mut *self.executor, &mut lease, 0, 1)?;
        grown.expect("nobody has a page yet");
        let span = TokenSpan { table: lease.table(), position: 0, tokens: vec![0], logits: 1 };
        let evaluated = self.step(&Batch { spans: vec![span] });
        self.kv.release(lease);
        evaluated?;
        let logits = self.logits(0);
        let bad = logits.iter().find(|logit| !logit.is_finite()).copied();
        let flat = logits.iter().all(|logit| *logit == logits[0]);
        match bad {
            Some(logit) => Err(DeviceError::WrongResult { what: format!("a logit of {logit}") }),
            None if flat => Err(DeviceError::WrongResult { what: "the same for all".into() }),
            None => Ok(()),
        }
    }

    fn upload(&mut self, to: BufferSlice, bytes: &[u8]) -> Result<(), DeviceError> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.executor
            .write(to.buffer, to.offset, bytes.len(), &mut |out| out.copy_from_slice(bytes))
    }

    fn prepare(&mut self, shape: BatchShape) -> Result<PreparedId, DeviceError> {
        if let Some(at) = self.prepared.iter().position(|(known, _)| *known == shape) {
            let entry = self.prepared.remove(at);
            self.prepared.push(entry);
            return Ok(entry.1);
        }
        let recording = self.model.record_forward(&self.kv, shape);
        let prepared = self.executor.prepare(&recording)?;
        if self.prepared.len() == PREPARED_MAX {
            let (_, oldest) = self.prepared.remove(0);
            self.executor.release(oldest);
        }
        self.prepared.push((shape, prepared));
        Ok(prepared)
    }
}
