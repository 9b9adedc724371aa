//! The logical device and its queues.

use std::ffi::{CStr, CString, c_char};
use std::sync::Arc;

use ash::{ext, khr, vk};

use super::faults::Faults;
use super::instance::Instance;
use super::physical_device::Candidate;
use super::results::failed;
use crate::gpu::DeviceError;

/// The extensions in use, of those that the device offers.
fn extensions(chosen: &Candidate) -> Vec<*const c_char> {
    let capabilities = &chosen.info.capabilities;
    let before_13 = chosen.api_version < vk::API_VERSION_1_3;
    let wanted = [
        (chosen.memory_budget, ext::memory_budget::NAME),
        (chosen.memory_priority, ext::memory_priority::NAME),
        (chosen.subgroup_size_control && before_13, ext::subgroup_size_control::NAME),
        (chosen.device_fault, ext::device_fault::NAME),
        (chosen.executable_info, khr::pipeline_executable_properties::NAME),
        (capabilities.int8_matmuls && before_13, khr::shader_integer_dot_product::NAME),
        (capabilities.matrix_units.is_some(), khr::cooperative_matrix::NAME),
    ];
    wanted.iter().filter(|(in_use, _)| *in_use).map(|(_, name)| name.as_ptr()).collect()
}

/// An open device; everything made from it holds an `Arc` of it.
pub(super) struct Device {
    pub raw: ash::Device,
    pub instance: Arc<Instance>,
    pub chosen: Candidate,
    /// Compute queue.
    pub queue: vk::Queue,
    /// Takes uploads; the same one where there is none for them alone.
    pub upload_queue: vk::Queue,
    names: Option<ext::debug_utils::Device>,
    /// Tells why the device was lost.
    fault_info: Option<ext::device_fault::Device>,
    faults: Option<Arc<Faults>>,
}

impl Device {
    pub(super) fn open(
        instance: Arc<Instance>,
        chosen: Candidate,
        faults: Option<Arc<Faults>>,
    ) -> Result<Self, DeviceError> {
        let priorities = [1.0];
        let queue_info = |family: &u32| {
            vk::DeviceQueueCreateInfo::default()
                .queue_family_index(*family)
                .queue_priorities(&priorities)
        };
        let queues: Vec<_> = chosen.families().iter().map(queue_info).collect();
        let extensions = extensions(&chosen);
        let capabilities = &chosen.info.capabilities;
        let has_matrices = capabilities.matrix_units.is_some();
        let mut v12 = vk::PhysicalDeviceVulkan12Features::default()
            .timeline_semaphore(chosen.timeline_semaphore)
            .shader_float16(capabilities.half_arithmetic)
            .vulkan_memory_model(has_matrices)
            .vulkan_memory_model_device_scope(has_matrices)
            .buffer_device_address(capabilities.buffer_pointers);
        let mut control = vk::PhysicalDeviceSubgroupSizeControlFeatures::default()
            .subgroup_size_control(true)
            .compute_full_subgroups(true);
        let mut priority =
            vk::PhysicalDeviceMemoryPriorityFeaturesEXT::default().memory_priority(true);
        let mut fault = vk::PhysicalDeviceFaultFeaturesEXT::default().device_fault(true);
        let mut executables = vk::PhysicalDevicePipelineExecutablePropertiesFeaturesKHR::default()
            .pipeline_executable_info(true);
        let mut dot = vk::PhysicalDeviceShaderIntegerDotProductFeatures::default()
            .shader_integer_dot_product(true);
        let mut matrices =
            vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default().cooperative_matrix(true);
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
        if chosen.device_fault {
            info = info.push_next(&mut fault);
        }
        if chosen.executable_info {
            info = info.push_next(&mut executables);
        }
        if capabilities.int8_matmuls {
            info = info.push_next(&mut dot);
        }
        if has_matrices {
            info = info.push_next(&mut matrices);
        }
        let refused = faults.as_ref().and_then(|faults| faults.take("vkCreateDevice"));
        let raw = match refused {
            Some(result) => Err(result),
            // SAFETY: the device belongs to the instance; features and extensions were found to be
            // offered.
            None => unsafe { instance.raw.create_device(chosen.raw, &info, None) },
        }
        .map_err(failed("vkCreateDevice"))?;
        Ok(Self::of(raw, instance, chosen, faults))
    }

    /// The device that was created for `chosen`, with its queues.
    fn of(
        raw: ash::Device,
        instance: Arc<Instance>,
        chosen: Candidate,
        faults: Option<Arc<Faults>>,
    ) -> Self {
        // SAFETY: each family was created with one queue.
        let queue_of = |family| unsafe { raw.get_device_queue(family, 0) };
        let queue = queue_of(chosen.queues.compute);
        let upload_queue = chosen.queues.transfer.map_or(queue, queue_of);
        let names =
            instance.has_debug_utils().then(|| ext::debug_utils::Device::new(&instance.raw, &raw));
        let fault_info =
            chosen.device_fault.then(|| ext::device_fault::Device::new(&instance.raw, &raw));
        Self { raw, instance, chosen, queue, upload_queue, names, fault_info, faults }
    }

    /// Makes a call of the driver's, unless a test has it fail.
    pub(super) fn call<T>(
        &self,
        name: &'static str,
        call: impl FnOnce() -> Result<T, vk::Result>,
    ) -> Result<T, vk::Result> {
        match self.faults.as_ref().and_then(|faults| faults.take(name)) {
            Some(result) => Err(result),
            None => call(),
        }
    }

    /// Creates a pool of command buffers for a family's queue.
    pub(super) fn create_pool(
        &self,
        family: u32,
        flags: vk::CommandPoolCreateFlags,
        name: &str,
    ) -> Result<vk::CommandPool, DeviceError> {
        let info = vk::CommandPoolCreateInfo::default().queue_family_index(family).flags(flags);
        // SAFETY: the structure lives until the call returns; the device has a queue of the family.
        let create = || unsafe { self.raw.create_command_pool(&info, None) };
        let call = "vkCreateCommandPool";
        let pool = self.call(call, create).map_err(failed(call))?;
        self.name(pool, name);
        Ok(pool)
    }

    /// Logs what the driver knows of a loss.
    pub(super) fn log_fault(&self) {
        let Some(functions) = &self.fault_info else {
            tracing::error!("the device was lost; the driver cannot say why");
            return;
        };
        let query = functions.fp().get_device_fault_info_ext;
        let mut counts = vk::DeviceFaultCountsEXT::default();
        // SAFETY: the extension is enabled; without an info structure only the counts are written.
        let counted = unsafe { query(functions.device(), &mut counts, std::ptr::null_mut()) };
        let mut addresses =
            vec![vk::DeviceFaultAddressInfoEXT::default(); counts.address_info_count as usize];
        let mut reasons =
            vec![vk::DeviceFaultVendorInfoEXT::default(); counts.vendor_info_count as usize];
        // A dump in the vendor's own form would help nobody in a log.
        counts.vendor_binary_size = 0;
        let mut info = vk::DeviceFaultInfoEXT {
            p_address_infos: addresses.as_mut_ptr(),
            p_vendor_infos: reasons.as_mut_ptr(),
            ..vk::DeviceFaultInfoEXT::default()
        };
        // SAFETY: the arrays have as many elements as the counts say, and outlive the call.
        let queried = unsafe { query(functions.device(), &mut counts, &mut info) };
        if counted != vk::Result::SUCCESS || queried.as_raw() < 0 {
            tracing::error!(?counted, ?queried, "the device was lost; the driver does not say why");
            return;
        }
        let description = info.description_as_c_str().map_or("".into(), CStr::to_string_lossy);
        tracing::error!(%description, "the device was lost");
        for address in addresses.iter().take(counts.address_info_count as usize) {
            let (kind, at) = (address.address_type, address.reported_address);
            tracing::error!(?kind, address = format!("{at:#x}"), "the device's fault");
        }
        for reason in reasons.iter().take(counts.vendor_info_count as usize) {
            let text = reason.description_as_c_str().map_or("".into(), CStr::to_string_lossy);
            let (code, data) = (reason.vendor_fault_code, reason.vendor_fault_data);
            tracing::error!(%text, code, data, "the driver's own words for it");
        }
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
