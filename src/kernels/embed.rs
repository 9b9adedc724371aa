//! `shaders/embed.comp`: rows of the token table, and of a table of positions, as activations.

use bytemuck::{Pod, Zeroable};

use super::{PackedMatrix, by_format, matmul, spirv, u32_of};
use crate::gpu::{BufferSlice, Capabilities, Dispatch, Recording};

/// Push constants.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs)] // the shader's Params say what each is
pub struct Params {
    pub units: u32,
    pub blocks: u32,
    pub row_first: u32,
    pub row_count: u32,
    pub y_stride: u32,
    pub factor: f32,
}

const _: () = assert!(spirv::EMBED_F32_PUSH_BYTES as usize == size_of::<Params>());
const _: () = assert!(spirv::EMBED_F32_BINDINGS == 5 && spirv::EMBED_F32_SPECS == 4);

/// Appends y\[t\] = factor * table\[token\[t\]\].
///
/// `steps`: u32 `[tokens, 4]`, the token id first, or [`PENDING`](super::sampling::PENDING) and a
/// row of `chosen`, the tokens of the step before. `y`: f32 `[tokens, row_len]`.
pub fn record(
    recording: &mut Recording,
    caps: &Capabilities,
    table: &PackedMatrix,
    (steps, chosen): (BufferSlice, BufferSlice),
    y: BufferSlice,
    tokens: u32,
    factor: f32,
) {
    record_rows(recording, caps, table, (steps, chosen, y), tokens, (factor, 0));
}

/// Appends y\[t\] += table\[position\[t\]\].
///
/// `steps`: u32 `[tokens, 4]`, the position second. `y`: f32 `[tokens, row_len]`.
pub fn record_positions(
    recording: &mut Recording,
    caps: &Capabilities,
    table: &PackedMatrix,
    steps: BufferSlice,
    y: BufferSlice,
    tokens: u32,
) {
    record_rows(recording, caps, table, (steps, steps, y), tokens, (1.0, 1));
}

/// Appends y\[t\] += table\[type\[t\]\].
///
/// `steps`: u32 `[tokens, 4]`, the token's type last. `y`: f32 `[tokens, row_len]`.
pub fn record_types(
    recording: &mut Recording,
    caps: &Capabilities,
    table: &PackedMatrix,
    steps: BufferSlice,
    y: BufferSlice,
    tokens: u32,
) {
    record_rows(recording, caps, table, (steps, steps, y), tokens, (1.0, 3));
}

fn record_rows(
    recording: &mut Recording,
    caps: &Capabilities,
    table: &PackedMatrix,
    (steps, chosen, y): (BufferSlice, BufferSlice, BufferSlice),
    tokens: u32,
    (factor, column): (f32, u32),
) {
    let layout = &table.layout;
    for slice in table.row_slices(caps, matmul::GROUP_MULTIPLE) {
        let params = Params {
            units: u32_of(table.packing().units()),
            blocks: u32_of(layout.row_len / 32),
            row_first: u32_of(slice.row_first),
            row_count: u32_of(slice.row_count),
            y_stride: u32_of(layout.row_len / 4),
            factor,
        };
        recording.dispatch(Dispatch {
            kernel: by_format(
                if table.sliced { "embed_sliced" } else { "embed" },
                layout.dtype,
                "",
            ),
            spec: vec![caps.lanes, 1, 1, column],
            bindings: vec![slice.quads, slice.words, steps, y, chosen],
            push: bytemuck::bytes_of(&params).to_vec(),
            pointers: 0,
            groups: [tokens, 1, 1],
        });
    }
}
