//! What `hob bench` prints.

use serde::Serialize;

use super::ceilings::Ceilings;
use super::measure::Measurement;
use super::profile::{self, KernelUse, percent};
use super::statistics::Percentiles;
use crate::cli::CliError;
use crate::cli::output::{self, Output};
use crate::cli::table::{Align, Table};
use crate::config::Numerics;

/// A measurement, and its kernels where they were asked for.
#[derive(Debug, Serialize)]
pub(super) struct Entry {
    #[serde(flatten)]
    pub(super) measurement: Measurement,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kernels: Option<Vec<KernelUse>>,
}

/// Device memory used by the model, in bytes.
#[derive(Debug, Serialize)]
pub(super) struct Memory {
    /// Weights, as in the file.
    pub(super) weights: u64,
    /// The KV cache.
    pub(super) kv: u64,
    /// All else: activations, logits.
    pub(super) scratch: u64,
}

/// All measurements of a run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) model: String,
    pub(super) device: String,
    pub(super) driver: String,
    pub(super) numerics: Numerics,
    pub(super) memory: Memory,
    pub(super) repetitions: u32,
    /// Part of the processors that others used meanwhile; absent where the system does not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) others_cpu: Option<f64>,
    /// True if that was too much.
    pub(super) disturbed: bool,
    /// Not measured where only the host's time is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ceilings: Option<Ceilings>,
    pub(super) results: Vec<Entry>,
}

impl Report {
    pub(super) fn write(&self, json: bool) -> Result<(), CliError> {
        let mut output = Output::stdout();
        if json {
            return output.json(self);
        }
        let head = format!("{} on {}, {}", self.model, self.device, self.driver);
        output.styled_line(output::DIM, &head)?;
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let [weights, kv, scratch] =
            [self.memory.weights, self.memory.kv, self.memory.scratch].map(mib);
        let line = format!(
            "memory: weights {weights:.1} MiB, cache {kv:.1} MiB, scratch {scratch:.1} MiB"
        );
        output.styled_line(output::DIM, &line)?;
        let Some(ceilings) = &self.ceilings else {
            return self.host_table().write(&mut output);
        };
        let Ceilings { copy_gb_s, read_gb_s, gflop_s } = ceilings;
        let line = format!(
            "measured at most: copy {copy_gb_s:.1} GB/s, read {read_gb_s:.1} GB/s, \
             {gflop_s:.0} GFLOP/s of f32"
        );
        output.styled_line(output::DIM, &line)?;
        self.table(ceilings).write(&mut output)?;
        for entry in &self.results {
            if let Some(kernels) = &entry.kernels {
                output.line("")?;
                profile::write(&mut output, &entry.measurement.test, kernels)?;
            }
        }
        Ok(())
    }

    /// The host's time alone.
    fn host_table(&self) -> Table {
        let mut table = Table::new(&[
            ("TEST", Align::Left),
            ("STEPS", Align::Right),
            ("HOST, US A STEP", Align::Right),
            ("P95", Align::Right),
            ("P99", Align::Right),
        ]);
        for Entry { measurement, .. } in &self.results {
            let Percentiles { p50, p95, p99 } = measurement.host_us;
            let steps = measurement.steps * measurement.samples.len();
            let mut cells = vec![measurement.test.clone(), steps.to_string()];
            cells.extend([p50, p95, p99].map(|time| format!("{time:.1}")));
            table.row(cells);
        }
        table
    }

    fn table(&self, ceilings: &Ceilings) -> Table {
        let mut table = Table::new(&[
            ("TEST", Align::Left),
            ("TOKENS/S", Align::Right),
            ("LEAST", Align::Right),
            ("MOST", Align::Right),
            ("TTFT OR ITL, MS", Align::Right),
            ("P95", Align::Right),
            ("P99", Align::Right),
            ("GB/S", Align::Right),
            ("OF MEMORY", Align::Right),
            ("GFLOP/S", Align::Right),
            ("OF PEAK", Align::Right),
            ("HOST, US", Align::Right),
        ]);
        for Entry { measurement, .. } in &self.results {
            let samples = measurement.samples.iter().copied();
            let least = samples.clone().fold(f64::INFINITY, f64::min);
            let most = samples.fold(0.0, f64::max);
            let mut cells = vec![measurement.test.clone()];
            cells.extend([measurement.median, least, most].map(|rate| format!("{rate:.2}")));
            let times = measurement.itl_ms.or(measurement.ttft_ms);
            cells.extend(match times {
                Some(Percentiles { p50, p95, p99 }) => {
                    [p50, p95, p99].map(|time| format!("{time:.2}"))
                }
                None => ["-"; 3].map(str::to_owned),
            });
            cells.extend([
                format!("{:.2}", measurement.gb_s),
                percent(measurement.gb_s / ceilings.memory_gb_s()),
                format!("{:.2}", measurement.gflop_s),
                percent(measurement.gflop_s / ceilings.gflop_s),
                format!("{:.0}", measurement.host_us.p50),
            ]);
            table.row(cells);
        }
        table
    }
}
