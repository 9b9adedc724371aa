//! The autotuner: which shape of a matmul, or of attention, is the fastest on this device, by
//! measurement.
//!
//! It goes in small steps, each of which compiles and times one shape at most, so that whoever
//! drives it (the engine while nobody waits, `hob tune` in the foreground) can stop at any time.
//! A shape that computes other than the reference is never chosen, and neither is one that gives
//! other bits than the default, unless speed was asked for above all: a token's sums must not
//! depend on what was measured.

mod attention;
mod job;

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use self::attention::Heads;
use self::job::{Job, Waiting};
use super::runner::Runner;
use crate::config::Numerics;
use crate::gpu::{Capabilities, Choice, Command, DeviceError, Executor, Work};
use crate::kernels::by_name;
use crate::kernels::tuned::{self, AnyTileConfig, choice_of, choice_of_tile, work_of};
use crate::model::{BatchShape, Choosing};
use crate::probe::{self, Key};

/// A shape has to be this much faster than the default to be chosen.
const GAIN_MIN: f64 = 0.97;

/// Name of the files: what may be chosen, and so what is measured, depends on the numerics.
fn kind(numerics: Numerics) -> &'static str {
    match numerics {
        Numerics::Exact => "tuning",
        Numerics::Fastest => "tuning-fastest",
    }
}

/// Options of the autotuner.
#[derive(Clone, Debug)]
pub struct TuneOptions {
    /// Makes the executor that is right, for a device of so many lanes.
    pub reference: fn(u32) -> Box<dyn Executor>,
    /// Whether shapes that take sums in another order, or are made of narrower numbers, may be
    /// chosen.
    pub numerics: Numerics,
    /// Folder for what was measured; `None` keeps nothing.
    pub folder: Option<PathBuf>,
    /// True if to measure what is not known yet, while nobody waits.
    pub measure: bool,
    /// Idle time before tuning starts.
    pub quiet: Duration,
}

/// Result of measuring a tile configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Bit-equal to the default.
    Right,
    /// Within tolerance of the reference, but not bit-equal to the default.
    OtherBits,
    /// Miscomputes; never chosen.
    Wrong(String),
}

/// A shape that was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Tile configuration measured.
    pub shape: AnyTileConfig,
    /// Shortest time, in nanoseconds; 0 where it was not worth measuring.
    pub nanoseconds: f64,
    /// Whether it may be chosen.
    pub verdict: Verdict,
}

/// Measurements of one kind of work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TunedWork {
    /// Name of the kernel.
    pub kernel: String,
    /// Kind and size of the work.
    #[serde(flatten)]
    pub size: WorkSize,
    /// The chosen one of `shapes`.
    pub chosen: usize,
    /// The default, then all others.
    pub shapes: Vec<Measured>,
}

/// Kind and size of work that a choice applies to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum WorkSize {
    /// Matrix multiplication.
    Matmul {
        /// Rows of the matrix, with padding.
        rows: u64,
        /// Columns of the matrix.
        row_len: u64,
        /// Tokens, or routes of an expert, up to which this holds.
        tokens: u64,
    },
    /// Attention over cached positions.
    Attention {
        /// Dimensions of a head.
        head_dim: u32,
        /// Query heads of a kv head.
        group: u32,
        /// Storage format of keys and values.
        cache: String,
        /// True if every session has one token; else there are prompts.
        one_token_each: bool,
        /// True if they are long enough for matrix units, and narrower numbers are wanted.
        #[serde(default)]
        narrow: bool,
    },
}

impl TunedWork {
    /// Time of the chosen shape over that of the default.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.shapes[self.chosen].nanoseconds / self.shapes[0].nanoseconds
    }

    /// The work, where it is that of a matmul.
    fn matmul(&self) -> Option<Work> {
        let WorkSize::Matmul { rows, row_len, tokens } = self.size else { return None };
        Some((by_name(&self.kernel)?.name, [rows, row_len, tokens]))
    }

    /// A matmul's choice. The default is one too: the rules may be for narrower numbers.
    fn matmul_choice(&self) -> Option<(Work, Choice)> {
        let AnyTileConfig::Matmul(shape) = self.shapes.get(self.chosen)?.shape else { return None };
        Some((self.matmul()?, choice_of(shape)))
    }

    fn is_of(&self, heads: &Heads, caps: &Capabilities) -> bool {
        self.size == heads.size() && self.kernel == heads.kernel(caps)
    }
}

/// Measurements stored for a device.
#[must_use]
pub fn tuned_on(caps: &Capabilities, folder: &Path, numerics: Numerics) -> Vec<TunedWork> {
    let mut found: Vec<TunedWork> =
        probe::read(folder, kind(numerics), &Key::of(caps)).unwrap_or_default();
    // A file that somebody edited names no shape that is not there.
    found.retain(|matmul| matmul.chosen < matmul.shapes.len());
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

/// Progress of the autotuner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TuneProgress {
    /// Works that are measured.
    pub done: usize,
    /// Works in all.
    pub all: usize,
}

/// The tuner of one model on one device.
pub struct Tuner {
    options: TuneOptions,
    key: Option<Key>,
    done: Vec<TunedWork>,
    /// Works to measure; `None` until they were looked for.
    waiting: Option<VecDeque<Waiting>>,
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

    /// Time until the next step, if there is one, given the idle time so far.
    #[must_use]
    pub fn due_in(&self, idle: Duration) -> Option<Duration> {
        let complete = self.job.is_none() && self.waiting.as_ref().is_some_and(VecDeque::is_empty);
        let wanted = self.options.measure && !complete;
        wanted.then(|| self.options.quiet.saturating_sub(idle))
    }

    /// Finished measurements.
    #[must_use]
    pub fn done(&self) -> &[TunedWork] {
        &self.done
    }

    /// Applies known choices to a runner whose model was just loaded.
    pub fn prepare(&mut self, runner: &mut Runner) {
        let caps = runner.executor().capabilities();
        let key = Key::of(caps);
        if self.key.as_ref() != Some(&key) {
            let folder = self.options.folder.as_deref();
            self.done = folder
                .map(|folder| tuned_on(caps, folder, self.options.numerics))
                .unwrap_or_default();
            for matmul in &mut self.done {
                matmul.chosen = choose(&matmul.shapes, self.options.numerics);
            }
            self.key = Some(key);
        }
        (self.waiting, self.job) = (None, None);
        self.apply(runner);
    }

    /// Takes a step: lists the works, or begins one, or measures one shape of it. How far it is;
    /// `None` once all is measured. Nothing else runs on the device meanwhile. What there is no
    /// room for is left for another time.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn step(&mut self, runner: &mut Runner) -> Result<Option<TuneProgress>, DeviceError> {
        let stepped = self.advance(runner);
        if let Err(DeviceError::OutOfMemory { what, .. }) = &stepped {
            tracing::debug!(what, "there is no room to measure this");
            self.job = None;
            return Ok(self.progress());
        }
        stepped
    }

    fn advance(&mut self, runner: &mut Runner) -> Result<Option<TuneProgress>, DeviceError> {
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
                Some(waiting) => self.job = Job::begin(runner, &self.options, waiting)?,
            },
            Some(job) => {
                if !job.step(runner)?
                    && let Some(job) = self.job.take()
                    && let Some(work) = job.finish(runner, self.options.numerics)?
                {
                    self.keep(runner, work);
                }
            }
        }
        Ok(self.progress())
    }

    fn progress(&self) -> Option<TuneProgress> {
        let waiting = self.waiting.as_ref().map_or(0, VecDeque::len);
        let (done, left) = (self.done.len(), waiting + usize::from(self.job.is_some()));
        (left > 0).then_some(TuneProgress { done, all: done + left })
    }

    /// Every work of the model that was not measured on this device, once.
    fn unknown(&self, runner: &Runner) -> VecDeque<Waiting> {
        let mut works: Vec<Work> = self.done.iter().filter_map(TunedWork::matmul).collect();
        let caps = runner.executor().capabilities();
        let mut attention = Heads::all(runner);
        attention.retain(|heads| !self.done.iter().any(|work| work.is_of(heads, caps)));
        let mut found: VecDeque<Waiting> = attention.into_iter().map(Waiting::Attention).collect();
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
                attention: runner.model().attention_shape(true, tokens as usize, 1),
                logit_rows,
                encoded: false,
                adapters: 0,
                choosing: Choosing::Host,
                buffer_set: 0,
            };
            for command in runner.model().record_in_f32(runner.kv(), shape).commands {
                let Command::Dispatch(dispatch) = command else { continue };
                let Some(work) = work_of(&dispatch).filter(|work| !works.contains(work)) else {
                    continue;
                };
                works.push(work);
                found.push_back(Waiting::Matmul(dispatch));
            }
        }
        found
    }

    /// Keeps what was found out about a work, and makes the choice.
    fn keep(&mut self, runner: &mut Runner, work: TunedWork) {
        let (kernel, ratio) = (&work.kernel, work.ratio());
        tracing::debug!(kernel, size = ?work.size, ratio, "tuned");
        self.done.push(work);
        self.apply(runner);
        if let (Some(folder), Some(key)) = (self.options.folder.as_deref(), &self.key) {
            probe::write(folder, kind(self.options.numerics), key, &self.done);
        }
    }

    /// Choices are made for the kernels and the pages that the runner has.
    fn apply(&self, runner: &mut Runner) {
        let caps = runner.executor().capabilities();
        let mut tuned: BTreeMap<Work, Choice> =
            self.done.iter().filter_map(TunedWork::matmul_choice).collect();
        for heads in Heads::all(runner) {
            let known = self.done.iter().find(|work| work.is_of(&heads, caps));
            let measured = known.and_then(|work| work.shapes.get(work.chosen));
            if let Some(AnyTileConfig::Attention(tile)) = measured.map(|measured| measured.shape) {
                tuned.insert(heads.work(), choice_of_tile(tile));
            }
        }
        runner.set_tuned(tuned);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::matmul::TileConfig;
    use crate::reference::ReferenceExecutor;

    fn measured(nanoseconds: f64, verdict: Verdict) -> Measured {
        Measured { shape: AnyTileConfig::Matmul(TileConfig::scalar(2, 1, 1)), nanoseconds, verdict }
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
