//! `hob tune`: measures shapes of kernels on a device, and shows what was chosen and why.

use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressStyle};

use super::args::TuneOptions;
use super::local::{LocalError, LocalOptions, cache_dir, open_device, open_model, tune_options};
use super::output::Output;
use super::table::{Align, Table};
use super::{CliError, exit, output, paths};
use crate::config::KvDtype;
use crate::engine::{Measured, TunedWork, Tuner, Verdict, WorkSize, forget_tuning, tuned_on};
use crate::gpu::Executor;
use crate::kernels::matmul::{Tier, TileConfig};
use crate::kernels::tuned::{AnyTileConfig, Tile};

/// Tokens of the context that the model is opened with; no work depends on it.
const CONTEXT_TOKENS: u32 = 512;

pub(crate) fn run(options: &TuneOptions) -> Result<u8, CliError> {
    let folder = options.cache_dir.clone().or_else(cache_dir).ok_or(CliError::NoCache)?;
    let executor = open_device(options.device.as_deref())?;
    if options.reset {
        let forgotten = forget_tuning(executor.capabilities(), &folder);
        forgotten.map_err(|source| CliError::Forget { folder: folder.clone(), source })?;
        if options.model.is_none() {
            output::note(&"nothing is tuned on this device any more");
            return Ok(exit::DONE);
        }
    }
    let works = match &options.model {
        None => tuned_on(executor.capabilities(), &folder, options.numerics.into()),
        Some(model) => measure(Box::new(executor), model, options, folder)?,
    };
    let mut output = Output::stdout();
    if options.json {
        output.json(&works)?;
    } else {
        write(&works, &mut output)?;
    }
    Ok(exit::DONE)
}

/// Measures all that is not known yet, with a bar on the terminal.
fn measure(
    executor: Box<dyn Executor>,
    model: &Path,
    options: &TuneOptions,
    folder: PathBuf,
) -> Result<Vec<TunedWork>, CliError> {
    let local = LocalOptions {
        model: paths::model(model)?,
        device: options.device.clone(),
        kv_dtype: KvDtype::Auto,
        context_tokens: CONTEXT_TOKENS,
        numerics: options.numerics.into(),
    };
    let mut runner = open_model(executor, &local, 1)?.runner;
    let mut tuner = Tuner::new(tune_options(true, options.numerics.into(), Some(folder)));
    tuner.prepare(&mut runner);
    let style = "tuning {wide_bar} {pos}/{len} {eta}";
    let bar = ProgressBar::new(0)
        .with_style(ProgressStyle::with_template(style).expect("the template is a constant"));
    while let Some(progress) = tuner.step(&mut runner).map_err(LocalError::from)? {
        bar.set_length(progress.all as u64);
        bar.set_position(progress.done as u64);
    }
    bar.finish_and_clear();
    Ok(tuner.done().to_vec())
}

fn write(works: &[TunedWork], output: &mut Output) -> Result<(), CliError> {
    if works.is_empty() {
        return output
            .line("nothing was measured on this device; `hob tune --model MODEL` does it");
    }
    let mut table = Table::new(&[
        ("KERNEL", Align::Left),
        ("OF", Align::Right),
        ("TOKENS", Align::Right),
        ("DEFAULT", Align::Right),
        ("CHOSEN", Align::Left),
        ("TIME", Align::Right),
        ("OTHERS (µs)", Align::Left),
    ]);
    for work in works {
        let (default, chosen) = (&work.shapes[0], &work.shapes[work.chosen]);
        let others = work.shapes.iter().enumerate().skip(1);
        let others = others.filter(|(index, _)| *index != work.chosen);
        let others: Vec<String> = others.map(|(_, measured)| cell(measured)).collect();
        let (of, tokens) = size_cells(&work.size);
        table.row(vec![
            work.kernel.clone(),
            of,
            tokens,
            cell(default),
            if work.chosen == 0 { "the default".into() } else { cell(chosen) },
            format!("{:.2}x", work.ratio()),
            others.join(", "),
        ]);
    }
    table.write(output)?;
    let log: f64 = works.iter().map(|work| work.ratio().ln()).sum();
    let mean = (log / works.len() as f64).exp();
    let changed = works.iter().filter(|work| work.chosen > 0).count();
    output.line(&format!(
        "{changed} of {} works run in other shapes; the mean time is {mean:.3} of the default's",
        works.len()
    ))
}

/// Subject of a choice: a matrix or heads, and tokens.
fn size_cells(size: &WorkSize) -> (String, String) {
    match size {
        WorkSize::Matmul { rows, row_len, tokens } => {
            (format!("{rows}x{row_len}"), tokens.to_string())
        }
        WorkSize::Attention { head_dim, group, cache, one_token_each, narrow } => {
            let tokens = match (one_token_each, narrow) {
                (true, _) => "1",
                (false, false) => "prompt",
                (false, true) => "prompt 16+",
            };
            (format!("{group}x{head_dim} {cache}"), tokens.into())
        }
    }
}

/// A shape and what was found out about it: rows of a lane (or heads), tokens, and split (or
/// positions of a block).
fn cell(measured: &Measured) -> String {
    let microseconds = measured.nanoseconds / 1000.0;
    let shape = match measured.shape {
        AnyTileConfig::Matmul(TileConfig { rows, tokens, split, tier: Tier::Scalar }) => {
            format!("{rows}x{tokens}/{split}")
        }
        AnyTileConfig::Matmul(TileConfig { rows, tokens, split, tier }) => {
            format!("{} {rows}x{tokens}/{split}", tier.name())
        }
        AnyTileConfig::Attention(Tile { tile_tokens, heads, matrix: None }) => {
            format!("{heads}x{tile_tokens}")
        }
        AnyTileConfig::Attention(Tile { tile_tokens, heads, matrix: Some(cut) }) => {
            let q = if cut.q_shared { " q shared" } else { "" };
            format!("matrix {heads}x{tile_tokens}/{}{q}", cut.positions)
        }
    };
    match &measured.verdict {
        Verdict::Right => format!("{shape} {microseconds:.0}"),
        Verdict::OtherBits => format!("{shape} {microseconds:.0} (other bits)"),
        Verdict::Wrong(_) => format!("{shape} WRONG"),
    }
}
