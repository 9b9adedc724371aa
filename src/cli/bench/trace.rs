//! `--trace`: what host and device did and when, in the JSON that Chrome's tracing and Perfetto
//! read.
//!
//! Host and device have clocks of their own. A profiled submission is waited for at once, so its
//! last command is put where the wait ended: that is later than it was by the time it took the host
//! to wake up.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::meter::Submission;
use crate::cli::CliError;
use crate::kernels::work;

/// Rows of the trace.
const HOST: u32 = 1;
const DEVICE: u32 = 2;

/// Change of one row since a moment.
#[derive(Debug, Serialize)]
struct Span<'a> {
    name: &'a str,
    /// A complete event.
    ph: &'static str,
    /// Microseconds since the first moment.
    ts: f64,
    /// Microseconds.
    dur: f64,
    pid: u32,
    tid: u32,
}

/// A trace that is being written.
pub(super) struct Trace {
    out: BufWriter<File>,
    path: std::path::PathBuf,
    start: Instant,
}

impl Trace {
    /// Opens the file and names the rows.
    pub(super) fn create(path: &Path) -> Result<Self, CliError> {
        let failed = |source| CliError::WriteFile { path: path.to_owned(), source };
        let mut out = BufWriter::new(File::create(path).map_err(failed)?);
        let name = |tid, name| {
            format!(
                "{{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":1,\"tid\":{tid},\
                 \"args\":{{\"name\":\"{name}\"}}}}"
            )
        };
        write!(out, "[\n{},\n{}", name(HOST, "host"), name(DEVICE, "device")).map_err(failed)?;
        Ok(Self { out, path: path.to_owned(), start: Instant::now() })
    }

    /// Adds a measurement's submissions.
    pub(super) fn add(&mut self, test: &str, submissions: &[Submission]) -> Result<(), CliError> {
        for submission in submissions {
            self.span(HOST, test, submission.begin, submission.submitted)?;
            self.span(HOST, "wait", submission.submitted, submission.end)?;
            let total: f64 = submission.timings.iter().map(|timing| timing.nanoseconds).sum();
            let mut at = submission.end.checked_sub(Duration::from_nanos(total as u64));
            for (command, timing) in submission.recording.commands.iter().zip(&submission.timings) {
                let Some(begin) = at else { break };
                let end = begin + Duration::from_nanos(timing.nanoseconds as u64);
                self.span(DEVICE, &work::label(command), begin, end)?;
                at = Some(end);
            }
        }
        Ok(())
    }

    /// Ends the file.
    pub(super) fn finish(mut self) -> Result<(), CliError> {
        let written = writeln!(self.out, "\n]").and_then(|()| self.out.flush());
        written.map_err(|source| CliError::WriteFile { path: self.path, source })
    }

    fn span(&mut self, tid: u32, name: &str, begin: Instant, end: Instant) -> Result<(), CliError> {
        let microseconds = |time: Duration| time.as_secs_f64() * 1e6;
        let span = Span {
            name,
            ph: "X",
            ts: microseconds(begin.saturating_duration_since(self.start)),
            dur: microseconds(end.saturating_duration_since(begin)),
            pid: 1,
            tid,
        };
        let text = serde_json::to_string(&span).map_err(|source| CliError::Encode { source })?;
        let written = write!(self.out, ",\n{text}");
        written.map_err(|source| CliError::WriteFile { path: self.path.clone(), source })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::gpu::{BufferHandle, BufferSlice, CommandTiming, Recording};

    #[test]
    fn commands_end_where_the_wait_did() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("trace.json");
        let mut trace = Trace::create(&path).expect("a file");
        let slice = BufferSlice { buffer: BufferHandle(0), offset: 0, bytes: 4 };
        let mut recording = Recording::new();
        recording.zero(slice);
        recording.zero(slice);
        let timing = |nanoseconds| CommandTiming { name: "fill".into(), nanoseconds };
        let begin = trace.start + Duration::from_micros(10);
        let submission = Submission {
            recording: Arc::new(recording),
            positions: Arc::new([]),
            timings: vec![timing(2000.0), timing(3000.0)],
            begin,
            submitted: begin + Duration::from_micros(1),
            end: begin + Duration::from_micros(20),
        };
        trace.add("tg1", &[submission]).expect("written");
        trace.finish().expect("written");
        let text = std::fs::read_to_string(&path).expect("read");
        let events: Vec<serde_json::Value> = serde_json::from_str(&text).expect("JSON");
        let times = |event: &serde_json::Value| {
            let time = |key: &str| event[key].as_f64().expect("a number").round();
            (event["name"].as_str().expect("a name").to_owned(), time("ts"), time("dur"))
        };
        let found: Vec<_> = events[2..].iter().map(times).collect();
        let wanted = [("tg1", 10.0, 1.0), ("wait", 11.0, 19.0), ("zero", 25.0, 2.0)];
        let wanted = wanted.into_iter().chain([("zero", 27.0, 3.0)]);
        let wanted: Vec<_> = wanted.map(|(name, ts, dur)| (name.to_owned(), ts, dur)).collect();
        assert_eq!(found, wanted);
    }
}
