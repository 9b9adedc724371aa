//! `shaders/glu.comp`: the feed-forward's gate where gate and up are separate products.

use bytemuck::{Pod, Zeroable};

use super::{spirv, u32_of};
use crate::gpu::{BufferSlice, Capabilities, Dispatch, Recording};

/// Push constants.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs)] // the shader's Params say what each is
pub struct Params {
    pub dim: u32,
}

const _: () = assert!(spirv::GLU_PUSH_BYTES as usize == size_of::<Params>());
const _: () = assert!(spirv::GLU_BINDINGS == 2 && spirv::GLU_SPECS == 4);

/// Workgroups a token's row is shared by.
const PARTS: u32 = 4;

/// Appends y\[t, i\] = act(x\[t, i\]) * x\[t, dim + i\] for `tokens` rows.
///
/// `x`: f32 `[tokens, 2 * dim]`. `y`: f32 `[tokens, dim]`. `gelu`: GELU's tanh form rather than
/// SiLU.
pub fn record(
    recording: &mut Recording,
    caps: &Capabilities,
    x: BufferSlice,
    y: BufferSlice,
    dim: u64,
    gelu: bool,
    tokens: u32,
) {
    let params = Params { dim: u32_of(dim) };
    recording.dispatch(Dispatch {
        kernel: &spirv::GLU,
        spec: vec![caps.lanes, 1, 1, u32::from(gelu)],
        bindings: vec![x, y],
        push: bytemuck::bytes_of(&params).to_vec(),
        pointers: 0,
        groups: [tokens, PARTS, 1],
    });
}
