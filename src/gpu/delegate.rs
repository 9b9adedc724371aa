//! Calls that an executor around another one hands on as they are.

/// In an `impl Executor`, has the methods named hand their calls on to `self.inner`.
#[macro_export]
macro_rules! delegate {
    ($($method:ident)*) => { $($crate::delegate!(@ $method);)* };
    (@ capabilities) => {
        fn capabilities(&self) -> &$crate::gpu::Capabilities {
            self.inner.capabilities()
        }
    };
    (@ avoid) => {
        fn avoid(&mut self, kernel: &'static str) {
            self.inner.avoid(kernel);
        }
    };
    (@ create_buffer) => {
        fn create_buffer(
            &mut self,
            desc: &$crate::gpu::BufferDesc,
        ) -> Result<$crate::gpu::BufferHandle, $crate::gpu::DeviceError> {
            self.inner.create_buffer(desc)
        }
    };
    (@ destroy_buffer) => {
        fn destroy_buffer(&mut self, buffer: $crate::gpu::BufferHandle) {
            self.inner.destroy_buffer(buffer);
        }
    };
    (@ replace_buffer) => {
        fn replace_buffer(
            &mut self,
            buffer: $crate::gpu::BufferHandle,
            desc: &$crate::gpu::BufferDesc,
        ) -> Result<$crate::gpu::BufferHandle, $crate::gpu::DeviceError> {
            self.inner.replace_buffer(buffer, desc)
        }
    };
    (@ write) => {
        fn write(
            &mut self,
            buffer: $crate::gpu::BufferHandle,
            offset: u64,
            bytes: usize,
            fill: &mut dyn FnMut(&mut [u8]),
        ) -> Result<(), $crate::gpu::DeviceError> {
            self.inner.write(buffer, offset, bytes, fill)
        }
    };
    (@ read) => {
        fn read(
            &mut self,
            buffer: $crate::gpu::BufferHandle,
            offset: u64,
            out: &mut [u8],
        ) -> Result<(), $crate::gpu::DeviceError> {
            self.inner.read(buffer, offset, out)
        }
    };
    (@ prepare) => {
        fn prepare(
            &mut self,
            recording: &$crate::gpu::Recording,
        ) -> Result<$crate::gpu::PreparedId, $crate::gpu::DeviceError> {
            self.inner.prepare(recording)
        }
    };
    (@ release) => {
        fn release(&mut self, prepared: $crate::gpu::PreparedId) {
            self.inner.release(prepared);
        }
    };
    (@ submit) => {
        fn submit(
            &mut self,
            prepared: $crate::gpu::PreparedId,
        ) -> Result<$crate::gpu::Ticket, $crate::gpu::DeviceError> {
            self.inner.submit(prepared)
        }
    };
    (@ wait) => {
        fn wait(
            &mut self,
            ticket: $crate::gpu::Ticket,
            timeout: ::std::time::Duration,
        ) -> Result<(), $crate::gpu::DeviceError> {
            self.inner.wait(ticket, timeout)
        }
    };
    (@ memory) => {
        fn memory(&self) -> $crate::gpu::MemoryReport {
            self.inner.memory()
        }
    };
    (@ set_profiling) => {
        fn set_profiling(&mut self, on: bool) {
            self.inner.set_profiling(on);
        }
    };
    (@ timings) => {
        fn timings(
            &mut self,
            prepared: $crate::gpu::PreparedId,
        ) -> Result<Vec<$crate::gpu::CommandTiming>, $crate::gpu::DeviceError> {
            self.inner.timings(prepared)
        }
    };
}
