//! `shaders/sample.comp`: the token of each row of logits.

use super::maxima::Params;
use super::spirv;
use crate::gpu::{BufferSlice, Capabilities, Dispatch, Recording};

const _: () = assert!(spirv::SAMPLE_PUSH_BYTES as usize == size_of::<Params>());
const _: () = assert!(spirv::SAMPLE_BINDINGS == 4 && spirv::SAMPLE_SPECS == 3);

/// Most tokens that may be left to draw among.
pub const LIST_MAX: usize = 512;

/// Largest top-k that leaves no more than [`LIST_MAX`] tokens to look at, but for rows with many
/// equal logits.
pub const TOP_K_MAX: u32 = 128;

/// Invocations of a workgroup, which has a row of logits to itself. A software driver runs them one
/// after the other.
const INVOCATIONS: u32 = 256;

/// Appends the dispatch for `rows` rows of `stride` logits each.
///
/// `logits`: f32 `[rows, stride]`. `wanted`: [`super::sampling::Row`] `[rows]`. `maxima`: u32
/// `[rows, chunks, 2]`, by [`super::maxima::record`]. `chosen`: u32 `[rows]`.
pub fn record(
    recording: &mut Recording,
    caps: &Capabilities,
    (logits, wanted, maxima): (BufferSlice, BufferSlice, BufferSlice),
    chosen: BufferSlice,
    (rows, stride): (u32, u32),
) {
    let params = Params::of(stride);
    let invocations = match caps.is_cpu() {
        true => caps.lanes,
        false => INVOCATIONS.min(caps.workgroup_invocations_max),
    };
    recording.dispatch(Dispatch {
        kernel: &spirv::SAMPLE,
        spec: vec![caps.lanes, (invocations / caps.lanes).max(1), 1],
        bindings: vec![logits, wanted, maxima, chosen],
        push: bytemuck::bytes_of(&params).to_vec(),
        pointers: 0,
        groups: [rows, 1, 1],
    });
}

/// True if the device computes all of it as it should.
#[must_use]
pub fn is_sound(caps: &Capabilities) -> bool {
    let all = [&spirv::MASK, &spirv::MAXIMA, &spirv::PENALISE, &spirv::SAMPLE];
    all.iter().all(|kernel| !caps.avoids(kernel))
}
