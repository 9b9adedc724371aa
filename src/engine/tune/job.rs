//! Measuring one work: every shape held against the reference and against the default, and timed.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::attention::{Heads, Sample};
use super::{Measured, TuneOptions, TunedWork, Verdict, WorkSize, choose};
use crate::config::Numerics;
use crate::engine::runner::{Runner, STEP_TIMEOUT};
use crate::gpu::{BufferSlice, Capabilities, DeviceError, Dispatch, Executor, Recording};
use crate::kernels::matmul::{Operands, Tier, TileConfig};
use crate::kernels::matmul_experts::even_routes;
use crate::kernels::matmul_sliced;
use crate::kernels::tuned::{AnyTileConfig, candidates, reshaped, shape_of, work_of};
use crate::probe::Probe;

/// Times a dispatch runs for one measurement; the shortest counts.
const RUNS_MAX: usize = 8;

/// A measurement ends after two runs where it has taken so long: a request may be waiting.
const RUNS_TIME_MAX: Duration = Duration::from_millis(50);

/// Work waiting to be measured.
#[derive(Clone, Debug)]
pub(super) enum Waiting {
    /// A matmul in f32, over the model's own buffers.
    Matmul(Dispatch),
    /// Attention over cached positions.
    Attention(Heads),
}

/// Work being measured, with its buffers.
#[derive(Debug)]
enum Subject {
    Matmul {
        dispatch: Dispatch,
        /// Room for what is made of x before, where it may be.
        workspace: Option<BufferSlice>,
        probe: Probe,
        probe_workspace: Option<BufferSlice>,
    },
    Attention {
        checked: Sample,
        timed: Sample,
        heads: Heads,
    },
}

impl Subject {
    /// A small version in a shape.
    fn probe(&self, caps: &Capabilities, shape: AnyTileConfig) -> Probe {
        match (self, shape) {
            (Self::Matmul { probe, probe_workspace, .. }, AnyTileConfig::Matmul(shape)) => {
                probe.with(reshaped(caps, probe.dispatch(), shape, *probe_workspace))
            }
            (Self::Attention { checked, .. }, AnyTileConfig::Attention(tile)) => {
                checked.probe(caps, tile)
            }
            _ => unreachable!("a work has shapes of its own kind"),
        }
    }

    /// Time in a shape, in nanoseconds.
    fn time(&self, executor: &mut dyn Executor, shape: AnyTileConfig) -> Result<f64, DeviceError> {
        let caps = executor.capabilities();
        match (self, shape) {
            (Self::Matmul { dispatch, workspace, .. }, AnyTileConfig::Matmul(shape)) => {
                let mut recording = Recording::new();
                let dispatches = reshaped(caps, dispatch, shape, *workspace);
                dispatches.into_iter().for_each(|dispatch| recording.dispatch(dispatch));
                spread_routes(executor, dispatch)?;
                time(executor, &recording)
            }
            (Self::Attention { timed, .. }, AnyTileConfig::Attention(tile)) => {
                let probe = timed.probe(caps, tile);
                probe.with_buffers(executor, |executor, recording, _| time(executor, recording))
            }
            _ => unreachable!("a work has shapes of its own kind"),
        }
    }

    fn kernel_and_size(&self, caps: &Capabilities) -> Option<(&'static str, WorkSize)> {
        match self {
            Self::Matmul { dispatch, .. } => {
                let (kernel, [rows, row_len, tokens]) = work_of(dispatch)?;
                Some((kernel, WorkSize::Matmul { rows, row_len, tokens }))
            }
            Self::Attention { heads, .. } => Some((heads.kernel(caps), heads.size())),
        }
    }
}

/// A work that is being measured.
#[derive(Debug)]
pub(super) struct Job {
    subject: Subject,
    wanted: Vec<Vec<u8>>,
    /// Outputs of the default.
    usual: Vec<Vec<u8>>,
    left: VecDeque<AnyTileConfig>,
    shapes: Vec<Measured>,
}

impl Job {
    /// Measures the default; `None` where that computes wrongly, which is the check's matter.
    pub(super) fn begin(
        runner: &mut Runner,
        options: &TuneOptions,
        waiting: Waiting,
    ) -> Result<Option<Self>, DeviceError> {
        let (subject, default, left) = match waiting {
            Waiting::Matmul(dispatch) => matmul(runner, options.numerics, dispatch)?,
            Waiting::Attention(heads) => {
                let caps = runner.executor().capabilities();
                let (rule, others) = heads.tiles(caps);
                let (checked, timed) = (Sample::checked(heads), Sample::timed(caps, heads));
                let left = others.into_iter().map(AnyTileConfig::Attention).collect();
                let subject = Subject::Attention { checked, timed, heads };
                (subject, AnyTileConfig::Attention(rule), left)
            }
        };
        let executor = runner.kv_mut().1;
        let mut reference = (options.reference)(executor.capabilities().lanes);
        let probe = subject.probe(executor.capabilities(), default);
        let wanted = probe.run(&mut *reference)?;
        let usual = probe.run(executor)?;
        if let Some(difference) = probe.compare(&usual, &wanted) {
            let kernel = probe.dispatch().kernel.name;
            tracing::warn!(kernel, %difference, "is not tuned: it is wrong");
            return Ok(None);
        }
        let nanoseconds = subject.time(executor, default)?;
        let shapes = vec![Measured { shape: default, nanoseconds, verdict: Verdict::Right }];
        Ok(Some(Self { subject, wanted, usual, left, shapes }))
    }

    /// Measures one shape more; whether there was one.
    pub(super) fn step(&mut self, runner: &mut Runner) -> Result<bool, DeviceError> {
        let Some(shape) = self.left.pop_front() else { return Ok(false) };
        self.measure(runner.kv_mut().1, shape)?;
        Ok(true)
    }

    /// Holds a shape against the reference and the default, and times it if it may be chosen.
    fn measure(
        &mut self,
        executor: &mut dyn Executor,
        shape: AnyTileConfig,
    ) -> Result<(), DeviceError> {
        let probe = self.subject.probe(executor.capabilities(), shape);
        let found = probe.run(executor)?;
        let verdict = match probe.compare(&found, &self.wanted) {
            Some(difference) => Verdict::Wrong(difference.to_string()),
            None if !probe.is_same(&found, &self.usual) => Verdict::OtherBits,
            None => Verdict::Right,
        };
        let nanoseconds = match &verdict {
            Verdict::Wrong(difference) => {
                let kernel = probe.dispatch().kernel.name;
                tracing::warn!(kernel, ?shape, difference, "computes wrongly and is not used");
                0.0
            }
            _ => self.subject.time(executor, shape)?,
        };
        self.shapes.push(Measured { shape, nanoseconds, verdict });
        Ok(())
    }

    /// Times the default and the one that would be chosen once more, one after the other (between
    /// their first times the machine may have been busy with something else), and chooses.
    pub(super) fn finish(
        mut self,
        runner: &mut Runner,
        numerics: Numerics,
    ) -> Result<Option<TunedWork>, DeviceError> {
        let executor = runner.kv_mut().1;
        let chosen = choose(&self.shapes, numerics);
        if chosen > 0 {
            for index in [0, chosen] {
                let nanoseconds = self.subject.time(executor, self.shapes[index].shape)?;
                let measured = &mut self.shapes[index];
                measured.nanoseconds = measured.nanoseconds.min(nanoseconds);
            }
        }
        let chosen = choose(&self.shapes, numerics);
        let Some((kernel, size)) = self.subject.kernel_and_size(executor.capabilities()) else {
            return Ok(None);
        };
        let kernel = kernel.to_owned();
        Ok(Some(TunedWork { kernel, size, chosen, shapes: self.shapes }))
    }
}

/// A matmul with what it is probed with, its default, and the other shapes.
fn matmul(
    runner: &mut Runner,
    numerics: Numerics,
    dispatch: Dispatch,
) -> Result<(Subject, AnyTileConfig, VecDeque<AnyTileConfig>), DeviceError> {
    let workspace = runner.model().matmul_workspace(matmul_sliced::is_sliced(&dispatch));
    let executor = runner.kv_mut().1;
    let mut probe = Probe::take(executor, &dispatch, &HashMap::new())?;
    let operands = Operands::of(&dispatch);
    for (binding, slice) in dispatch.bindings.iter().enumerate() {
        if *slice == operands.x || *slice == operands.y {
            probe.fill(binding);
        }
    }
    if let Some((slice, words)) = even_routes(&dispatch) {
        let bound = dispatch.bindings.iter().position(|other| *other == slice);
        probe.set(bound.expect("they are bound"), &words);
    }
    let probe_workspace = workspace.map(|workspace| probe.add_workspace(workspace.bytes));
    let default = AnyTileConfig::Matmul(shape_of(&dispatch));
    let other_orders = numerics == Numerics::Fastest;
    let mut left = candidates(executor.capabilities(), &dispatch, other_orders);
    left.retain(|shape: &TileConfig| shape.tier == Tier::Scalar || workspace.is_some());
    let left = left.into_iter().map(AnyTileConfig::Matmul).collect();
    Ok((Subject::Matmul { dispatch, workspace, probe, probe_workspace }, default, left))
}

/// Writes evenly spread expert routes, replacing those of the last step.
fn spread_routes(executor: &mut dyn Executor, matmul: &Dispatch) -> Result<(), DeviceError> {
    let Some((slice, words)) = even_routes(matmul) else { return Ok(()) };
    let bytes: &[u8] = bytemuck::cast_slice(&words);
    executor.write(slice.buffer, slice.offset, bytes.len(), &mut |out| out.copy_from_slice(bytes))
}

/// Shortest time of a recording, in nanoseconds: by the device's clock, or by the host's where it
/// has none.
fn time(executor: &mut dyn Executor, recording: &Recording) -> Result<f64, DeviceError> {
    executor.set_profiling(true);
    let prepared = executor.prepare(recording);
    executor.set_profiling(false);
    let prepared = prepared?;
    let mut shortest = f64::INFINITY;
    let mut run = |executor: &mut dyn Executor| -> Result<(), DeviceError> {
        let started = Instant::now();
        let ticket = executor.submit(prepared)?;
        executor.wait(ticket, STEP_TIMEOUT)?;
        let host = started.elapsed().as_nanos() as f64;
        let timings = executor.timings(prepared)?;
        let device: f64 = timings.iter().map(|timing| timing.nanoseconds).sum();
        shortest = shortest.min(if timings.is_empty() { host } else { device });
        Ok(())
    };
    let (started, mut runs, mut ended) = (Instant::now(), 0, Ok(()));
    while ended.is_ok() && runs < RUNS_MAX && (runs < 2 || started.elapsed() < RUNS_TIME_MAX) {
        ended = run(executor);
        runs += 1;
    }
    executor.release(prepared);
    ended.map(|()| shortest)
}
