//! What the driver's compiler made of pipelines: `VK_KHR_pipeline_executable_properties`.

use std::sync::Arc;

use ash::{khr, vk};

use super::VulkanConfig;
use super::choice;
use super::device::Device;
use super::instance::Instance;
use super::pipelines::Pipelines;
use super::results::failed;
use crate::gpu::{Capabilities, Command, DeviceError, Recording};

/// One compiled pipeline. A driver may compile one shader to several executables; compute shaders
/// are one on all known drivers, and the first one is told of.
#[derive(Clone, Debug, PartialEq)]
pub struct PipelineStatistics {
    /// The kernel's name or module.
    pub kernel: &'static str,
    /// Values of the specialization constants.
    pub spec: Vec<u32>,
    /// Invocations of a subgroup; 0 where the driver does not say.
    pub subgroup_size: u32,
    /// The driver's own figures under its own names, such as `VGPRs`.
    pub figures: Vec<(String, f64)>,
}

/// Compiles the pipelines of a recording, whose buffers need not exist, on the device that `config`
/// names, and tells what became of each, in the order of their first dispatch. The device needs no
/// memory.
///
/// # Errors
/// [`DeviceError::Unsupported`] where the driver does not tell; [`DeviceError::Pipeline`].
pub fn pipeline_statistics(
    config: &VulkanConfig,
    record: impl FnOnce(&Capabilities) -> Recording,
) -> Result<(Capabilities, Vec<PipelineStatistics>), DeviceError> {
    let instance = Arc::new(Instance::new(config.validation)?);
    let chosen = choice::choose(&instance, config)?;
    let caps = chosen.info.capabilities.clone();
    if !chosen.executable_info {
        return Err(DeviceError::Unsupported {
            device: caps.device_name,
            what: "VK_KHR_pipeline_executable_properties".into(),
            found: "none".into(),
        });
    }
    let device = Arc::new(Device::open(instance, chosen, config.faults.clone())?);
    // Nothing is read from a disk: what came from there might lack its figures.
    let mut pipelines = Pipelines::new(Arc::clone(&device), None)?;
    let recording = record(&caps);
    let dispatches = || {
        recording.commands.iter().filter_map(|command| match command {
            Command::Dispatch(dispatch) => Some(dispatch),
            _ => None,
        })
    };
    pipelines.ensure(dispatches())?;
    let raw = (&device.instance.raw, &device.raw);
    let functions = khr::pipeline_executable_properties::Device::new(raw.0, raw.1);
    let mut found: Vec<PipelineStatistics> = Vec::new();
    for dispatch in dispatches() {
        let (kernel, spec) = (dispatch.kernel.name, &dispatch.spec);
        if found.iter().any(|known| known.kernel == kernel && known.spec == *spec) {
            continue;
        }
        let (pipeline, _) = pipelines.get(dispatch);
        let (subgroup_size, figures) = query(&functions, pipeline)?;
        found.push(PipelineStatistics { kernel, spec: spec.clone(), subgroup_size, figures });
    }
    Ok((caps, found))
}

fn query(
    functions: &khr::pipeline_executable_properties::Device,
    pipeline: vk::Pipeline,
) -> Result<(u32, Vec<(String, f64)>), DeviceError> {
    let info = vk::PipelineInfoKHR::default().pipeline(pipeline);
    // SAFETY: the pipeline is alive, and was made by a device with the feature enabled.
    let executables = unsafe { functions.get_pipeline_executable_properties(&info) }
        .map_err(failed("vkGetPipelineExecutablePropertiesKHR"))?;
    let subgroup_size = executables.first().map_or(0, |executable| executable.subgroup_size);
    let info = vk::PipelineExecutableInfoKHR::default().pipeline(pipeline).executable_index(0);
    // SAFETY: as above; it was made with CAPTURE_STATISTICS, and has a first executable.
    let statistics = unsafe { functions.get_pipeline_executable_statistics(&info) }
        .map_err(failed("vkGetPipelineExecutableStatisticsKHR"))?;
    let figures = statistics.iter().map(|statistic| {
        let name = statistic.name_as_c_str().map_or("".into(), std::ffi::CStr::to_string_lossy);
        (name.into_owned(), figure(statistic))
    });
    Ok((subgroup_size, figures.collect()))
}

fn figure(statistic: &vk::PipelineExecutableStatisticKHR<'_>) -> f64 {
    let value = statistic.value;
    // SAFETY: the driver filled the member that `format` names.
    unsafe {
        match statistic.format {
            vk::PipelineExecutableStatisticFormatKHR::BOOL32 => f64::from(value.b32),
            vk::PipelineExecutableStatisticFormatKHR::INT64 => value.i64 as f64,
            vk::PipelineExecutableStatisticFormatKHR::UINT64 => value.u64 as f64,
            _ => value.f64,
        }
    }
}
