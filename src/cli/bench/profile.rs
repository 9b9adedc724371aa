//! Where the device's time went, kernel by kernel, against what the device could do.

use serde::Serialize;

use super::ceilings::Ceilings;
use super::meter::Submission;
use crate::cli::CliError;
use crate::cli::output::Output;
use crate::cli::table::{Align, Table};
use crate::kernels::work::{self, Work};

/// One kernel's line. Two dispatches share a line where kernel, shape and number of tokens agree.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct KernelUse {
    pub(super) kernel: String,
    /// Dispatches of a step.
    pub(super) calls: f64,
    /// Time on the device in a step.
    pub(super) us: f64,
    /// Part of the device's time.
    pub(super) share: f64,
    /// `None` for a kernel whose work is not known.
    #[serde(flatten)]
    pub(super) reached: Option<Reached>,
}

/// Utilisation of the device by a kernel.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Reached {
    pub(super) gb_s: f64,
    pub(super) gflop_s: f64,
    /// Parts of the memory's bandwidth, and of the peak of multiply-adds.
    pub(super) of_bandwidth: f64,
    pub(super) of_peak: f64,
}

/// The lines of all submissions, the longest time first.
pub(super) fn lines(
    submissions: &[Submission],
    steps: usize,
    ceilings: &Ceilings,
) -> Vec<KernelUse> {
    let mut sums: Vec<Sum> = Vec::new();
    for submission in submissions {
        for (command, timing) in submission.recording.commands.iter().zip(&submission.timings) {
            let label = work::label(command);
            let work = work::of(command, &submission.positions);
            let at = sums.iter().position(|sum| sum.label == label).unwrap_or_else(|| {
                sums.push(Sum { label, calls: 0, ns: 0.0, work: Some(Work::default()) });
                sums.len() - 1
            });
            let sum = &mut sums[at];
            sum.calls += 1;
            sum.ns += timing.nanoseconds;
            match (&mut sum.work, work) {
                (Some(all), Some(work)) => *all += work,
                (all, _) => *all = None,
            }
        }
    }
    let total: f64 = sums.iter().map(|sum| sum.ns).sum();
    sums.sort_by(|a, b| b.ns.total_cmp(&a.ns));
    sums.into_iter().map(|sum| sum.line(steps as f64, total, ceilings)).collect()
}

struct Sum {
    label: String,
    calls: usize,
    ns: f64,
    work: Option<Work>,
}

impl Sum {
    fn line(self, steps: f64, total_ns: f64, ceilings: &Ceilings) -> KernelUse {
        let ns = self.ns.max(f64::MIN_POSITIVE);
        let reached = self.work.map(|work| {
            // Bytes in a nanosecond are 10^9 bytes in a second.
            let (gb_s, gflop_s) = (work.bytes() as f64 / ns, work.flops as f64 / ns);
            Reached {
                gb_s,
                gflop_s,
                of_bandwidth: gb_s / ceilings.memory_gb_s(),
                of_peak: gflop_s / ceilings.gflop_s,
            }
        });
        KernelUse {
            kernel: self.label,
            calls: self.calls as f64 / steps,
            us: self.ns / 1e3 / steps,
            share: self.ns / total_ns.max(f64::MIN_POSITIVE),
            reached,
        }
    }
}

/// Writes the lines of one measurement as a table.
pub(super) fn write(output: &mut Output, test: &str, lines: &[KernelUse]) -> Result<(), CliError> {
    if lines.is_empty() {
        return output.line(&format!("{test}: this device has no timestamps"));
    }
    let mut table = Table::new(&[
        (test, Align::Left),
        ("CALLS", Align::Right),
        ("US", Align::Right),
        ("SHARE", Align::Right),
        ("GB/S", Align::Right),
        ("OF MEMORY", Align::Right),
        ("GFLOP/S", Align::Right),
        ("OF PEAK", Align::Right),
        ("BOUND BY", Align::Left),
    ]);
    for line in lines {
        let mut cells = vec![
            line.kernel.clone(),
            format!("{:.0}", line.calls),
            format!("{:.0}", line.us),
            percent(line.share),
        ];
        cells.extend(match &line.reached {
            None => ["-"; 5].map(str::to_owned),
            Some(reached) => [
                format!("{:.2}", reached.gb_s),
                percent(reached.of_bandwidth),
                format!("{:.2}", reached.gflop_s),
                percent(reached.of_peak),
                // The roof that is nearer.
                if reached.of_bandwidth >= reached.of_peak { "memory" } else { "arithmetic" }
                    .to_owned(),
            ],
        });
        table.row(cells);
    }
    table.write(output)
}

/// `12.3 %`
pub(super) fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::gpu::{BufferHandle, BufferSlice, CommandTiming, Recording};

    #[test]
    fn lines_sum_up_equal_commands_and_lead_with_the_longest() {
        let slice = |buffer| BufferSlice { buffer: BufferHandle(buffer), offset: 0, bytes: 1000 };
        let mut recording = Recording::new();
        recording.zero(slice(0));
        recording.copy(slice(0), slice(1));
        recording.copy(slice(1), slice(2));
        let timing = |name: &str, nanoseconds| CommandTiming { name: name.to_owned(), nanoseconds };
        let submission = Submission {
            recording: Arc::new(recording),
            positions: Arc::new([]),
            timings: vec![timing("fill", 100.0), timing("copy", 200.0), timing("copy", 100.0)],
            begin: std::time::Instant::now(),
            submitted: std::time::Instant::now(),
            end: std::time::Instant::now(),
        };
        let ceilings = Ceilings { copy_gb_s: 20.0, read_gb_s: 50.0, gflop_s: 10.0 };
        let found = lines(&[submission.clone(), submission], 2, &ceilings);
        let [copies, zeros] = &found[..] else { panic!("two lines: {found:?}") };
        assert_eq!((copies.kernel.as_str(), copies.calls, copies.us), ("copy", 2.0, 0.3));
        assert_eq!((zeros.kernel.as_str(), zeros.share), ("zero", 0.25));
        let reached = copies.reached.as_ref().expect("copies are known");
        assert!((reached.gb_s - 4000.0 / 300.0).abs() < 1e-9);
        assert!((reached.of_bandwidth - reached.gb_s / 50.0).abs() < 1e-9);
    }
}
