//! A recording as a command buffer that can be submitted again and again.

use std::sync::Arc;

use ash::vk;

use super::device::Device;
use super::hazards::{self, Hazards};
use super::memory::Memory;
use super::pipelines::Pipelines;
use super::results::failed;
use crate::gpu::{
    Access, BufferHandle, BufferSlice, Command, CommandTiming, DeviceError, Dispatch, Recording,
};

/// A command buffer with the descriptor sets and timestamps it uses.
pub(super) struct Prepared {
    device: Arc<Device>,
    pool: vk::CommandPool,
    pub commands: vk::CommandBuffer,
    descriptors: vk::DescriptorPool,
    queries: vk::QueryPool,
    names: Vec<String>,
    /// Buffers in use, sorted.
    buffers: Vec<BufferHandle>,
    /// Buffers written, sorted.
    written: Vec<BufferHandle>,
    /// Ticket of the last submission; 0 before the first.
    pub last_ticket: u64,
}

impl Prepared {
    /// Records the commands, with barriers where they conflict; their pipelines must be there.
    pub(super) fn record(
        device: &Arc<Device>,
        pool: vk::CommandPool,
        memory: &Memory,
        pipelines: &Pipelines,
        recording: &Recording,
        profile: bool,
    ) -> Result<Self, DeviceError> {
        let info = vk::CommandBufferAllocateInfo::default()
            .command_pool(pool)
            .level(vk::CommandBufferLevel::PRIMARY)
            .command_buffer_count(1);
        // SAFETY: the pool is alive and used by one thread.
        let allocate = || unsafe { device.raw.allocate_command_buffers(&info) };
        let call = "vkAllocateCommandBuffers";
        let commands = device.call(call, allocate).map_err(failed(call))?[0];
        // From here on, dropping `prepared` gives back what was made so far.
        let mut prepared = Self {
            device: Arc::clone(device),
            pool,
            commands,
            descriptors: vk::DescriptorPool::null(),
            queries: vk::QueryPool::null(),
            names: Vec::new(),
            buffers: used_buffers(recording, |_| true),
            written: used_buffers(recording, |access| access == Access::Write),
            last_ticket: 0,
        };
        device.name(commands, "recording");
        prepared.descriptors = create_descriptor_pool(device, recording)?;
        if profile {
            prepared.names = recording.commands.iter().map(name_of).collect();
            let count = prepared.names.len() as u32 + 1;
            let info = vk::QueryPoolCreateInfo::default()
                .query_type(vk::QueryType::TIMESTAMP)
                .query_count(count);
            // SAFETY: the structure lives until the call returns.
            let create = || unsafe { device.raw.create_query_pool(&info, None) };
            let call = "vkCreateQueryPool";
            prepared.queries = device.call(call, create).map_err(failed(call))?;
            device.name(prepared.queries, "timestamps");
        }
        prepared.fill(memory, pipelines, recording)?;
        Ok(prepared)
    }

    /// True if the recording names a buffer.
    pub(super) fn uses(&self, buffer: BufferHandle) -> bool {
        self.buffers.binary_search(&buffer).is_ok()
    }

    /// True if the recording changes a buffer.
    pub(super) fn writes(&self, buffer: BufferHandle) -> bool {
        self.written.binary_search(&buffer).is_ok()
    }

    fn fill(
        &self,
        memory: &Memory,
        pipelines: &Pipelines,
        recording: &Recording,
    ) -> Result<(), DeviceError> {
        let raw = &self.device.raw;
        let info = vk::CommandBufferBeginInfo::default()
            .flags(vk::CommandBufferUsageFlags::SIMULTANEOUS_USE);
        // SAFETY: for this and all commands below: the command buffer is being recorded by this
        // thread alone; every buffer, pipeline and set named is alive and stays so while the
        // recording is prepared.
        let begin = || unsafe { raw.begin_command_buffer(self.commands, &info) };
        let call = "vkBeginCommandBuffer";
        self.device.call(call, begin).map_err(failed(call))?;
        if self.queries != vk::QueryPool::null() {
            // SAFETY: see above.
            unsafe {
                let count = self.names.len() as u32 + 1;
                raw.cmd_reset_query_pool(self.commands, self.queries, 0, count);
            }
        }
        // What earlier submissions wrote is visible from here on.
        self.barrier(vk::PipelineStageFlags::COMPUTE_SHADER | vk::PipelineStageFlags::TRANSFER);
        self.timestamp(0);
        let mut hazards = Hazards::default();
        for (index, command) in (1..).zip(&recording.commands) {
            if hazards.needs_barrier(command) {
                self.barrier(
                    vk::PipelineStageFlags::COMPUTE_SHADER | vk::PipelineStageFlags::TRANSFER,
                );
            }
            match command {
                Command::Dispatch(dispatch) => self.dispatch(memory, pipelines, dispatch)?,
                Command::Copy { from, to } => {
                    let region = vk::BufferCopy::default()
                        .src_offset(from.offset)
                        .dst_offset(to.offset)
                        .size(from.bytes);
                    let (from, to) = (memory.get(from.buffer).raw, memory.get(to.buffer).raw);
                    // SAFETY: see above; the recording keeps to the buffers' sizes.
                    unsafe { raw.cmd_copy_buffer(self.commands, from, to, &[region]) };
                }
                Command::Zero(slice) => {
                    let buffer = memory.get(slice.buffer).raw;
                    // SAFETY: see above; offsets and sizes are multiples of 4.
                    unsafe {
                        raw.cmd_fill_buffer(self.commands, buffer, slice.offset, slice.bytes, 0);
                    }
                }
            }
            self.timestamp(index);
        }
        // The host may read what was written once the submission is complete.
        self.barrier(vk::PipelineStageFlags::HOST);
        // SAFETY: see above.
        let end = || unsafe { raw.end_command_buffer(self.commands) };
        let call = "vkEndCommandBuffer";
        self.device.call(call, end).map_err(failed(call))
    }

    /// Makes all writes so far visible to `stages`.
    fn barrier(&self, stages: vk::PipelineStageFlags) {
        let access = if stages == vk::PipelineStageFlags::HOST {
            vk::AccessFlags::HOST_READ
        } else {
            vk::AccessFlags::SHADER_READ
                | vk::AccessFlags::SHADER_WRITE
                | vk::AccessFlags::TRANSFER_READ
                | vk::AccessFlags::TRANSFER_WRITE
        };
        let barrier = vk::MemoryBarrier::default()
            .src_access_mask(vk::AccessFlags::SHADER_WRITE | vk::AccessFlags::TRANSFER_WRITE)
            .dst_access_mask(access);
        // SAFETY: the command buffer is being recorded.
        unsafe {
            self.device.raw.cmd_pipeline_barrier(
                self.commands,
                vk::PipelineStageFlags::COMPUTE_SHADER | vk::PipelineStageFlags::TRANSFER,
                stages,
                vk::DependencyFlags::empty(),
                &[barrier],
                &[],
                &[],
            );
        }
    }

    fn timestamp(&self, index: u32) {
        if self.queries == vk::QueryPool::null() {
            return;
        }
        let stage = vk::PipelineStageFlags::BOTTOM_OF_PIPE;
        // SAFETY: the command buffer is being recorded; the pool has room for every command.
        unsafe {
            self.device.raw.cmd_write_timestamp(self.commands, stage, self.queries, index);
        }
    }

    fn dispatch(
        &self,
        memory: &Memory,
        pipelines: &Pipelines,
        dispatch: &Dispatch,
    ) -> Result<(), DeviceError> {
        let raw = &self.device.raw;
        let (pipeline, layouts) = pipelines.get(dispatch);
        let set = self.descriptor_set(memory, layouts.set, &dispatch.bindings)?;
        let bind_point = vk::PipelineBindPoint::COMPUTE;
        let [x, y, z] = dispatch.groups;
        let mut push = dispatch.push.clone();
        let pointers = dispatch.bindings.iter().take(dispatch.pointers as usize);
        for (place, slice) in push.chunks_exact_mut(8).zip(pointers) {
            place.copy_from_slice(&(memory.address(slice.buffer) + slice.offset).to_ne_bytes());
        }
        // SAFETY: see `fill`.
        unsafe {
            raw.cmd_bind_pipeline(self.commands, bind_point, pipeline);
            raw.cmd_bind_descriptor_sets(
                self.commands,
                bind_point,
                layouts.pipeline,
                0,
                &[set],
                &[],
            );
            if !push.is_empty() {
                let stages = vk::ShaderStageFlags::COMPUTE;
                raw.cmd_push_constants(self.commands, layouts.pipeline, stages, 0, &push);
            }
            raw.cmd_dispatch(self.commands, x, y, z);
        }
        Ok(())
    }

    fn descriptor_set(
        &self,
        memory: &Memory,
        layout: vk::DescriptorSetLayout,
        slices: &[BufferSlice],
    ) -> Result<vk::DescriptorSet, DeviceError> {
        let layouts = [layout];
        let info = vk::DescriptorSetAllocateInfo::default()
            .descriptor_pool(self.descriptors)
            .set_layouts(&layouts);
        // SAFETY: the pool was made with room for every dispatch of the recording.
        let allocate = || unsafe { self.device.raw.allocate_descriptor_sets(&info) };
        let call = "vkAllocateDescriptorSets";
        let set = self.device.call(call, allocate).map_err(failed(call))?[0];
        let infos: Vec<[vk::DescriptorBufferInfo; 1]> = slices
            .iter()
            .map(|slice| {
                [vk::DescriptorBufferInfo::default()
                    .buffer(memory.get(slice.buffer).raw)
                    .offset(slice.offset)
                    .range(slice.bytes)]
            })
            .collect();
        let writes: Vec<_> = (0..)
            .zip(&infos)
            .map(|(binding, info)| {
                vk::WriteDescriptorSet::default()
                    .dst_set(set)
                    .dst_binding(binding)
                    .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                    .buffer_info(info)
            })
            .collect();
        // SAFETY: the set is not in use yet; the buffers are alive.
        unsafe { self.device.raw.update_descriptor_sets(&writes, &[]) };
        Ok(set)
    }

    /// Times of the last submission, for which the caller has waited; empty before the first and
    /// without profiling.
    pub(super) fn timings(&self) -> Result<Vec<CommandTiming>, DeviceError> {
        if self.queries == vk::QueryPool::null() || self.last_ticket == 0 {
            return Ok(Vec::new());
        }
        let mut ticks = vec![0_u64; self.names.len() + 1];
        let flags = vk::QueryResultFlags::TYPE_64 | vk::QueryResultFlags::WAIT;
        // SAFETY: the pool has as many queries; the caller has waited for the submission.
        unsafe { self.device.raw.get_query_pool_results(self.queries, 0, &mut ticks, flags) }
            .map_err(failed("vkGetQueryPoolResults"))?;
        let period = f64::from(self.device.chosen.info.capabilities.timestamp_period_ns);
        let spans = ticks.windows(2).map(|pair| pair[1].saturating_sub(pair[0]) as f64 * period);
        let named = self.names.iter().cloned().zip(spans);
        Ok(named.map(|(name, nanoseconds)| CommandTiming { name, nanoseconds }).collect())
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        // SAFETY: the executor waits before it drops a recording; null handles are allowed.
        unsafe {
            self.device.raw.free_command_buffers(self.pool, &[self.commands]);
            self.device.raw.destroy_descriptor_pool(self.descriptors, None);
            self.device.raw.destroy_query_pool(self.queries, None);
        }
    }
}

fn name_of(command: &Command) -> String {
    match command {
        Command::Dispatch(dispatch) => dispatch.kernel.name.to_owned(),
        Command::Copy { .. } => "copy".to_owned(),
        Command::Zero(_) => "fill".to_owned(),
    }
}

/// The buffers that a recording uses in a way that counts.
fn used_buffers(recording: &Recording, counts: impl Fn(Access) -> bool) -> Vec<BufferHandle> {
    let all = recording.commands.iter().flat_map(hazards::uses);
    let mut buffers: Vec<BufferHandle> =
        all.filter(|(_, access)| counts(*access)).map(|(slice, _)| slice.buffer).collect();
    buffers.sort_unstable();
    buffers.dedup();
    buffers
}

/// A pool with exactly the sets that the recording's dispatches need; null where it has none.
fn create_descriptor_pool(
    device: &Device,
    recording: &Recording,
) -> Result<vk::DescriptorPool, DeviceError> {
    let (mut sets, mut buffers) = (0, 0);
    for command in &recording.commands {
        if let Command::Dispatch(dispatch) = command {
            sets += 1;
            buffers += dispatch.bindings.len() as u32;
        }
    }
    if sets == 0 {
        return Ok(vk::DescriptorPool::null());
    }
    let sizes = [vk::DescriptorPoolSize::default()
        .ty(vk::DescriptorType::STORAGE_BUFFER)
        .descriptor_count(buffers)];
    let info = vk::DescriptorPoolCreateInfo::default().max_sets(sets).pool_sizes(&sizes);
    // SAFETY: the structures live until the call returns.
    let create = || unsafe { device.raw.create_descriptor_pool(&info, None) };
    let call = "vkCreateDescriptorPool";
    let pool = device.call(call, create).map_err(failed(call))?;
    device.name(pool, "bindings of a recording");
    Ok(pool)
}
