//! What a device can do, read once when devices are listed; nothing else asks the driver.

use std::collections::{BTreeMap, BTreeSet};
use std::ptr::null_mut;

use ash::{ext, khr, vk};

use super::instance::Instance;
use super::matrix_units::{self, SubgroupSizes};
use super::queues::Queues;
use super::results::failed;
use crate::gpu::{Capabilities, DeviceError, DeviceType, Workarounds};

/// Lanes of the variants without subgroup operations.
const SHARED_LANES_CPU: u32 = 8;
const SHARED_LANES_GPU: u32 = 32;
/// Preferred subgroup size where the device has a choice.
const LANES_PREFERRED: u32 = 32;
const LANES_MAX: u32 = 64;
/// Vulkan's minimum for the largest single allocation; drivers that execute nothing report 0.
const ALLOCATION_BYTES_LEAST: u64 = 1 << 30;

/// A device as `hob devices` shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceInfo {
    /// Index for `--device`.
    pub index: usize,
    /// Vulkan version the device offers, such as `1.3.230`.
    pub api_version: String,
    /// Capabilities of the device.
    pub capabilities: Capabilities,
    /// Size of its largest device-local heap, in bytes.
    pub memory_bytes: u64,
    /// Reason hob cannot use the device, such as `no compute queue`; `None` if it can.
    pub unusable: Option<String>,
}

impl DeviceInfo {
    /// The device's UUID as 32 hexadecimal digits.
    #[must_use]
    pub fn uuid_text(&self) -> String {
        self.capabilities.uuid.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// A device that can be opened.
#[derive(Clone)]
pub(super) struct Candidate {
    pub raw: vk::PhysicalDevice,
    pub info: DeviceInfo,
    pub queues: Queues,
    pub api_version: u32,
    /// The kernels' subgroup size can and must be asked for.
    pub subgroup_size_control: bool,
    pub memory_budget: bool,
    pub memory_priority: bool,
    /// The driver can say why a device was lost.
    pub device_fault: bool,
    /// Else completion is told by fences.
    pub timeline_semaphore: bool,
    /// The driver tells what its compiler made of pipelines.
    pub executable_info: bool,
}

/// Identity of a GPU, for recognising one that two drivers list.
pub(super) struct Identity {
    pci_address: Option<(u32, u32, u32, u32)>,
    ids: (u32, u32, [u8; 16]),
}

impl Identity {
    /// True if two drivers list the same hardware, or one driver is listed twice.
    pub(super) fn is_same_gpu(&self, other: &Self) -> bool {
        match (self.pci_address, other.pci_address) {
            (Some(own), Some(theirs)) => own == theirs,
            _ => self.ids == other.ids,
        }
    }
}

/// Reads everything hob wants to know of a device.
pub(super) fn describe(
    instance: &Instance,
    raw: vk::PhysicalDevice,
    disable_subgroup_ops: bool,
) -> Result<(Candidate, Identity), DeviceError> {
    let facts = Facts::read(instance, raw)?;
    let subgroups = choose_lanes(&facts, disable_subgroup_ops);
    let mut capabilities = facts.capabilities(&subgroups, disable_subgroup_ops);
    if facts.features.matrices && subgroups.usable {
        let smallest = subgroups.controlled.then_some(facts.size_control.min_subgroup_size);
        let sizes = SubgroupSizes { lanes: subgroups.lanes, smallest };
        capabilities.matrix_units =
            matrix_units::find(instance, raw, capabilities.vendor_id, &sizes);
    }
    let ids = (capabilities.vendor_id, capabilities.device_id, capabilities.uuid);
    let identity = Identity { pci_address: facts.pci_address, ids };
    let info = DeviceInfo {
        index: 0,
        api_version: version_text(facts.core.api_version),
        memory_bytes: largest_local_heap(&facts.memory),
        unusable: facts.unusable(),
        capabilities,
    };
    let candidate = Candidate {
        raw,
        info,
        // One that is not usable is never opened.
        queues: facts.queues.unwrap_or(Queues { compute: 0, timestamp_bits: 0, transfer: None }),
        api_version: facts.core.api_version.min(instance.api_version),
        subgroup_size_control: subgroups.controlled,
        memory_budget: facts.memory_budget,
        memory_priority: facts.features.memory_priority,
        device_fault: facts.features.device_fault,
        timeline_semaphore: facts.features.timeline_semaphore,
        executable_info: facts.features.executable_info,
    };
    Ok((candidate, identity))
}

/// Properties and features reported by the driver. Structures unknown to its version stay zero.
struct Facts {
    core: vk::PhysicalDeviceProperties,
    v11: vk::PhysicalDeviceVulkan11Properties<'static>,
    v12: vk::PhysicalDeviceVulkan12Properties<'static>,
    size_control: vk::PhysicalDeviceSubgroupSizeControlProperties<'static>,
    /// Largest buffer; 0 where the driver does not say.
    buffer_bytes_max: u64,
    /// Matmuls of packed signed bytes are accelerated.
    int8_dot_accelerated: bool,
    pci_address: Option<(u32, u32, u32, u32)>,
    features: Features,
    memory: vk::PhysicalDeviceMemoryProperties,
    memory_budget: bool,
    /// `None` where no family computes.
    queues: Option<Queues>,
}

impl Facts {
    fn read(instance: &Instance, raw: vk::PhysicalDevice) -> Result<Self, DeviceError> {
        // SAFETY: here and below, the device belongs to the live instance, and the chains are made
        // of live structures that the device's version or extensions know.
        let extensions = unsafe { instance.raw.enumerate_device_extension_properties(raw) }
            .map_err(failed("vkEnumerateDeviceExtensionProperties"))?;
        let has = |name| extensions.iter().any(|e| e.extension_name_as_c_str() == Ok(name));
        let mut v11 = vk::PhysicalDeviceVulkan11Properties::default();
        let mut v12 = vk::PhysicalDeviceVulkan12Properties::default();
        let mut size_control = vk::PhysicalDeviceSubgroupSizeControlProperties::default();
        let mut maintenance4 = vk::PhysicalDeviceMaintenance4Properties::default();
        let mut dot = vk::PhysicalDeviceShaderIntegerDotProductProperties::default();
        let mut pci = vk::PhysicalDevicePCIBusInfoPropertiesEXT::default();
        // SAFETY: see above.
        let offered = unsafe { instance.raw.get_physical_device_properties(raw) }.api_version;
        let is_12 = offered >= vk::API_VERSION_1_2;
        let is_13 = offered.min(instance.api_version) >= vk::API_VERSION_1_3;
        let has_size_control = is_13 || has(ext::subgroup_size_control::NAME);
        let has_pci = has(ext::pci_bus_info::NAME);
        let mut properties = vk::PhysicalDeviceProperties2::default();
        if is_12 {
            properties = properties.push_next(&mut v11).push_next(&mut v12);
        }
        if has_size_control {
            properties = properties.push_next(&mut size_control);
        }
        if is_13 || has(khr::maintenance4::NAME) {
            properties = properties.push_next(&mut maintenance4);
        }
        let has_dot = is_13 || has(khr::shader_integer_dot_product::NAME);
        if has_dot {
            properties = properties.push_next(&mut dot);
        }
        if has_pci {
            properties = properties.push_next(&mut pci);
        }
        // SAFETY: see above.
        unsafe { instance.raw.get_physical_device_properties2(raw, &mut properties) };
        let core = properties.properties;
        let mut features = Features::read(instance, raw, is_12, has_size_control);
        features.memory_priority &= has(ext::memory_priority::NAME);
        features.device_fault &= has(ext::device_fault::NAME);
        features.executable_info &= has(khr::pipeline_executable_properties::NAME);
        features.int8_matmuls &= has_dot;
        features.matrices &= has(khr::cooperative_matrix::NAME);
        let address = (pci.pci_domain, pci.pci_bus, pci.pci_device, pci.pci_function);
        Ok(Self {
            core,
            // The chain was for the call alone.
            v11: vk::PhysicalDeviceVulkan11Properties { p_next: null_mut(), ..v11 },
            v12: vk::PhysicalDeviceVulkan12Properties { p_next: null_mut(), ..v12 },
            size_control: vk::PhysicalDeviceSubgroupSizeControlProperties {
                p_next: null_mut(),
                ..size_control
            },
            buffer_bytes_max: maintenance4.max_buffer_size,
            int8_dot_accelerated: dot.integer_dot_product4x8_bit_packed_signed_accelerated
                == vk::TRUE,
            pci_address: has_pci.then_some(address),
            features,
            // SAFETY: see above.
            memory: unsafe { instance.raw.get_physical_device_memory_properties(raw) },
            memory_budget: has(ext::memory_budget::NAME),
            // SAFETY: see above.
            queues: Queues::choose(&unsafe {
                instance.raw.get_physical_device_queue_family_properties(raw)
            }),
        })
    }

    fn capabilities(&self, subgroups: &Subgroups, disable_subgroup_ops: bool) -> Capabilities {
        let limits = &self.core.limits;
        let driver_name = text(self.v12.driver_name_as_c_str());
        let driver_info = text(self.v12.driver_info_as_c_str());
        let device_type = device_type(self.core.device_type);
        let has_timestamps = self.queues.is_some_and(|queues| queues.timestamp_bits > 0);
        Capabilities {
            device_name: text(self.core.device_name_as_c_str()),
            driver: format!("{driver_name} {driver_info}"),
            device_type,
            vendor_id: self.core.vendor_id,
            device_id: self.core.device_id,
            uuid: self.v11.device_uuid,
            lanes: subgroups.lanes,
            subgroup_ops: subgroups.usable,
            storage_range_max: limits.max_storage_buffer_range.into(),
            storage_align: limits.min_storage_buffer_offset_alignment.max(4),
            allocation_bytes_max: match self.buffer_bytes_max {
                0 => self.v11.max_memory_allocation_size,
                limit => self.v11.max_memory_allocation_size.min(limit),
            }
            .max(ALLOCATION_BYTES_LEAST),
            push_bytes_max: limits.max_push_constants_size,
            workgroup_count_max: limits.max_compute_work_group_count,
            workgroup_invocations_max: limits.max_compute_work_group_invocations,
            shared_bytes_max: limits.max_compute_shared_memory_size,
            storage_16bit: self.features.storage_16bit,
            half_arithmetic: self.features.half_arithmetic,
            int8_matmuls: self.features.int8_matmuls,
            int8_dot_accelerated: self.int8_dot_accelerated,
            matrix_units: None,
            buffer_pointers: self.features.buffer_address,
            uniform_loads: self.loads_uniformly(),
            unified_memory: is_unified(&self.memory, device_type),
            timestamp_period_ns: if has_timestamps { limits.timestamp_period } else { 0.0 },
            workarounds: Workarounds { no_subgroup_ops: disable_subgroup_ops },
            avoided: BTreeSet::new(),
            tuned: BTreeMap::new(),
        }
    }

    /// Mesa's software driver follows since 26.1 which addresses are uniform (measured: 25.0 does
    /// not). A GPU has a cache for such loads, but lanes side by side load more at once.
    fn loads_uniformly(&self) -> bool {
        let version = self.core.driver_version;
        let version = (vk::api_version_major(version), vk::api_version_minor(version));
        self.v12.driver_id == vk::DriverId::MESA_LLVMPIPE && version >= (26, 1)
    }

    /// Reason hob cannot use the device.
    fn unusable(&self) -> Option<String> {
        if self.core.api_version < vk::API_VERSION_1_2 {
            Some(format!("Vulkan {}", version_text(self.core.api_version)))
        } else if self.queues.is_none() {
            Some("no compute queue".into())
        } else {
            None
        }
    }
}

/// Optional features in use.
#[derive(Default)]
struct Features {
    timeline_semaphore: bool,
    subgroup_size_control: bool,
    storage_16bit: bool,
    memory_priority: bool,
    device_fault: bool,
    executable_info: bool,
    buffer_address: bool,
    half_arithmetic: bool,
    int8_matmuls: bool,
    /// Cooperative matrices, and the memory model that their shaders are written for.
    matrices: bool,
}

impl Features {
    fn read(instance: &Instance, raw: vk::PhysicalDevice, is_12: bool, size_control: bool) -> Self {
        if !is_12 {
            return Self::default();
        }
        let mut v11 = vk::PhysicalDeviceVulkan11Features::default();
        let mut v12 = vk::PhysicalDeviceVulkan12Features::default();
        let mut control = vk::PhysicalDeviceSubgroupSizeControlFeatures::default();
        let mut priority = vk::PhysicalDeviceMemoryPriorityFeaturesEXT::default();
        let mut fault = vk::PhysicalDeviceFaultFeaturesEXT::default();
        let mut executables = vk::PhysicalDevicePipelineExecutablePropertiesFeaturesKHR::default();
        let mut dot = vk::PhysicalDeviceShaderIntegerDotProductFeatures::default();
        let mut matrices = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default();
        let mut features = vk::PhysicalDeviceFeatures2::default()
            .push_next(&mut v11)
            .push_next(&mut v12)
            .push_next(&mut priority)
            .push_next(&mut fault)
            .push_next(&mut executables)
            .push_next(&mut matrices)
            .push_next(&mut dot);
        if size_control {
            features = features.push_next(&mut control);
        }
        // SAFETY: as for the properties; a driver leaves structures it does not know untouched.
        unsafe { instance.raw.get_physical_device_features2(raw, &mut features) };
        Self {
            timeline_semaphore: v12.timeline_semaphore == vk::TRUE,
            subgroup_size_control: control.subgroup_size_control == vk::TRUE
                && control.compute_full_subgroups == vk::TRUE,
            storage_16bit: v11.storage_buffer16_bit_access == vk::TRUE,
            memory_priority: priority.memory_priority == vk::TRUE,
            device_fault: fault.device_fault == vk::TRUE,
            executable_info: executables.pipeline_executable_info == vk::TRUE,
            buffer_address: v12.buffer_device_address == vk::TRUE,
            int8_matmuls: dot.shader_integer_dot_product == vk::TRUE,
            half_arithmetic: v12.shader_float16 == vk::TRUE,
            matrices: matrices.cooperative_matrix == vk::TRUE
                && v12.vulkan_memory_model == vk::TRUE
                && v12.vulkan_memory_model_device_scope == vk::TRUE,
        }
    }
}

struct Subgroups {
    lanes: u32,
    usable: bool,
    controlled: bool,
}

/// The subgroup size for the kernels: the preferred one where it can be asked for, else the
/// device's.
fn choose_lanes(facts: &Facts, disabled: bool) -> Subgroups {
    let (v11, control) = (&facts.v11, &facts.size_control);
    let needed = vk::SubgroupFeatureFlags::BASIC
        | vk::SubgroupFeatureFlags::BALLOT
        | vk::SubgroupFeatureFlags::SHUFFLE;
    let offered = v11.subgroup_supported_operations.contains(needed)
        && v11.subgroup_supported_stages.contains(vk::ShaderStageFlags::COMPUTE);
    let controlled = facts.features.subgroup_size_control
        && control.required_subgroup_size_stages.contains(vk::ShaderStageFlags::COMPUTE);
    let lanes = if controlled {
        LANES_PREFERRED.clamp(control.min_subgroup_size, control.max_subgroup_size)
    } else {
        v11.subgroup_size
    };
    // Without control over it the size may differ from pipeline to pipeline where a range is
    // offered.
    let fixed = controlled
        || control.min_subgroup_size == control.max_subgroup_size
        || control.max_subgroup_size == 0;
    if offered && fixed && !disabled && lanes.is_power_of_two() && (2..=LANES_MAX).contains(&lanes)
    {
        return Subgroups { lanes, usable: true, controlled };
    }
    let cpu = facts.core.device_type == vk::PhysicalDeviceType::CPU;
    let lanes = if cpu { SHARED_LANES_CPU } else { SHARED_LANES_GPU };
    Subgroups { lanes, usable: false, controlled: false }
}

fn device_type(raw: vk::PhysicalDeviceType) -> DeviceType {
    match raw {
        vk::PhysicalDeviceType::DISCRETE_GPU => DeviceType::Discrete,
        vk::PhysicalDeviceType::INTEGRATED_GPU => DeviceType::Integrated,
        vk::PhysicalDeviceType::VIRTUAL_GPU => DeviceType::Virtual,
        vk::PhysicalDeviceType::CPU => DeviceType::Cpu,
        _ => DeviceType::Other,
    }
}

/// True if the host sees (nearly) all of the device's memory.
fn is_unified(memory: &vk::PhysicalDeviceMemoryProperties, device_type: DeviceType) -> bool {
    let wanted = vk::MemoryPropertyFlags::DEVICE_LOCAL | vk::MemoryPropertyFlags::HOST_VISIBLE;
    let visible = memory
        .memory_types_as_slice()
        .iter()
        .filter(|kind| kind.property_flags.contains(wanted))
        .map(|kind| memory.memory_heaps[kind.heap_index as usize].size)
        .max()
        .unwrap_or(0);
    let by_nature = matches!(device_type, DeviceType::Cpu | DeviceType::Integrated);
    visible > 0 && (by_nature || visible >= largest_local_heap(memory) / 10 * 9)
}

fn largest_local_heap(memory: &vk::PhysicalDeviceMemoryProperties) -> u64 {
    let heaps = memory.memory_heaps_as_slice().iter();
    heaps
        .filter(|heap| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL))
        .map(|heap| heap.size)
        .max()
        .unwrap_or(0)
}

fn text(name: Result<&std::ffi::CStr, std::ffi::FromBytesUntilNulError>) -> String {
    name.map_or_else(|_| String::new(), |name| name.to_string_lossy().into_owned())
}

/// A Vulkan version as people write it.
pub(super) fn version_text(version: u32) -> String {
    let (major, minor) = (vk::api_version_major(version), vk::api_version_minor(version));
    format!("{major}.{minor}.{}", vk::api_version_patch(version))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Heaps in MiB, of which the device's own come first; types by heap.
    fn memory(heaps: &[(u64, bool)], types: &[(usize, u32)]) -> vk::PhysicalDeviceMemoryProperties {
        let mut memory = vk::PhysicalDeviceMemoryProperties::default();
        for (heap, (mib, local)) in memory.memory_heaps.iter_mut().zip(heaps) {
            heap.size = mib << 20;
            heap.flags = match local {
                true => vk::MemoryHeapFlags::DEVICE_LOCAL,
                false => vk::MemoryHeapFlags::empty(),
            };
        }
        for (kind, (heap, flags)) in memory.memory_types.iter_mut().zip(types) {
            kind.heap_index = *heap as u32;
            kind.property_flags = vk::MemoryPropertyFlags::from_raw(*flags);
        }
        memory.memory_heap_count = heaps.len() as u32;
        memory.memory_type_count = types.len() as u32;
        memory
    }

    #[test]
    fn memory_that_the_host_sees_whole_is_written_straight() {
        const LOCAL: u32 = 1;
        const SEEN: u32 = 2 | 4; // and coherent
        const CACHED: u32 = 8;
        let host = (1, SEEN | CACHED);
        let card = DeviceType::Discrete;
        // All of a card's memory behind a resizable BAR; a window of 256 MiB; none.
        let heaps = [(16384, true), (32768, false)];
        let whole = memory(&heaps, &[(0, LOCAL), (0, LOCAL | SEEN), host]);
        assert!(is_unified(&whole, card));
        let windowed = [(16128, true), (32768, false), (256, true)];
        let window = memory(&windowed, &[(0, LOCAL), (2, LOCAL | SEEN), host]);
        assert!(!is_unified(&window, card));
        assert!(!is_unified(&memory(&heaps, &[(0, LOCAL), host]), card));
        // An integrated GPU's memory is the host's, however it is cut into heaps.
        let shared = [(512, true), (16384, true)];
        let integrated = memory(&shared, &[(0, LOCAL), (0, LOCAL | SEEN)]);
        assert!(is_unified(&integrated, DeviceType::Integrated));
        let software = memory(&[(16384, true)], &[(0, LOCAL | SEEN | CACHED)]);
        assert!(is_unified(&software, DeviceType::Cpu));
    }
}
