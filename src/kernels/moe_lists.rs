//! `shaders/moe_lists.comp`: the routes of each expert.

use bytemuck::{Pod, Zeroable};

use super::spirv;
use crate::gpu::{BufferSlice, Capabilities, Dispatch, Recording};

/// Push constants.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs)] // the shader's Params say what each is
pub struct Params {
    pub routes: u32,
    pub list_max: u32,
}

const _: () = assert!(spirv::MOE_LISTS_PUSH_BYTES as usize == size_of::<Params>());
const _: () = assert!(spirv::MOE_LISTS_BINDINGS == 2 && spirv::MOE_LISTS_SPECS == 3);

/// Appends the lists of `experts` experts.
///
/// `chosen`: u32 `[routes]`, the expert of each. `lists`: u32 `[experts, 1 + list_max]`, where no
/// expert may have more than `list_max` routes: it has at most one for each token.
pub fn record(
    recording: &mut Recording,
    caps: &Capabilities,
    chosen: BufferSlice,
    lists: BufferSlice,
    (routes, experts, list_max): (u32, u32, u32),
) {
    let params = Params { routes, list_max };
    recording.dispatch(Dispatch {
        kernel: &spirv::MOE_LISTS,
        spec: vec![caps.lanes, 1, 1],
        bindings: vec![chosen, lists],
        push: bytemuck::bytes_of(&params).to_vec(),
        pointers: 0,
        groups: [experts, 1, 1],
    });
}
