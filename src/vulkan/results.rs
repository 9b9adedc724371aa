//! From VkResult to typed errors.

use ash::vk;

use crate::gpu::DeviceError;

/// For `map_err`: a failed `call` without memory in play.
pub(super) fn failed(call: &'static str) -> impl Fn(vk::Result) -> DeviceError {
    move |result| match result {
        vk::Result::ERROR_DEVICE_LOST => DeviceError::Lost { call },
        vk::Result::ERROR_OUT_OF_HOST_MEMORY | vk::Result::ERROR_OUT_OF_DEVICE_MEMORY => {
            DeviceError::OutOfMemory { what: call.into(), wanted_bytes: 0, free_bytes: 0 }
        }
        other => DeviceError::Call { call, result: format!("{other:?}") },
    }
}

/// For `map_err`: a failed allocation of `wanted_bytes` for `what`.
pub(super) fn failed_allocation<'a>(
    call: &'static str,
    what: &'a str,
    wanted_bytes: u64,
    free_bytes: u64,
) -> impl Fn(vk::Result) -> DeviceError + 'a {
    move |result| match failed(call)(result) {
        DeviceError::OutOfMemory { .. } => {
            DeviceError::OutOfMemory { what: what.into(), wanted_bytes, free_bytes }
        }
        other => other,
    }
}
