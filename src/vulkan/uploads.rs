//! The line of uploads: copies out of two staging buffers, submitted beside what computes.
//!
//! They go to a queue that does nothing but copy, where the device has one, and are otherwise like
//! any other submission. Whoever is to come after whom is told by semaphores, or the host waits
//! where a driver tells of completion by fences alone.

use std::sync::Arc;

use ash::vk;

use super::completion::{Completion, Signal};
use super::device::Device;
use super::results::failed;
use crate::gpu::{BufferHandle, DeviceError};

/// Ring of staging memory for uploads.
pub(super) struct Uploads {
    device: Arc<Device>,
    pool: vk::CommandPool,
    pub completion: Completion,
    /// One is filled while the device empties the other.
    places: [Place; 2],
    /// The place that is next.
    next: usize,
    /// Ticket of the last upload; its tickets are its own. 0 before the first.
    pub submitted: u64,
    /// The last upload that the queue which computes knows of.
    pub followed: u64,
}

/// Place in staging memory that an upload is copied from.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub buffer: BufferHandle,
    commands: vk::CommandBuffer,
    /// Ticket of its last upload; 0 before the first.
    pub ticket: u64,
}

impl Uploads {
    pub(super) fn new(
        device: &Arc<Device>,
        buffers: [BufferHandle; 2],
    ) -> Result<Self, DeviceError> {
        let queues = &device.chosen.queues;
        let family = queues.transfer.unwrap_or(queues.compute);
        let completion = Completion::new(device, device.upload_queue)?;
        let flags = vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER;
        let pool = device.create_pool(family, flags, "uploads")?;
        let place = |buffer| Place { buffer, commands: vk::CommandBuffer::null(), ticket: 0 };
        // From here on, dropping `uploads` gives back what was made so far.
        let mut uploads = Self {
            device: Arc::clone(device),
            pool,
            completion,
            places: buffers.map(place),
            next: 0,
            submitted: 0,
            followed: 0,
        };
        let info = vk::CommandBufferAllocateInfo::default()
            .command_pool(pool)
            .level(vk::CommandBufferLevel::PRIMARY)
            .command_buffer_count(uploads.places.len() as u32);
        // SAFETY: the pool is alive and used by one thread.
        let allocate = || unsafe { device.raw.allocate_command_buffers(&info) };
        let call = "vkAllocateCommandBuffers";
        let commands = device.call(call, allocate).map_err(failed(call))?;
        for (place, commands) in uploads.places.iter_mut().zip(commands) {
            device.name(commands, "upload");
            place.commands = commands;
        }
        Ok(uploads)
    }

    /// Place for the next upload. The caller waits for its ticket before filling it.
    pub(super) fn place(&self) -> Place {
        self.places[self.next]
    }

    /// Starts a copy from the place that is next, whose ticket was waited for, to `to`; it begins
    /// after the other queue's signal `after`.
    pub(super) fn submit(
        &mut self,
        (from, to): (vk::Buffer, vk::Buffer),
        region: vk::BufferCopy,
        after: Option<Signal>,
    ) -> Result<(), DeviceError> {
        let commands = self.places[self.next].commands;
        self.record(commands, (from, to), region)?;
        let ticket = self.submitted + 1;
        self.completion.submit(commands, ticket, after).map_err(failed("vkQueueSubmit"))?;
        self.submitted = ticket;
        self.places[self.next].ticket = ticket;
        self.next = (self.next + 1) % self.places.len();
        Ok(())
    }

    fn record(
        &self,
        commands: vk::CommandBuffer,
        (from, to): (vk::Buffer, vk::Buffer),
        region: vk::BufferCopy,
    ) -> Result<(), DeviceError> {
        let raw = &self.device.raw;
        let info = vk::CommandBufferBeginInfo::default()
            .flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        // SAFETY: its last submission is complete, and one thread uses the pool.
        let begin = || unsafe { raw.begin_command_buffer(commands, &info) };
        let call = "vkBeginCommandBuffer";
        self.device.call(call, begin).map_err(failed(call))?;
        // Uploads may overwrite one another.
        let barrier = vk::MemoryBarrier::default()
            .src_access_mask(vk::AccessFlags::TRANSFER_WRITE)
            .dst_access_mask(vk::AccessFlags::TRANSFER_WRITE);
        let stage = vk::PipelineStageFlags::TRANSFER;
        let flags = vk::DependencyFlags::empty();
        // SAFETY: the command buffer is being recorded; the buffers are alive, and stay so while
        // the executor waits for uploads before it destroys any. The region is inside both.
        unsafe {
            raw.cmd_pipeline_barrier(commands, stage, stage, flags, &[barrier], &[], &[]);
            raw.cmd_copy_buffer(commands, from, to, &[region]);
        }
        // SAFETY: as above.
        let end = || unsafe { raw.end_command_buffer(commands) };
        let call = "vkEndCommandBuffer";
        self.device.call(call, end).map_err(failed(call))
    }
}

impl Drop for Uploads {
    fn drop(&mut self) {
        // SAFETY: the executor waits for uploads before it drops them; the command buffers go with
        // their pool.
        unsafe { self.device.raw.destroy_command_pool(self.pool, None) };
    }
}
