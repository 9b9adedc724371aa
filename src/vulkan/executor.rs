//! The executor interface over a Vulkan device.

use std::collections::{HashMap, VecDeque};
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ash::vk;

use super::VulkanConfig;
use super::choice;
use super::completion::Completion;
use super::device::Device;
use super::instance::Instance;
use super::limits;
use super::memory::Memory;
use super::pipelines::Pipelines;
use super::prepared::Prepared;
use super::results::failed;
use super::staging::Staging;
use crate::gpu::{
    BufferDesc, BufferHandle, BufferSlice, BufferUsage, Capabilities, Command, CommandTiming,
    DeviceError, Executor, MemoryReport, PreparedId, Recording, Ticket,
};

/// Deadline of internal copies.
pub(super) const COPY_TIMEOUT: Duration = Duration::from_secs(60);

/// Time to wait for running submissions before their resources are destroyed. Drivers reset a hung
/// device within this time; if not, its memory is kept until the process ends.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(20);

/// An open device and what has been made on it.
pub struct VulkanExecutor {
    // Dropped by hand, unless the device may still be using them; the device itself goes with its
    // last Arc.
    pub(super) prepared: ManuallyDrop<HashMap<PreparedId, Prepared>>,
    pipelines: ManuallyDrop<Pipelines>,
    pub(super) memory: ManuallyDrop<Memory>,
    pool: vk::CommandPool,
    pub(super) completion: ManuallyDrop<Completion>,
    pub(super) device: Arc<Device>,
    capabilities: Capabilities,
    submitted: u64,
    /// Submissions that nobody has seen complete, oldest first.
    running: VecDeque<(u64, PreparedId)>,
    next_prepared: u64,
    pub(super) staging: ManuallyDrop<Option<Staging>>,
    profiling: bool,
    /// True if a submission missed its deadline: resources it may still use are not destroyed.
    hung: bool,
}

impl std::fmt::Debug for VulkanExecutor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VulkanExecutor")
            .field("device", &self.capabilities().device_name)
            .finish_non_exhaustive()
    }
}

impl VulkanExecutor {
    /// Opens the device that `config` names, or the best one.
    ///
    /// # Errors
    /// [`DeviceError`]: no loader, no device, no such device, one that lacks what hob needs, or a
    /// failed call.
    pub fn new(config: &VulkanConfig) -> Result<Self, DeviceError> {
        Self::open(config, false)
    }

    /// Opens a device as if the host did not see its memory, so that a software driver moves data
    /// as a graphics card does.
    ///
    /// # Errors
    /// As [`VulkanExecutor::new`].
    pub fn with_separate_memory(config: &VulkanConfig) -> Result<Self, DeviceError> {
        Self::open(config, true)
    }

    fn open(config: &VulkanConfig, separate_memory: bool) -> Result<Self, DeviceError> {
        let instance = Arc::new(Instance::new(config.validation)?);
        let mut chosen = choice::choose(&instance, config)?;
        chosen.info.capabilities.unified_memory &= !separate_memory;
        chosen.executable_info = false; // what runs need not be explained
        chosen.timeline_semaphore &= !config.disable_timeline;
        chosen.queues.transfer = config.transfer_family.or(chosen.queues.transfer);
        let caps = &chosen.info.capabilities;
        tracing::info!(device = %caps.device_name, driver = %caps.driver, lanes = caps.lanes,
            subgroup_ops = caps.subgroup_ops, unified_memory = caps.unified_memory,
            transfer_family = ?chosen.queues.transfer, "opening device");
        if caps.is_cpu() {
            tracing::warn!("this is a software driver: the processor computes, slowly");
        }
        let device = Arc::new(Device::open(instance, chosen, config.faults.clone())?);
        let memory = Memory::new(Arc::clone(&device))?;
        let folder = config.pipeline_cache_dir.as_deref();
        let pipelines = Pipelines::new(Arc::clone(&device), folder)?;
        let family = device.chosen.queues.compute;
        let pool = device.create_pool(family, vk::CommandPoolCreateFlags::empty(), "commands")?;
        let completion = Completion::new(&device, device.queue).inspect_err(|_| {
            // SAFETY: nothing was allocated from the pool.
            unsafe { device.raw.destroy_command_pool(pool, None) };
        })?;
        Ok(Self {
            prepared: ManuallyDrop::new(HashMap::new()),
            pipelines: ManuallyDrop::new(pipelines),
            memory: ManuallyDrop::new(memory),
            pool,
            completion: ManuallyDrop::new(completion),
            capabilities: device.chosen.info.capabilities.clone(),
            device,
            submitted: 0,
            running: VecDeque::new(),
            next_prepared: 1,
            staging: ManuallyDrop::new(None),
            profiling: false,
            hung: false,
        })
    }

    /// Messages of the validation layer, until the executor is dropped; empty without the layer.
    #[must_use]
    pub fn messages(&self) -> Arc<Mutex<Vec<String>>> {
        Arc::clone(&self.device.instance.messages)
    }

    /// Queue families in use: the one that computes, and the one that uploads go through where that
    /// is another.
    #[must_use]
    pub fn queue_families(&self) -> Vec<u32> {
        self.device.chosen.families()
    }

    /// Waits until the device is done with everything up to `ticket`; whether what it used can be
    /// destroyed.
    fn settle(&mut self, ticket: u64) -> bool {
        self.settle_by(|executor| executor.wait(Ticket(ticket), SETTLE_TIMEOUT))
    }

    /// The same with everything so far, uploads included.
    fn settle_all(&mut self) -> bool {
        self.settle_by(|executor| executor.finish_uploads(SETTLE_TIMEOUT))
            && self.settle(self.submitted)
    }

    /// Waits by `wait`. A lost device runs nothing any more, one that hangs may.
    fn settle_by(&mut self, wait: impl FnOnce(&mut Self) -> Result<(), DeviceError>) -> bool {
        if self.hung {
            return false;
        }
        match wait(self) {
            Ok(()) => {}
            Err(error @ DeviceError::Timeout { .. }) => {
                tracing::error!(%error, "the device hangs, and keeps what it was given");
                self.hung = true;
            }
            Err(error) => tracing::warn!(%error, "while waiting for the device"),
        }
        !self.hung
    }

    /// Logs the driver's account of a device loss (`VK_EXT_device_fault`), if it has one.
    pub(super) fn explain(&self, error: DeviceError) -> DeviceError {
        if matches!(error, DeviceError::Lost { .. }) {
            self.device.log_fault();
        }
        error
    }

    /// Waits until none of the submissions so far runs whose recording `uses` something.
    pub(super) fn wait_for(&mut self, uses: impl Fn(&Prepared) -> bool) -> Result<(), DeviceError> {
        match self.last_running(uses) {
            Some(ticket) => self.wait(Ticket(ticket), COPY_TIMEOUT),
            None => Ok(()),
        }
    }

    /// The last of the submissions not seen complete whose recording `uses` something.
    pub(super) fn last_running(&self, uses: impl Fn(&Prepared) -> bool) -> Option<u64> {
        let in_use = |id: &PreparedId| self.prepared.get(id).is_some_and(&uses);
        self.running.iter().rfind(|(_, id)| in_use(id)).map(|(ticket, _)| *ticket)
    }

    /// The last submission seen complete; 0 before the first.
    pub(super) fn complete(&self) -> u64 {
        self.running.front().map_or(self.submitted, |(first, _)| first - 1)
    }

    /// The error of a wait that began at `started`.
    pub(super) fn wait_failed(
        &self,
        started: Instant,
        call: &'static str,
        result: vk::Result,
    ) -> DeviceError {
        match result {
            vk::Result::TIMEOUT => {
                DeviceError::Timeout { waited_ms: started.elapsed().as_millis() as u64 }
            }
            _ => self.explain(failed(call)(result)),
        }
    }

    /// Runs commands once and waits for them.
    pub(super) fn run_now(&mut self, recording: &Recording) -> Result<(), DeviceError> {
        let prepared = self.prepare(recording)?;
        let result = self.submit(prepared).and_then(|ticket| self.wait(ticket, COPY_TIMEOUT));
        self.release(prepared);
        result
    }

    /// Zeroes a buffer that was just made; on an error there is none.
    fn zero_new(
        &mut self,
        handle: BufferHandle,
        desc: &BufferDesc,
    ) -> Result<BufferHandle, DeviceError> {
        // Weights are written whole before they are read: their packing covers every byte. Pages
        // of keys and values are zeroed one by one.
        if matches!(desc.usage, BufferUsage::Weights | BufferUsage::Kv) {
            return Ok(handle);
        }
        let bytes = self.memory.get(handle).bytes;
        let zeroed = match self.memory.get_mut(handle).mapped() {
            Some(mapped) => {
                mapped.fill(0);
                self.memory.synchronise(handle, (0, bytes), true)
            }
            None => {
                let mut recording = Recording::new();
                recording.zero(BufferSlice { buffer: handle, offset: 0, bytes });
                self.run_now(&recording)
            }
        };
        if let Err(error) = zeroed {
            self.memory.destroy(handle);
            return Err(error);
        }
        Ok(handle)
    }
}

impl Executor for VulkanExecutor {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn avoid(&mut self, kernel: &'static str) {
        self.capabilities.avoided.insert(kernel);
    }

    fn create_buffer(&mut self, desc: &BufferDesc) -> Result<BufferHandle, DeviceError> {
        let handle = self.memory.create(desc)?;
        self.zero_new(handle, desc)
    }

    fn replace_buffer(
        &mut self,
        buffer: BufferHandle,
        desc: &BufferDesc,
    ) -> Result<BufferHandle, DeviceError> {
        let freed_bytes = self.memory.get(buffer).bytes;
        self.destroy_buffer(buffer);
        let handle = self.memory.create_instead(desc, freed_bytes)?;
        self.zero_new(handle, desc)
    }

    fn destroy_buffer(&mut self, buffer: BufferHandle) {
        if self.settle_all() {
            self.prepared.retain(|_, prepared| !prepared.uses(buffer));
            self.memory.destroy(buffer);
        }
    }

    fn write(
        &mut self,
        buffer: BufferHandle,
        offset: u64,
        bytes: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), DeviceError> {
        self.memory.assert_inside(buffer, offset, bytes as u64);
        if bytes == 0 {
            return Ok(());
        }
        let at = usize::try_from(offset).expect("an offset inside a buffer");
        if self.memory.get_mut(buffer).mapped().is_some() {
            self.wait_for(|prepared| prepared.uses(buffer))?;
            let mapped = self.memory.get_mut(buffer).mapped().expect("as before");
            fill(&mut mapped[at..at + bytes]);
            return self.memory.synchronise(buffer, (offset, bytes as u64), true);
        }
        self.upload((buffer, offset), bytes, fill)
    }

    fn read(
        &mut self,
        buffer: BufferHandle,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), DeviceError> {
        self.memory.assert_inside(buffer, offset, out.len() as u64);
        if out.is_empty() {
            return Ok(());
        }
        if self.memory.get(buffer).is_slow_to_read() {
            return self.download((buffer, offset), out);
        }
        self.wait_for(|prepared| prepared.writes(buffer))?;
        let at = usize::try_from(offset).expect("an offset inside a buffer");
        self.memory.synchronise(buffer, (offset, out.len() as u64), false)?;
        if let Some(mapped) = self.memory.get_mut(buffer).mapped() {
            out.copy_from_slice(&mapped[at..at + out.len()]);
            return Ok(());
        }
        self.download((buffer, offset), out)
    }

    fn prepare(&mut self, recording: &Recording) -> Result<PreparedId, DeviceError> {
        limits::check(recording, self.capabilities(), |buffer| self.memory.get(buffer).bytes)?;
        let dispatches = recording.commands.iter().filter_map(|command| match command {
            Command::Dispatch(dispatch) => Some(dispatch),
            _ => None,
        });
        self.pipelines.ensure(dispatches)?;
        self.pipelines.save_now_and_then();
        let profile = self.profiling && self.capabilities().timestamp_period_ns > 0.0;
        let prepared = Prepared::record(
            &self.device,
            self.pool,
            &self.memory,
            &self.pipelines,
            recording,
            profile,
        )?;
        let id = PreparedId(self.next_prepared);
        self.next_prepared += 1;
        self.prepared.insert(id, prepared);
        Ok(id)
    }

    fn release(&mut self, prepared: PreparedId) {
        let Some(last) = self.prepared.get(&prepared).map(|prepared| prepared.last_ticket) else {
            return;
        };
        if self.settle(last) {
            self.prepared.remove(&prepared);
        }
    }

    fn submit(&mut self, prepared: PreparedId) -> Result<Ticket, DeviceError> {
        let after = self.before_recording()?;
        let recording = self.prepared.get(&prepared).expect("a prepared recording");
        self.completion
            .submit(recording.commands, self.submitted + 1, after)
            .map_err(|result| self.explain(failed("vkQueueSubmit")(result)))?;
        self.follow_uploads();
        self.submitted += 1;
        let recording = self.prepared.get_mut(&prepared).expect("it was there");
        recording.last_ticket = self.submitted;
        self.running.push_back((self.submitted, prepared));
        Ok(Ticket(self.submitted))
    }

    fn wait(&mut self, ticket: Ticket, timeout: Duration) -> Result<(), DeviceError> {
        assert!(ticket.0 <= self.submitted, "a ticket of this executor");
        if ticket.0 == 0 {
            return Ok(());
        }
        let started = Instant::now();
        let waited = self.completion.wait(ticket.0, timeout);
        waited.map_err(|(call, result)| self.wait_failed(started, call, result))?;
        while self.running.front().is_some_and(|(running, _)| *running <= ticket.0) {
            self.running.pop_front();
        }
        Ok(())
    }

    fn memory(&self) -> MemoryReport {
        self.memory.report()
    }

    fn set_profiling(&mut self, on: bool) {
        self.profiling = on;
    }

    fn timings(&mut self, prepared: PreparedId) -> Result<Vec<CommandTiming>, DeviceError> {
        let Some(last) = self.prepared.get(&prepared).map(|prepared| prepared.last_ticket) else {
            return Ok(Vec::new());
        };
        self.wait(Ticket(last), COPY_TIMEOUT)?;
        self.prepared[&prepared].timings()
    }
}

impl Drop for VulkanExecutor {
    fn drop(&mut self) {
        if !self.settle_all() {
            // The device lives on, too.
            std::mem::forget(Arc::clone(&self.device));
            return;
        }
        // SAFETY: all submissions are done (or the device is lost and runs nothing), so no one uses
        // what is destroyed; recordings go before the pool they came from, and each part once.
        unsafe {
            ManuallyDrop::drop(&mut self.prepared);
            ManuallyDrop::drop(&mut self.staging);
            ManuallyDrop::drop(&mut self.completion);
            self.device.raw.destroy_command_pool(self.pool, None);
            ManuallyDrop::drop(&mut self.pipelines);
            ManuallyDrop::drop(&mut self.memory);
        }
    }
}
