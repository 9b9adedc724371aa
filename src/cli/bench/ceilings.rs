//! What a device reaches at most, by measurement: copying, reading, multiplying.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::gpu::{
    BufferDesc, BufferSlice, BufferUsage, Capabilities, DeviceError, Executor, Recording,
};
use crate::kernels::{fma_peak, read_stream};

/// Bytes that are copied and read where there is room: more than caches hold.
const STREAM_BYTES_CPU: u64 = 128 << 20;
const STREAM_BYTES_GPU: u64 = 1 << 30;

/// Workgroups of the shaders: a few for each processor of a software driver, and enough to fill the
/// largest GPU.
const WORKGROUPS_CPU: u32 = 64;
const WORKGROUPS_GPU: u32 = 16384;

/// A measurement takes at least this long, so that a submission's own cost does not show.
const TIME_MIN: Duration = Duration::from_millis(40);

/// Most repetitions of a pass within a submission.
const PASSES_MAX: u32 = 1 << 12;

/// Multiply-adds a lane does in turn with each value in one pass.
const ROUNDS: u32 = 1024;

/// Numbers of independent values in a lane that are tried: which one is best depends on how many
/// registers a lane has.
const SUMS: [u32; 3] = [8, 16, 24];

/// Times that each is measured; the best counts.
const REPETITIONS: usize = 3;

/// Deadline of one submission.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The most that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Ceilings {
    /// Bytes copied, counted once read and once written, in 10^9 a second.
    pub(super) copy_gb_s: f64,
    /// Bytes read by a shader that does nothing else, in 10^9 a second.
    pub(super) read_gb_s: f64,
    /// Multiplications and additions of f32 in registers, in 10^9 a second.
    pub(super) gflop_s: f64,
}

impl Ceilings {
    /// The memory's bandwidth: a software driver copies faster than its shaders read.
    pub(super) fn memory_gb_s(&self) -> f64 {
        self.copy_gb_s.max(self.read_gb_s)
    }

    /// Measures them on an executor with enough free memory for the buffers, which are given back.
    pub(super) fn measure(executor: &mut dyn Executor) -> Result<Self, DeviceError> {
        let caps = executor.capabilities().clone();
        let workgroups = if caps.is_cpu() { WORKGROUPS_CPU } else { WORKGROUPS_GPU };
        let bytes = stream_bytes(&*executor, &caps, workgroups);
        let mut buffer = |label: &str, bytes| {
            let desc = BufferDesc { label: label.into(), bytes, usage: BufferUsage::Scratch };
            let buffer = executor.create_buffer(&desc)?;
            Ok::<_, DeviceError>(BufferSlice { buffer, offset: 0, bytes })
        };
        let x = buffer("bench stream", bytes)?;
        let y = buffer("bench results", u64::from(workgroups * caps.lanes) * 4)?;
        let measured = Probe { executor, caps, workgroups, x, y }.measure();
        executor.destroy_buffer(x.buffer);
        executor.destroy_buffer(y.buffer);
        measured
    }
}

/// Size of the buffer that is read: what the device has room for, in whole rounds of all lanes, and
/// in two halves.
fn stream_bytes(executor: &dyn Executor, caps: &Capabilities, workgroups: u32) -> u64 {
    let memory = executor.memory();
    let free = memory.budget_bytes.saturating_sub(memory.used_bytes);
    let wanted = if caps.is_cpu() { STREAM_BYTES_CPU } else { STREAM_BYTES_GPU };
    let limit = caps.storage_range_max.min(caps.allocation_bytes_max).min(free / 2);
    let step = 2 * read_stream::bytes_multiple(caps, workgroups);
    (wanted.min(limit) / step).max(1) * step
}

struct Probe<'a> {
    executor: &'a mut dyn Executor,
    caps: Capabilities,
    workgroups: u32,
    x: BufferSlice,
    y: BufferSlice,
}

impl Probe<'_> {
    fn measure(&mut self) -> Result<Ceilings, DeviceError> {
        let (x, y, caps, workgroups) = (self.x, self.y, self.caps.clone(), self.workgroups);
        let half = x.bytes / 2;
        let (from, to) =
            (BufferSlice { bytes: half, ..x }, BufferSlice { offset: half, bytes: half, ..x });
        let copy = self.passes_a_second(&mut |recording| recording.copy(from, to))?;
        let mut read = 0.0_f64;
        for pointers in [false, true] {
            if pointers && !caps.buffer_pointers {
                continue;
            }
            let passes = self.passes_a_second(&mut |recording| {
                read_stream::record(recording, &caps, x, y, workgroups, pointers);
            })?;
            read = read.max(passes);
        }
        let mut flops = 0.0_f64;
        for sums in SUMS {
            let passes = self.passes_a_second(&mut |recording| {
                fma_peak::record(recording, &caps, y, workgroups, sums, ROUNDS);
            })?;
            let lanes = f64::from(workgroups) * f64::from(caps.lanes);
            flops = flops.max(passes * lanes * 2.0 * f64::from(sums) * f64::from(ROUNDS));
        }
        Ok(Ceilings {
            copy_gb_s: copy * x.bytes as f64 / 1e9,
            read_gb_s: read * x.bytes as f64 / 1e9,
            gflop_s: flops / 1e9,
        })
    }

    /// Rate at which the device repeats the work recorded by `pass`, per second.
    fn passes_a_second(
        &mut self,
        pass: &mut dyn FnMut(&mut Recording),
    ) -> Result<f64, DeviceError> {
        self.time(1, pass)?; // drivers compile on first use
        let mut passes = 1;
        let mut best = self.time(passes, pass)?;
        while best < TIME_MIN && passes < PASSES_MAX {
            passes = (passes * 2).min(PASSES_MAX);
            best = self.time(passes, pass)?;
        }
        for _ in 1..REPETITIONS {
            best = best.min(self.time(passes, pass)?);
        }
        Ok(f64::from(passes) / best.as_secs_f64())
    }

    fn time(
        &mut self,
        passes: u32,
        pass: &mut dyn FnMut(&mut Recording),
    ) -> Result<Duration, DeviceError> {
        let mut recording = Recording::new();
        (0..passes).for_each(|_| pass(&mut recording));
        let prepared = self.executor.prepare(&recording)?;
        let started = Instant::now();
        let ticket = self.executor.submit(prepared)?;
        let waited = self.executor.wait(ticket, TIMEOUT);
        let elapsed = started.elapsed();
        self.executor.release(prepared);
        waited.map(|()| elapsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::ReferenceExecutor;

    #[test]
    fn buffers_keep_to_the_device_and_to_whole_rounds() {
        let executor = ReferenceExecutor::with_lanes(8);
        let mut caps = executor.capabilities().clone();
        assert_eq!(stream_bytes(&executor, &caps, 64), STREAM_BYTES_CPU);
        caps.storage_range_max = 100_000;
        let bytes = stream_bytes(&executor, &caps, 64);
        assert!(bytes <= 100_000 && bytes.is_multiple_of(read_stream::bytes_multiple(&caps, 64)));
    }
}
