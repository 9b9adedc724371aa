//! The logical device and its queue.

use std::ffi::CString;
use std::sync::Arc;

use ash::{ext, vk};

use super::instance::Instance;
use super::physical_device::Candidate;
use super::results::failed;
use crate::gpu::DeviceError;

/// An open device; everything made from it holds an `Arc` of it.
pub(super) struct Device {
    pub raw: ash::Device,
    pub instance: Arc<Instance>,
    pub chosen: Candidate,
    pub queue: vk::Queue,
    names: Option<ext::debug_utils::Device>,
}

impl Device {
    pub(super) fn open(instance: Arc<Instance>, chosen: Candidate) -> Result<Self, DeviceError> {
        let priorities = [1.0];
        let queues = [vk::DeviceQueueCreateInfo::default()
            .queue_family_index(chosen.queue_family)
            .queue_priorities(&priorities)];
        let mut extensions = Vec::new();
        if chosen.memory_budget {
            extensions.push(ext::memory_budget::NAME.as_ptr());
        }
        if chosen.memory_priority {
            extensions.push(ext::memory_priority::NAME.as_ptr());
        }
        if chosen.subgroup_size_control && chosen.api_version < vk::API_VERSION_1_3 {
            extensions.push(ext::subgroup_size_control::NAME.as_ptr());
        }
        let mut v12 = vk::PhysicalDeviceVulkan12Features::default()
            .timeline_semaphore(true)
            .buffer_device_address(chosen.info.capabilities.buffer_pointers);
        let mut control = vk::PhysicalDeviceSubgroupSizeControlFeatures::default()
            .subgroup_size_control(true)
            .compute_full_subgroups(true);
        let mut priority =
            vk::PhysicalDeviceMemoryPriorityFeaturesEXT::default().memory_priority(true);
        let mut info = vk::DeviceCreateInfo::default()
            .queue_create_infos(&queues)
            .enabled_extension_names(&extensions)
            .push_next(&mut v12);
        if chosen.subgroup_size_control {
            info = info.push_next(&mut control);
        }
        if chosen.memory_priority {
            info = info.push_next(&mut priority);
        }
        // SAFETY: the device belongs to the instance; features and extensions were found to be
        // offered.
        let raw = unsafe { instance.raw.create_device(chosen.raw, &info, None) }
            .map_err(failed("vkCreateDevice"))?;
        // SAFETY: the family was created with one queue.
        let queue = unsafe { raw.get_device_queue(chosen.queue_family, 0) };
        let names =
            instance.has_debug_utils().then(|| ext::debug_utils::Device::new(&instance.raw, &raw));
        Ok(Self { raw, instance, chosen, queue, names })
    }

    /// Names an object for validation messages and debuggers, where they listen.
    pub(super) fn name(&self, object: impl vk::Handle, name: &str) {
        let Some(names) = &self.names else { return };
        let Ok(name) = CString::new(name) else { return };
        let info =
            vk::DebugUtilsObjectNameInfoEXT::default().object_handle(object).object_name(&name);
        // SAFETY: the object was made from this device and is alive. A name that cannot be set is
        // no loss.
        let _ = unsafe { names.set_debug_utils_object_name(&info) };
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: everything made from the device held an Arc of it and is gone.
        unsafe { self.raw.destroy_device(None) };
    }
}
