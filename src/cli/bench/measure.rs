//! Prompts and generation, timed.

use std::time::Duration;

use serde::Serialize;

use super::meter::Submission;
use super::statistics::{Percentiles, mean_and_deviation, median};
use super::subject::{Cost, Span, Subject};
use crate::cli::local::LocalError;
use crate::kernels::work::{self, Work};

/// Any seed does; a constant one makes runs compare.
const SEED: u64 = 0x9E37_79B9_7F4A_7C15;

/// Quantity measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Prompt,
    Generate,
}

/// One measurement to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Test {
    pub(super) kind: Kind,
    /// Tokens of each session.
    pub(super) tokens: usize,
    /// Tokens in each context before.
    pub(super) depth: usize,
    pub(super) sessions: usize,
}

impl Test {
    /// `pp512`, `tg128 @ 4096 x 8`.
    pub(super) fn name(&self) -> String {
        let kind = match self.kind {
            Kind::Prompt => "pp",
            Kind::Generate => "tg",
        };
        let depth = if self.depth > 0 { format!(" @ {}", self.depth) } else { String::new() };
        let sessions =
            if self.sessions > 1 { format!(" x {}", self.sessions) } else { String::new() };
        format!("{kind}{}{depth}{sessions}", self.tokens)
    }
}

/// Measurements. Rates are tokens per second over all sessions.
#[derive(Debug, Serialize)]
pub(super) struct Measurement {
    pub(super) test: String,
    pub(super) tokens: usize,
    pub(super) depth: usize,
    pub(super) sessions: usize,
    pub(super) mean: f64,
    pub(super) stddev: f64,
    pub(super) median: f64,
    pub(super) samples: Vec<f64>,
    /// From the prompts' arrival to a session's first logits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ttft_ms: Option<Percentiles>,
    /// Between two tokens of a session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) itl_ms: Option<Percentiles>,
    /// Steps of one repetition.
    pub(super) steps: usize,
    /// Processor time of the engine's thread in a step, waiting left out.
    pub(super) host_us: Percentiles,
    /// Least bytes that the model moves, over the time it took.
    pub(super) gb_s: f64,
    /// Its multiplications and additions, over the time it took.
    pub(super) gflop_s: f64,
    /// Profile of device time.
    #[serde(skip)]
    pub(super) submissions: Vec<Submission>,
}

/// A subject, and what it is measured with.
pub(super) struct Bench<'a> {
    pub(super) subject: &'a mut dyn Subject,
    pub(super) tokens: RandomTokens,
    pub(super) repetitions: u32,
    /// Told of each repetition that is done.
    pub(super) progress: &'a dyn Fn(),
}

/// The steps of one repetition.
#[derive(Default)]
struct Steps {
    costs: Vec<Cost>,
    /// When each session had its first logits.
    first: Vec<Duration>,
    /// Between two tokens of a session.
    between: Vec<Duration>,
}

impl Steps {
    fn time(&self) -> Duration {
        self.costs.iter().map(|cost| cost.time).sum()
    }
}

impl Bench<'_> {
    /// Fills the first `depth` positions of so many contexts.
    pub(super) fn fill(&mut self, sessions: usize, depth: usize) -> Result<(), LocalError> {
        if depth > 0 {
            self.prompts(sessions, 0, depth, false)?;
        }
        Ok(())
    }

    /// Takes a measurement behind contexts that are filled already.
    pub(super) fn measure(&mut self, test: Test) -> Result<Measurement, LocalError> {
        // As llama-bench: one prompt prepares all that a run needs; or two tokens, since steps take
        // turns with two sets of buffers.
        match test.kind {
            Kind::Prompt => self.once(test)?,
            Kind::Generate => self.once(Test { tokens: test.tokens.min(2), ..test })?,
        };
        self.subject.take_submissions();
        let mut runs = Vec::new();
        for _ in 0..self.repetitions {
            runs.push(self.once(test)?);
            (self.progress)();
        }
        Ok(summary(test, &runs, self.subject.take_submissions()))
    }

    fn once(&mut self, test: Test) -> Result<Steps, LocalError> {
        match test.kind {
            Kind::Prompt => self.prompts(test.sessions, test.depth, test.tokens, true),
            Kind::Generate => self.generate(test),
        }
    }

    /// Prompts of `count` tokens each arrive together and are taken in order, each step as many
    /// tokens as it holds: as the scheduler does.
    fn prompts(
        &mut self,
        sessions: usize,
        depth: usize,
        count: usize,
        logits: bool,
    ) -> Result<Steps, LocalError> {
        let vocab = self.subject.vocab_size();
        let prompts: Vec<Vec<u32>> =
            (0..sessions).map(|_| self.tokens.take(count, depth == 0, vocab)).collect();
        let (tokens_max, rows_max) = (self.subject.tokens_max(), self.subject.logit_rows_max());
        let mut steps = Steps::default();
        let (mut session, mut done) = (0, 0);
        while session < sessions {
            let mut spans = Vec::new();
            let (mut room, mut finished) = (tokens_max, 0);
            while session < sessions && room > 0 && finished < rows_max {
                let part = room.min(count - done);
                let ends = done + part == count;
                let tokens = prompts[session][done..done + part].to_vec();
                let position = depth + done;
                spans.push(Span { session, position, tokens, logits: ends && logits });
                room -= part;
                done += part;
                if ends {
                    (session, done) = (session + 1, 0);
                    finished += 1;
                }
            }
            steps.costs.push(self.subject.step(spans)?);
            let now = steps.time();
            steps.first.extend((0..finished).map(|_| now));
        }
        Ok(steps)
    }

    /// Each session gets a token in turn; as many at once as a step has rows of logits. Where one
    /// step has them all, the next is started before it is finished, as the engine does.
    fn generate(&mut self, test: Test) -> Result<Steps, LocalError> {
        let vocab = self.subject.vocab_size();
        let at_once = self.subject.tokens_max().min(self.subject.logit_rows_max());
        let texts: Vec<Vec<u32>> = (0..test.sessions)
            .map(|_| self.tokens.take(test.tokens, test.depth == 0, vocab))
            .collect();
        let mut steps = Steps::default();
        let spans_of = |number: usize| -> Vec<Span> {
            let span = |(session, text): (usize, &Vec<u32>)| Span {
                session,
                position: test.depth + number,
                tokens: vec![text[number]],
                logits: true,
            };
            texts.iter().enumerate().map(span).collect()
        };
        for number in 0..test.tokens {
            let mut round = Duration::ZERO;
            if test.sessions <= at_once {
                if number == 0 {
                    self.subject.start(spans_of(0))?;
                }
                if number + 1 < test.tokens {
                    self.subject.start(spans_of(number + 1))?;
                }
                let cost = self.subject.finish()?;
                round += cost.time;
                steps.costs.push(cost);
            } else {
                for part in spans_of(number).chunks(at_once) {
                    let cost = self.subject.step(part.to_vec())?;
                    round += cost.time;
                    steps.costs.push(cost);
                }
            }
            steps.between.extend((0..test.sessions).map(|_| round));
        }
        Ok(steps)
    }
}

fn summary(test: Test, runs: &[Steps], submissions: Vec<Submission>) -> Measurement {
    let tokens = (test.tokens * test.sessions) as f64;
    let samples: Vec<f64> = runs.iter().map(|run| tokens / run.time().as_secs_f64()).collect();
    let (mean, stddev) = mean_and_deviation(&samples);
    let milliseconds = |of: fn(&Steps) -> &[Duration]| {
        let times = runs.iter().flat_map(|run| of(run).iter());
        let times: Vec<f64> = times.map(|time| time.as_secs_f64() * 1e3).collect();
        Percentiles::of(&times)
    };
    let costs = runs.iter().flat_map(|run| &run.costs);
    let host: Vec<f64> = costs.map(|cost| cost.host.as_secs_f64() * 1e6).collect();
    let seconds: f64 = runs.iter().map(|run| run.time().as_secs_f64()).sum();
    let work = work_of(&submissions);
    Measurement {
        test: test.name(),
        tokens: test.tokens,
        depth: test.depth,
        sessions: test.sessions,
        mean,
        stddev,
        median: median(&samples),
        samples,
        ttft_ms: milliseconds(|run| &run.first),
        itl_ms: milliseconds(|run| &run.between),
        steps: runs[0].costs.len(),
        host_us: Percentiles::of(&host).expect("a run has steps"),
        gb_s: work.bytes() as f64 / seconds / 1e9,
        gflop_s: work.flops as f64 / seconds / 1e9,
        submissions,
    }
}

/// All that was submitted had to move and to compute.
fn work_of(submissions: &[Submission]) -> Work {
    let mut all = Work::default();
    for submission in submissions {
        for command in &submission.recording.commands {
            all += work::of(command, &submission.positions).unwrap_or_default();
        }
    }
    all
}

/// Tokens of no meaning; the first of a context is BOS where the model wants one.
pub(super) struct RandomTokens {
    state: u64,
    bos: Option<u32>,
}

impl RandomTokens {
    pub(super) fn new(bos: Option<u32>) -> Self {
        Self { state: SEED, bos }
    }

    fn take(&mut self, count: usize, opens: bool, vocab_size: usize) -> Vec<u32> {
        let mut tokens: Vec<u32> = (0..count).map(|_| self.next(vocab_size)).collect();
        if let (Some(first), Some(bos), true) = (tokens.first_mut(), self.bos, opens) {
            *first = bos;
        }
        tokens
    }

    /// The next of Marsaglia's xorshift64.
    fn next(&mut self, vocab_size: usize) -> u32 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        // A vocabulary is counted in u32, so the remainder fits.
        (self.state % vocab_size as u64) as u32
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// Takes a second for each token of a step, and keeps what it was asked.
    #[derive(Default)]
    struct FakeSubject {
        asked: Vec<Vec<Span>>,
        /// Tokens of the steps that run.
        running: VecDeque<usize>,
    }

    impl Subject for FakeSubject {
        fn vocab_size(&self) -> usize {
            100
        }

        fn tokens_max(&self) -> usize {
            16
        }

        fn logit_rows_max(&self) -> usize {
            2
        }

        fn start(&mut self, spans: Vec<Span>) -> Result<(), LocalError> {
            self.running.push_back(spans.iter().map(|span| span.tokens.len()).sum());
            assert!(self.running.len() <= 2, "one step ahead");
            self.asked.push(spans);
            Ok(())
        }

        fn finish(&mut self) -> Result<Cost, LocalError> {
            let tokens = self.running.pop_front().expect("a step was started");
            Ok(Cost { time: Duration::from_secs(tokens as u64), host: Duration::from_micros(20) })
        }

        fn take_submissions(&mut self) -> Vec<Submission> {
            Vec::new()
        }
    }

    fn measure(test: Test) -> (Measurement, Vec<Vec<Span>>) {
        let mut subject = FakeSubject::default();
        let mut bench = Bench {
            subject: &mut subject,
            tokens: RandomTokens::new(Some(99)),
            repetitions: 2,
            progress: &|| (),
        };
        let measurement = bench.measure(test).expect("the fake does not fail");
        (measurement, subject.asked)
    }

    /// Session, position, tokens and logits of each span.
    fn outline(step: &[Span]) -> Vec<(usize, usize, usize, bool)> {
        let of = |span: &Span| (span.session, span.position, span.tokens.len(), span.logits);
        step.iter().map(of).collect()
    }

    #[test]
    fn prompts_fill_steps_in_the_order_of_sessions() {
        let test = Test { kind: Kind::Prompt, tokens: 12, depth: 5, sessions: 2 };
        let (result, asked) = measure(test);
        assert_eq!(asked.len(), 3 * 2, "a warm-up and two repetitions");
        assert_eq!(outline(&asked[2]), [(0, 5, 12, true), (1, 5, 4, false)]);
        assert_eq!(outline(&asked[3]), [(1, 9, 8, true)]);
        assert_eq!(result.samples, [1.0, 1.0]);
        let ttft = result.ttft_ms.expect("measured");
        assert_eq!((ttft.p50, ttft.p99), (16e3, 24e3));
        assert_eq!((result.itl_ms, result.steps), (None, 2));
        assert_eq!(result.test, "pp12 @ 5 x 2");
        assert_ne!(asked[0][0].tokens[0], 99, "BOS opens a context alone");
    }

    #[test]
    fn a_round_of_generation_takes_as_many_steps_as_logits_need() {
        let test = Test { kind: Kind::Generate, tokens: 4, depth: 0, sessions: 3 };
        let (result, asked) = measure(test);
        assert_eq!(asked.len(), 2 * (2 + 4 + 4), "a warm-up of two tokens");
        assert_eq!(outline(&asked[6]), [(0, 1, 1, true), (1, 1, 1, true)]);
        assert_eq!(outline(&asked[7]), [(2, 1, 1, true)]);
        let itl = result.itl_ms.expect("measured");
        assert_eq!((itl.p50, itl.p99), (3e3, 3e3));
        assert_eq!((result.median, result.host_us.p50), (1.0, 20.0));
        assert_eq!((result.ttft_ms, result.test.as_str()), (None, "tg4 x 3"));
        assert_eq!(asked[0][0].tokens[0], 99, "a context opens with BOS");
    }

    #[test]
    fn where_one_step_has_all_sessions_the_next_is_started_before_it_ends() {
        let test = Test { kind: Kind::Generate, tokens: 3, depth: 2, sessions: 2 };
        let (result, asked) = measure(test);
        assert_eq!((asked.len(), result.steps), (2 + 3 + 3, 3));
        assert_eq!(outline(&asked[4]), [(0, 4, 1, true), (1, 4, 1, true)]);
        assert_eq!(result.itl_ms.expect("measured").p50, 2e3);
    }
}
