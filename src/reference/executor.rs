//! The executor interface over host memory.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use super::{Memory, run};
use crate::gpu::{
    BufferDesc, BufferHandle, BufferUsage, Capabilities, Command, CommandTiming, DeviceError,
    DeviceType, Executor, MemoryReport, PreparedId, Recording, Ticket, Workarounds,
};

/// Largest total of buffers; the reference is for small models and tests.
const BUDGET_BYTES: u64 = 16 << 30;

/// Runs recordings with the scalar twins, at once and in order.
#[derive(Debug)]
pub struct ReferenceExecutor {
    capabilities: Capabilities,
    memory: Memory,
    prepared: HashMap<PreparedId, Recording>,
    next: u64,
}

impl Default for ReferenceExecutor {
    fn default() -> Self {
        Self::new()
    }
}

impl ReferenceExecutor {
    /// An executor with rows interleaved one by one.
    #[must_use]
    pub fn new() -> Self {
        Self::with_lanes(1)
    }

    /// An executor that keeps the layouts of a device with `lanes` lanes.
    #[must_use]
    pub fn with_lanes(lanes: u32) -> Self {
        let capabilities = Capabilities {
            device_name: "reference".into(),
            driver: concat!("hob ", env!("CARGO_PKG_VERSION")).into(),
            device_type: DeviceType::Cpu,
            vendor_id: 0,
            device_id: 0,
            uuid: [0; 16],
            lanes,
            subgroup_ops: true,
            storage_range_max: u64::from(u32::MAX),
            storage_align: 4,
            allocation_bytes_max: BUDGET_BYTES,
            push_bytes_max: 128,
            workgroup_count_max: [u32::MAX; 3],
            workgroup_invocations_max: 1024,
            shared_bytes_max: 1 << 16,
            storage_16bit: true,
            half_arithmetic: true,
            int8_matmuls: true,
            int8_dot_accelerated: false,
            matrix_units: None,
            buffer_pointers: false,
            uniform_loads: false,
            unified_memory: true,
            timestamp_period_ns: 0.0,
            workarounds: Workarounds::default(),
            avoided: BTreeSet::new(),
            tuned: BTreeMap::new(),
        };
        Self { capabilities, memory: Memory::default(), prepared: HashMap::new(), next: 1 }
    }

    /// The buffers, for tests that look inside.
    #[must_use]
    pub fn memory_contents(&self) -> &Memory {
        &self.memory
    }
}

impl Executor for ReferenceExecutor {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn avoid(&mut self, kernel: &'static str) {
        self.capabilities.avoided.insert(kernel);
    }

    fn create_buffer(&mut self, desc: &BufferDesc) -> Result<BufferHandle, DeviceError> {
        let free = BUDGET_BYTES.saturating_sub(self.memory.bytes());
        if desc.bytes > free {
            return Err(DeviceError::OutOfMemory {
                what: desc.label.clone(),
                wanted_bytes: desc.bytes,
                free_bytes: free,
            });
        }
        let buffer = self.memory.create(desc.bytes);
        if desc.usage == BufferUsage::Kv {
            // No numbers: whoever reads a page that was not zeroed shows it.
            self.memory.bytes_mut(buffer).fill(0xff);
        }
        Ok(buffer)
    }

    fn destroy_buffer(&mut self, buffer: BufferHandle) {
        self.memory.destroy(buffer);
    }

    fn write(
        &mut self,
        buffer: BufferHandle,
        offset: u64,
        bytes: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), DeviceError> {
        fill(&mut self.memory.bytes_mut(buffer)[offset as usize..][..bytes]);
        Ok(())
    }

    fn read(
        &mut self,
        buffer: BufferHandle,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), DeviceError> {
        out.copy_from_slice(&self.memory.bytes_mut(buffer)[offset as usize..][..out.len()]);
        Ok(())
    }

    fn prepare(&mut self, recording: &Recording) -> Result<PreparedId, DeviceError> {
        let id = PreparedId(self.next);
        self.next += 1;
        self.prepared.insert(id, recording.clone());
        Ok(id)
    }

    fn release(&mut self, prepared: PreparedId) {
        self.prepared.remove(&prepared);
    }

    fn submit(&mut self, prepared: PreparedId) -> Result<Ticket, DeviceError> {
        let recording = self.prepared.get(&prepared).expect("a prepared recording");
        for command in &recording.commands {
            match command {
                Command::Dispatch(dispatch) => run(dispatch, &mut self.memory),
                Command::Copy { from, to } => {
                    let words = self.memory.words(*from).to_vec();
                    self.memory.update_words(*to, |_, out| out.copy_from_slice(&words));
                }
                Command::Zero(slice) => self.memory.update_words(*slice, |_, out| out.fill(0)),
            }
        }
        self.next += 1;
        Ok(Ticket(self.next))
    }

    fn wait(&mut self, _ticket: Ticket, _timeout: Duration) -> Result<(), DeviceError> {
        Ok(()) // a submission runs to its end at once
    }

    fn memory(&self) -> MemoryReport {
        MemoryReport {
            used_bytes: self.memory.bytes(),
            budget_bytes: BUDGET_BYTES,
            total_bytes: BUDGET_BYTES,
        }
    }

    fn set_profiling(&mut self, _on: bool) {}

    fn timings(&mut self, _prepared: PreparedId) -> Result<Vec<CommandTiming>, DeviceError> {
        Ok(Vec::new())
    }
}
