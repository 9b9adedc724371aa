//! `hob bench`: how fast a model runs on a device.
//!
//! The figures mean what llama.cpp's `llama-bench` calls pp (a prompt evaluated at once) and tg
//! (tokens generated one at a time), both from an empty context, over random tokens.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use super::args::{BenchOptions, KvDtype};
use super::local::{LocalError, LocalModel, LocalOptions, open_local};
use super::output::{self, Output};
use super::table::{Align, Table};
use super::{CliError, exit};

/// Any seed does; a constant one makes runs compare.
const SEED: u64 = 0x9E37_79B9_7F4A_7C15;

pub(crate) fn run(options: &BenchOptions) -> Result<u8, CliError> {
    let (prompt, generate) = (options.prompt_tokens, options.generate_tokens);
    if prompt == 0 && generate == 0 {
        return Err(CliError::NothingToMeasure);
    }
    let mut model = open_local(&LocalOptions {
        model: options.model.clone(),
        device: options.device.clone(),
        kv_dtype: KvDtype::setting(options.kv_dtype),
        context_tokens: prompt.max(generate),
    })?;
    let tokenizer = model.tokenizer();
    let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
    let start = Instant::now();
    let mut bench = Bench {
        model: model.as_mut(),
        tokens: RandomTokens::new(bos),
        clock: &mut || start.elapsed(),
        repetitions: options.repetitions,
    };
    let mut measurements = Vec::new();
    for (kind, tokens) in [(Kind::Prompt, prompt), (Kind::Generate, generate)] {
        if tokens > 0 {
            measurements.push(bench.measure(kind, tokens as usize)?);
        }
    }
    let report = Report {
        model: options.model.display().to_string(),
        device: model.device(),
        repetitions: options.repetitions,
        results: measurements,
    };
    report.write(options.json)?;
    Ok(exit::DONE)
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Prompt,
    Generate,
}

/// A model, and what it is measured with.
struct Bench<'a> {
    model: &'a mut dyn LocalModel,
    tokens: RandomTokens,
    /// Time since some fixed moment.
    clock: &'a mut dyn FnMut() -> Duration,
    repetitions: u32,
}

impl Bench<'_> {
    fn measure(&mut self, kind: Kind, tokens: usize) -> Result<Measurement, LocalError> {
        let name = match kind {
            Kind::Prompt => format!("pp{tokens}"),
            Kind::Generate => format!("tg{tokens}"),
        };
        let progress = progress_bar(&name, self.repetitions);
        // As llama-bench: one prompt, or one token, prepares all that a run needs.
        match kind {
            Kind::Prompt => self.once(kind, tokens)?,
            Kind::Generate => self.once(kind, 1)?,
        };
        let mut rates = Vec::new();
        for _ in 0..self.repetitions {
            let seconds = self.once(kind, tokens)?.as_secs_f64();
            rates.push(tokens as f64 / seconds);
            progress.inc(1);
        }
        progress.finish_and_clear();
        Ok(Measurement::new(name, tokens, rates))
    }

    /// One run from an empty context, and the time it took.
    fn once(&mut self, kind: Kind, count: usize) -> Result<Duration, LocalError> {
        let tokens = self.tokens.take(count, self.model.vocab_size());
        self.model.reset()?;
        let start = (self.clock)();
        match kind {
            Kind::Prompt => {
                let mut want_logits = vec![false; count];
                want_logits[count - 1] = true;
                self.model.evaluate(&tokens, &want_logits)?;
            }
            Kind::Generate => {
                for token in tokens {
                    self.model.evaluate(&[token], &[true])?;
                }
            }
        }
        Ok((self.clock)().saturating_sub(start))
    }
}

fn progress_bar(name: &str, repetitions: u32) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len}");
    // The draw target is hidden where stderr is not a terminal.
    ProgressBar::with_draw_target(Some(repetitions.into()), ProgressDrawTarget::stderr())
        .with_style(style.expect("the template is constant and well formed"))
        .with_message(name.to_owned())
}

/// Tokens of no meaning; the first is BOS where the model wants one.
struct RandomTokens {
    state: u64,
    bos: Option<u32>,
}

impl RandomTokens {
    fn new(bos: Option<u32>) -> Self {
        Self { state: SEED, bos }
    }

    fn take(&mut self, count: usize, vocab_size: usize) -> Vec<u32> {
        let mut tokens: Vec<u32> = (0..count).map(|_| self.next(vocab_size)).collect();
        if let (Some(first), Some(bos)) = (tokens.first_mut(), self.bos) {
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

/// The rates of one measurement, in tokens per second.
#[derive(Debug, Serialize)]
struct Measurement {
    test: String,
    tokens: usize,
    mean: f64,
    stddev: f64,
    median: f64,
    samples: Vec<f64>,
}

impl Measurement {
    fn new(test: String, tokens: usize, samples: Vec<f64>) -> Self {
        let (mean, stddev) = mean_and_deviation(&samples);
        let median = median(&samples);
        Self { test, tokens, mean, stddev, median, samples }
    }
}

/// Mean and sample standard deviation; the deviation of one sample is 0.
fn mean_and_deviation(samples: &[f64]) -> (f64, f64) {
    let count = samples.len() as f64;
    let mean = samples.iter().sum::<f64>() / count;
    let squares: f64 = samples.iter().map(|sample| (sample - mean).powi(2)).sum();
    (mean, (squares / (count - 1.0).max(1.0)).sqrt())
}

fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    }
}

#[derive(Debug, Serialize)]
struct Report {
    model: String,
    device: String,
    repetitions: u32,
    results: Vec<Measurement>,
}

impl Report {
    fn write(&self, json: bool) -> Result<(), CliError> {
        let mut output = Output::stdout();
        if json {
            return output.json(self);
        }
        output.styled_line(output::DIM, &format!("{} on {}", self.model, self.device))?;
        let mut table = Table::new(&[
            ("TEST", Align::Left),
            ("TOKENS/S", Align::Right),
            ("STDDEV", Align::Right),
            ("MEDIAN", Align::Right),
        ]);
        for result in &self.results {
            table.row(vec![
                result.test.clone(),
                format!("{:.2}", result.mean),
                format!("± {:.2}", result.stddev),
                format!("{:.2}", result.median),
            ]);
        }
        table.write(&mut output)
    }
}

#[cfg(test)]
mod tests {
    use super::super::local::fake::FakeModel;
    use super::*;

    /// Measures with a clock that gives these seconds in turn.
    fn measure(kind: Kind, tokens: usize, times: &[u64]) -> (Measurement, FakeModel) {
        let mut model = FakeModel::new(100);
        let mut times = times.iter().copied();
        let mut clock = || Duration::from_secs(times.next().expect("a time for each look"));
        let mut bench = Bench {
            model: &mut model,
            tokens: RandomTokens::new(Some(99)),
            clock: &mut clock,
            repetitions: 2,
        };
        let measurement = bench.measure(kind, tokens).unwrap();
        (measurement, model)
    }

    #[test]
    fn a_prompt_is_one_evaluation_and_the_warm_up_is_not_counted() {
        let (result, model) = measure(Kind::Prompt, 40, &[0, 100, 100, 104, 104, 114]);
        assert_eq!(result.test, "pp40");
        assert_eq!(result.samples, [10.0, 4.0]);
        assert_eq!((model.evaluations, model.resets), (3, 3));
        assert_eq!(model.context[0], 99);
        assert_eq!(model.context.len(), 40);
    }

    #[test]
    fn generation_is_one_evaluation_a_token() {
        let (result, model) = measure(Kind::Generate, 8, &[0, 1, 1, 3, 3, 7]);
        assert_eq!(result.samples, [4.0, 2.0]);
        assert_eq!((model.evaluations, model.rows_at_once_max), (1 + 8 + 8, 1));
    }

    #[test]
    fn statistics_of_samples() {
        let (mean, deviation) = mean_and_deviation(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]);
        assert!((mean - 5.0).abs() < 1e-12);
        assert!((deviation - (32f64 / 7.0).sqrt()).abs() < 1e-12);
        assert_eq!(mean_and_deviation(&[3.0]), (3.0, 0.0));
        assert_eq!(median(&[9.0, 1.0, 5.0]), 5.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 8.0]), 3.0);
    }
}
