//! `shaders/glu.comp`: the feed-forward's gate where something comes between matmuls and
//! activation.

use bytemuck::{Pod, Zeroable};

use super::{spirv, u32_of};
use crate::gpu::{BufferSlice, Capabilities, Dispatch, Recording};

/// Push constants.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs)] // the shader's Params say what each is
pub struct Params {
    pub dim: u32,
    pub group: u32,
}

const _: () = assert!(spirv::GLU_PUSH_BYTES as usize == size_of::<Params>());
const _: () = assert!(spirv::GLU_BINDINGS == 2 && spirv::GLU_SPECS == 4);

/// Workgroups a token's row is shared by.
const PARTS: u32 = 4;

/// Arguments of one gated linear unit.
#[derive(Clone, Copy, Debug)]
pub struct Glu {
    /// f32 `[tokens, 2 * dim]`: `group` values of gate and `group` of up in turn.
    pub x: BufferSlice,
    /// f32 `[tokens, dim]`.
    pub y: BufferSlice,
    /// Values of a row of the result.
    pub dim: u64,
    /// A divisor of `dim`; `dim` itself where all of gate comes first.
    pub group: u64,
    /// GELU's tanh form rather than SiLU.
    pub gelu: bool,
}

impl Glu {
    /// All of gate comes before all of up.
    #[must_use]
    pub fn apart(x: BufferSlice, y: BufferSlice, dim: u64, gelu: bool) -> Self {
        Self { x, y, dim, group: dim, gelu }
    }
}

/// Appends y\[t, i\] = act(gate\[t, i\]) * up\[t, i\] for `tokens` rows.
pub fn record(recording: &mut Recording, caps: &Capabilities, args: &Glu, tokens: u32) {
    let Glu { x, y, dim, group, gelu } = *args;
    assert!(dim.is_multiple_of(group), "gate and up take turns in whole groups");
    let params = Params { dim: u32_of(dim), group: u32_of(group) };
    recording.dispatch(Dispatch {
        kernel: &spirv::GLU,
        spec: vec![caps.lanes, 1, 1, u32::from(gelu)],
        bindings: vec![x, y],
        push: bytemuck::bytes_of(&params).to_vec(),
        pointers: 0,
        groups: [tokens, PARTS, 1],
    });
}
