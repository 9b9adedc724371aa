//! An executor that looks on: what was submitted, and what of the host's time was spent on the
//! device's driver rather than on hob's own work.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::gpu::{
    BufferHandle, CommandTiming, DeviceError, Executor, PreparedId, Recording, Ticket,
};
use crate::kernels::work::Positions;

/// Deadline of a profiled step.
const TIMEOUT: Duration = Duration::from_secs(120);

/// One submission.
#[derive(Clone, Debug)]
pub(super) struct Submission {
    /// Kernel or step that ran.
    pub(super) recording: Arc<Recording>,
    /// The positions of the step it was part of.
    pub(super) positions: Arc<[Positions]>,
    /// The device's time for each command; empty without profiling.
    pub(super) timings: Vec<CommandTiming>,
    /// When the host began to submit it, and had.
    pub(super) begin: Instant,
    pub(super) submitted: Instant,
    /// With profiling, when it was seen to be complete.
    pub(super) end: Instant,
}

/// Values observed since they were last taken.
#[derive(Debug, Default)]
struct Seen {
    submissions: Vec<Submission>,
    positions: Arc<[Positions]>,
    /// Time of this thread's processor in waiting, and in looking on.
    waiting_cpu: Duration,
}

/// The other end of a [`Meter`].
#[derive(Clone, Debug, Default)]
pub(super) struct MeterHandle(Arc<Mutex<Seen>>);

impl MeterHandle {
    /// Submissions from now on are of a step over these positions.
    pub(super) fn begin_step(&self, positions: Vec<Positions>) {
        self.seen().positions = positions.into();
    }

    /// Takes what was submitted.
    pub(super) fn take(&self) -> Vec<Submission> {
        std::mem::take(&mut self.seen().submissions)
    }

    /// Time that the calling thread has computed, without that in waiting for the device.
    pub(super) fn working_cpu(&self) -> Duration {
        thread_cpu().saturating_sub(self.seen().waiting_cpu)
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The executor of a bench.
pub(super) struct Meter {
    inner: Box<dyn Executor>,
    handle: MeterHandle,
    recordings: HashMap<PreparedId, Arc<Recording>>,
    profiling: bool,
    /// A driver that executes nothing leaves zeros, on which no model is opened: where only the
    /// host's time is measured, the first word of what is read is made to differ.
    host_time: bool,
}

impl Meter {
    pub(super) fn new(
        mut inner: Box<dyn Executor>,
        profiling: bool,
        host_time: bool,
    ) -> (Self, MeterHandle) {
        inner.set_profiling(profiling);
        let handle = MeterHandle::default();
        let recordings = HashMap::new();
        (Self { inner, handle: handle.clone(), recordings, profiling, host_time }, handle)
    }

    /// Does what is not hob's own work: its time counts as waiting.
    fn apart<T>(&mut self, body: impl FnOnce(&mut Self) -> T) -> T {
        let before = thread_cpu();
        let result = body(self);
        self.handle.seen().waiting_cpu += thread_cpu().saturating_sub(before);
        result
    }

    /// Notes a submission; with profiling, waits for it and takes its times, since a later
    /// submission of the same recording overwrites them.
    fn note(
        &mut self,
        prepared: PreparedId,
        ticket: Ticket,
        (begin, submitted): (Instant, Instant),
    ) -> Result<(), DeviceError> {
        let (mut timings, mut end) = (Vec::new(), submitted);
        if self.profiling {
            self.inner.wait(ticket, TIMEOUT)?;
            end = Instant::now();
            timings = self.inner.timings(prepared)?;
        }
        let recording = Arc::clone(&self.recordings[&prepared]);
        let mut seen = self.handle.seen();
        let positions = Arc::clone(&seen.positions);
        seen.submissions.push(Submission { recording, positions, timings, begin, submitted, end });
        Ok(())
    }
}

/// Time that the calling thread has used a processor.
fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

impl Executor for Meter {
    crate::delegate!(
        capabilities avoid create_buffer destroy_buffer replace_buffer write memory timings
    );

    fn read(
        &mut self,
        buffer: BufferHandle,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), DeviceError> {
        self.inner.read(buffer, offset, out)?;
        if let (true, Some(first)) = (self.host_time, out.first_chunk_mut()) {
            *first = 1.0_f32.to_ne_bytes();
        }
        Ok(())
    }

    fn prepare(&mut self, recording: &Recording) -> Result<PreparedId, DeviceError> {
        let prepared = self.inner.prepare(recording)?;
        self.recordings.insert(prepared, Arc::new(recording.clone()));
        Ok(prepared)
    }

    fn release(&mut self, prepared: PreparedId) {
        self.recordings.remove(&prepared);
        self.inner.release(prepared);
    }

    fn submit(&mut self, prepared: PreparedId) -> Result<Ticket, DeviceError> {
        let begin = Instant::now();
        let ticket = self.inner.submit(prepared)?;
        let times = (begin, Instant::now());
        self.apart(|meter| meter.note(prepared, ticket, times))?;
        Ok(ticket)
    }

    fn wait(&mut self, ticket: Ticket, timeout: Duration) -> Result<(), DeviceError> {
        self.apart(|meter| meter.inner.wait(ticket, timeout))
    }

    fn set_profiling(&mut self, on: bool) {
        self.profiling = on;
        self.inner.set_profiling(on);
    }
}
