//! `shaders/moe_route.comp`: the experts of each token, and their weights.

use bytemuck::{Pod, Zeroable};

use super::spirv;
use crate::gpu::{BufferSlice, Capabilities, Dispatch, Recording};

/// Push constants.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs)] // the shader's Params say what each is
pub struct Params {
    pub scale: f32,
}

const _: () = assert!(spirv::MOE_ROUTE_PUSH_BYTES as usize == size_of::<Params>());
const _: () = assert!(spirv::MOE_ROUTE_BINDINGS == 3 && spirv::MOE_ROUTE_SPECS == 7);

/// Routing function of a mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Router {
    /// Experts to choose from.
    pub experts: u32,
    /// Experts of a token, at most `experts`.
    pub used: u32,
    /// True if a weight is the sigmoid of its logit rather than the softmax of all.
    pub sigmoid: bool,
    /// True if the weights of a token are divided by their sum.
    pub normalise: bool,
    /// Factor of the weights.
    pub scale: f32,
}

/// Appends the dispatch for `tokens` tokens.
///
/// `logits`: f32 `[tokens, experts]`. `experts`: u32 `[tokens, used]`, best first.
/// `weights`: f32 `[tokens, used]`.
pub fn record(
    recording: &mut Recording,
    caps: &Capabilities,
    router: &Router,
    logits: BufferSlice,
    (experts, weights): (BufferSlice, BufferSlice),
    tokens: u32,
) {
    let params = Params { scale: router.scale };
    recording.dispatch(Dispatch {
        kernel: &spirv::MOE_ROUTE,
        spec: vec![
            caps.lanes,
            1,
            1,
            router.experts,
            router.used,
            u32::from(router.sigmoid),
            u32::from(router.normalise),
        ],
        bindings: vec![logits, experts, weights],
        push: bytemuck::bytes_of(&params).to_vec(),
        pointers: 0,
        groups: [tokens, 1, 1],
    });
}
