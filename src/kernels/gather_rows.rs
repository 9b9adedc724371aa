//! `shaders/gather_rows.comp`: the rows whose logits are wanted.

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

const _: () = assert!(spirv::GATHER_ROWS_PUSH_BYTES as usize == size_of::<Params>());
const _: () = assert!(spirv::GATHER_ROWS_BINDINGS == 3 && spirv::GATHER_ROWS_SPECS == 3);

/// Appends y\[i\] = x\[rows\[i\]\] for `count` rows of `dim` floats, a multiple of 4.
///
/// `x`: f32 `[tokens, dim]`. `rows`: u32 `[count]`. `y`: f32 `[count, dim]`.
pub fn record(
    recording: &mut Recording,
    caps: &Capabilities,
    x: BufferSlice,
    rows: BufferSlice,
    y: BufferSlice,
    dim: u64,
    count: u32,
) {
    let params = Params { dim: u32_of(dim / 4) };
    recording.dispatch(Dispatch {
        kernel: &spirv::GATHER_ROWS,
        spec: vec![caps.lanes, 1, 1],
        bindings: vec![x, rows, y],
        push: bytemuck::bytes_of(&params).to_vec(),
        pointers: 0,
        groups: [count, 1, 1],
    });
}
