//! The model on its device, and how it gets there again when the device was lost.
//!
//! [`Placed`] owns everything that lives on a device: executor, weights, cache, recordings. It can
//! be taken off and put on again; sessions, requests and samplers stay with the worker.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::budget;
use super::check::{Check, KernelFault};
use super::open_error::OpenError;
use super::runner::Runner;
use super::tune::Tuner;
use crate::config::MemoryReserve;
use crate::gguf::{FileIdentity, GgufFile};
use crate::gpu::{DeviceError, Executor};
use crate::hf;
use crate::kv_cache::{KvCache, KvConfig};
use crate::model::{AdapterFile, Limits, Model, ModelLoadError, Progress};
use crate::tensor::DType;

/// Opens the device: at the start, and again after it was lost.
pub type OpenExecutor = Box<dyn FnMut() -> Result<Box<dyn Executor>, DeviceError> + Send>;

/// What a model is loaded from. The file stays open, so that a device that is lost while requests
/// run gets the weights that they began with; whoever loads the model anew is told where another
/// file has taken its place.
#[derive(Debug)]
pub(super) struct ModelSource {
    pub(super) file: Arc<GgufFile>,
    /// The file as it was when its header was read.
    pub(super) identity: Vec<FileIdentity>,
    /// Type that a folder's matrices are quantised to.
    pub(super) quantize: Option<DType>,
    /// By their numbers.
    pub(super) adapters: BTreeMap<usize, AdapterFile>,
    pub(super) kv: KvConfig,
    pub(super) limits: Limits,
    pub(super) check: Option<Check>,
    pub(super) tuner: Option<Tuner>,
}

impl ModelSource {
    /// Loads the weights, makes the cache, checks the kernels, and has the device evaluate a first
    /// token. The cache has its full size, or with `reserve` what the device's memory leaves room
    /// for beside it. `None` where a kernel computes wrongly: on a device that is opened again, a
    /// safer one takes its place.
    fn try_load(
        &mut self,
        mut executor: Box<dyn Executor>,
        reserve: Option<MemoryReserve>,
        progress: Progress<'_>,
    ) -> Result<Option<Runner>, OpenError> {
        if let Some(check) = &mut self.check {
            check.prepare(&mut *executor);
        }
        self.kv.layout = self.kv.layout.on(executor.capabilities());
        let least_bytes = reserve.map_or(self.kv.bytes(), |_| self.kv.page_bytes());
        let lanes = executor.capabilities().lanes.into();
        let adapter_bytes = self.adapters.values().map(|adapter| adapter.bytes(lanes)).sum();
        let limits = Limits { kv_bytes: least_bytes, adapter_bytes, ..self.limits };
        let mut model = Model::load(&mut *executor, &self.file, limits, progress)?;
        for (number, adapter) in &self.adapters {
            model.add_adapter(&mut *executor, *number, adapter)?;
        }
        let config = match reserve {
            None => self.kv,
            Some(reserve) => budget::fit(&self.kv, executor.memory(), reserve),
        };
        let kv = KvCache::new(&mut *executor, config)?;
        let mut runner = Runner::new(executor, model, kv);
        if let Some(tuner) = &mut self.tuner {
            tuner.prepare(&mut runner);
        }
        if let Some(check) = &mut self.check
            && !check.run(&mut runner)?
        {
            return Ok(None);
        }
        runner.try_out()?;
        Ok(Some(runner))
    }

    /// Refuses a file that has been written to since its header was read: what is read of it now
    /// may be anything.
    pub(super) fn check_unchanged(&self) -> Result<(), OpenError> {
        match self.file.identity()? == self.identity {
            true => Ok(()),
            false => Err(OpenError::Changed { path: self.file.path().to_owned() }),
        }
    }

    /// Refuses to go on with a file whose place another one has taken, or that is gone.
    pub(super) fn check_place(&self) -> Result<(), OpenError> {
        let there = hf::open_model(self.file.path(), self.quantize)?.identity()?;
        match there == self.identity {
            true => Ok(()),
            false => Err(OpenError::Replaced { path: self.file.path().to_owned() }),
        }
    }

    /// Loads onto an executor, or onto the ones that `open` gives after it where kernels compute
    /// wrongly.
    pub(super) fn load(
        &mut self,
        mut executor: Box<dyn Executor>,
        mut open: Option<&mut OpenExecutor>,
        reserve: Option<MemoryReserve>,
        progress: Progress<'_>,
    ) -> Result<Runner, OpenError> {
        self.check_unchanged()?;
        loop {
            let device = executor.capabilities().device_name.clone();
            // Ends: each time one more kernel is avoided, or one that is gives an error.
            if let Some(runner) = self.try_load(executor, reserve, &mut *progress)? {
                self.check_unchanged()?;
                return Ok(runner);
            }
            let Some(open) = &mut open else {
                let fault = self.check.as_ref().and_then(|check| check.faults().last()).cloned();
                let KernelFault { kernel, difference } = fault.expect("a fault was found");
                return Err(DeviceError::WrongKernel { kernel, device, difference }.into());
            };
            executor = open()?;
        }
    }
}

/// Means of loading a model onto a device again.
pub struct Reopen {
    pub(super) open: OpenExecutor,
    pub(super) source: ModelSource,
}

impl std::fmt::Debug for Reopen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reopen").field("source", &self.source).finish_non_exhaustive()
    }
}

/// The runner while the model is on a device. Without one it may only be asked what it says of
/// that: recovery sees to it, and an engine whose model is unloaded asks first.
pub(super) struct Placed {
    runner: Option<Runner>,
    /// Configuration of all its caches.
    kv_config: KvConfig,
    reopen: Option<Reopen>,
    /// Tokens of the steps that are warmed up on every device, and of those that are still to be
    /// on this one, the next last.
    warm: &'static [usize],
    cold: Vec<usize>,
    /// For those outside who ask.
    on_device: Arc<AtomicBool>,
}

impl Placed {
    /// `warm`: tokens of the steps that are to be warmed up, the first ones first.
    pub(super) fn new(
        runner: Runner,
        reopen: Option<Reopen>,
        warm: &'static [usize],
        on_device: Arc<AtomicBool>,
    ) -> Self {
        let kv_config = *runner.kv().config();
        let cold = warm.iter().rev().copied().collect();
        Self { runner: Some(runner), kv_config, reopen, warm, cold, on_device }
    }

    /// True if the model is on a device.
    pub(super) fn is_on_device(&self) -> bool {
        self.runner.is_some()
    }

    /// True if a lost device can be opened again.
    pub(super) fn can_reopen(&self) -> bool {
        self.reopen.is_some()
    }

    /// Form and sizes of the cache, whether it is on a device or not.
    pub(super) fn kv_config(&self) -> &KvConfig {
        &self.kv_config
    }

    /// Frees the device: weights, cache and all.
    pub(super) fn take_off(&mut self) {
        self.on_device.store(false, Ordering::Release);
        self.runner = None;
    }

    /// Refuses to put on the device what no longer is the file at the model's path.
    pub(super) fn check_place(&self) -> Result<(), OpenError> {
        self.reopen.as_ref().map_or(Ok(()), |reopen| reopen.source.check_place())
    }

    /// Opens the device again and loads the model onto it; the cache is empty then, and has as many
    /// pages as the device's memory leaves room for, `reserve` taken off.
    pub(super) fn put_on(
        &mut self,
        reserve: MemoryReserve,
        progress: Progress<'_>,
    ) -> Result<(), OpenError> {
        // The old device goes first: there may be no room for both.
        self.take_off();
        let reopen = self.reopen.as_mut().expect("the caller asked whether it can be reopened");
        let executor = (reopen.open)()?;
        self.runner =
            Some(reopen.source.load(executor, Some(&mut reopen.open), Some(reserve), progress)?);
        self.cold = self.warm.iter().rev().copied().collect();
        self.on_device.store(true, Ordering::Release);
        Ok(())
    }

    /// Puts an adapter on the device, checks the kernels that it needs, and keeps it for the next
    /// time that the model is put there.
    pub(super) fn add_adapter_to_source(
        &mut self,
        number: usize,
        adapter: AdapterFile,
    ) -> Result<(), ModelLoadError> {
        self.add_adapter(number, &adapter)?;
        let Some(source) = self.reopen.as_mut().map(|reopen| &mut reopen.source) else {
            return Ok(());
        };
        let runner = self.runner.as_mut().expect("the adapter was put on the device");
        let checked = match &mut source.check {
            Some(check) => check.run_again(runner),
            None => Ok(()),
        };
        if let Err(error) = checked {
            runner.remove_adapter(number);
            return Err(error.into());
        }
        source.adapters.insert(number, adapter);
        Ok(())
    }

    /// Forgets an adapter, on the device or not.
    pub(super) fn remove_adapter_from_source(&mut self, number: usize) {
        if let Some(runner) = &mut self.runner {
            runner.remove_adapter(number);
        }
        if let Some(reopen) = &mut self.reopen {
            reopen.source.adapters.remove(&number);
        }
    }

    /// True if there is a step to warm up.
    pub(super) fn is_cold(&self) -> bool {
        self.runner.is_some() && !self.cold.is_empty()
    }

    /// Warms the next step up.
    pub(super) fn warm_up(&mut self) -> Result<(), DeviceError> {
        let warmed = match (&mut self.runner, self.cold.pop()) {
            (Some(runner), Some(tokens)) => runner.warm_up(tokens),
            _ => Ok(()),
        };
        if let Err(DeviceError::OutOfMemory { what, .. }) = &warmed {
            tracing::warn!(what, "no memory to build pipelines ahead: each waits for its step");
            self.cold.clear();
            return Ok(());
        }
        warmed
    }

    /// Time until the autotuner's next step, if there is one.
    pub(super) fn tuning_due_in(&self, idle: Duration) -> Option<Duration> {
        self.runner.as_ref()?;
        self.reopen.as_ref()?.source.tuner.as_ref()?.due_in(idle)
    }

    /// Takes a step of the tuner.
    pub(super) fn tune(&mut self) -> Result<(), DeviceError> {
        let tuner = self.reopen.as_mut().and_then(|reopen| reopen.source.tuner.as_mut());
        if let (Some(tuner), Some(runner)) = (tuner, &mut self.runner) {
            tuner.step(runner)?;
        }
        Ok(())
    }

    /// Kernels that compute wrongly on the device, with safer ones in their place.
    pub(super) fn faults(&self) -> &[KernelFault] {
        let source = self.reopen.as_ref().map(|reopen| &reopen.source);
        source.and_then(|source| source.check.as_ref()).map_or(&[], Check::faults)
    }
}

impl Deref for Placed {
    type Target = Runner;

    fn deref(&self) -> &Runner {
        self.runner.as_ref().expect("the model is on a device while the engine serves")
    }
}

impl DerefMut for Placed {
    fn deref_mut(&mut self) -> &mut Runner {
        self.runner.as_mut().expect("the model is on a device while the engine serves")
    }
}
