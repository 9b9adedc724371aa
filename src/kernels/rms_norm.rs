//! `shaders/rms_norm.comp`: RMS norm of whole rows, where it cannot be folded into a matmul.

use bytemuck::{Pod, Zeroable};

use super::{by_subgroups, spirv, u32_of};
use crate::gpu::{BufferSlice, Capabilities, Dispatch, Recording};

/// Push constants.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs)] // the shader's Params say what each is
pub struct Params {
    pub dim: u32,
    pub epsilon: f32,
}

const _: () = assert!(spirv::RMS_NORM_PUSH_BYTES as usize == size_of::<Params>());
const _: () = assert!(spirv::RMS_NORM_BINDINGS == 3 && spirv::RMS_NORM_SPECS == 4);

/// Rows, their gain and what becomes of them.
#[derive(Clone, Copy, Debug)]
pub struct RmsNorm {
    /// f32 `[tokens, dim]`.
    pub x: BufferSlice,
    /// f32 `[dim]`.
    pub gain: BufferSlice,
    /// f32 `[tokens, dim]`.
    pub y: BufferSlice,
    /// Width of a row, a multiple of 4.
    pub dim: u64,
    /// Added to the mean square.
    pub epsilon: f32,
    /// True if the result is added to y rather than stored.
    pub residual: bool,
}

/// Appends the dispatch for `tokens` rows.
pub fn record(recording: &mut Recording, caps: &Capabilities, args: &RmsNorm, tokens: u32) {
    let params = Params { dim: u32_of(args.dim / 4), epsilon: args.epsilon };
    recording.dispatch(Dispatch {
        kernel: by_subgroups(caps, &spirv::RMS_NORM, &spirv::RMS_NORM_SHARED),
        spec: vec![caps.lanes, 1, 1, u32::from(args.residual)],
        bindings: vec![args.x, args.gain, args.y],
        push: bytemuck::bytes_of(&params).to_vec(),
        pointers: 0,
        groups: [tokens, 1, 1],
    });
}
