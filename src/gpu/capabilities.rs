//! What a device can do and what it must be spared, filled once when it is opened.

use std::collections::{BTreeMap, BTreeSet};

use super::Kernel;

/// Kind of device, in the order hob prefers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeviceType {
    /// A graphics card with memory of its own.
    Discrete,
    /// A GPU that shares the processor's memory.
    Integrated,
    /// A GPU handed to a virtual machine.
    Virtual,
    /// A software driver.
    Cpu,
    /// The driver does not say.
    Other,
}

/// Cooperative matrices, as they are used: M x K times K x N.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixUnits {
    /// Rows of the left one and of the result.
    pub m: u32,
    /// Columns of the right one and of the result.
    pub n: u32,
    /// Columns of the left one, rows of the right one; a divisor of 32 and a multiple of 8.
    pub k: u32,
    /// Size of the subgroups that hold them.
    pub subgroup: u32,
}

/// Facts about a device; constant while it is open.
#[derive(Clone, Debug, PartialEq)]
pub struct Capabilities {
    /// Name the driver gives the device.
    pub device_name: String,
    /// Driver's name and version, for people.
    pub driver: String,
    /// Kind of device.
    pub device_type: DeviceType,
    /// PCI vendor id.
    pub vendor_id: u32,
    /// PCI device id.
    pub device_id: u32,
    /// `deviceUUID`, as 16 bytes.
    pub uuid: [u8; 16],
    /// Invocations of a kernel's workgroup in x: the subgroup size the kernels ask for, and the row
    /// interleave of weights. A power of two, 1 to 64.
    pub lanes: u32,
    /// Broadcast, shuffle and arithmetic subgroup operations work in compute shaders at `lanes`
    /// invocations with full subgroups. Else the variants with shared memory run.
    pub subgroup_ops: bool,
    /// Largest bindable range of a storage buffer, in bytes.
    pub storage_range_max: u64,
    /// Alignment of a bound offset, in bytes.
    pub storage_align: u64,
    /// Largest single allocation, in bytes.
    pub allocation_bytes_max: u64,
    /// Largest push constant block, in bytes; at least 128.
    pub push_bytes_max: u32,
    /// Most workgroups of a dispatch in x, y and z; at least 65535 each.
    pub workgroup_count_max: [u32; 3],
    /// Most invocations of a workgroup; at least 128.
    pub workgroup_invocations_max: u32,
    /// Shared memory of a workgroup, in bytes; at least 16384.
    pub shared_bytes_max: u32,
    /// 16-bit types can be loaded from and stored to storage buffers.
    pub storage_16bit: bool,
    /// Shaders can compute in f16.
    pub half_arithmetic: bool,
    /// Shaders can multiply four signed bytes by four others at once.
    pub int8_matmuls: bool,
    /// Packed int8 dot products are hardware-accelerated.
    pub int8_dot_accelerated: bool,
    /// Units that multiply matrices of f16 and sum in f32.
    pub matrix_units: Option<MatrixUnits>,
    /// Shaders can load through the addresses of buffers.
    pub buffer_pointers: bool,
    /// Loads of one address by all lanes cost one load, and those of neighbouring addresses one a
    /// lane: true of software drivers that know which addresses are uniform.
    pub uniform_loads: bool,
    /// Device-local memory is visible to the host: weights are written in place.
    pub unified_memory: bool,
    /// Nanoseconds per timestamp tick; 0 where the queue has no timestamps.
    pub timestamp_period_ns: f32,
    /// Driver bugs to work around.
    pub workarounds: Workarounds,
    /// Names of kernels that were found to compute wrongly here: safer ones take their place where
    /// there are such.
    pub avoided: BTreeSet<&'static str>,
    /// Choices that were measured to be faster here than the rules of a kernel's Rust file.
    pub tuned: BTreeMap<Work, Choice>,
}

/// Work that dispatches have in common which should be cut alike: a kernel's name, and numbers that
/// the kernel's Rust file gives a meaning.
pub type Work = (&'static str, [u64; 3]);

/// Tile configuration, encoded by the kernel's Rust file.
pub type Choice = [u32; 4];

impl Capabilities {
    /// True if matrices are sliced (`tensor::sliced`), and multiplied by `matmul_sliced`.
    #[must_use]
    pub fn slices_weights(&self) -> bool {
        self.prefers_cooperative_loads()
    }

    /// True if subgroup-cooperative loads (one broadcast, or one vector load of consecutive words)
    /// beat per-lane loads.
    #[must_use]
    pub fn prefers_cooperative_loads(&self) -> bool {
        self.uniform_loads && self.buffer_pointers && self.subgroup_ops && self.lanes == 8
    }

    /// True if a kernel was found to compute wrongly here.
    #[must_use]
    pub fn avoids(&self, kernel: &Kernel) -> bool {
        self.avoided.contains(kernel.name)
    }

    /// True if a software driver runs on the processor itself.
    #[must_use]
    pub fn is_cpu(&self) -> bool {
        self.device_type == DeviceType::Cpu
    }
}

/// Known faults of drivers, decided once from their ids; nothing else tests a vendor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Workarounds {
    /// Use the variants without subgroup operations although the device offers them.
    pub no_subgroup_ops: bool,
}
