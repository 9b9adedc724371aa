//! The check at the start: every kernel that the model uses against the reference, on its device.
//!
//! A few steps are recorded, one command after the other is run, and before a pipeline runs for the
//! first time it is probed with what its inputs then hold. What passed is kept on disk, so that
//! the next start on the same device, driver and build probes nothing.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::PathBuf;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::runner::{Runner, STEP_TIMEOUT, Wanted};
use crate::gpu::{BufferHandle, Command, DeviceError, Dispatch, Executor, Recording};
use crate::kernels::sampling::Penalty;
use crate::kernels::{attention, by_name, sample, tuned};
use crate::kv_cache::KvLease;
use crate::model::{ADAPTERS_MAX, BatchShape};
use crate::probe::{self, Key, Probe};
use crate::sampler::{Sampler, SamplingParams};
use crate::scheduler::{Batch, TokenSpan};

/// When kernels are checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CheckWhen {
    /// Check if the device, its driver or this build is new.
    #[default]
    Auto,
    /// At every start.
    Always,
    /// No check.
    Never,
}

/// Options of the kernel self-check.
#[derive(Clone, Debug)]
pub struct CheckOptions {
    /// Makes the executor that is right, for a device of so many lanes.
    pub reference: fn(u32) -> Box<dyn Executor>,
    /// Condition for running the check.
    pub when: CheckWhen,
    /// Folder for what was found; `None` keeps nothing.
    pub folder: Option<PathBuf>,
}

/// A kernel that computes wrongly on the device; a safer one is in its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelFault {
    /// Name.
    pub kernel: String,
    /// Computed and expected values.
    pub difference: String,
}

/// Findings about the kernels on one device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Findings {
    /// Pipelines that compute as the reference does.
    passed: BTreeSet<String>,
    faults: Vec<KernelFault>,
}

/// Name of the files.
const KIND: &str = "checks";

/// Tokens of the steps that pipelines are looked for in: all numbers of columns that matmuls tell
/// apart. The first goes over a page, so that attention has a past to look at.
const STEPS: [usize; 10] = [40, 1, 2, 3, 4, 5, 7, 9, 17, 128];

/// Position in a long context that is checked too: attention there uses several splits, the last
/// one partial. Positions that no step wrote hold zeros, which count in a softmax.
const DEEP: usize = 2 * attention::SPLIT_TOKENS as usize + 40;

/// The check of one model on one device.
#[derive(Debug)]
pub(super) struct Check {
    options: CheckOptions,
    found: Option<(Key, Findings)>,
}

impl Check {
    pub(super) fn new(options: CheckOptions) -> Self {
        Self { options, found: None }
    }

    /// Kernels found to miscompute.
    pub(super) fn faults(&self) -> &[KernelFault] {
        self.found.as_ref().map_or(&[], |(_, findings)| &findings.faults)
    }

    /// Makes a newly opened executor avoid the kernels known to miscompute on it.
    pub(super) fn prepare(&mut self, executor: &mut dyn Executor) {
        let key = Key::of(executor.capabilities());
        if self.found.as_ref().is_none_or(|(known, _)| *known != key) {
            let folder = self.options.folder.as_deref();
            let kept = folder.filter(|_| self.options.when != CheckWhen::Always);
            let findings = kept.and_then(|folder| probe::read(folder, KIND, &key));
            self.found = Some((key, findings.unwrap_or_default()));
        }
        for fault in self.faults() {
            if let Some(kernel) = by_name(&fault.kernel) {
                tracing::warn!(
                    kernel = kernel.name,
                    difference = fault.difference,
                    "computes wrongly on this device; a safer kernel takes its place"
                );
                executor.avoid(kernel.name);
            }
        }
    }

    /// Probes the pipelines that came to a model which is on the device.
    ///
    /// # Errors
    /// [`DeviceError::WrongKernel`] where one computes wrongly, whether there is a safer one or
    /// not.
    pub(super) fn run_again(&mut self, runner: &mut Runner) -> Result<(), DeviceError> {
        if self.run(runner)? {
            return Ok(());
        }
        let device = runner.executor().capabilities().device_name.clone();
        let KernelFault { kernel, difference } =
            self.faults().last().cloned().expect("a fault was found");
        Err(DeviceError::WrongKernel { kernel, device, difference })
    }

    /// Probes the pipelines of a model that are not known yet. Whether all compute rightly; else
    /// the model has to be loaded again, after [`Check::prepare`].
    ///
    /// # Errors
    /// [`DeviceError::WrongKernel`] where a kernel has no safer one in its place.
    pub(super) fn run(&mut self, runner: &mut Runner) -> Result<bool, DeviceError> {
        if self.options.when == CheckWhen::Never {
            return Ok(true);
        }
        let started = Instant::now();
        let (key, findings) = self.found.as_mut().expect("the executor was prepared");
        let caps = runner.executor().capabilities();
        let device = caps.device_name.clone();
        let mut reference = (self.options.reference)(caps.lanes);
        let known = findings.passed.len();
        let fault = runner.find_fault(&mut *reference, &mut findings.passed)?;
        let new = findings.passed.len() - known;
        let again = fault
            .as_ref()
            .is_some_and(|fault| findings.faults.iter().any(|known| known.kernel == fault.kernel));
        if let (true, Some(fault)) = (again, &fault) {
            let (kernel, difference) = (fault.kernel.clone(), fault.difference.clone());
            return Err(DeviceError::WrongKernel { kernel, device, difference });
        }
        let right = fault.is_none();
        findings.faults.extend(fault);
        if let Some(folder) = self.options.folder.as_deref().filter(|_| new > 0 || !right) {
            probe::write(folder, KIND, key, findings);
        }
        if new > 0 {
            let milliseconds = started.elapsed().as_millis() as u64;
            tracing::info!(pipelines = new, milliseconds, "kernels were checked on this device");
        }
        Ok(right)
    }
}

/// A pipeline, as the file names it.
fn name_of(dispatch: &Dispatch) -> String {
    let spec: Vec<String> = dispatch.spec.iter().map(u32::to_string).collect();
    format!("{} {}", dispatch.kernel.name, spec.join(","))
}

impl Runner {
    /// Probes every pipeline of the model that is not among the `passed`, and puts it there; the
    /// first that computes wrongly ends it.
    ///
    /// # Errors
    /// [`DeviceError`].
    ///
    /// Nothing is probed where sessions have taken every lease, or every page.
    pub fn find_fault(
        &mut self,
        reference: &mut dyn Executor,
        passed: &mut BTreeSet<String>,
    ) -> Result<Option<KernelFault>, DeviceError> {
        let (kv, executor) = self.kv_mut();
        let Ok(mut lease) = kv.lease() else { return Ok(None) };
        let context = kv.config().context_tokens;
        let all: usize = STEPS.iter().sum();
        let mut ended = Ok(None);
        if kv.grow(executor, &mut lease, 0, context.min(all))?.is_ok() {
            let mut spans = Vec::new();
            let mut position = 0;
            for tokens in STEPS {
                let tokens = tokens.min(self.model().limits().tokens_max).min(context);
                position = if position + tokens > context { 0 } else { position };
                spans.push((position, tokens));
                position += tokens;
            }
            let (deep, wide) = ((DEEP + 1).min(context), self.wide_step().min(context));
            let most = deep.max(wide);
            let (kv, executor) = self.kv_mut();
            if most <= all || kv.grow(executor, &mut lease, all, most)?.is_ok() {
                spans.extend((deep > all).then_some((deep - 1, 1)));
                spans.extend((wide > 0).then_some((0, wide)));
            }
            ended = self.probe_spans(&lease, &spans, reference, passed);
        }
        self.kv_mut().0.release(lease);
        ended
    }

    /// Tokens of the longest step, where it has pipelines that no other has: tiles of an expert's
    /// routes, of which there are few for each token.
    fn wide_step(&self) -> usize {
        let has_tiles =
            self.model().hyper().mixture.is_some() && self.model().limits().reduced_precision;
        if has_tiles { self.model().limits().tokens_max } else { 0 }
    }

    /// Probes steps of so many tokens at such positions, with and without adapters.
    fn probe_spans(
        &mut self,
        lease: &KvLease,
        spans: &[(usize, usize)],
        reference: &mut dyn Executor,
        passed: &mut BTreeSet<String>,
    ) -> Result<Option<KernelFault>, DeviceError> {
        let pages = lease.pages().iter().map(|page| u64::from(page.index()) + 1).max();
        let used = self.used_bytes(pages.unwrap_or(0));
        let adapters = self.model().adapters();
        for &(position, tokens) in spans {
            let span = self.seeded_span(lease.table(), position, tokens);
            let batch = Batch { spans: vec![span] };
            for adapters in [0, adapters].into_iter().take(1 + usize::from(adapters != 0)) {
                let fault = self.probe_step(&batch, adapters, reference, passed, &used)?;
                if fault.is_some() {
                    return Ok(fault);
                }
            }
        }
        Ok(None)
    }

    /// Bytes in use of each cache buffer when `pages` pages are used.
    fn used_bytes(&self, pages: u64) -> HashMap<BufferHandle, u64> {
        let kv = self.kv();
        let bytes = kv.config().layout.page_bytes() * pages;
        (0..kv.config().layers).map(|layer| (kv.layer(layer).buffer, bytes)).collect()
    }

    /// Tokens from a fixed sequence, all of them among the first of the vocabulary.
    fn seeded_span(&self, table: u32, position: usize, tokens: usize) -> TokenSpan {
        let ids = self.model().vocab().min(probe::TABLE_ROWS as usize);
        let id = |at: usize| ((at * 73 + at * at % 11 + 1) % ids) as u32;
        let logits = usize::from(!self.model().hyper().encoder);
        let tokens = (position..position + tokens).map(id).collect();
        TokenSpan { table, position: position as u32, tokens, logits }
    }

    /// A draw as requests want it that say nothing else, with some tokens less likely.
    pub(super) fn seeded_draw(&self) -> Wanted {
        let params = SamplingParams {
            seed: Some(1),
            repeat_penalty: 1.1,
            presence_penalty: 0.25,
            frequency_penalty: 0.5,
            ..Default::default()
        };
        let sampler = Sampler::new(&params, self.model().vocab());
        let row = sampler.expect("its parameters are in their ranges").row(0);
        let penalties = [(1, 1, 1), (2, 3, 0), (0, 0, 1)];
        let penalties = penalties
            .map(|(token, count, repeats)| Penalty { token, count, repeats, bias: 0.5 })
            .to_vec();
        Wanted { row, penalties, masked: true }
    }

    /// Runs the commands of a step that are not like one before, and probes the new pipelines.
    fn probe_step(
        &mut self,
        batch: &Batch,
        adapters: u32,
        reference: &mut dyn Executor,
        passed: &mut BTreeSet<String>,
        used: &HashMap<BufferHandle, u64>,
    ) -> Result<Option<KernelFault>, DeviceError> {
        let mut shape = BatchShape { adapters, ..self.shape_of(batch, true) };
        if shape.logit_rows > 0 && sample::is_sound(self.model().capabilities()) {
            shape.choosing = self.upload_wanted(shape.buffer_set, &[self.seeded_draw()])?;
            let mask = vec![0x7fff_fff7; self.mask_words()];
            self.upload_masks(shape.buffer_set, &mask)?;
        }
        let recording = self.model().record_forward(self.kv(), shape);
        let is_new = |command: &Command| match command {
            Command::Dispatch(dispatch) => !passed.contains(&name_of(dispatch)),
            _ => false,
        };
        if !recording.commands.iter().any(is_new) {
            return Ok(None);
        }
        self.upload_inputs(batch, shape)?;
        if adapters != 0 {
            let all = (0..ADAPTERS_MAX).filter(|number| adapters >> number & 1 == 1);
            self.upload_scales(batch, &[all.map(|number| (number, 1.0)).collect()])?;
        }
        let mut seen = HashSet::new();
        let mut waiting = Recording::new();
        for command in recording.commands {
            let Command::Dispatch(dispatch) = &command else {
                waiting.commands.push(command);
                continue;
            };
            let name = name_of(dispatch);
            if !passed.contains(&name) {
                self.run_now(&mut waiting)?;
                let executor = self.kv_mut().1;
                let probe = Probe::take(executor, dispatch, used)?;
                if let Some(difference) = probe.check(executor, reference)? {
                    let (kernel, difference) = (dispatch.kernel.name.to_owned(), difference);
                    let difference = format!("[{name}] {difference}");
                    return Ok(Some(KernelFault { kernel, difference }));
                }
                passed.insert(name);
            }
            // One layer of each kind is enough; but what is made of a matmul's x is that
            // matmul's alone.
            let kind = (dispatch.kernel.name, dispatch.spec.clone(), dispatch.push.clone());
            if tuned::is_made_before(dispatch) || seen.insert(kind) {
                waiting.commands.push(command);
            }
        }
        self.run_now(&mut waiting)?;
        Ok(None)
    }

    /// Runs commands once, and forgets them.
    pub(super) fn run_now(&mut self, commands: &mut Recording) -> Result<(), DeviceError> {
        if commands.commands.is_empty() {
            return Ok(());
        }
        let executor = self.kv_mut().1;
        let prepared = executor.prepare(&std::mem::take(commands))?;
        let ended = executor.submit(prepared).and_then(|last| executor.wait(last, STEP_TIMEOUT));
        executor.release(prepared);
        ended
    }
}
