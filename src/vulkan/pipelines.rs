//! Compute pipelines, by kernel and specialization.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use ash::vk;

use super::device::Device;
use super::pipeline_cache::PipelineCache;
use super::results::failed;
use crate::gpu::{DeviceError, Dispatch, Kernel};

/// Kernel and values of its specialization constants.
pub(super) type PipelineKey = (&'static str, Vec<u32>);

/// Layouts shared by all pipelines of a kernel.
#[derive(Clone, Copy)]
pub(super) struct Layouts {
    pub set: vk::DescriptorSetLayout,
    pub pipeline: vk::PipelineLayout,
}

/// All pipelines made so far.
pub(super) struct Pipelines {
    device: Arc<Device>,
    layouts: HashMap<&'static str, Layouts>,
    pipelines: HashMap<PipelineKey, vk::Pipeline>,
    cache: PipelineCache,
}

impl Pipelines {
    pub(super) fn new(device: Arc<Device>, folder: Option<&Path>) -> Result<Self, DeviceError> {
        let cache = PipelineCache::open(Arc::clone(&device), folder)?;
        Ok(Self { device, layouts: HashMap::new(), pipelines: HashMap::new(), cache })
    }

    /// The pipeline and layouts of a dispatch whose pipelines were made by [`Pipelines::ensure`].
    pub(super) fn get(&self, dispatch: &Dispatch) -> (vk::Pipeline, Layouts) {
        let key = (dispatch.kernel.name, dispatch.spec.clone());
        (self.pipelines[&key], self.layouts[dispatch.kernel.name])
    }

    /// Compiles what `dispatches` need and is not there yet, on all processors.
    pub(super) fn ensure<'a>(
        &mut self,
        dispatches: impl Iterator<Item = &'a Dispatch>,
    ) -> Result<(), DeviceError> {
        let mut missing: Vec<(PipelineKey, &'static Kernel, Layouts)> = Vec::new();
        for dispatch in dispatches {
            let layouts = self.layouts(dispatch.kernel)?;
            let key = (dispatch.kernel.name, dispatch.spec.clone());
            if !self.pipelines.contains_key(&key) && !missing.iter().any(|(k, ..)| *k == key) {
                missing.push((key, dispatch.kernel, layouts));
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        // The longest take the most time: who is done early goes on with the short ones.
        missing.sort_by_key(|(_, kernel, _)| std::cmp::Reverse(kernel.words.len()));
        let workers = thread::available_parallelism().map_or(1, usize::from).min(missing.len());
        let (device, cache) = (&self.device, self.cache.raw);
        let next = AtomicUsize::new(0);
        let work = || {
            let mut made = Vec::new();
            while let Some((key, kernel, layouts)) =
                missing.get(next.fetch_add(1, Ordering::Relaxed))
            {
                made.push((key.clone(), compile(device, cache, kernel, &key.1, layouts)));
            }
            made
        };
        let made: Vec<Vec<_>> = thread::scope(|scope| {
            let handles: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
            handles
                .into_iter()
                .map(|handle| handle.join().expect("compiling does not panic"))
                .collect()
        });
        let mut failure = None;
        for (key, result) in made.into_iter().flatten() {
            match result {
                Ok(pipeline) => {
                    self.pipelines.insert(key, pipeline);
                }
                Err(error) => failure = Some(error),
            }
        }
        self.cache.mark_changed();
        failure.map_or(Ok(()), Err)
    }

    /// Saves compiled pipelines to disk if there are new ones and the last time is a while ago; the
    /// rest is saved on drop.
    pub(super) fn save_now_and_then(&mut self) {
        self.cache.save_now_and_then();
    }

    fn layouts(&mut self, kernel: &'static Kernel) -> Result<Layouts, DeviceError> {
        if let Some(layouts) = self.layouts.get(kernel.name) {
            return Ok(*layouts);
        }
        let raw = &self.device.raw;
        let bindings: Vec<_> = (0..)
            .zip(kernel.bindings)
            .map(|(number, _)| {
                vk::DescriptorSetLayoutBinding::default()
                    .binding(number)
                    .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                    .descriptor_count(1)
                    .stage_flags(vk::ShaderStageFlags::COMPUTE)
            })
            .collect();
        let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
        // SAFETY: the structures live until the call returns.
        let create = || unsafe { raw.create_descriptor_set_layout(&info, None) };
        let call = "vkCreateDescriptorSetLayout";
        let set = self.device.call(call, create).map_err(failed(call))?;
        let sets = [set];
        let ranges = [vk::PushConstantRange::default()
            .stage_flags(vk::ShaderStageFlags::COMPUTE)
            .size(kernel.push_bytes)];
        let mut info = vk::PipelineLayoutCreateInfo::default().set_layouts(&sets);
        if kernel.push_bytes > 0 {
            info = info.push_constant_ranges(&ranges);
        }
        // SAFETY: as above.
        let create = || unsafe { raw.create_pipeline_layout(&info, None) };
        let call = "vkCreatePipelineLayout";
        let pipeline = self.device.call(call, create).map_err(|result| {
            // SAFETY: nothing uses the set layout.
            unsafe { raw.destroy_descriptor_set_layout(set, None) };
            failed(call)(result)
        })?;
        self.device.name(set, kernel.name);
        self.device.name(pipeline, kernel.name);
        let layouts = Layouts { set, pipeline };
        self.layouts.insert(kernel.name, layouts);
        Ok(layouts)
    }
}

impl Drop for Pipelines {
    fn drop(&mut self) {
        let raw = &self.device.raw;
        // SAFETY: the executor waits for the device before it drops its parts; each is destroyed
        // once.
        unsafe {
            for pipeline in self.pipelines.values() {
                raw.destroy_pipeline(*pipeline, None);
            }
            for layouts in self.layouts.values() {
                raw.destroy_pipeline_layout(layouts.pipeline, None);
                raw.destroy_descriptor_set_layout(layouts.set, None);
            }
        }
    }
}

fn compile(
    device: &Device,
    cache: vk::PipelineCache,
    kernel: &Kernel,
    spec: &[u32],
    layouts: &Layouts,
) -> Result<vk::Pipeline, DeviceError> {
    let module_info = vk::ShaderModuleCreateInfo::default().code(kernel.words);
    // SAFETY: the words are a whole SPIR-V module, compiled by glslang for Vulkan 1.2.
    let create = || unsafe { device.raw.create_shader_module(&module_info, None) };
    let call = "vkCreateShaderModule";
    let module = device.call(call, create).map_err(failed(call))?;
    device.name(module, kernel.name);
    let entries: Vec<_> = (0..spec.len() as u32)
        .map(|id| vk::SpecializationMapEntry::default().constant_id(id).offset(4 * id).size(4))
        .collect();
    let specialization =
        vk::SpecializationInfo::default().map_entries(&entries).data(bytemuck::cast_slice(spec));
    let capabilities = &device.chosen.info.capabilities;
    let units = capabilities.matrix_units.filter(|_| kernel.uses_matrices);
    let mut size = vk::PipelineShaderStageRequiredSubgroupSizeCreateInfo::default()
        .required_subgroup_size(units.map_or(capabilities.lanes, |units| units.subgroup));
    let mut stage = vk::PipelineShaderStageCreateInfo::default()
        .stage(vk::ShaderStageFlags::COMPUTE)
        .module(module)
        .name(c"main")
        .specialization_info(&specialization);
    let uses_subgroups = kernel.uses_subgroups || kernel.uses_matrices;
    if uses_subgroups && device.chosen.subgroup_size_control {
        stage = stage
            .flags(vk::PipelineShaderStageCreateFlags::REQUIRE_FULL_SUBGROUPS)
            .push_next(&mut size);
    }
    let mut info = vk::ComputePipelineCreateInfo::default().stage(stage).layout(layouts.pipeline);
    if device.chosen.executable_info {
        info = info.flags(vk::PipelineCreateFlags::CAPTURE_STATISTICS_KHR);
    }
    // SAFETY: the layout was made from the module's own reflection; the structures outlive the
    // call; a VkPipelineCache may be used by several threads at once.
    let create = || unsafe { device.raw.create_compute_pipelines(cache, &[info], None) };
    let call = "vkCreateComputePipelines";
    let result = device.call(call, || create().map_err(|(_, result)| result));
    // SAFETY: a module may go once its pipelines are made.
    unsafe { device.raw.destroy_shader_module(module, None) };
    match result {
        Ok(pipelines) => {
            device.name(pipelines[0], kernel.name);
            Ok(pipelines[0])
        }
        Err(vk::Result::ERROR_DEVICE_LOST) => Err(DeviceError::Lost { call }),
        Err(result) => Err(DeviceError::Pipeline {
            kernel: format!("{} {spec:?}", kernel.name),
            reason: format!("{result:?}"),
        }),
    }
}
