//! What can go wrong with a device.

use thiserror::Error;

/// A failed operation of a device. `call` names the operation that failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum DeviceError {
    /// No Vulkan loader on this machine.
    #[error("no Vulkan loader: {reason}. Install it (Debian, Ubuntu: `apt install libvulkan1`)")]
    NoLoader {
        /// Message of the dynamic linker.
        reason: String,
    },
    /// The loader works but lists no usable device.
    #[error(
        "no Vulkan device: {reason}. Install a driver for your GPU, or the software driver \
         (Debian, Ubuntu: `apt install mesa-vulkan-drivers`)"
    )]
    NoDevice {
        /// Reason no device qualifies.
        reason: String,
    },
    /// The user asked for a device that is not there.
    #[error("no device matches {wanted:?}; there are: {found}")]
    DeviceNotFound {
        /// Requested device.
        wanted: String,
        /// The devices there are.
        found: String,
    },
    /// The device lacks what hob needs.
    #[error("{device} cannot run hob: {what} wanted, {found} found")]
    Unsupported {
        /// Name of the device.
        device: String,
        /// Name of the limit, feature or version, with the value wanted.
        what: String,
        /// Value the device offers.
        found: String,
    },
    /// Memory of the device (or of the host, for its driver) is used up.
    #[error("out of device memory: {what} wants {wanted_bytes} bytes, {free_bytes} are free")]
    OutOfMemory {
        /// Purpose of the allocation.
        what: String,
        /// Size of the allocation, in bytes.
        wanted_bytes: u64,
        /// Bytes left within the driver's budget.
        free_bytes: u64,
    },
    /// The driver reset or lost the device.
    #[error("the device was lost in {call}")]
    Lost {
        /// The call that reported it.
        call: &'static str,
    },
    /// A submission did not finish in time.
    #[error("the device did not finish within {waited_ms} ms")]
    Timeout {
        /// Time waited, in milliseconds.
        waited_ms: u64,
    },
    /// The device computes, but wrongly.
    #[error("the device computes nonsense: the first token's logits are {what}")]
    WrongResult {
        /// Description of the invalid results.
        what: String,
    },
    /// A kernel computes wrongly, and nothing can take its place.
    #[error("kernel {kernel} computes wrongly on {device}: {difference}")]
    WrongKernel {
        /// Name of the kernel.
        kernel: String,
        /// Name of the device.
        device: String,
        /// Computed and expected values.
        difference: String,
    },
    /// A shader did not compile on this driver.
    #[error("the driver refused shader {kernel}: {reason}")]
    Pipeline {
        /// Name of the kernel.
        kernel: String,
        /// The driver's result.
        reason: String,
    },
    /// Any other failed call.
    #[error("{call} failed: {result}")]
    Call {
        /// The Vulkan call.
        call: &'static str,
        /// Name of the `VkResult`.
        result: String,
    },
}
