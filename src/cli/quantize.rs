//! `hob quantize`: a model file again, with its matrices in another type, and how much that costs.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::thread;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::args::QuantizeOptions;
use super::output::{self, Output, bytes};
use super::table::{Align, Table};
use super::{CliError, exit, paths};
use crate::gguf::{GgufBuilder, GgufFile, TensorInfo, TensorType, Value};
use crate::tensor::quantize::quantize_row;
use crate::tensor::{DType, dequantize_row};

/// Weights in memory at once, as f32.
const CHUNK_WEIGHTS: u64 = 1 << 22;

/// Ends of the names of matrices that are small and that models are sensitive to: routers, norms of
/// several rows, tables of positions and of token types.
const KEPT: [&str; 4] =
    ["ffn_gate_inp.weight", "_norm.weight", "position_embd.weight", "token_types.weight"];

/// Version of the block formats, `general.quantization_version`.
const QUANTIZATION_VERSION: u32 = 2;

pub(crate) fn run(options: &QuantizeOptions) -> Result<u8, CliError> {
    let file = GgufFile::open(&paths::model(&options.input)?)?;
    let path = || options.output.clone();
    match fs::metadata(&options.output) {
        Ok(there) if !there.is_file() => return Err(CliError::NotAFile { path: path() }),
        Ok(_) if !options.force => return Err(CliError::Exists { path: path() }),
        _ => {}
    }
    let plans: Vec<Plan<'_>> =
        file.tensors().iter().map(|tensor| Plan::new(tensor, options.dtype)).collect();
    for note in plans.iter().filter_map(Plan::note) {
        output::note(&note);
    }
    let mut writer = Writer::create(&options.output)?;
    let tensors = write(&file, &plans, options.dtype, &mut writer)?;
    let out_bytes = writer.finish()?;
    let report = Report::new(&file, options, tensors, out_bytes);
    let mut output = Output::stdout();
    if options.json {
        output.json(&report)?;
    } else {
        report.write(&mut output)?;
    }
    Ok(exit::DONE)
}

/// Treatment of a tensor.
struct Plan<'a> {
    tensor: &'a TensorInfo,
    /// The type to quantise to; None where the bytes stay as they are.
    to: Option<DType>,
    /// True if `to` is not what was asked for, because of the rows' length.
    falls_back: bool,
}

impl<'a> Plan<'a> {
    fn new(tensor: &'a TensorInfo, wanted: DType) -> Self {
        let kept = |to, falls_back| Self { tensor, to, falls_back };
        let Ok(from) = tensor.supported_dtype() else { return kept(None, false) };
        let sensitive = KEPT.iter().any(|end| tensor.name.ends_with(end));
        if tensor.rows() == 1 || sensitive || from == wanted {
            return kept(None, false);
        }
        if wanted.row_bytes(tensor.row_len()).is_some() {
            return kept(Some(wanted), false);
        }
        let fits = DType::Q8_0.row_bytes(tensor.row_len()).is_some() && from != DType::Q8_0;
        kept(fits.then_some(DType::Q8_0), true)
    }

    fn written(&self) -> TensorType {
        self.to.map_or(self.tensor.dtype, TensorType::Supported)
    }

    fn written_bytes(&self) -> u64 {
        let row = self.to.and_then(|dtype| dtype.row_bytes(self.tensor.row_len()));
        row.map_or(self.tensor.bytes, |row| row * self.tensor.rows())
    }

    fn note(&self) -> Option<String> {
        let TensorInfo { name, .. } = self.tensor;
        let what = match self.to {
            Some(to) => format!("becomes {to}"),
            None => format!("stays {}", self.tensor.dtype.name()),
        };
        let len = self.tensor.row_len();
        self.falls_back.then(|| format!("{name} {what}: its rows of {len} are no whole blocks"))
    }
}

/// The new file's header: the metadata but what says how the old one was made.
fn header(file: &GgufFile, plans: &[Plan<'_>], dtype: DType) -> Vec<u8> {
    let mut builder = GgufBuilder::new();
    let (file_type, version) = ("general.file_type", "general.quantization_version");
    for (key, value) in file.metadata().iter() {
        if key == "general.alignment" {
            builder = builder.alignment(file.alignment());
        } else if !key.starts_with("split.") && key != file_type && key != version {
            builder = builder.metadata(key, value.clone());
        }
    }
    builder = builder.metadata(file_type, Value::U32(ggml_file_type(dtype)));
    builder = builder.metadata(version, Value::U32(QUANTIZATION_VERSION));
    for plan in plans {
        let TensorInfo { name, dims, .. } = plan.tensor;
        let (type_id, bytes) = (plan.written().ggml_id(), plan.written_bytes());
        builder = builder.described_tensor(name, type_id, dims, bytes);
    }
    builder.header()
}

/// `general.file_type` of a file whose matrices are mostly of a type (`llama_ftype`).
fn ggml_file_type(dtype: DType) -> u32 {
    match dtype {
        DType::Q4_0 => 2,
        DType::Q8_0 => 7,
        DType::Q4_K => 14,
        DType::Q5_K => 16,
        _ => 18, // Q6_K
    }
}

fn write(
    file: &GgufFile,
    plans: &[Plan<'_>],
    dtype: DType,
    writer: &mut Writer,
) -> Result<Vec<TensorReport>, CliError> {
    writer.put(&header(file, plans, dtype))?;
    let bar = bar(plans.iter().map(|plan| plan.tensor.bytes).sum());
    let mut reports = Vec::new();
    for plan in plans {
        bar.set_message(plan.tensor.name.clone());
        let mut loss = Loss::default();
        match plan.to {
            None => copy(file, plan.tensor, writer, &bar)?,
            Some(to) => requantize(file, plan.tensor, to, writer, &mut loss, &bar)?,
        }
        writer.pad(u64::from(file.alignment()))?;
        reports.push(TensorReport::new(plan, loss));
    }
    bar.finish_and_clear();
    Ok(reports)
}

fn bar(total: u64) -> ProgressBar {
    let style = "{wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {msg}";
    ProgressBar::new(total)
        .with_style(ProgressStyle::with_template(style).expect("the template is a constant"))
}

fn copy(
    file: &GgufFile,
    tensor: &TensorInfo,
    writer: &mut Writer,
    bar: &ProgressBar,
) -> Result<(), CliError> {
    let mut at = 0;
    while at < tensor.bytes {
        let mut chunk = vec![0; (tensor.bytes - at).min(4 * CHUNK_WEIGHTS) as usize];
        file.read_tensor(tensor, at, &mut chunk)?;
        writer.put(&chunk)?;
        at += chunk.len() as u64;
        bar.inc(chunk.len() as u64);
    }
    Ok(())
}

fn requantize(
    file: &GgufFile,
    tensor: &TensorInfo,
    to: DType,
    writer: &mut Writer,
    loss: &mut Loss,
    bar: &ProgressBar,
) -> Result<(), CliError> {
    let from = tensor.supported_dtype()?;
    let (row_len, rows) = (tensor.row_len(), tensor.rows());
    let row_bytes = tensor.bytes / rows;
    let step = (CHUNK_WEIGHTS / row_len).max(1);
    let mut row = 0;
    while row < rows {
        let count = step.min(rows - row);
        let mut source = vec![0; (count * row_bytes) as usize];
        file.read_tensor(tensor, row * row_bytes, &mut source)?;
        for (blocks, part) in in_parallel(from, to, row_len as usize, &source) {
            if let Some(found) = part.not_finite {
                let (path, tensor) = (file.path().to_owned(), tensor.name.clone());
                return Err(CliError::NotFinite { path, tensor, found });
            }
            writer.put(&blocks)?;
            loss.add(part);
        }
        row += count;
        bar.inc(source.len() as u64);
    }
    Ok(())
}

/// Quantises whole rows, the threads of this machine a part each; the parts in order.
fn in_parallel(from: DType, to: DType, row_len: usize, source: &[u8]) -> Vec<(Vec<u8>, Loss)> {
    let row_bytes = row_len / from.block_len() * from.block_bytes();
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let rows_each = (source.len() / row_bytes).div_ceil(threads);
    thread::scope(|scope| {
        let parts: Vec<_> = source
            .chunks(rows_each * row_bytes)
            .map(|part| scope.spawn(move || quantize_rows(from, to, row_len, part)))
            .collect();
        let join = |part: thread::ScopedJoinHandle<'_, _>| {
            part.join().expect("quantising finite values does not panic")
        };
        parts.into_iter().map(join).collect()
    })
}

fn quantize_rows(from: DType, to: DType, row_len: usize, source: &[u8]) -> (Vec<u8>, Loss) {
    let row_bytes = row_len / from.block_len() * from.block_bytes();
    let (mut blocks, mut loss) = (Vec::new(), Loss::default());
    let (mut values, mut back) = (vec![0.0; row_len], vec![0.0; row_len]);
    for row in source.chunks_exact(row_bytes) {
        dequantize_row(from, row, &mut values);
        loss.not_finite = values.iter().copied().find(|value| !value.is_finite());
        if loss.not_finite.is_some() {
            break;
        }
        let start = blocks.len();
        quantize_row(to, &values, &mut blocks);
        dequantize_row(to, &blocks[start..], &mut back);
        loss.measure(&values, &back);
    }
    (blocks, loss)
}

/// Cost of a round trip.
#[derive(Clone, Copy, Debug, Default)]
struct Loss {
    weights: u64,
    squares: f64,
    error_squares: f64,
    error_max: f32,
    not_finite: Option<f32>,
}

impl Loss {
    fn measure(&mut self, values: &[f32], back: &[f32]) {
        self.weights += values.len() as u64;
        for (v, back) in values.iter().zip(back) {
            let off = (v - back).abs();
            self.squares += f64::from(*v).powi(2);
            self.error_squares += f64::from(off).powi(2);
            self.error_max = self.error_max.max(off);
        }
    }

    fn add(&mut self, other: Self) {
        self.weights += other.weights;
        self.squares += other.squares;
        self.error_squares += other.error_squares;
        self.error_max = self.error_max.max(other.error_max);
    }

    /// Root mean square of the error, that as a share of the values', and the largest error.
    fn figures(&self) -> Option<Figures> {
        let mean = |sum: f64| (sum / self.weights as f64).sqrt();
        let rmse = mean(self.error_squares);
        let relative = if self.squares > 0.0 { rmse / mean(self.squares) } else { 0.0 };
        let max = self.error_max.into();
        (self.weights > 0).then_some(Figures { rmse, relative, max })
    }
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Figures {
    rmse: f64,
    /// The same over the root mean square of the values.
    relative: f64,
    max: f64,
}

#[derive(Debug, Serialize)]
struct TensorReport {
    name: String,
    from: &'static str,
    to: &'static str,
    /// None where the bytes are the old ones.
    error: Option<Figures>,
    #[serde(skip)]
    loss: Loss,
}

impl TensorReport {
    fn new(plan: &Plan<'_>, loss: Loss) -> Self {
        let (from, to) = (plan.tensor.dtype.name(), plan.written().name());
        Self { name: plan.tensor.name.clone(), from, to, error: loss.figures(), loss }
    }
}

#[derive(Debug, Serialize)]
struct Report {
    input: PathBuf,
    output: PathBuf,
    #[serde(rename = "type")]
    dtype: &'static str,
    input_bytes: u64,
    output_bytes: u64,
    tensors: Vec<TensorReport>,
    /// Over all tensors that were quantised.
    total: Option<Figures>,
}

impl Report {
    fn new(
        file: &GgufFile,
        options: &QuantizeOptions,
        tensors: Vec<TensorReport>,
        output_bytes: u64,
    ) -> Self {
        let mut total = Loss::default();
        tensors.iter().for_each(|tensor| total.add(tensor.loss));
        Self {
            input: file.path().to_owned(),
            output: options.output.clone(),
            dtype: options.dtype.name(),
            input_bytes: file.file_bytes(),
            output_bytes,
            tensors,
            total: total.figures(),
        }
    }

    fn write(&self, output: &mut Output) -> Result<(), CliError> {
        let mut table = Table::new(&[
            ("TENSOR", Align::Left),
            ("FROM", Align::Left),
            ("TO", Align::Left),
            ("RMSE", Align::Right),
            ("RELATIVE", Align::Right),
            ("MAX", Align::Right),
        ]);
        let mut row = |name: &str, from: &str, to: &str, error: Option<Figures>| {
            let figures = error.map_or([const { String::new() }; 3], |error| {
                let percent = format!("{:.2} %", 100.0 * error.relative);
                [format!("{:.2e}", error.rmse), percent, format!("{:.2e}", error.max)]
            });
            let names = [name, from, to].map(str::to_owned);
            table.row(names.into_iter().chain(figures).collect());
        };
        for tensor in &self.tensors {
            row(&tensor.name, tensor.from, tensor.to, tensor.error);
        }
        row("all that changed", "", self.dtype, self.total);
        table.write(output)?;
        let (before, after) = (bytes(self.input_bytes), bytes(self.output_bytes));
        output.line(&format!("\n{}: {after}, of {before}", self.output.display()))
    }
}

/// A file that stands under its name once it is whole; until then beside it, and not at all after
/// an error.
struct Writer {
    path: PathBuf,
    beside: PathBuf,
    file: BufWriter<File>,
    written: u64,
}

impl Writer {
    fn create(path: &Path) -> Result<Self, CliError> {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.part", std::process::id()));
        let beside = path.with_file_name(name);
        let file = File::create_new(&beside)
            .map_err(|source| CliError::WriteFile { path: beside.clone(), source })?;
        Ok(Self { path: path.to_owned(), beside, file: BufWriter::new(file), written: 0 })
    }

    fn put(&mut self, data: &[u8]) -> Result<(), CliError> {
        self.written += data.len() as u64;
        self.file.write_all(data).map_err(|source| self.failed(source))
    }

    fn pad(&mut self, alignment: u64) -> Result<(), CliError> {
        let missing = self.written.next_multiple_of(alignment) - self.written;
        self.put(&vec![0; missing as usize])
    }

    fn failed(&self, source: std::io::Error) -> CliError {
        CliError::WriteFile { path: self.path.clone(), source }
    }

    /// Gives the file its name; its size.
    fn finish(mut self) -> Result<u64, CliError> {
        let synced = self.file.flush().and_then(|()| self.file.get_ref().sync_all());
        let named = synced.and_then(|()| fs::rename(&self.beside, &self.path));
        named.map_err(|source| self.failed(source))?;
        Ok(self.written)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Where it was renamed it is not here; where it cannot be removed, nothing more can be
        // done.
        let _ = fs::remove_file(&self.beside);
    }
}
