//! Which devices there are, what each can do, and which one to take.

use ash::{ext, vk};

use super::VulkanConfig;
use super::instance::Instance;
use super::results::failed;
use crate::gpu::{Capabilities, DeviceError, DeviceType, Workarounds};

/// Lanes of the variants without subgroup operations.
const SHARED_LANES_CPU: u32 = 8;
const SHARED_LANES_GPU: u32 = 32;
/// Preferred subgroup size where the device has a choice.
const LANES_PREFERRED: u32 = 32;
const LANES_MAX: u32 = 64;

/// A device as `hob devices` shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceInfo {
    /// Index for `--device`.
    pub index: usize,
    /// Vulkan version the device offers, such as `1.3.230`.
    pub api_version: String,
    /// What it can do.
    pub capabilities: Capabilities,
    /// Size of its largest device-local heap, in bytes.
    pub memory_bytes: u64,
    /// Why hob cannot use it; `None` where it can.
    pub unusable: Option<String>,
}

impl DeviceInfo {
    /// The device's UUID as 32 hexadecimal digits.
    #[must_use]
    pub fn uuid_text(&self) -> String {
        self.capabilities.uuid.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Lists the devices in the order hob prefers them.
///
/// # Errors
/// [`DeviceError::NoLoader`], [`DeviceError::NoDevice`] or a failed call.
pub fn list_devices() -> Result<Vec<DeviceInfo>, DeviceError> {
    let instance = Instance::new(false)?;
    Ok(candidates(&instance, false)?.into_iter().map(|candidate| candidate.info).collect())
}

/// A device that can be opened.
#[derive(Clone)]
pub(super) struct Candidate {
    pub raw: vk::PhysicalDevice,
    pub info: DeviceInfo,
    pub queue_family: u32,
    pub api_version: u32,
    /// The kernels' subgroup size can and must be asked for.
    pub subgroup_size_control: bool,
    pub memory_budget: bool,
    pub memory_priority: bool,
}

/// Finds the device that the configuration asks for, or the best.
pub(super) fn choose(instance: &Instance, config: &VulkanConfig) -> Result<Candidate, DeviceError> {
    let candidates = candidates(instance, config.disable_subgroup_ops)?;
    let chosen = match &config.device {
        Some(wanted) => select(&candidates, wanted)?,
        None => {
            let usable = candidates.iter().find(|candidate| candidate.info.unusable.is_none());
            usable.unwrap_or(&candidates[0])
        }
    };
    if let Some(reason) = &chosen.info.unusable {
        return Err(DeviceError::Unsupported {
            device: chosen.info.capabilities.device_name.clone(),
            what: "a usable device".into(),
            found: reason.clone(),
        });
    }
    Ok(chosen.clone())
}

fn select<'a>(candidates: &'a [Candidate], wanted: &str) -> Result<&'a Candidate, DeviceError> {
    let simple = wanted.trim().to_lowercase();
    let hex: String = simple.chars().filter(|c| *c != '-').collect();
    let found = match simple.parse::<usize>() {
        Ok(index) if simple.len() < 4 => candidates.get(index),
        _ => candidates.iter().find(|c| c.info.uuid_text() == hex).or_else(|| {
            let named = |c: &&Candidate| {
                !simple.is_empty()
                    && c.info.capabilities.device_name.to_lowercase().contains(&simple)
            };
            candidates.iter().find(named)
        }),
    };
    found.ok_or_else(|| {
        let list: Vec<String> = candidates
            .iter()
            .map(|c| format!("{}: {:?}", c.info.index, c.info.capabilities.device_name))
            .collect();
        DeviceError::DeviceNotFound { wanted: wanted.to_owned(), found: list.join(", ") }
    })
}

/// All devices, best first, each GPU once.
fn candidates(
    instance: &Instance,
    disable_subgroup_ops: bool,
) -> Result<Vec<Candidate>, DeviceError> {
    // SAFETY: the instance is alive.
    let devices = unsafe { instance.raw.enumerate_physical_devices() }
        .map_err(failed("vkEnumeratePhysicalDevices"))?;
    let mut found: Vec<(Candidate, Identity)> = Vec::new();
    for raw in devices {
        let (candidate, identity) = describe(instance, raw, disable_subgroup_ops)?;
        // Two drivers for one card: the first in the loader's order stays, unless only the second
        // works.
        match found.iter_mut().find(|(_, known)| known.is_same_gpu(&identity)) {
            Some(known) if known.0.info.unusable.is_some() && candidate.info.unusable.is_none() => {
                *known = (candidate, identity);
            }
            Some(_) => {}
            None => found.push((candidate, identity)),
        }
    }
    if found.is_empty() {
        return Err(DeviceError::NoDevice { reason: "the drivers list none".into() });
    }
    let mut candidates: Vec<Candidate> =
        found.into_iter().map(|(candidate, _)| candidate).collect();
    candidates.sort_by_key(|c| (c.info.unusable.is_some(), c.info.capabilities.device_type));
    for (index, candidate) in candidates.iter_mut().enumerate() {
        candidate.info.index = index;
    }
    Ok(candidates)
}

/// What tells whether two entries are one GPU.
struct Identity {
    pci_address: Option<(u32, u32, u32, u32)>,
    ids: (u32, u32, [u8; 16]),
}

impl Identity {
    fn is_same_gpu(&self, other: &Self) -> bool {
        match (self.pci_address, other.pci_address) {
            (Some(own), Some(theirs)) => own == theirs,
            _ => self.ids == other.ids,
        }
    }
}

/// Reads everything hob wants to know of a device.
fn describe(
    instance: &Instance,
    raw: vk::PhysicalDevice,
    disable_subgroup_ops: bool,
) -> Result<(Candidate, Identity), DeviceError> {
    // SAFETY (for the block): the device belongs to the instance; the structures outlive the calls.
    let extensions = unsafe { instance.raw.enumerate_device_extension_properties(raw) }
        .map_err(failed("vkEnumerateDeviceExtensionProperties"))?;
    let has = |name| extensions.iter().any(|e| e.extension_name_as_c_str() == Ok(name));
    let has_pci = has(ext::pci_bus_info::NAME);
    let mut pci = vk::PhysicalDevicePCIBusInfoPropertiesEXT::default();
    let mut size_control = vk::PhysicalDeviceSubgroupSizeControlProperties::default();
    let mut v11 = vk::PhysicalDeviceVulkan11Properties::default();
    let mut v12 = vk::PhysicalDeviceVulkan12Properties::default();
    // SAFETY: the device belongs to the instance.
    let api_version = unsafe { instance.raw.get_physical_device_properties(raw) }.api_version;
    let is_12 = api_version >= vk::API_VERSION_1_2;
    let is_13 = api_version.min(instance.api_version) >= vk::API_VERSION_1_3;
    let has_size_control = is_13 || has(ext::subgroup_size_control::NAME);
    let mut properties = vk::PhysicalDeviceProperties2::default();
    if is_12 {
        properties = properties.push_next(&mut v11).push_next(&mut v12);
    }
    if has_size_control {
        properties = properties.push_next(&mut size_control);
    }
    if has_pci {
        properties = properties.push_next(&mut pci);
    }
    // SAFETY: the device belongs to the instance; the chain is made of live structures that the
    // device's version or extensions know.
    unsafe { instance.raw.get_physical_device_properties2(raw, &mut properties) };
    let properties = properties.properties;
    let features = Features::read(instance, raw, is_12, has_size_control);
    // SAFETY: the device belongs to the instance.
    let memory = unsafe { instance.raw.get_physical_device_memory_properties(raw) };
    let device_type = device_type(properties.device_type);
    let subgroups = choose_lanes(&v11, &size_control, &features, device_type, disable_subgroup_ops);
    let limits = properties.limits;
    let capabilities = Capabilities {
        device_name: text(properties.device_name_as_c_str()),
        driver: format!(
            "{} {}",
            text(v12.driver_name_as_c_str()),
            text(v12.driver_info_as_c_str())
        ),
        device_type,
        vendor_id: properties.vendor_id,
        device_id: properties.device_id,
        uuid: v11.device_uuid,
        lanes: subgroups.lanes,
        subgroup_ops: subgroups.usable,
        storage_range_max: limits.max_storage_buffer_range.into(),
        storage_align: limits.min_storage_buffer_offset_alignment.max(4),
        allocation_bytes_max: v11.max_memory_allocation_size,
        push_bytes_max: limits.max_push_constants_size,
        workgroup_count_max: limits.max_compute_work_group_count,
        workgroup_invocations_max: limits.max_compute_work_group_invocations,
        shared_bytes_max: limits.max_compute_shared_memory_size,
        storage_16bit: features.storage_16bit,
        buffer_pointers: features.buffer_address,
        unified_memory: is_unified(&memory, device_type),
        timestamp_period_ns: limits.timestamp_period,
        workarounds: Workarounds { no_subgroup_ops: disable_subgroup_ops },
    };
    let queue = compute_queue(instance, raw);
    let unusable = if !is_12 {
        Some(format!("Vulkan {} where 1.2 is needed", version_text(api_version)))
    } else if queue.is_none() {
        Some("it has no compute queue".into())
    } else if !features.timeline_semaphore {
        Some("it has no timeline semaphores".into())
    } else {
        None
    };
    let mut capabilities = capabilities;
    if queue.is_some_and(|(_, timestamp_bits)| timestamp_bits == 0) {
        capabilities.timestamp_period_ns = 0.0;
    }
    let info = DeviceInfo {
        index: 0,
        api_version: version_text(api_version),
        memory_bytes: largest_local_heap(&memory),
        unusable,
        capabilities,
    };
    let identity = Identity {
        pci_address: has_pci.then_some((
            pci.pci_domain,
            pci.pci_bus,
            pci.pci_device,
            pci.pci_function,
        )),
        ids: (properties.vendor_id, properties.device_id, v11.device_uuid),
    };
    let candidate = Candidate {
        raw,
        info,
        queue_family: queue.map_or(0, |(family, _)| family),
        api_version: api_version.min(instance.api_version),
        subgroup_size_control: subgroups.controlled,
        memory_budget: has(ext::memory_budget::NAME),
        memory_priority: has(ext::memory_priority::NAME) && features.memory_priority,
    };
    Ok((candidate, identity))
}

/// Optional features in use, and the one that is needed.
#[derive(Default)]
struct Features {
    timeline_semaphore: bool,
    subgroup_size_control: bool,
    storage_16bit: bool,
    memory_priority: bool,
    buffer_address: bool,
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
        let mut features = vk::PhysicalDeviceFeatures2::default()
            .push_next(&mut v11)
            .push_next(&mut v12)
            .push_next(&mut priority);
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
            buffer_address: v12.buffer_device_address == vk::TRUE,
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
fn choose_lanes(
    v11: &vk::PhysicalDeviceVulkan11Properties<'_>,
    control: &vk::PhysicalDeviceSubgroupSizeControlProperties<'_>,
    features: &Features,
    device_type: DeviceType,
    disabled: bool,
) -> Subgroups {
    let needed = vk::SubgroupFeatureFlags::BASIC
        | vk::SubgroupFeatureFlags::BALLOT
        | vk::SubgroupFeatureFlags::SHUFFLE;
    let offered = v11.subgroup_supported_operations.contains(needed)
        && v11.subgroup_supported_stages.contains(vk::ShaderStageFlags::COMPUTE);
    let controlled = features.subgroup_size_control
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
    let cpu = device_type == DeviceType::Cpu;
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

/// The queue family to use, and the valid bits of its timestamps: compute without graphics if
/// possible.
fn compute_queue(instance: &Instance, raw: vk::PhysicalDevice) -> Option<(u32, u32)> {
    // SAFETY: the device belongs to the instance.
    let families = unsafe { instance.raw.get_physical_device_queue_family_properties(raw) };
    let compute = |family: &&(u32, vk::QueueFamilyProperties)| {
        family.1.queue_flags.contains(vk::QueueFlags::COMPUTE) && family.1.queue_count > 0
    };
    let families: Vec<_> = (0..).zip(families).collect();
    families
        .iter()
        .filter(compute)
        .min_by_key(|family| family.1.queue_flags.contains(vk::QueueFlags::GRAPHICS))
        .map(|family| (family.0, family.1.timestamp_valid_bits))
}

/// Whether the host sees (nearly) all of the device's memory.
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
