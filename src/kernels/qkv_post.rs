//! `shaders/qkv_post.comp`: q and k norms, RoPE, and the write into the KV pages.

use bytemuck::{Pod, Zeroable};

use super::{PageLayout, by_subgroups, or_unused, spirv};
use crate::gpu::{BufferSlice, Capabilities, Dispatch, Recording};

/// Push constants.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs)] // the shader's Params say what each is
pub struct Params {
    pub heads: u32,
    pub kv_heads: u32,
    pub qkv_stride: u32,
    pub table_stride: u32,
    pub rope_dim: u32,
    pub rope_coarse: u32,
    pub epsilon: f32,
}

const _: () = assert!(spirv::QKV_POST_PUSH_BYTES as usize == size_of::<Params>());
const _: () = assert!(spirv::QKV_POST_BINDINGS == 8 && spirv::QKV_POST_SPECS == 8);

/// Normalisation of q and k.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// Each head by its mean square. Gains: f32 `[head_dim]`.
    Head = 1,
    /// All heads by the mean square of them all. Gains: f32 `[heads * head_dim]`.
    Whole = 2,
    /// Each head by its mean and deviation. Gains: f32 `[heads * head_dim]`.
    LayerNormHead = 3,
}

/// Norms of q and k.
#[derive(Clone, Copy, Debug)]
pub struct Norms {
    /// Kind of normalisation.
    pub kind: NormKind,
    /// Gain of q.
    pub q_gain: BufferSlice,
    /// Gain of k.
    pub k_gain: BufferSlice,
    /// Added to the mean square.
    pub epsilon: f32,
}

/// One layer's arguments.
#[derive(Clone, Copy, Debug)]
pub struct QkvPost {
    /// Query heads.
    pub heads: u32,
    /// The pages: their heads, and what these hold.
    pub layout: PageLayout,
    /// True if RoPE pairs (i, i + rope_dim / 2) rather than (2 i, 2 i + 1).
    pub neox: bool,
    /// Dimensions that are rotated, even; 0 for none.
    pub rope_dim: u32,
    /// Rows of the coarse half of `rope`.
    pub rope_coarse: u32,
    /// Pages in a row of `tables`.
    pub table_stride: u32,
    /// f32 `[tokens, (heads + 2 kv_heads) * head_dim]`.
    pub qkv: BufferSlice,
    /// u32 `[tokens, 4]`: token id, position, block table, unused.
    pub steps: BufferSlice,
    /// u32 `[block tables, table_stride]`.
    pub tables: BufferSlice,
    /// f32 `[rope_coarse + 64, rope_dim / 2, 2]`: cosine and sine; unless nothing is rotated.
    pub rope: Option<BufferSlice>,
    /// Norms before the rotation.
    pub norms: Option<Norms>,
    /// f32 `[tokens, heads * head_dim]`.
    pub q: BufferSlice,
    /// The layer's pages.
    pub kv: BufferSlice,
}

/// Appends the dispatch for `tokens` tokens.
pub fn record(recording: &mut Recording, caps: &Capabilities, args: &QkvPost, tokens: u32) {
    let params = Params {
        heads: args.heads,
        kv_heads: args.layout.kv_heads,
        qkv_stride: (args.heads + 2 * args.layout.kv_heads) * args.layout.head_dim,
        table_stride: args.table_stride,
        rope_dim: args.rope_dim,
        rope_coarse: args.rope_coarse,
        epsilon: args.norms.map_or(0.0, |norms| norms.epsilon),
    };
    let spec = vec![
        caps.lanes,
        1,
        1,
        args.layout.head_dim,
        args.layout.format.code(),
        args.layout.key_words,
        args.norms.map_or(0, |norms| norms.kind as u32),
        u32::from(args.neox),
    ];
    recording.dispatch(Dispatch {
        kernel: by_subgroups(caps, &spirv::QKV_POST, &spirv::QKV_POST_SHARED),
        spec,
        bindings: vec![
            args.qkv,
            args.steps,
            args.tables,
            or_unused(args.rope, args.qkv),
            or_unused(args.norms.map(|norms| norms.q_gain), args.qkv),
            or_unused(args.norms.map(|norms| norms.k_gain), args.qkv),
            args.q,
            args.kv,
        ],
        push: bytemuck::bytes_of(&params).to_vec(),
        pointers: 0,
        groups: [tokens, args.heads + 2 * args.layout.kv_heads, 1],
    });
}
