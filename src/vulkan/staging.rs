//! The way to memory that the host does not see: copies by the device, through buffers that both
//! see.

use super::executor::{COPY_TIMEOUT, VulkanExecutor};
use crate::gpu::{
    BufferDesc, BufferHandle, BufferSlice, BufferUsage, DeviceError, Executor as _, PreparedId,
    Recording, Ticket,
};

/// Bytes of each staging buffer.
const STAGING_BYTES: u64 = 16 << 20;

/// The buffers.
pub(super) struct Staging {
    /// Uploads go through one while the device empties the other.
    up: [BufferHandle; 2],
    /// The copies that were started last.
    copies: [Option<PreparedId>; 2],
    /// The upload buffer that is next.
    next: usize,
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
            self.staging = Some(Staging { up, copies: [None; 2], next: 0, down });
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
        let staging = self.staging()?;
        let at = staging.next;
        staging.next = 1 - at;
        let up = staging.up[at];
        if let Some(before) = staging.copies[at].take() {
            self.finish_copy(before)?;
        }
        let mapped = self.memory.get_mut(up).mapped().expect("host memory is mapped");
        fill(&mut mapped[..bytes]);
        let slice = |buffer, offset| BufferSlice { buffer, offset, bytes: bytes as u64 };
        let mut recording = Recording::new();
        recording.copy(slice(up, 0), slice(to, offset));
        let copy = self.prepare(&recording)?;
        self.submit(copy).inspect_err(|_| self.release(copy))?;
        self.staging()?.copies[at] = Some(copy);
        Ok(())
    }

    fn finish_copy(&mut self, copy: PreparedId) -> Result<(), DeviceError> {
        let Some(prepared) = self.prepared.get(&copy) else {
            return Ok(()); // it went with its buffer
        };
        let ended = self.wait(Ticket(prepared.last_ticket), COPY_TIMEOUT);
        self.release(copy);
        ended
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
