//! How the executor learns that a submission is complete: a timeline semaphore, or one fence for
//! each submission where a driver has none.
//!
//! Vulkan 1.2 asks for timeline semaphores, but not all that call themselves 1.2 have them (layers
//! and drivers that execute nothing, for one).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use ash::vk;

use super::device::Device;
use super::results::failed;
use crate::gpu::DeviceError;

/// The signal of all submissions of one kind to a queue, which complete in their order.
pub(super) struct Completion {
    device: Arc<Device>,
    queue: vk::Queue,
    kind: Kind,
}

/// Semaphore that a submission waits for on the device.
#[derive(Clone, Copy)]
pub(super) struct Signal {
    semaphore: vk::Semaphore,
    value: u64,
}

enum Kind {
    /// Timeline semaphore; its value is the last completed ticket.
    Timeline(vk::Semaphore),
    Fences {
        /// Tickets and their fences, oldest first.
        pending: VecDeque<(u64, vk::Fence)>,
        /// Not signalled, and in no submission.
        idle: Vec<vk::Fence>,
    },
}

impl Completion {
    pub(super) fn new(device: &Arc<Device>, queue: vk::Queue) -> Result<Self, DeviceError> {
        let kind = if device.chosen.timeline_semaphore {
            Kind::Timeline(create_timeline(device)?)
        } else {
            Kind::Fences { pending: VecDeque::new(), idle: Vec::new() }
        };
        Ok(Self { device: Arc::clone(device), queue, kind })
    }

    /// Semaphore wait that orders a submission on another queue after `ticket`; `None` if only the
    /// host can wait.
    pub(super) fn signal(&self, ticket: u64) -> Option<Signal> {
        match self.kind {
            Kind::Timeline(semaphore) => Some(Signal { semaphore, value: ticket }),
            Kind::Fences { .. } => None,
        }
    }

    /// Submits a command buffer, whose completion is then that of `ticket`, one more than the last.
    /// It begins after the other queue's signal `after`.
    pub(super) fn submit(
        &mut self,
        commands: vk::CommandBuffer,
        ticket: u64,
        after: Option<Signal>,
    ) -> Result<(), vk::Result> {
        let (device, queue) = (&self.device, self.queue);
        let call = "vkQueueSubmit";
        let commands = [commands];
        let info = vk::SubmitInfo::default().command_buffers(&commands);
        match &mut self.kind {
            Kind::Timeline(semaphore) => {
                let (value, signals) = ([ticket], [*semaphore]);
                let waits: Vec<_> = after.iter().map(|signal| signal.semaphore).collect();
                let wait_values: Vec<_> = after.iter().map(|signal| signal.value).collect();
                let stages = vec![vk::PipelineStageFlags::ALL_COMMANDS; waits.len()];
                let mut values = vk::TimelineSemaphoreSubmitInfo::default()
                    .wait_semaphore_values(&wait_values)
                    .signal_semaphore_values(&value);
                let info = info
                    .wait_semaphores(&waits)
                    .wait_dst_stage_mask(&stages)
                    .signal_semaphores(&signals)
                    .push_next(&mut values);
                // SAFETY: one thread owns the queue; the command buffer is not recorded anew, and
                // stays alive, until the owner has waited for this value.
                let submit =
                    || unsafe { device.raw.queue_submit(queue, &[info], vk::Fence::null()) };
                device.call(call, submit)
            }
            Kind::Fences { pending, idle } => {
                let fence = match idle.pop() {
                    Some(fence) => fence,
                    None => create_fence(device)?,
                };
                // SAFETY: as above; the fence is in no other submission and not signalled.
                let submit = || unsafe { device.raw.queue_submit(queue, &[info], fence) };
                let submitted = device.call(call, submit);
                match submitted {
                    Ok(()) => pending.push_back((ticket, fence)),
                    Err(_) => idle.push(fence),
                }
                submitted
            }
        }
    }

    /// Waits until `ticket`, which was submitted, is complete. An error has the call that gave it.
    pub(super) fn wait(
        &mut self,
        ticket: u64,
        timeout: Duration,
    ) -> Result<(), (&'static str, vk::Result)> {
        let limit_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let device = &self.device;
        match &mut self.kind {
            Kind::Timeline(semaphore) => {
                let (semaphores, values) = ([*semaphore], [ticket]);
                let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
                // SAFETY: the semaphore is alive and the value has been submitted.
                let wait = || unsafe { device.raw.wait_semaphores(&info, limit_ns) };
                let call = "vkWaitSemaphores";
                device.call(call, wait).map_err(|result| (call, result))
            }
            Kind::Fences { pending, idle } => {
                let Some((_, fence)) = pending.iter().rfind(|(known, _)| *known <= ticket) else {
                    return Ok(()); // waited for before
                };
                // SAFETY: the fence is alive and in a submission.
                let wait = || unsafe { device.raw.wait_for_fences(&[*fence], true, limit_ns) };
                let call = "vkWaitForFences";
                device.call(call, wait).map_err(|result| (call, result))?;
                while pending.front().is_some_and(|(known, _)| *known <= ticket) {
                    let (_, fence) = pending.pop_front().expect("there is a front");
                    // SAFETY: its submission is complete: later ones complete no earlier.
                    unsafe { device.raw.reset_fences(&[fence]) }
                        .map_err(|result| ("vkResetFences", result))?;
                    idle.push(fence);
                }
                Ok(())
            }
        }
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        // SAFETY: the executor waits for all submissions before it drops its parts, or the device
        // is lost and runs nothing.
        unsafe {
            match &mut self.kind {
                Kind::Timeline(semaphore) => self.device.raw.destroy_semaphore(*semaphore, None),
                Kind::Fences { pending, idle } => {
                    let fences = pending.drain(..).map(|(_, fence)| fence).chain(idle.drain(..));
                    fences.for_each(|fence| self.device.raw.destroy_fence(fence, None));
                }
            }
        }
    }
}

fn create_timeline(device: &Device) -> Result<vk::Semaphore, DeviceError> {
    let mut kind =
        vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
    let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
    // SAFETY: the structures live until the call returns; timeline semaphores are enabled.
    let create = || unsafe { device.raw.create_semaphore(&info, None) };
    let call = "vkCreateSemaphore";
    let semaphore = device.call(call, create).map_err(failed(call))?;
    device.name(semaphore, "timeline");
    Ok(semaphore)
}

fn create_fence(device: &Device) -> Result<vk::Fence, vk::Result> {
    let info = vk::FenceCreateInfo::default();
    // SAFETY: the structure lives until the call returns.
    let create = || unsafe { device.raw.create_fence(&info, None) };
    let fence = device.call("vkCreateFence", create)?;
    device.name(fence, "submission");
    Ok(fence)
}
