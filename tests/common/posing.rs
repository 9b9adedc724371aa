//! An executor that says other things of its device than are so.
#![allow(dead_code, unreachable_pub)] // each test uses a part

use std::time::Duration;

use hob::gpu::{
    BufferDesc, BufferHandle, Capabilities, CommandTiming, DeviceError, Executor, MemoryReport,
    PreparedId, Recording, Ticket,
};

/// `inner`, which has others believe that its capabilities are `capabilities`.
pub struct Posing {
    pub inner: Box<dyn Executor>,
    pub capabilities: Capabilities,
}

impl Executor for Posing {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn avoid(&mut self, kernel: &'static str) {
        self.capabilities.avoided.insert(kernel);
    }

    fn create_buffer(&mut self, desc: &BufferDesc) -> Result<BufferHandle, DeviceError> {
        self.inner.create_buffer(desc)
    }

    fn destroy_buffer(&mut self, buffer: BufferHandle) {
        self.inner.destroy_buffer(buffer);
    }

    fn write(
        &mut self,
        buffer: BufferHandle,
        offset: u64,
        bytes: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), DeviceError> {
        self.inner.write(buffer, offset, bytes, fill)
    }

    fn read(
        &mut self,
        buffer: BufferHandle,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), DeviceError> {
        self.inner.read(buffer, offset, out)
    }

    fn prepare(&mut self, recording: &Recording) -> Result<PreparedId, DeviceError> {
        self.inner.prepare(recording)
    }

    fn release(&mut self, prepared: PreparedId) {
        self.inner.release(prepared);
    }

    fn submit(&mut self, prepared: PreparedId) -> Result<Ticket, DeviceError> {
        self.inner.submit(prepared)
    }

    fn wait(&mut self, ticket: Ticket, timeout: Duration) -> Result<(), DeviceError> {
        self.inner.wait(ticket, timeout)
    }

    fn memory(&self) -> MemoryReport {
        self.inner.memory()
    }

    fn set_profiling(&mut self, on: bool) {
        self.inner.set_profiling(on);
    }

    fn timings(&mut self, prepared: PreparedId) -> Result<Vec<CommandTiming>, DeviceError> {
        self.inner.timings(prepared)
    }
}
