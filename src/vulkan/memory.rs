//! Device memory through vk-mem, host memory through gpu-allocator.

use std::collections::HashMap;
use std::sync::Arc;

use ash::vk;
use gpu_allocator::MemoryLocation;
use gpu_allocator::vulkan as host;
use vk_mem::Alloc as _;

use super::device::Device;
use super::results::{failed, failed_allocation};
use crate::gpu::{BufferDesc, BufferHandle, BufferUsage, DeviceError, MemoryReport};

/// vk-mem asks the driver for blocks of this size and places buffers in them.
const BLOCK_BYTES: u64 = 64 << 20;

/// A live buffer.
pub(super) struct Buffer {
    pub raw: vk::Buffer,
    pub bytes: u64,
    allocation: Allocation,
}

enum Allocation {
    Device {
        allocation: vk_mem::Allocation,
        mapped: Option<*mut u8>,
        /// The host reads it by way of its caches.
        cached: bool,
    },
    Host(host::Allocation),
}

// SAFETY: the pointer is to memory that the buffer owns; it is used by whoever holds `&mut Memory`.
unsafe impl Send for Buffer {}

impl Buffer {
    /// The buffer's bytes, where the host can see them.
    pub(super) fn mapped(&mut self) -> Option<&mut [u8]> {
        let bytes = usize::try_from(self.bytes).expect("a mapped buffer fits the address space");
        match &mut self.allocation {
            Allocation::Device { mapped, .. } => {
                // SAFETY: vk-mem maps the whole allocation, at least `bytes` long, until it is
                // freed; `&mut self` makes this the only reference.
                mapped.map(|at| unsafe { std::slice::from_raw_parts_mut(at, bytes) })
            }
            Allocation::Host(allocation) => {
                allocation.mapped_slice_mut().map(|slice| &mut slice[..bytes])
            }
        }
    }

    /// True if the host is better off with a copy by the device than with the mapped bytes: those
    /// of graphics cards come over the bus one load after the other.
    pub(super) fn is_slow_to_read(&self) -> bool {
        matches!(self.allocation, Allocation::Device { mapped: Some(_), cached: false, .. })
    }
}

/// The allocators and the buffers made of them.
pub(super) struct Memory {
    // In the order they must be dropped.
    device_allocator: vk_mem::Allocator,
    host_allocator: host::Allocator,
    device: Arc<Device>,
    buffers: HashMap<BufferHandle, Buffer>,
    next: u32,
    used_bytes: u64,
}

impl Memory {
    pub(super) fn new(device: Arc<Device>) -> Result<Self, DeviceError> {
        let instance = &device.instance.raw;
        let mut info = vk_mem::AllocatorCreateInfo::new(instance, &device.raw, device.chosen.raw);
        info.vulkan_api_version = device.chosen.api_version;
        info.preferred_large_heap_block_size = BLOCK_BYTES;
        if device.chosen.memory_budget {
            info.flags |= vk_mem::AllocatorCreateFlags::EXT_MEMORY_BUDGET;
        }
        if device.chosen.info.capabilities.buffer_pointers {
            info.flags |= vk_mem::AllocatorCreateFlags::BUFFER_DEVICE_ADDRESS;
        }
        if device.chosen.memory_priority {
            info.flags |= vk_mem::AllocatorCreateFlags::EXT_MEMORY_PRIORITY;
        }
        // SAFETY: instance and device outlive the allocator, whose owner holds an Arc of them; the
        // extensions named in the flags are enabled.
        let device_allocator =
            unsafe { vk_mem::Allocator::new(info) }.map_err(failed("vmaCreateAllocator"))?;
        let host_allocator = host::Allocator::new(&host::AllocatorCreateDesc {
            instance: instance.clone(),
            device: device.raw.clone(),
            physical_device: device.chosen.raw,
            debug_settings: gpu_allocator::AllocatorDebugSettings::default(),
            buffer_device_address: device.chosen.info.capabilities.buffer_pointers,
            allocation_sizes: gpu_allocator::AllocationSizes::new(4 << 20, 4 << 20),
        })
        .map_err(|error| DeviceError::Call {
            call: "gpu_allocator::Allocator::new",
            result: error.to_string(),
        })?;
        let buffers = HashMap::new();
        Ok(Self { device_allocator, host_allocator, device, buffers, next: 0, used_bytes: 0 })
    }

    /// A live buffer.
    ///
    /// # Panics
    /// If it was destroyed: a bug of the caller.
    pub(super) fn get(&self, handle: BufferHandle) -> &Buffer {
        self.buffers.get(&handle).expect("a live buffer")
    }

    pub(super) fn get_mut(&mut self, handle: BufferHandle) -> &mut Buffer {
        self.buffers.get_mut(&handle).expect("a live buffer")
    }

    /// # Panics
    /// If a range reaches past its buffer: a bug of the caller.
    pub(super) fn assert_inside(&self, handle: BufferHandle, offset: u64, bytes: u64) {
        let size = self.get(handle).bytes;
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= size);
        assert!(inside, "{bytes} bytes at {offset} of a buffer of {size}");
    }

    /// Address of a buffer on the device; 0 where the device has no addresses.
    pub(super) fn address(&self, handle: BufferHandle) -> u64 {
        if !self.device.chosen.info.capabilities.buffer_pointers {
            return 0;
        }
        let info = vk::BufferDeviceAddressInfo::default().buffer(self.get(handle).raw);
        // SAFETY: the buffer is alive and was made with a device address, as all are where the
        // feature is on.
        unsafe { self.device.raw.get_buffer_device_address(&info) }
    }

    /// Creates a buffer; its contents are undefined.
    pub(super) fn create(&mut self, desc: &BufferDesc) -> Result<BufferHandle, DeviceError> {
        self.create_within(desc, self.budget().free_bytes())
    }

    /// Creates a buffer in the place of one that was just destroyed and had as many bytes or more:
    /// the budget, which may be used up, is not asked.
    pub(super) fn create_instead(
        &mut self,
        desc: &BufferDesc,
        freed_bytes: u64,
    ) -> Result<BufferHandle, DeviceError> {
        self.create_within(desc, self.budget().free_bytes().max(freed_bytes))
    }

    fn create_within(
        &mut self,
        desc: &BufferDesc,
        free_bytes: u64,
    ) -> Result<BufferHandle, DeviceError> {
        let bytes = desc.bytes.next_multiple_of(4).max(4);
        let limit = self.device.chosen.info.capabilities.allocation_bytes_max;
        if bytes > limit || bytes > free_bytes {
            return Err(DeviceError::OutOfMemory {
                what: desc.label.clone(),
                wanted_bytes: bytes,
                free_bytes: free_bytes.min(limit),
            });
        }
        let mut usage = vk::BufferUsageFlags::STORAGE_BUFFER
            | vk::BufferUsageFlags::TRANSFER_SRC
            | vk::BufferUsageFlags::TRANSFER_DST;
        if self.device.chosen.info.capabilities.buffer_pointers {
            usage |= vk::BufferUsageFlags::SHADER_DEVICE_ADDRESS;
        }
        let families = self.device.chosen.families();
        let mut info = vk::BufferCreateInfo::default().size(bytes).usage(usage);
        if families.len() > 1 {
            // Unlike images, buffers lose nothing by it.
            info = info.sharing_mode(vk::SharingMode::CONCURRENT).queue_family_indices(&families);
        }
        let (raw, allocation) = match desc.usage {
            BufferUsage::Upload => self.create_host(desc, &info, MemoryLocation::CpuToGpu)?,
            BufferUsage::Readback => self.create_host(desc, &info, MemoryLocation::GpuToCpu)?,
            BufferUsage::Weights | BufferUsage::Kv | BufferUsage::Scratch => {
                self.create_local(desc, &info, free_bytes)?
            }
        };
        self.device.name(raw, &desc.label);
        let handle = BufferHandle(self.next);
        self.next += 1;
        self.used_bytes += bytes;
        self.buffers.insert(handle, Buffer { raw, bytes, allocation });
        Ok(handle)
    }

    fn create_local(
        &self,
        desc: &BufferDesc,
        info: &vk::BufferCreateInfo<'_>,
        free_bytes: u64,
    ) -> Result<(vk::Buffer, Allocation), DeviceError> {
        let unified = self.device.chosen.info.capabilities.unified_memory;
        let mut create = vk_mem::AllocationCreateInfo {
            usage: vk_mem::MemoryUsage::AutoPreferDevice,
            // Under pressure the driver pushes out activations last, cached keys and values first.
            priority: match desc.usage {
                BufferUsage::Kv => 0.25,
                BufferUsage::Weights => 0.75,
                _ => 1.0,
            },
            ..Default::default()
        };
        if desc.usage == BufferUsage::Kv {
            // Memory of its own goes back to the driver with the buffer: the pool can shrink.
            create.flags |= vk_mem::AllocationCreateFlags::DEDICATED_MEMORY;
        }
        if unified {
            create.required_flags =
                vk::MemoryPropertyFlags::DEVICE_LOCAL | vk::MemoryPropertyFlags::HOST_VISIBLE;
            create.flags |= vk_mem::AllocationCreateFlags::MAPPED
                | vk_mem::AllocationCreateFlags::HOST_ACCESS_RANDOM;
        }
        let call = "vmaCreateBuffer";
        // SAFETY: the structures live until the call returns.
        let create = || unsafe { self.device_allocator.create_buffer(info, &create) };
        let (raw, allocation) = (self.device.call(call, create)).map_err(failed_allocation(
            call,
            &desc.label,
            info.size,
            free_bytes,
        ))?;
        let found = self.device_allocator.get_allocation_info(&allocation);
        let mapped = (!found.mapped_data.is_null()).then_some(found.mapped_data.cast::<u8>());
        // SAFETY: the allocator is alive.
        let memory = unsafe { self.device_allocator.get_memory_properties() };
        let kind = memory.memory_types[found.memory_type as usize].property_flags;
        let cached = kind.contains(vk::MemoryPropertyFlags::HOST_CACHED);
        Ok((raw, Allocation::Device { allocation, mapped, cached }))
    }

    fn create_host(
        &mut self,
        desc: &BufferDesc,
        info: &vk::BufferCreateInfo<'_>,
        location: MemoryLocation,
    ) -> Result<(vk::Buffer, Allocation), DeviceError> {
        let device = &self.device.raw;
        // SAFETY: the structure lives until the call returns.
        let create = || unsafe { device.create_buffer(info, None) };
        let call = "vkCreateBuffer";
        let raw = self.device.call(call, create).map_err(failed(call))?;
        // SAFETY: the buffer was just made.
        let requirements = unsafe { device.get_buffer_memory_requirements(raw) };
        let allocated = self.host_allocator.allocate(&host::AllocationCreateDesc {
            name: &desc.label,
            requirements,
            location,
            linear: true,
            allocation_scheme: host::AllocationScheme::GpuAllocatorManaged,
        });
        let bound = allocated
            .map_err(|error| match error {
                gpu_allocator::AllocationError::OutOfMemory => DeviceError::OutOfMemory {
                    what: desc.label.clone(),
                    wanted_bytes: info.size,
                    free_bytes: 0,
                },
                other => DeviceError::Call {
                    call: "gpu_allocator::Allocator::allocate",
                    result: other.to_string(),
                },
            })
            .and_then(|allocation| {
                // SAFETY: the memory was allocated for this buffer's requirements and is not bound
                // yet.
                let bind = || unsafe {
                    device.bind_buffer_memory(raw, allocation.memory(), allocation.offset())
                };
                let call = "vkBindBufferMemory";
                self.device.call(call, bind).map(|()| allocation).map_err(failed(call))
            });
        match bound {
            Ok(allocation) => Ok((raw, Allocation::Host(allocation))),
            Err(error) => {
                // SAFETY: nothing uses the buffer.
                unsafe { device.destroy_buffer(raw, None) };
                Err(error)
            }
        }
    }

    /// Destroys a buffer that no submission uses.
    pub(super) fn destroy(&mut self, handle: BufferHandle) {
        if let Some(buffer) = self.buffers.remove(&handle) {
            self.used_bytes -= buffer.bytes;
            self.free(buffer);
        }
    }

    fn free(&mut self, buffer: Buffer) {
        match buffer.allocation {
            Allocation::Device { mut allocation, .. } => {
                // SAFETY: made by this allocator, freed once; the caller vouches that it is not in
                // use.
                unsafe { self.device_allocator.destroy_buffer(buffer.raw, &mut allocation) };
            }
            Allocation::Host(allocation) => {
                // SAFETY: as above.
                unsafe { self.device.raw.destroy_buffer(buffer.raw, None) };
                if let Err(error) = self.host_allocator.free(allocation) {
                    tracing::error!(%error, "host memory was not given back");
                }
            }
        }
    }

    /// Makes host writes visible to the device (`flush`) or the device's to the host, on memory
    /// that is not coherent; elsewhere this costs nothing.
    pub(super) fn synchronise(
        &self,
        handle: BufferHandle,
        (offset, bytes): (u64, u64),
        flush: bool,
    ) -> Result<(), DeviceError> {
        // gpu-allocator only hands out coherent memory for the host's side.
        let Allocation::Device { allocation, .. } = &self.get(handle).allocation else {
            return Ok(());
        };
        if flush {
            self.device_allocator.flush_allocation(allocation, offset, bytes)
        } else {
            self.device_allocator.invalidate_allocation(allocation, offset, bytes)
        }
        .map_err(failed("vmaFlushAllocation"))
    }

    /// Device memory in use and available, as the driver has it now.
    pub(super) fn report(&self) -> MemoryReport {
        // vk-mem asks the driver again only now and then; being told of a frame makes it.
        // SAFETY: the allocator is alive, and the number is a valid one.
        unsafe { self.device_allocator.set_current_frame_index(0) };
        let budget = self.budget();
        MemoryReport {
            used_bytes: self.used_bytes,
            // What drivers take for themselves is no part of either.
            budget_bytes: (self.used_bytes + budget.limit_bytes).saturating_sub(budget.taken_bytes),
            total_bytes: budget.total_bytes,
        }
    }

    /// The largest heap of the device's own memory.
    fn budget(&self) -> HeapBudget {
        // SAFETY: the allocator is alive.
        let memory = unsafe { self.device_allocator.get_memory_properties() };
        let heaps = memory.memory_heaps_as_slice();
        let Ok(budgets) = self.device_allocator.get_heap_budgets() else {
            return HeapBudget::default();
        };
        let local = heaps
            .iter()
            .zip(&budgets)
            .filter(|(heap, _)| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL));
        let Some((heap, budget)) = local.max_by_key(|(heap, _)| heap.size) else {
            return HeapBudget::default();
        };
        let statistics = &budget.statistics;
        // Without the extension vk-mem guesses at a share of the heap.
        let live = self.device.chosen.memory_budget;
        HeapBudget {
            limit_bytes: if live { budget.budget } else { heap.size },
            // Blocks that are allocated but have room count as free. Some drivers count only what
            // was written to.
            taken_bytes: budget
                .usage
                .saturating_sub(statistics.blockBytes.saturating_sub(statistics.allocationBytes))
                .max(statistics.allocationBytes),
            total_bytes: heap.size,
        }
    }
}

/// Budget of one heap for this process.
#[derive(Clone, Copy, Debug, Default)]
struct HeapBudget {
    /// This process may take so much; at times less than it has taken.
    limit_bytes: u64,
    /// And has taken so much.
    taken_bytes: u64,
    total_bytes: u64,
}

impl HeapBudget {
    fn free_bytes(&self) -> u64 {
        self.limit_bytes.saturating_sub(self.taken_bytes)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        for (_, buffer) in std::mem::take(&mut self.buffers) {
            self.free(buffer);
        }
    }
}
