//! `hob bench --load`: from nothing to a first token, and where that time goes.
//!
//! A round reads the model's file, copies its bytes to device memory as they are, and starts the
//! model as the daemon does, each on memory that is new. What is told of a ratio is the median of
//! the rounds' own, so that what slows the machine for a while slows both sides.

use std::time::Instant;

use serde::Serialize;

use super::machine::{self, Watch};
use super::statistics::median;
use crate::cli::args::{BenchOptions, KvDtype};
use crate::cli::local::{LocalError, LocalOptions, check_new, load, open_device};
use crate::cli::output::{self, Output};
use crate::cli::table::{Align, Table};
use crate::cli::{CliError, exit, paths};
use crate::engine::{OpenError, Opened, open};
use crate::gguf::GgufFile;
use crate::gpu::{BufferDesc, BufferUsage, DeviceError, Executor};
use crate::hf;
use crate::scheduler::{Batch, TokenSpan};

/// Packing weights onto the device may take so many times what copying the file's bytes takes.
const LOAD_RATIO_MAX: f64 = 1.3;

/// A start whose caches are there may take so much longer than reading the file once.
const START_MS_MAX: f64 = 300.0;

/// Bytes that are read and copied at once, as loading does.
const CHUNK_BYTES: usize = 4 << 20;

/// Tokens of the prompt: a short question.
const PROMPT_TOKENS: usize = 16;

/// Times in milliseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Times {
    /// Reading the tensors' bytes, once.
    read: f64,
    /// Reading them into new device memory.
    copy: f64,
    /// Opening the device.
    device: f64,
    /// The file's header, tokenizer and chat template.
    text: f64,
    /// Reading, packing and writing the weights.
    weights: f64,
    /// The cache, pipelines, and a first step that tries them out.
    pipelines: f64,
    /// The first token of a prompt.
    first_token: f64,
    /// All of a start: device to first token.
    start: f64,
}

/// Text to print.
#[derive(Debug, Serialize)]
struct LoadReport {
    model: String,
    device: String,
    driver: String,
    bytes: u64,
    repetitions: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    others_cpu: Option<f64>,
    disturbed: bool,
    /// Medians.
    milliseconds: Times,
    /// Weights over copy.
    load_ratio: f64,
    load_ratio_max: f64,
    /// Start less read, in milliseconds.
    start_over_read: f64,
    start_over_read_max: f64,
}

pub(super) fn run(options: &BenchOptions) -> Result<u8, CliError> {
    let path = paths::model(&options.model)?;
    let file =
        hf::open_model(&path, None).map_err(|error| LocalError::from(OpenError::from(error)))?;
    let local = LocalOptions {
        model: path,
        device: options.device.clone(),
        kv_dtype: KvDtype::setting(options.kv_dtype),
        context_tokens: 0, // the daemon's own default
        numerics: options.numerics.into(),
    };
    // The first round compiles, and brings the file to memory.
    round(&file, &local)?;
    let watch = Watch::start();
    let rounds: Vec<Times> =
        (0..options.repetitions).map(|_| round(&file, &local)).collect::<Result<_, _>>()?;
    let others_cpu = watch.others();
    let caps = open_device(options.device.as_deref())?.capabilities().clone();
    let all = |of: fn(&Times) -> f64| median(&rounds.iter().map(of).collect::<Vec<_>>());
    let report = LoadReport {
        model: options.model.display().to_string(),
        device: caps.device_name,
        driver: caps.driver,
        bytes: file.tensors().iter().map(|tensor| tensor.bytes).sum(),
        repetitions: options.repetitions,
        others_cpu,
        disturbed: others_cpu.is_some_and(machine::is_too_much),
        milliseconds: Times {
            read: all(|times| times.read),
            copy: all(|times| times.copy),
            device: all(|times| times.device),
            text: all(|times| times.text),
            weights: all(|times| times.weights),
            pipelines: all(|times| times.pipelines),
            first_token: all(|times| times.first_token),
            start: all(|times| times.start),
        },
        load_ratio: all(|times| times.weights / times.copy),
        load_ratio_max: LOAD_RATIO_MAX,
        start_over_read: all(|times| times.start - times.read),
        start_over_read_max: START_MS_MAX,
    };
    report.write(options.json)?;
    Ok(exit::DONE)
}

fn round(file: &GgufFile, local: &LocalOptions) -> Result<Times, CliError> {
    let read = read(file)?;
    let copy = copy(file, &mut open_device(local.device.as_deref())?)?;
    Ok(Times { read, copy, ..start(local)? })
}

fn ms_since(started: Instant) -> f64 {
    started.elapsed().as_secs_f64() * 1e3
}

fn read(file: &GgufFile) -> Result<f64, LocalError> {
    let mut chunk = vec![0; CHUNK_BYTES];
    let started = Instant::now();
    for tensor in file.tensors() {
        for at in (0..tensor.bytes).step_by(CHUNK_BYTES) {
            let bytes = (tensor.bytes - at).min(CHUNK_BYTES as u64) as usize;
            file.read_tensor(tensor, at, &mut chunk[..bytes]).map_err(OpenError::from)?;
        }
    }
    Ok(ms_since(started))
}

/// Reads every tensor into a buffer of its own, straight where the host sees it.
fn copy(file: &GgufFile, executor: &mut dyn Executor) -> Result<f64, LocalError> {
    let started = Instant::now();
    let mut last = None;
    for tensor in file.tensors() {
        let desc = BufferDesc {
            label: tensor.name.clone(),
            bytes: tensor.bytes,
            usage: BufferUsage::Weights,
        };
        let buffer = executor.create_buffer(&desc)?;
        for at in (0..tensor.bytes).step_by(CHUNK_BYTES) {
            let bytes = (tensor.bytes - at).min(CHUNK_BYTES as u64) as usize;
            let mut read = Ok(());
            executor.write(buffer, at, bytes, &mut |out| {
                read = file.read_tensor(tensor, at, out);
            })?;
            read.map_err(OpenError::from)?;
        }
        last = Some(buffer);
    }
    if let Some(buffer) = last {
        executor.read(buffer, 0, &mut [0])?; // comes after all copies
    }
    Ok(ms_since(started))
}

/// Starts the model, and has it evaluate a prompt.
fn start(local: &LocalOptions) -> Result<Times, CliError> {
    let started = Instant::now();
    let executor = Box::new(open_device(local.device.as_deref())?);
    let device = ms_since(started);
    let (mut begun, mut written) = (device, device);
    let mut opened = load(local, 1, Some(check_new()), |engine, progress| {
        let mut told = false;
        open(executor, &local.model, engine, &mut |done, total| {
            written = ms_since(started);
            if !std::mem::replace(&mut told, true) {
                begun = written;
            }
            progress(done, total);
        })
    })?;
    let ready = ms_since(started);
    first_token(&mut opened)?;
    let end = ms_since(started);
    Ok(Times {
        device,
        text: begun - device,
        weights: written - begun,
        pipelines: ready - written,
        first_token: end - ready,
        start: end,
        ..Times::default()
    })
}

fn first_token(opened: &mut Opened) -> Result<(), LocalError> {
    let vocab = opened.runner.model().vocab() as u32;
    let (kv, executor) = opened.runner.kv_mut();
    let mut lease = kv.lease()?;
    kv.grow(executor, &mut lease, 0, PROMPT_TOKENS)??;
    let tokens = (0..PROMPT_TOKENS as u32).map(|at| at * 7919 % vocab).collect();
    let span = TokenSpan { table: lease.table(), position: 0, tokens, logits: 1 };
    let stepped: Result<(), DeviceError> = opened.runner.step(&Batch { spans: vec![span] });
    opened.runner.kv_mut().0.release(lease);
    Ok(stepped?)
}

impl LoadReport {
    fn write(&self, json: bool) -> Result<(), CliError> {
        if self.disturbed {
            let percent = self.others_cpu.unwrap_or_default() * 100.0;
            output::note(&format!(
                "NOT RELIABLE: other programs used {percent:.0} % of the processors during this run"
            ));
        }
        let mut output = Output::stdout();
        if json {
            return output.json(self);
        }
        let head = format!("{} on {}, {}", self.model, self.device, self.driver);
        output.styled_line(output::DIM, &head)?;
        let mut table =
            Table::new(&[("PART", Align::Left), ("MS", Align::Right), ("WHAT", Align::Left)]);
        let times = &self.milliseconds;
        let rows = [
            ("read", times.read, "the weights' bytes from the file, once"),
            ("copy", times.copy, "the same into new device memory"),
            ("start", times.start, "from nothing to the first token of a prompt:"),
            ("  device", times.device, "opening it"),
            ("  text", times.text, "the file's header, tokenizer and chat template"),
            ("  weights", times.weights, "reading, packing and writing them"),
            ("  pipelines", times.pipelines, "with the cache, and a step that tries them out"),
            ("  first token", times.first_token, "of a prompt of 16 tokens"),
        ];
        for (part, ms, what) in rows {
            table.row(vec![part.to_owned(), format!("{ms:.1}"), what.to_owned()]);
        }
        table.write(&mut output)?;
        output.line("")?;
        let kept = |kept: bool| if kept { "" } else { ": MISSED" };
        output.line(&format!(
            "weights / copy {:.2}, at most {LOAD_RATIO_MAX}{}",
            self.load_ratio,
            kept(self.load_ratio <= LOAD_RATIO_MAX)
        ))?;
        output.line(&format!(
            "start - read {:.0} ms, at most {START_MS_MAX:.0} ms{}",
            self.start_over_read,
            kept(self.start_over_read <= START_MS_MAX)
        ))
    }
}
