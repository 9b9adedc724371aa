//! `shaders/mask.comp`: tokens that must not be chosen are taken out of rows of logits.

use bytemuck::{Pod, Zeroable};

use super::spirv;
use crate::gpu::{BufferSlice, Capabilities, Command, Dispatch, Recording};

/// Push constants.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs)] // the shader's Params say what each is
pub struct Params {
    pub stride: u32,
    pub words: u32,
}

const _: () = assert!(spirv::MASK_PUSH_BYTES as usize == size_of::<Params>());
const _: () = assert!(spirv::MASK_BINDINGS == 3 && spirv::MASK_SPECS == 3);

/// Words of the mask of a row of `vocab` logits.
#[must_use]
pub fn words(vocab: u32) -> u32 {
    vocab.div_ceil(32)
}

/// Appends the dispatch for `rows` rows of `stride` logits each.
///
/// `logits`: f32 `[rows, stride]`. `wanted`: [`super::sampling::Row`] `[rows]`. `masks`: u32
/// `[masks, words]`.
pub fn record(
    recording: &mut Recording,
    caps: &Capabilities,
    (logits, wanted, masks): (BufferSlice, BufferSlice, BufferSlice),
    (rows, stride): (u32, u32),
) {
    let params = Params { stride, words: words(stride) };
    recording.dispatch(Dispatch {
        kernel: &spirv::MASK,
        spec: vec![caps.lanes, 1, 1],
        bindings: vec![logits, wanted, masks],
        push: bytemuck::bytes_of(&params).to_vec(),
        pointers: 0,
        groups: [params.words.div_ceil(caps.lanes), rows, 1],
    });
}

/// Index of the first command that reads masks.
#[must_use]
pub fn first_in(recording: &Recording) -> Option<usize> {
    recording.commands.iter().position(|command| match command {
        Command::Dispatch(dispatch) => dispatch.kernel.name == spirv::MASK.name,
        _ => false,
    })
}
