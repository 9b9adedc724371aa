//! `shaders/attention.comp`: attention over KV pages.

use bytemuck::{Pod, Zeroable};

use super::{KvFormat, by_subgroups, spirv};
use crate::gpu::{BufferSlice, Capabilities, Dispatch, Recording};

/// Push constants.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs)] // the shader's Params say what each is
pub struct Params {
    pub heads: u32,
    pub kv_heads: u32,
    pub head_parts: u32,
    pub table_stride: u32,
    pub window: u32,
    pub scale: f32,
    pub soft_cap: f32,
}

const _: () = assert!(spirv::ATTENTION_PUSH_BYTES as usize == size_of::<Params>());
const _: () = assert!(spirv::ATTENTION_BINDINGS == 7 && spirv::ATTENTION_SPECS == 8);

/// How the work is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Neighbouring tokens of a session that a workgroup takes at most.
    pub tile_tokens: u32,
    /// Query heads of one kv head that it takes.
    pub heads: u32,
}

impl Shape {
    /// As many query heads and tokens as keep about 64 sums in a lane's registers. GPUs have 256
    /// registers for them, the queries and all else: there, what does not spill
    /// (`make shader-stats`).
    ///
    /// `group`: query heads of a kv head. `one_token_each`: every session in the batch has one
    /// token.
    #[must_use]
    pub fn choose(caps: &Capabilities, head_dim: u32, group: u32, one_token_each: bool) -> Self {
        let values = if caps.is_cpu() { 64 * caps.lanes } else { 1024 };
        let rows_max = (values / head_dim).clamp(1, 8);
        let parts = group.div_ceil(rows_max);
        let heads = group.div_ceil(parts);
        let tile_tokens = if one_token_each { 1 } else { (rows_max / heads).max(1) };
        Self { tile_tokens, heads }
    }
}

/// One layer's arguments.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    /// Query heads, a multiple of `kv_heads`.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Dimensions of a head, a multiple of 8.
    pub head_dim: u32,
    /// What the pages hold.
    pub format: KvFormat,
    /// Positions a token sees, itself included; 0 for all.
    pub window: u32,
    /// Whether a token sees only itself and those before it; else also those behind it, and windows
    /// are not for it.
    pub causal: bool,
    /// Factor of the scores.
    pub scale: f32,
    /// Soft cap of the scores; 0 for none.
    pub soft_cap: f32,
    /// Pages in a row of `tables`.
    pub table_stride: u32,
    /// f32 `[tokens, heads * head_dim]`.
    pub q: BufferSlice,
    /// u32 `[tokens, 4]`: token id, position, block table, unused.
    pub steps: BufferSlice,
    /// u32 `[tiles, 4]`: first token, tokens, keys of the session, unused.
    pub tiles: BufferSlice,
    /// u32 `[block tables, table_stride]`.
    pub tables: BufferSlice,
    /// The layer's pages.
    pub kv: BufferSlice,
    /// f32 `[tokens, heads * head_dim]`.
    pub y: BufferSlice,
}

/// Appends the dispatch for `tiles` tiles of at most `shape.tile_tokens` tokens.
pub fn record(
    recording: &mut Recording,
    caps: &Capabilities,
    args: &Attention,
    shape: Shape,
    tiles: u32,
) {
    let head_parts = (args.heads / args.kv_heads).div_ceil(shape.heads);
    let params = Params {
        heads: args.heads,
        kv_heads: args.kv_heads,
        head_parts,
        table_stride: args.table_stride,
        window: args.window,
        scale: args.scale,
        soft_cap: args.soft_cap,
    };
    let spec = vec![
        caps.lanes,
        1,
        1,
        args.head_dim,
        args.format.code(),
        shape.tile_tokens,
        shape.heads,
        u32::from(args.causal),
    ];
    recording.dispatch(Dispatch {
        kernel: by_subgroups(caps, &spirv::ATTENTION, &spirv::ATTENTION_SHARED),
        spec,
        bindings: vec![args.q, args.steps, args.tiles, args.tables, args.kv, args.kv, args.y],
        push: bytemuck::bytes_of(&params).to_vec(),
        pointers: 0,
        groups: [tiles, args.kv_heads * head_parts, 1],
    });
}
