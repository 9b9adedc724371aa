//! An executor that fails where a test says so: any call, any count, any error.
#![allow(dead_code, unreachable_pub)] // each test uses a part

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hob::gpu::{
    Access, BufferDesc, BufferHandle, BufferSlice, Command, CommandTiming, DeviceError, Dispatch,
    Executor, MemoryReport, PreparedId, Recording, Ticket,
};

/// A call that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    Open,
    CreateBuffer,
    Write,
    Read,
    Prepare,
    Submit,
    Wait,
}

pub const CALLS: [Call; 7] = [
    Call::Open,
    Call::CreateBuffer,
    Call::Write,
    Call::Read,
    Call::Prepare,
    Call::Submit,
    Call::Wait,
];

/// What goes wrong.
#[derive(Clone, Debug)]
pub enum Failing {
    /// The call fails; the device is then lost, whatever the error says.
    With(DeviceError),
    /// A read gives what is no number.
    NotANumber,
    /// The call returns when the test lets go of the lock.
    Hang(Arc<Mutex<()>>),
}

/// One failure to come.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Calls that count; `None` counts all.
    pub call: Option<Call>,
    /// Which of them fails, from 0, counted from the fault before this one.
    pub nth: u64,
    pub failing: Failing,
}

impl Fault {
    pub fn lost(call: Call, nth: u64) -> Self {
        let error = DeviceError::Lost { call: "an injected call" };
        Self { call: Some(call), nth, failing: Failing::With(error) }
    }
}

/// What is to fail, shared by all executors of an engine.
#[derive(Clone, Debug, Default)]
pub struct Plan(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    faults: VecDeque<Fault>,
    counts: BTreeMap<Call, u64>,
    /// The calls in their order.
    order: Vec<Call>,
    opened: u64,
    budget_bytes: Option<u64>,
    /// Kernels that compute wrongly.
    wrong: BTreeSet<String>,
    /// Dispatches that compute wrongly.
    wrong_where: Option<fn(&Dispatch) -> bool>,
    /// What dispatches take, in nanoseconds.
    times: Option<fn(&Dispatch) -> f64>,
    /// Kernels that ran, alone and with their constants.
    ran: BTreeSet<String>,
}

impl Plan {
    /// From now on, `faults` happen, one after the other; counts begin at 0.
    pub fn set(&self, faults: impl IntoIterator<Item = Fault>) {
        let mut state = self.state();
        state.faults = faults.into_iter().collect();
        state.counts.clear();
        state.order.clear();
    }

    /// From now on, the kernel of this name computes wrongly wherever it is prepared.
    pub fn set_wrong(&self, kernel: &str) {
        self.state().wrong.insert(kernel.to_owned());
    }

    /// From now on, such dispatches compute wrongly wherever they are prepared.
    pub fn set_wrong_where(&self, wrong: fn(&Dispatch) -> bool) {
        self.state().wrong_where = Some(wrong);
    }

    /// From now on, the device says that dispatches take so long.
    pub fn set_times(&self, times: fn(&Dispatch) -> f64) {
        self.state().times = Some(times);
    }

    /// The kernels that were prepared since this was last asked, alone and with their constants.
    pub fn take_ran(&self) -> BTreeSet<String> {
        std::mem::take(&mut self.state().ran)
    }

    /// Calls of each kind since [`Plan::set`].
    pub fn counts(&self) -> BTreeMap<Call, u64> {
        self.state().counts.clone()
    }

    /// Calls in their order since [`Plan::set`].
    pub fn order(&self) -> Vec<Call> {
        self.state().order.clone()
    }

    /// Faults that have not happened.
    pub fn left(&self) -> usize {
        self.state().faults.len()
    }

    /// Executors opened so far.
    pub fn opened(&self) -> u64 {
        self.state().opened
    }

    /// What the driver says from now on that this process may use of the device's memory.
    pub fn set_budget(&self, bytes: Option<u64>) {
        self.state().budget_bytes = bytes;
    }

    /// Opens an executor that obeys this plan.
    pub fn open(&self, inner: impl Executor + 'static) -> Result<Box<dyn Executor>, DeviceError> {
        if let Some(Failing::With(error)) = self.note(Call::Open) {
            return Err(error);
        }
        self.state().opened += 1;
        let plan = self.clone();
        Ok(Box::new(Faulty {
            inner: Box::new(inner),
            plan,
            lost: false,
            parts: HashMap::new(),
            dispatches: HashMap::new(),
            profiling: false,
            next: 1 << 40,
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a dispatch is prepared; whether it computes wrongly.
    fn note_dispatch(&self, dispatch: &Dispatch) -> bool {
        let mut state = self.state();
        let name = dispatch.kernel.name;
        state.ran.insert(name.to_owned());
        state.ran.insert(format!("{name} {:?}", dispatch.spec));
        state.wrong.contains(name) || state.wrong_where.is_some_and(|wrong| wrong(dispatch))
    }

    /// Counts a call; what goes wrong with it.
    fn note(&self, call: Call) -> Option<Failing> {
        let mut state = self.state();
        *state.counts.entry(call).or_default() += 1;
        state.order.push(call);
        let fault = state.faults.front_mut()?;
        if fault.call.is_some_and(|wanted| wanted != call) {
            return None;
        }
        if fault.nth > 0 {
            fault.nth -= 1;
            return None;
        }
        state.faults.pop_front().map(|fault| fault.failing)
    }
}

/// The executor under a plan. Once a call has failed, all do: the device is lost.
struct Faulty {
    inner: Box<dyn Executor>,
    plan: Plan,
    lost: bool,
    /// Recordings with dispatches that compute wrongly, cut behind each of these.
    parts: HashMap<PreparedId, Vec<(PreparedId, Option<BufferSlice>)>>,
    /// The dispatches of each recording.
    dispatches: HashMap<PreparedId, Vec<Dispatch>>,
    /// Whether what is prepared is to be timed.
    profiling: bool,
    next: u64,
}

/// Where a dispatch writes.
fn output(dispatch: &Dispatch) -> BufferSlice {
    let written = dispatch.kernel.bindings.iter().position(|access| *access == Access::Write);
    dispatch.bindings[written.expect("a kernel writes")]
}

impl Faulty {
    /// Counts a call; whether a read is to be spoilt.
    fn enter(&mut self, call: Call) -> Result<bool, DeviceError> {
        if self.lost {
            return Err(DeviceError::Lost { call: "a call after the loss" });
        }
        match self.plan.note(call) {
            None => Ok(false),
            Some(Failing::NotANumber) => Ok(true),
            Some(Failing::Hang(until)) => {
                drop(until.lock().unwrap_or_else(PoisonError::into_inner));
                Ok(false)
            }
            Some(Failing::With(error)) => {
                self.lost = true;
                Err(error)
            }
        }
    }
}

impl Executor for Faulty {
    hob::delegate!(capabilities avoid destroy_buffer);

    fn set_profiling(&mut self, on: bool) {
        self.profiling = on;
        self.inner.set_profiling(on);
    }

    fn create_buffer(&mut self, desc: &BufferDesc) -> Result<BufferHandle, DeviceError> {
        self.enter(Call::CreateBuffer)?;
        self.inner.create_buffer(desc)
    }

    fn replace_buffer(
        &mut self,
        buffer: BufferHandle,
        desc: &BufferDesc,
    ) -> Result<BufferHandle, DeviceError> {
        self.enter(Call::CreateBuffer)?;
        self.inner.replace_buffer(buffer, desc)
    }

    fn write(
        &mut self,
        buffer: BufferHandle,
        offset: u64,
        bytes: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), DeviceError> {
        self.enter(Call::Write)?;
        self.inner.write(buffer, offset, bytes, fill)
    }

    fn read(
        &mut self,
        buffer: BufferHandle,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), DeviceError> {
        let spoilt = self.enter(Call::Read)?;
        self.inner.read(buffer, offset, out)?;
        if spoilt {
            out.fill(0xff);
        }
        Ok(())
    }

    fn prepare(&mut self, recording: &Recording) -> Result<PreparedId, DeviceError> {
        self.enter(Call::Prepare)?;
        let is_timed = self.profiling && self.plan.state().times.is_some();
        let mut parts = Vec::new();
        let mut part = Recording::new();
        for command in &recording.commands {
            part.commands.push(command.clone());
            if let Command::Dispatch(dispatch) = command
                && self.plan.note_dispatch(dispatch)
                && !is_timed
            {
                let prepared = self.inner.prepare(&std::mem::take(&mut part))?;
                parts.push((prepared, Some(output(dispatch))));
            }
        }
        let prepared = if is_timed {
            // How long it takes is said, and nobody reads what it makes.
            self.inner.prepare(&Recording::new())?
        } else if parts.is_empty() {
            self.inner.prepare(recording)?
        } else {
            parts.push((self.inner.prepare(&part)?, None));
            self.next += 1;
            self.parts.insert(PreparedId(self.next), parts);
            PreparedId(self.next)
        };
        let dispatches = recording.commands.iter().filter_map(|command| match command {
            Command::Dispatch(dispatch) => Some(dispatch.clone()),
            _ => None,
        });
        self.dispatches.insert(prepared, dispatches.collect());
        Ok(prepared)
    }

    fn release(&mut self, prepared: PreparedId) {
        self.dispatches.remove(&prepared);
        match self.parts.remove(&prepared) {
            None => self.inner.release(prepared),
            Some(parts) => parts.into_iter().for_each(|(part, _)| self.inner.release(part)),
        }
    }

    fn submit(&mut self, prepared: PreparedId) -> Result<Ticket, DeviceError> {
        self.enter(Call::Submit)?;
        let Some(parts) = self.parts.get(&prepared) else {
            return self.inner.submit(prepared);
        };
        let mut ticket = Ticket(0);
        for (part, wrong) in parts {
            ticket = self.inner.submit(*part)?;
            if let Some(slice) = wrong {
                // As if half of the lanes had been lost.
                let mut bytes = vec![0; slice.bytes as usize];
                self.inner.read(slice.buffer, slice.offset, &mut bytes)?;
                let words = bytes.chunks_exact_mut(4);
                words.step_by(2).for_each(|word| word.copy_from_slice(&0.7_f32.to_le_bytes()));
                self.inner.write(slice.buffer, slice.offset, bytes.len(), &mut |out| {
                    out.copy_from_slice(&bytes);
                })?;
            }
        }
        Ok(ticket)
    }

    fn wait(&mut self, ticket: Ticket, timeout: Duration) -> Result<(), DeviceError> {
        self.enter(Call::Wait)?;
        self.inner.wait(ticket, timeout)
    }

    fn memory(&self) -> MemoryReport {
        let report = self.inner.memory();
        let budget_bytes = self.plan.state().budget_bytes.unwrap_or(report.budget_bytes);
        MemoryReport { budget_bytes, ..report }
    }

    fn timings(&mut self, prepared: PreparedId) -> Result<Vec<CommandTiming>, DeviceError> {
        let times = self.plan.state().times;
        match (times, self.dispatches.get(&prepared)) {
            (Some(times), Some(dispatches)) => Ok(dispatches
                .iter()
                .map(|dispatch| CommandTiming {
                    name: dispatch.kernel.name.to_owned(),
                    nanoseconds: times(dispatch),
                })
                .collect()),
            _ => self.inner.timings(prepared),
        }
    }
}
