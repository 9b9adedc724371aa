//! The autotuner: which shape of a product is the fastest on this device, by measurement.
//!
//! It goes in small steps, each of which compiles and times one shape at most, so that whoever
//! drives it (the engine while nobody waits, `hob tune` in the foreground) can stop at any time.
//! A shape that computes other than the reference is never chosen, and neither is one that gives
//! other bits than the default, unless speed was asked for above all: a token's sums must not
//! depend on what was measured.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::runner::{Runner, STEP_TIMEOUT};
use crate::config::Numerics;
use crate::gpu::{
    BufferSlice, Capabilities, Choice, Command, DeviceError, Dispatch, Executor, Recording, Work,
};
use crate::kernels::by_name;
use crate::kernels::matmul::{Operands, Shape, Tier};
use crate::kernels::matmul_experts::even_routes;
use crate::kernels::tuned::{self, candidates, choice_of, reshaped, shape_of, work_of};
use crate::model::{BatchShape, Choosing};
use crate::probe::{self, Key, Probe};

/// A shape has to be this much faster than the default to be chosen.
const GAIN_MIN: f64 = 0.97;

/// Times a dispatch runs for one measurement; the shortest counts.
const RUNS_MAX: usize = 8;

/// A measurement ends after two runs where it has taken so long: a request may be waiting.
const RUNS_TIME_MAX: Duration = Duration::from_millis(50);

/// Name of the files: what may be chosen, and so what is measured, depends on the numerics.
fn kind(numerics: Numerics) -> &'static str {
    match numerics {
        Numerics::Exact => "tuning",
        Numerics::Fastest => "tuning-fastest",
    }
}

/// How to tune.
#[derive(Clone, Debug)]
pub struct TuneOptions {
    /// Makes the executor that is right, for a device of so many lanes.
    pub reference: fn(u32) -> Box<dyn Executor>,
    /// Whether shapes that take sums in another order, or are made of narrower numbers, may be
    /// chosen.
    pub numerics: Numerics,
    /// Folder for what was measured; `None` keeps nothing.
    pub folder: Option<PathBuf>,
    /// Whether to measure what is not known yet, while nobody waits.
    pub measure: bool,
    /// How long nobody must have waited before.
    pub quiet: Duration,
}

/// What was found out about a shape.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It computes what the default does.
    Right,
    /// It computes as the reference does, but not the bits of the default.
    OtherBits,
    /// It computes wrongly, and is never chosen.
    Wrong(String),
}

/// A shape that was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The shape.
    pub shape: Shape,
    /// Shortest time of the product, in nanoseconds; 0 where it was not worth measuring.
    pub nanoseconds: f64,
    /// Whether it may be chosen.
    pub verdict: Verdict,
}

/// What was measured of one kind of product.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TunedProduct {
    /// Name of the kernel.
    pub kernel: String,
    /// Rows of the matrix, with padding.
    pub rows: u64,
    /// Columns of the matrix.
    pub row_len: u64,
    /// Tokens, up to which this holds.
    pub tokens: u64,
    /// The chosen one of `shapes`.
    pub chosen: usize,
    /// The default, then all others.
    pub shapes: Vec<Measured>,
}

impl TunedProduct {
    /// Time of the chosen shape over that of the default.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.shapes[self.chosen].nanoseconds / self.shapes[0].nanoseconds
    }

    fn work(&self) -> Option<Work> {
        let kernel = by_name(&self.kernel)?;
        Some((kernel.name, [self.rows, self.row_len, self.tokens]))
    }

    /// The choice. The default is one too: the rules may be for narrower numbers.
    fn choice(&self) -> Option<(Work, Choice)> {
        let measured = self.shapes.get(self.chosen)?;
        Some((self.work()?, choice_of(measured.shape)))
    }
}

/// What was measured on a device so far.
#[must_use]
pub fn tuned_on(caps: &Capabilities, folder: &Path, numerics: Numerics) -> Vec<TunedProduct> {
    let mut found: Vec<TunedProduct> =
        probe::read(folder, kind(numerics), &Key::of(caps)).unwrap_or_default();
    // A file that somebody edited names no shape that is not there.
    found.retain(|product| product.chosen < product.shapes.len());
    found
}

/// Forgets what was measured on a device.
///
/// # Errors
/// As [`probe::forget`].
pub fn forget_tuning(caps: &Capabilities, folder: &Path) -> std::io::Result<()> {
    let key = Key::of(caps);
    let all = [Numerics::Exact, Numerics::Fastest];
    all.into_iter().try_for_each(|numerics| probe::forget(folder, kind(numerics), &key))
}

/// The fastest of the shapes that may be chosen, if it is worth it; else the default, the first.
fn choose(shapes: &[Measured], numerics: Numerics) -> usize {
    let allowed = |measured: &Measured| match measured.verdict {
        Verdict::Right => true,
        Verdict::OtherBits => numerics == Numerics::Fastest,
        Verdict::Wrong(_) => false,
    };
    let limit = shapes[0].nanoseconds * GAIN_MIN;
    let faster = |(_, measured): &(usize, &Measured)| {
        allowed(measured) && measured.nanoseconds > 0.0 && measured.nanoseconds < limit
    };
    let fastest = shapes.iter().enumerate().skip(1).filter(faster);
    let fastest = fastest.min_by(|a, b| a.1.nanoseconds.total_cmp(&b.1.nanoseconds));
    fastest.map_or(0, |(index, _)| index)
}

/// A product that is being measured.
#[derive(Debug)]
struct Job {
    /// The product in f32.
    dispatch: Dispatch,
    /// Room for a narrower x, where products may have one.
    room: Option<BufferSlice>,
    probe: Probe,
    probe_room: Option<BufferSlice>,
    wanted: Vec<Vec<u8>>,
    /// Outputs of the default.
    usual: Vec<Vec<u8>>,
    left: VecDeque<Shape>,
    shapes: Vec<Measured>,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TuneProgress {
    /// Products that are measured.
    pub done: usize,
    /// Products in all.
    pub all: usize,
}

/// The tuner of one model on one device.
pub struct Tuner {
    options: TuneOptions,
    key: Option<Key>,
    done: Vec<TunedProduct>,
    /// Products to measure; `None` until they were looked for.
    waiting: Option<VecDeque<Dispatch>>,
    job: Option<Job>,
}

impl std::fmt::Debug for Tuner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tuner").field("done", &self.done.len()).finish_non_exhaustive()
    }
}

impl Tuner {
    /// A tuner that knows nothing yet.
    #[must_use]
    pub fn new(options: TuneOptions) -> Self {
        Self { options, key: None, done: Vec::new(), waiting: None, job: None }
    }

    /// How long the engine may rest before the next step, where there is one and nobody has waited
    /// for so long.
    #[must_use]
    pub fn due_in(&self, idle: Duration) -> Option<Duration> {
        let complete = self.job.is_none() && self.waiting.as_ref().is_some_and(VecDeque::is_empty);
        let wanted = self.options.measure && !complete;
        wanted.then(|| self.options.quiet.saturating_sub(idle))
    }

    /// What was measured.
    #[must_use]
    pub fn done(&self) -> &[TunedProduct] {
        &self.done
    }

    /// Has a runner whose model was just loaded make the choices that are known.
    pub fn prepare(&mut self, runner: &mut Runner) {
        let caps = runner.executor().capabilities();
        let key = Key::of(caps);
        if self.key.as_ref() != Some(&key) {
            let folder = self.options.folder.as_deref();
            self.done = folder
                .map(|folder| tuned_on(caps, folder, self.options.numerics))
                .unwrap_or_default();
            for product in &mut self.done {
                product.chosen = choose(&product.shapes, self.options.numerics);
            }
            self.key = Some(key);
        }
        (self.waiting, self.job) = (None, None);
        self.apply(runner);
    }

    /// Takes a step: lists the products, or begins one, or measures one shape of it. How far it is;
    /// `None` once all is measured. Nothing else runs on the device meanwhile.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn step(&mut self, runner: &mut Runner) -> Result<Option<TuneProgress>, DeviceError> {
        if !self.options.measure {
            return Ok(None);
        }
        let Some(waiting) = &mut self.waiting else {
            self.waiting = Some(self.unknown(runner));
            return Ok(self.progress());
        };
        match &mut self.job {
            None => match waiting.pop_front() {
                None => return Ok(None),
                Some(dispatch) => self.job = self.begin(runner, dispatch)?,
            },
            Some(job) => match job.left.pop_front() {
                Some(shape) => job.measure(runner, shape)?,
                None => {
                    job.confirm(runner, self.options.numerics)?;
                    self.finish(runner);
                }
            },
        }
        Ok(self.progress())
    }

    fn progress(&self) -> Option<TuneProgress> {
        let waiting = self.waiting.as_ref().map_or(0, VecDeque::len);
        let (done, left) = (self.done.len(), waiting + usize::from(self.job.is_some()));
        (left > 0).then_some(TuneProgress { done, all: done + left })
    }

    /// Every product of the model that was not measured on this device, once.
    fn unknown(&self, runner: &Runner) -> VecDeque<Dispatch> {
        let mut works: Vec<Work> = self.done.iter().filter_map(TunedProduct::work).collect();
        let mut found = VecDeque::new();
        let limits = runner.model().limits();
        let router = runner.model().hyper().mixture.as_ref().map(|mixture| mixture.router);
        let experts = router.map(|router| [router.used, router.experts]);
        for tokens in tuned::step_tokens(experts, limits.tokens_max as u32) {
            let logit_rows = match runner.model().hyper().encoder {
                true => 0,
                false => tokens.min(limits.logit_rows_max as u32),
            };
            let shape = BatchShape {
                tokens,
                tiles: tokens,
                tile_tokens: 1,
                logit_rows,
                encoded: false,
                splits: 1,
                adapters: 0,
                choosing: Choosing::Host,
                turn: 0,
            };
            for command in runner.model().record_in_f32(runner.kv(), shape).commands {
                let Command::Dispatch(dispatch) = command else { continue };
                let Some(work) = work_of(&dispatch).filter(|work| !works.contains(work)) else {
                    continue;
                };
                works.push(work);
                found.push_back(dispatch);
            }
        }
        found
    }

    /// Measures the default of a product; `None` where that computes wrongly, which is the check's
    /// matter.
    fn begin(&self, runner: &mut Runner, dispatch: Dispatch) -> Result<Option<Job>, DeviceError> {
        let room = runner.model().narrow_room();
        let executor = runner.kv_mut().1;
        let mut reference = (self.options.reference)(executor.capabilities().lanes);
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
        let probe_room = room.map(|room| probe.add_room(room.bytes));
        let wanted = probe.run(&mut *reference)?;
        let usual = probe.run(executor)?;
        if let Some(difference) = probe.compare(&usual, &wanted) {
            tracing::warn!(kernel = dispatch.kernel.name, %difference, "is not tuned: it is wrong");
            return Ok(None);
        }
        let nanoseconds = time(executor, &dispatch, std::slice::from_ref(&dispatch))?;
        let shape = shape_of(&dispatch);
        let shapes = vec![Measured { shape, nanoseconds, verdict: Verdict::Right }];
        let other_orders = self.options.numerics == Numerics::Fastest;
        let mut left = candidates(executor.capabilities(), &dispatch, other_orders);
        left.retain(|shape| shape.tier == Tier::Scalar || room.is_some());
        let left = left.into();
        Ok(Some(Job { dispatch, room, probe, probe_room, wanted, usual, left, shapes }))
    }

    /// Chooses among the shapes of the product that was measured.
    fn finish(&mut self, runner: &mut Runner) {
        let Some(job) = self.job.take() else { return };
        let Some((kernel, [rows, row_len, tokens])) = work_of(&job.dispatch) else { return };
        let chosen = choose(&job.shapes, self.options.numerics);
        let kernel = kernel.to_owned();
        let product = TunedProduct { kernel, rows, row_len, tokens, chosen, shapes: job.shapes };
        let ratio = product.ratio();
        tracing::debug!(product.kernel, rows, row_len, tokens, ratio, "tuned");
        self.done.push(product);
        self.apply(runner);
        if let (Some(folder), Some(key)) = (self.options.folder.as_deref(), &self.key) {
            probe::write(folder, kind(self.options.numerics), key, &self.done);
        }
    }

    fn apply(&self, runner: &mut Runner) {
        runner.set_tuned(self.done.iter().filter_map(TunedProduct::choice).collect());
    }
}

impl Job {
    /// Holds a shape against the reference and the default, and times it if it may be chosen.
    fn measure(&mut self, runner: &mut Runner, shape: Shape) -> Result<(), DeviceError> {
        let executor = runner.kv_mut().1;
        let caps = executor.capabilities();
        let small = reshaped(caps, self.probe.dispatch(), shape, self.probe_room);
        let whole = reshaped(caps, &self.dispatch, shape, self.room);
        let probe = self.probe.with(small);
        let found = probe.run(executor)?;
        let verdict = match probe.compare(&found, &self.wanted) {
            Some(difference) => Verdict::Wrong(difference.to_string()),
            None if found != self.usual => Verdict::OtherBits,
            None => Verdict::Right,
        };
        let nanoseconds = match &verdict {
            Verdict::Wrong(difference) => {
                let kernel = self.dispatch.kernel.name;
                tracing::warn!(kernel, ?shape, difference, "computes wrongly and is not used");
                0.0
            }
            _ => time(executor, &self.dispatch, &whole)?,
        };
        self.shapes.push(Measured { shape, nanoseconds, verdict });
        Ok(())
    }

    /// Times the default and the one that would be chosen once more, one after the other: between
    /// their first times the machine may have been busy with something else.
    fn confirm(&mut self, runner: &mut Runner, numerics: Numerics) -> Result<(), DeviceError> {
        let chosen = choose(&self.shapes, numerics);
        if chosen > 0 {
            for index in [0, chosen] {
                let measured = &mut self.shapes[index];
                let executor = runner.kv_mut().1;
                let caps = executor.capabilities();
                let dispatches = reshaped(caps, &self.dispatch, measured.shape, self.room);
                let nanoseconds = time(executor, &self.dispatch, &dispatches)?;
                measured.nanoseconds = measured.nanoseconds.min(nanoseconds);
            }
        }
        Ok(())
    }
}

/// Shortest time of the dispatches of a product over the model's own buffers, in nanoseconds: by
/// the device's clock, or by the host's where it has none.
fn time(
    executor: &mut dyn Executor,
    product: &Dispatch,
    dispatches: &[Dispatch],
) -> Result<f64, DeviceError> {
    // Whatever step ran last has left other routes.
    if let Some((slice, words)) = even_routes(product) {
        let bytes: &[u8] = bytemuck::cast_slice(&words);
        executor.write(slice.buffer, slice.offset, bytes.len(), &mut |out| {
            out.copy_from_slice(bytes);
        })?;
    }
    let mut recording = Recording::new();
    dispatches.iter().for_each(|dispatch| recording.dispatch(dispatch.clone()));
    executor.set_profiling(true);
    let prepared = executor.prepare(&recording);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::ReferenceExecutor;

    fn measured(nanoseconds: f64, verdict: Verdict) -> Measured {
        Measured { shape: Shape::scalar(2, 1, 1), nanoseconds, verdict }
    }

    #[test]
    fn the_fastest_shape_that_is_allowed_is_chosen_where_it_is_worth_it() {
        let shapes = [
            measured(100.0, Verdict::Right),
            measured(10.0, Verdict::Wrong("3 at 0, 4 wanted".into())),
            measured(20.0, Verdict::OtherBits),
            measured(50.0, Verdict::Right),
            measured(60.0, Verdict::Right),
        ];
        assert_eq!(choose(&shapes, Numerics::Exact), 3);
        assert_eq!(choose(&shapes, Numerics::Fastest), 2);
        let close = [measured(100.0, Verdict::Right), measured(98.0, Verdict::Right)];
        assert_eq!(choose(&close, Numerics::Exact), 0);
    }

    #[test]
    fn a_step_is_due_once_nobody_has_waited_for_a_while() {
        let options = TuneOptions {
            reference: |lanes| Box::new(ReferenceExecutor::with_lanes(lanes)),
            numerics: Numerics::Exact,
            folder: None,
            measure: true,
            quiet: Duration::from_secs(2),
        };
        let mut tuner = Tuner::new(options);
        assert_eq!(tuner.due_in(Duration::ZERO), Some(Duration::from_secs(2)));
        assert_eq!(tuner.due_in(Duration::from_secs(1)), Some(Duration::from_secs(1)));
        assert_eq!(tuner.due_in(Duration::from_secs(9)), Some(Duration::ZERO));
        tuner.waiting = Some(VecDeque::new());
        assert_eq!(tuner.due_in(Duration::from_secs(9)), None, "all is measured");
    }
}
