//! `shaders/read_stream.comp`: reading a buffer and no more, to measure a device's bandwidth.

use bytemuck::{Pod, Zeroable};

use super::{spirv, u32_of};
use crate::gpu::{BufferSlice, Capabilities, Dispatch, Recording};

/// Push constants.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs)] // the shader's Params say what each is
pub struct Params {
    /// Address of x; the executor fills it in where pointers are used.
    pub x_address: [u32; 2],
    pub part: u32,
}

const _: () = assert!(spirv::READ_STREAM_PUSH_BYTES as usize == size_of::<Params>());
const _: () = assert!(spirv::READ_STREAM_BINDINGS == 2 && spirv::READ_STREAM_SPECS == 3);

/// Quads of x that a lane has in flight; the shader's UNROLL.
const UNROLL: u64 = 4;

/// Bytes that x must be a multiple of, for `workgroups` workgroups.
#[must_use]
pub fn bytes_multiple(caps: &Capabilities, workgroups: u32) -> u64 {
    u64::from(workgroups) * UNROLL * u64::from(caps.lanes) * 16
}

/// Appends one pass over `x`, whose size is a multiple of [`bytes_multiple`].
///
/// `y`: u32 `[workgroups, lanes]`. `pointers`: loads go through the buffer's address rather than
/// through its binding.
pub fn record(
    recording: &mut Recording,
    caps: &Capabilities,
    x: BufferSlice,
    y: BufferSlice,
    workgroups: u32,
    pointers: bool,
) {
    assert!(x.bytes.is_multiple_of(bytes_multiple(caps, workgroups)), "whole rounds of all lanes");
    let part = u32_of(x.bytes / 16 / u64::from(workgroups));
    let params = Params { x_address: [0; 2], part };
    recording.dispatch(Dispatch {
        kernel: if pointers { &spirv::READ_STREAM_POINTERS } else { &spirv::READ_STREAM },
        spec: vec![caps.lanes, 1, 1],
        bindings: vec![x, y],
        push: bytemuck::bytes_of(&params).to_vec(),
        pointers: u32::from(pointers),
        groups: [workgroups, 1, 1],
    });
}
