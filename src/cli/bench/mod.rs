//! `hob bench`: how fast a model runs on a device, and how far that is from what the device can do.
//!
//! The figures mean what llama.cpp's `llama-bench` calls pp (a prompt evaluated at once) and tg
//! (tokens generated one at a time), over random tokens. A test is measured on the daemon's own
//! runner; a [`meter`] between it and the device sees what is submitted.

mod ceilings;
mod load;
mod machine;
mod measure;
mod meter;
mod profile;
mod report;
mod statistics;
mod subject;
mod trace;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::args::{BenchOptions, KvDtype};
use super::local::{LocalError, LocalOptions, open_device, open_model};
use super::{CliError, exit, output, paths};
use ceilings::Ceilings;
use machine::Watch;
use measure::{Bench, Kind, RandomTokens, Test};
use meter::Meter;
use report::{Entry, Memory, Report};
use subject::ModelSubject;
use trace::Trace;

use crate::gpu::Executor as _;

pub(crate) fn run(options: &BenchOptions) -> Result<u8, CliError> {
    let tests = tests(options);
    if tests.is_empty() && !options.load {
        return Err(CliError::NothingToMeasure);
    }
    if let Some(others) = machine::busy().filter(|_| !options.force) {
        return Err(CliError::MachineBusy { percent: others * 100.0 });
    }
    if options.load {
        return load::run(options);
    }
    let mut executor = open_device(options.device.as_deref())?;
    let caps = executor.capabilities().clone();
    let ceilings = match options.host_time {
        true => None,
        false => Some(Ceilings::measure(&mut executor)?),
    };
    let profiling = options.profile || options.trace.is_some();
    let (meter, handle) = Meter::new(Box::new(executor), profiling, options.host_time);
    let sessions = tests.iter().map(|test| test.sessions).max().unwrap_or(1);
    let context = tests.iter().map(|test| test.depth + test.tokens).max().unwrap_or(1);
    let local = LocalOptions {
        model: paths::model(&options.model)?,
        device: options.device.clone(),
        kv_dtype: KvDtype::setting(options.kv_dtype),
        context_tokens: u32::try_from(context).unwrap_or(u32::MAX),
        numerics: options.numerics.into(),
    };
    // What is measured may be a driver that computes nothing.
    let opened = open_model(Box::new(meter), &local, sessions)?;
    let context_tokens = opened.runner.kv().config().context_tokens;
    if context > context_tokens {
        return Err(LocalError::ContextFull { wanted_tokens: context, context_tokens }.into());
    }
    let (model, kv) = (opened.runner.model(), opened.runner.kv().config());
    let memory =
        Memory { weights: model.weights_bytes(), kv: kv.bytes(), scratch: model.scratch_bytes() };
    let bos = opened.tokenizer.bos().filter(|_| opened.tokenizer.adds_bos());
    let mut subject = ModelSubject::new(opened, sessions, handle)?;
    let watch = Watch::start();
    let results = measure_all(&mut subject, bos, &tests, options, ceilings.as_ref())?;
    let others_cpu = watch.others();
    let disturbed = others_cpu.is_some_and(machine::is_too_much);
    if let (Some(others), true) = (others_cpu, disturbed) {
        output::note(&format!(
            "NOT RELIABLE: other programs used {:.0} % of the processors during this run",
            others * 100.0
        ));
    }
    let report = Report {
        model: options.model.display().to_string(),
        device: caps.device_name,
        driver: caps.driver,
        numerics: options.numerics.into(),
        memory,
        repetitions: options.repetitions,
        others_cpu,
        disturbed,
        ceilings,
        results,
    };
    report.write(options.json)?;
    Ok(exit::DONE)
}

/// Every combination that is asked for; those of a depth together, since contexts are filled once.
fn tests(options: &BenchOptions) -> Vec<Test> {
    let mut tests = Vec::new();
    for &depth in &options.depth {
        for &sessions in &options.sessions {
            let prompts = options.prompt_tokens.iter().map(|&tokens| (Kind::Prompt, tokens));
            let texts = options.generate_tokens.iter().map(|&tokens| (Kind::Generate, tokens));
            for (kind, tokens) in prompts.chain(texts).filter(|(_, tokens)| *tokens > 0) {
                tests.push(Test {
                    kind,
                    tokens: tokens as usize,
                    depth: depth as usize,
                    sessions: sessions as usize,
                });
            }
        }
    }
    tests
}

fn measure_all(
    subject: &mut ModelSubject,
    bos: Option<u32>,
    tests: &[Test],
    options: &BenchOptions,
    ceilings: Option<&Ceilings>,
) -> Result<Vec<Entry>, CliError> {
    let mut trace = options.trace.as_deref().map(Trace::create).transpose()?;
    let bar = progress_bar(tests.len() as u64 * u64::from(options.repetitions));
    let mut bench = Bench {
        subject,
        tokens: RandomTokens::new(bos),
        repetitions: options.repetitions,
        progress: &|| bar.inc(1),
    };
    let mut results = Vec::new();
    // Contexts that hold the depth of the tests so far.
    let mut filled = (0, 0);
    for test in tests {
        if filled.0 != test.depth || filled.1 < test.sessions {
            bar.set_message(format!("filling {} x {}", test.depth, test.sessions));
            bench.fill(test.sessions, test.depth)?;
            filled = (test.depth, test.sessions);
        }
        bar.set_message(test.name());
        let measurement = bench.measure(*test)?;
        let steps = measurement.steps * measurement.samples.len();
        let lines = |ceilings| profile::lines(&measurement.submissions, steps, ceilings);
        let kernels = ceilings.filter(|_| options.profile).map(lines);
        if let Some(trace) = &mut trace {
            trace.add(&measurement.test, &measurement.submissions)?;
        }
        results.push(Entry { measurement, kernels });
    }
    bar.finish_and_clear();
    trace.map_or(Ok(()), Trace::finish)?;
    Ok(results)
}

fn progress_bar(repetitions: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {eta}");
    // The draw target is hidden where stderr is not a terminal.
    let bar = ProgressBar::with_draw_target(Some(repetitions), ProgressDrawTarget::stderr())
        .with_style(style.expect("the template is constant and well formed"));
    bar.tick();
    bar
}
