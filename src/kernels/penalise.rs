//! `shaders/penalise.comp`: listed tokens get a bias and are made less likely.

use bytemuck::{Pod, Zeroable};

use super::spirv;
use crate::gpu::{BufferSlice, Capabilities, Dispatch, Recording};

/// Push constants.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs)] // the shader's Params say what each is
pub struct Params {
    pub stride: u32,
}

const _: () = assert!(spirv::PENALISE_PUSH_BYTES as usize == size_of::<Params>());
const _: () = assert!(spirv::PENALISE_BINDINGS == 4 && spirv::PENALISE_SPECS == 3);

/// Arguments of the penalties on repeated tokens.
#[derive(Clone, Copy, Debug)]
pub struct Penalise {
    /// f32 `[rows, stride]`.
    pub logits: BufferSlice,
    /// [`super::sampling::Row`] `[rows]`.
    pub wanted: BufferSlice,
    /// [`super::sampling::Penalty`], a list for each row.
    pub listed: BufferSlice,
    /// Tokens chosen in the step before, u32 `[rows]` of it.
    pub chosen: BufferSlice,
}

/// Appends the dispatch for `rows` rows of `stride` logits each.
pub fn record(
    recording: &mut Recording,
    caps: &Capabilities,
    args: &Penalise,
    (rows, stride): (u32, u32),
) {
    let params = Params { stride };
    recording.dispatch(Dispatch {
        kernel: &spirv::PENALISE,
        spec: vec![caps.lanes, 1, 1],
        bindings: vec![args.logits, args.wanted, args.listed, args.chosen],
        push: bytemuck::bytes_of(&params).to_vec(),
        pointers: 0,
        groups: [rows, 1, 1],
    });
}
