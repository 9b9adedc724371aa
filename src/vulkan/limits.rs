//! Whether a recording keeps to the device's limits and to its buffers: pure checks, no Vulkan.

use crate::gpu::{
    BufferHandle, BufferSlice, Capabilities, Command, DeviceError, Dispatch, Recording,
};

/// Checks a recording before it is planned. `bytes_of` gives the size of a live buffer.
///
/// # Errors
/// [`DeviceError::Unsupported`] where the device's limits are too small.
///
/// # Panics
/// If a slice is empty, unaligned or reaches past its buffer: a bug of the caller, and one that no
/// driver has to survive.
pub(super) fn check(
    recording: &Recording,
    caps: &Capabilities,
    bytes_of: impl Fn(BufferHandle) -> u64,
) -> Result<(), DeviceError> {
    for command in &recording.commands {
        match command {
            Command::Dispatch(dispatch) => {
                for slice in &dispatch.bindings {
                    assert_inside(slice, &bytes_of, dispatch.kernel.name);
                }
                check_dispatch(dispatch, caps)?;
            }
            Command::Copy { from, to } => {
                assert_inside(from, &bytes_of, "copy");
                assert_inside(to, &bytes_of, "copy");
                assert!(!overlap(from, to), "a copy onto itself: {from:?} to {to:?}");
            }
            Command::Zero(slice) => {
                assert_inside(slice, &bytes_of, "zero");
                let whole_words = slice.offset % 4 == 0 && slice.bytes % 4 == 0;
                assert!(whole_words, "a fill is of whole words: {slice:?}");
            }
        }
    }
    Ok(())
}

fn assert_inside(slice: &BufferSlice, bytes_of: impl Fn(BufferHandle) -> u64, what: &str) {
    let end = slice.offset.checked_add(slice.bytes);
    let inside = end.is_some_and(|end| end <= bytes_of(slice.buffer));
    assert!(inside && slice.bytes > 0, "{what}: {slice:?} of {} bytes", bytes_of(slice.buffer));
}

fn check_dispatch(dispatch: &Dispatch, caps: &Capabilities) -> Result<(), DeviceError> {
    let name = dispatch.kernel.name;
    let unsupported = |what: String, found: String| {
        Err(DeviceError::Unsupported { device: caps.device_name.clone(), what, found })
    };
    if dispatch.kernel.push_bytes > caps.push_bytes_max {
        let what = format!("{} bytes of push constants for {name}", dispatch.kernel.push_bytes);
        return unsupported(what, caps.push_bytes_max.to_string());
    }
    if dispatch.groups.iter().zip(caps.workgroup_count_max).any(|(count, max)| *count > max) {
        let what = format!("{:?} workgroups of {name}", dispatch.groups);
        return unsupported(what, format!("{:?}", caps.workgroup_count_max));
    }
    // The first three constants are the local size.
    let invocations = dispatch.spec.iter().take(3).map(|&n| u64::from(n)).product::<u64>();
    if invocations > caps.workgroup_invocations_max.into() {
        let what = format!("{invocations} invocations of {name}");
        return unsupported(what, caps.workgroup_invocations_max.to_string());
    }
    for slice in &dispatch.bindings {
        if slice.bytes > caps.storage_range_max || slice.offset % caps.storage_align != 0 {
            let (max, align) = (caps.storage_range_max, caps.storage_align);
            let found = format!("ranges up to {max} bytes at multiples of {align}");
            return unsupported(format!("a binding {slice:?} of {name}"), found);
        }
    }
    Ok(())
}

/// True if two slices share a byte.
pub(super) fn overlap(a: &BufferSlice, b: &BufferSlice) -> bool {
    a.buffer == b.buffer && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes
}
