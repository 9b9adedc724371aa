//! `shaders/moe_combine.comp`: the sum of what a token's experts make.

use bytemuck::{Pod, Zeroable};

use super::{or_unused, spirv, u32_of};
use crate::gpu::{BufferSlice, Capabilities, Dispatch, Recording};

/// Push constants.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs)] // the shader's Params say what each is
pub struct Params {
    pub dim: u32,
    pub used: u32,
    pub factor: f32,
}

const _: () = assert!(spirv::MOE_COMBINE_PUSH_BYTES as usize == size_of::<Params>());
const _: () = assert!(spirv::MOE_COMBINE_BINDINGS == 5 && spirv::MOE_COMBINE_SPECS == 5);

/// Workgroups a token's row is shared by.
const PARTS: u32 = 4;

/// Arguments: the weighted sum of expert outputs, and its destination.
#[derive(Clone, Copy, Debug)]
pub struct MoeCombine {
    /// f32 `[tokens, used, dim]`.
    pub x: BufferSlice,
    /// f32 `[tokens, used]`.
    pub weights: BufferSlice,
    /// Result of the expert that all tokens share, f32 `[tokens, dim]`, and the logits of its
    /// weight, f32 `[tokens]`, where it has one.
    pub shared: Option<(BufferSlice, Option<BufferSlice>)>,
    /// f32 `[tokens, dim]`.
    pub y: BufferSlice,
    /// Width of a row, a multiple of 4.
    pub dim: u64,
    /// Experts of a token.
    pub used: u32,
    /// Factor of the whole sum.
    pub factor: f32,
    /// True if the sum is added to y rather than stored.
    pub residual: bool,
}

/// Appends the dispatch for `tokens` rows.
pub fn record(recording: &mut Recording, caps: &Capabilities, args: &MoeCombine, tokens: u32) {
    let params = Params { dim: u32_of(args.dim / 4), used: args.used, factor: args.factor };
    let (shared, gate) = args.shared.unzip();
    let gate = gate.flatten();
    let shares = u32::from(shared.is_some()) + u32::from(gate.is_some());
    recording.dispatch(Dispatch {
        kernel: &spirv::MOE_COMBINE,
        spec: vec![caps.lanes, 1, 1, shares, u32::from(args.residual)],
        bindings: vec![
            args.x,
            args.weights,
            or_unused(shared, args.x),
            or_unused(gate, args.weights),
            args.y,
        ],
        push: bytemuck::bytes_of(&params).to_vec(),
        pointers: 0,
        groups: [tokens, PARTS, 1],
    });
}
