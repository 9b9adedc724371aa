//! The Vulkan executor: the only code that calls Vulkan, and the only unsafe code of hob.
//!
//! It owns the loader, the device, its memory, pipelines and command buffers, and implements
//! [`crate::gpu::Executor`]. It must not know what a kernel computes or what a model is: all it
//! sees are recordings. It needs Vulkan 1.2 and no optional feature.
#![allow(unsafe_code)]

mod choice;
mod completion;
mod device;
mod executor;
mod faults;
mod hazards;
mod instance;
mod limits;
mod matrix_units;
mod memory;
mod physical_device;
mod pipeline_cache;
mod pipelines;
mod prepared;
mod queues;
mod results;
mod staging;
mod statistics;
mod uploads;

pub use choice::list_devices;
pub use executor::VulkanExecutor;
pub use faults::Faults;
pub use physical_device::DeviceInfo;
pub use statistics::{PipelineStatistics, pipeline_statistics};

use std::path::PathBuf;
use std::sync::Arc;

/// Options for opening a device.
#[derive(Clone, Debug, Default)]
pub struct VulkanConfig {
    /// Which device: its index in [`list_devices`], a part of its name, or its UUID. `None` takes
    /// the best.
    pub device: Option<String>,
    /// Load the Khronos validation layer with synchronization validation.
    pub validation: bool,
    /// Folder for compiled pipelines; `None` keeps none.
    pub pipeline_cache_dir: Option<PathBuf>,
    /// Use the shaders without subgroup operations, whatever the device offers.
    pub disable_subgroup_ops: bool,
    /// Have uploads go through this queue family, whatever else it is for; `None` takes one that
    /// does nothing but copy, where there is one.
    pub transfer_family: Option<u32>,
    /// Wait by fences although the device has timeline semaphores.
    pub disable_timeline: bool,
    /// Calls that fail in place of the driver's, for tests.
    pub faults: Option<Arc<Faults>>,
}
