//! `shaders/maxima.comp`: the largest logit of each chunk of a row.

use bytemuck::{Pod, Zeroable};

use super::spirv;
use crate::gpu::{BufferSlice, Capabilities, Dispatch, Recording};

/// Push constants, of `sample` as well.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs)] // the shader's Params say what each is
pub struct Params {
    pub stride: u32,
    pub chunks: u32,
}

impl Params {
    /// Those for rows of `stride` logits.
    pub(super) fn of(stride: u32) -> Self {
        Self { stride, chunks: chunks(stride) }
    }
}

const _: () = assert!(spirv::MAXIMA_PUSH_BYTES as usize == size_of::<Params>());
const _: () = assert!(spirv::MAXIMA_BINDINGS == 3 && spirv::MAXIMA_SPECS == 3);

/// Most chunks that `sample` has room for.
const CHUNKS_MAX: u32 = 1024;
/// A chunk should have this many tokens.
const CHUNK_TOKENS: u32 = 8;

/// Chunks of a row of so many logits.
#[must_use]
pub fn chunks(vocab: u32) -> u32 {
    vocab.div_ceil(CHUNK_TOKENS).clamp(1, CHUNKS_MAX)
}

/// Appends the dispatch for `rows` rows of `stride` logits each.
///
/// `logits`: f32 `[rows, stride]`. `wanted`: [`super::sampling::Row`] `[rows]`. `maxima`: u32
/// `[rows, chunks, 2]`.
pub fn record(
    recording: &mut Recording,
    caps: &Capabilities,
    logits: BufferSlice,
    wanted: BufferSlice,
    maxima: BufferSlice,
    (rows, stride): (u32, u32),
) {
    let params = Params::of(stride);
    recording.dispatch(Dispatch {
        kernel: &spirv::MAXIMA,
        spec: vec![caps.lanes, 1, 1],
        bindings: vec![logits, wanted, maxima],
        push: bytemuck::bytes_of(&params).to_vec(),
        pointers: 0,
        groups: [params.chunks.div_ceil(caps.lanes), rows, 1],
    });
}
