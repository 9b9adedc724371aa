//! What a device can be asked to do, as pure data: buffers by handle, dispatches over them, and the
//! [`Executor`] trait that runs them.
//!
//! A [`Recording`] is an ordered list of dispatches and copies. An executor plans the hazards once
//! ([`Executor::prepare`]) and can then submit the same recording any number of times: whatever
//! changes from step to step lives in the contents of buffers, never in the recording.
//!
//! This module must not know a model, a kernel's meaning, or Vulkan.

mod capabilities;
mod delegate;
mod error;
mod recording;

pub use capabilities::{Capabilities, Choice, DeviceType, MatrixUnits, Work, Workarounds};
pub use error::DeviceError;
pub use recording::{
    Access, BufferDesc, BufferHandle, BufferSlice, BufferUsage, Command, Dispatch, Kernel,
    Recording,
};

use std::time::Duration;

/// A recording that an executor has planned and keeps ready to submit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PreparedId(pub u64);

/// One submission, in the order of submission; a ticket completes after all earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// Device memory as the executor sees it now, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryReport {
    /// Bytes this executor has allocated on the device.
    pub used_bytes: u64,
    /// Bytes this process may use in all: by the driver's own budget where it tells one, which
    /// changes with what other programs do and may be less than what is used; else what the device
    /// has.
    pub budget_bytes: u64,
    /// Bytes the device has.
    pub total_bytes: u64,
}

/// GPU time of one command of a submission.
#[derive(Clone, Debug, PartialEq)]
pub struct CommandTiming {
    /// Name of the kernel, or `copy` / `fill`.
    pub name: String,
    /// Duration on the device.
    pub nanoseconds: f64,
}

/// Runs recordings on a device: Vulkan, or the scalar reference on the CPU.
///
/// One thread owns an executor. All methods that touch the device
/// return the [`DeviceError`] that names the failed call.
pub trait Executor: Send {
    /// Capabilities of the device; constant for the executor's life except for [`Executor::avoid`].
    fn capabilities(&self) -> &Capabilities;

    /// Marks a kernel as miscomputing on this device; variant selection then skips it.
    fn avoid(&mut self, kernel: &'static str);

    /// Creates a buffer, zero-filled but for weights, which are written whole before they are read,
    /// and for keys and values, whose pages are zeroed before they are leased.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] with the bytes wanted and free.
    fn create_buffer(&mut self, desc: &BufferDesc) -> Result<BufferHandle, DeviceError>;

    /// Destroys a buffer once no submission uses it, with every prepared recording that names it.
    fn destroy_buffer(&mut self, buffer: BufferHandle);

    /// Destroys a buffer as [`Executor::destroy_buffer`], and creates another in its place. One
    /// that is no larger is not held against the device's budget: it gives memory back.
    ///
    /// # Errors
    /// As [`Executor::create_buffer`]; the old buffer is gone even so.
    fn replace_buffer(
        &mut self,
        buffer: BufferHandle,
        desc: &BufferDesc,
    ) -> Result<BufferHandle, DeviceError> {
        self.destroy_buffer(buffer);
        self.create_buffer(desc)
    }

    /// Has `fill` write `bytes` bytes at `offset` of `buffer`: straight into mapped memory where
    /// the host can see the buffer, else into a staging piece that is then copied. The write is
    /// complete before any later submission starts; it waits for those so far that use the buffer,
    /// and for no others. The piece handed to `fill` has exactly `bytes`
    /// bytes and holds unspecified contents: write all of it.
    fn write(
        &mut self,
        buffer: BufferHandle,
        offset: u64,
        bytes: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), DeviceError>;

    /// Reads `out.len()` bytes at `offset` of `buffer`. Waits for submissions so far that write it.
    fn read(
        &mut self,
        buffer: BufferHandle,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), DeviceError>;

    /// Compiles the pipelines a recording needs and plans its hazards.
    fn prepare(&mut self, recording: &Recording) -> Result<PreparedId, DeviceError>;

    /// Forgets a prepared recording.
    fn release(&mut self, prepared: PreparedId);

    /// Starts a prepared recording; several submissions run in the order of their tickets.
    fn submit(&mut self, prepared: PreparedId) -> Result<Ticket, DeviceError>;

    /// Waits until `ticket` is complete.
    ///
    /// # Errors
    /// [`DeviceError::Timeout`] if it is not within `timeout`; [`DeviceError::Lost`].
    fn wait(&mut self, ticket: Ticket, timeout: Duration) -> Result<(), DeviceError>;

    /// Device memory in use and available; the driver is asked anew each time.
    fn memory(&self) -> MemoryReport;

    /// Turns GPU timing of each command on or off for recordings prepared from now on.
    fn set_profiling(&mut self, on: bool);

    /// Timings of the last completed submission of `prepared`; empty where profiling is off.
    fn timings(&mut self, prepared: PreparedId) -> Result<Vec<CommandTiming>, DeviceError>;
}
