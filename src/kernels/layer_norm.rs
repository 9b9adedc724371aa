//! `shaders/layer_norm.comp`: norm of whole rows by their mean and deviation.

use bytemuck::{Pod, Zeroable};

use super::{by_subgroups, or_unused, spirv, u32_of};
use crate::gpu::{BufferSlice, Capabilities, Dispatch, Recording};

/// Push constants.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs)] // the shader's Params say what each is
pub struct Params {
    pub dim: u32,
    pub epsilon: f32,
}

const _: () = assert!(spirv::LAYER_NORM_PUSH_BYTES as usize == size_of::<Params>());
const _: () = assert!(spirv::LAYER_NORM_BINDINGS == 4 && spirv::LAYER_NORM_SPECS == 4);

/// Rows, their gain and bias, and the result.
#[derive(Clone, Copy, Debug)]
pub struct LayerNorm {
    /// f32 `[tokens, dim]`.
    pub x: BufferSlice,
    /// f32 `[dim]`.
    pub gain: BufferSlice,
    /// f32 `[dim]`.
    pub bias: Option<BufferSlice>,
    /// f32 `[tokens, dim]`.
    pub y: BufferSlice,
    /// Width of a row, a multiple of 4.
    pub dim: u64,
    /// Added to the variance.
    pub epsilon: f32,
}

/// Appends the dispatch for `tokens` rows.
pub fn record(recording: &mut Recording, caps: &Capabilities, args: &LayerNorm, tokens: u32) {
    let params = Params { dim: u32_of(args.dim / 4), epsilon: args.epsilon };
    recording.dispatch(Dispatch {
        kernel: by_subgroups(caps, &spirv::LAYER_NORM, &spirv::LAYER_NORM_SHARED),
        spec: vec![caps.lanes, 1, 1, u32::from(args.bias.is_some())],
        bindings: vec![args.x, args.gain, or_unused(args.bias, args.gain), args.y],
        push: bytemuck::bytes_of(&params).to_vec(),
        pointers: 0,
        groups: [tokens, 1, 1],
    });
}
