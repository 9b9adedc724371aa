//! The way to memory that the host does not see: copies by the device, through buffers that both
//! see.

use std::time::{Duration, Instant};

use ash::vk;

use super::completion::Signal;
use super::executor::{COPY_TIMEOUT, VulkanExecutor};
use super::uploads::Uploads;
use crate::gpu::{BufferDesc, BufferHandle, BufferSlice, BufferUsage, DeviceError, Recording};

/// Bytes of each staging buffer.
const STAGING_BYTES: u64 = 16 << 20;

/// Staging buffers.
pub(super) struct Staging {
    uploads: Uploads,
    down: BufferHandle,
}

impl VulkanExecutor {
    /// Uploads what `fill` writes. What is submitted later finds it done; a failure shows where
    /// that is waited for.
    pub(super) fn upload(
        &mut self,
        (buffer, offset): (BufferHandle, u64),
        bytes: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), DeviceError> {
        if bytes as u64 <= STAGING_BYTES {
            return self.upload_piece((buffer, offset), bytes, fill);
        }
        // `fill` wants one piece: larger ones go by way of the heap.
        let mut piece = vec![0; bytes];
        fill(&mut piece);
        for (index, part) in piece.chunks(STAGING_BYTES as usize).enumerate() {
            let to = (buffer, offset + index as u64 * STAGING_BYTES);
            self.upload_piece(to, part.len(), &mut |out| out.copy_from_slice(part))?;
        }
        Ok(())
    }

    /// Reads what the device has done so far.
    pub(super) fn download(
        &mut self,
        (buffer, offset): (BufferHandle, u64),
        out: &mut [u8],
    ) -> Result<(), DeviceError> {
        let down = self.staging()?.down;
        for (index, part) in out.chunks_mut(STAGING_BYTES as usize).enumerate() {
            let from = offset + index as u64 * STAGING_BYTES;
            self.copy_now((buffer, from), (down, 0), part.len() as u64)?;
            let staging = self.memory.get_mut(down).mapped().expect("host memory is mapped");
            part.copy_from_slice(&staging[..part.len()]);
        }
        Ok(())
    }

    fn staging(&mut self) -> Result<&mut Staging, DeviceError> {
        if self.staging.is_none() {
            let desc = |label: &str, usage| BufferDesc {
                label: label.into(),
                bytes: STAGING_BYTES,
                usage,
            };
            let mut up = || self.memory.create(&desc("staging", BufferUsage::Upload));
            let up = [up()?, up()?];
            let down = self.memory.create(&desc("staging readback", BufferUsage::Readback))?;
            let uploads = Uploads::new(&self.device, up)?;
            *self.staging = Some(Staging { uploads, down });
        }
        Ok(self.staging.as_mut().expect("made above"))
    }

    /// Starts an upload of at most [`STAGING_BYTES`].
    fn upload_piece(
        &mut self,
        (to, offset): (BufferHandle, u64),
        bytes: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), DeviceError> {
        let place = self.staging()?.uploads.place();
        self.finish_upload(place.ticket, COPY_TIMEOUT)?;
        let mapped = self.memory.get_mut(place.buffer).mapped().expect("host memory is mapped");
        fill(&mut mapped[..bytes]);
        let after = self.before_upload(to)?;
        let buffers = (self.memory.get(place.buffer).raw, self.memory.get(to).raw);
        let region = vk::BufferCopy::default().dst_offset(offset).size(bytes as u64);
        let submitted = self.staging()?.uploads.submit(buffers, region, after);
        submitted.map_err(|error| self.explain(error))
    }

    /// Semaphore wait that orders an upload to `buffer` after its last use, or after the last
    /// completion seen by the host, which the upload queue cannot know otherwise; `None` if the
    /// host has waited already.
    fn before_upload(&mut self, buffer: BufferHandle) -> Result<Option<Signal>, DeviceError> {
        let user = self.last_running(|prepared| prepared.uses(buffer));
        let ticket = user.unwrap_or_else(|| self.complete());
        match self.completion.signal(ticket) {
            signal if signal.is_some() && ticket > 0 => Ok(signal),
            _ => self.wait_for(|prepared| prepared.uses(buffer)).map(|()| None),
        }
    }

    /// Semaphore wait that orders the next recording after pending uploads; `None` if the host has
    /// waited already.
    pub(super) fn before_recording(&mut self) -> Result<Option<Signal>, DeviceError> {
        let Some(Staging { uploads, .. }) = &*self.staging else { return Ok(None) };
        let last = uploads.submitted;
        if last == uploads.followed {
            return Ok(None);
        }
        match uploads.completion.signal(last) {
            None => self.finish_upload(last, COPY_TIMEOUT).map(|()| None),
            signal => Ok(signal),
        }
    }

    /// Notes that a recording comes after all uploads so far.
    pub(super) fn follow_uploads(&mut self) {
        if let Some(Staging { uploads, .. }) = &mut *self.staging {
            uploads.followed = uploads.submitted;
        }
    }

    /// Waits for all uploads.
    pub(super) fn finish_uploads(&mut self, timeout: Duration) -> Result<(), DeviceError> {
        let last = self.staging.as_ref().map_or(0, |staging| staging.uploads.submitted);
        self.finish_upload(last, timeout)
    }

    /// Waits for an upload and all before it; 0 is none.
    fn finish_upload(&mut self, ticket: u64, timeout: Duration) -> Result<(), DeviceError> {
        let Some(staging) = self.staging.as_mut().filter(|_| ticket > 0) else {
            return Ok(());
        };
        let started = Instant::now();
        let waited = staging.uploads.completion.wait(ticket, timeout);
        waited.map_err(|(call, result)| self.wait_failed(started, call, result))
    }

    fn copy_now(
        &mut self,
        (from, from_offset): (BufferHandle, u64),
        (to, to_offset): (BufferHandle, u64),
        bytes: u64,
    ) -> Result<(), DeviceError> {
        let slice = |buffer, offset| BufferSlice { buffer, offset, bytes };
        let mut recording = Recording::new();
        recording.copy(slice(from, from_offset), slice(to, to_offset));
        self.run_now(&recording)
    }
}
