//! `shaders/attention.comp`: attention over KV pages.

use bytemuck::{Pod, Zeroable};

use super::attention_tiled::{self, Cut};
use super::tuned::{self, Batches, Tile};
use super::{PageLayout, by_subgroups, spirv};
use crate::gpu::{BufferSlice, Capabilities, Dispatch, Recording};

/// Push constants.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs)] // the shader's Params say what each is
pub struct Params {
    /// The executor fills them in where the kernel takes pointers.
    pub addresses: [[u32; 2]; 2],
    pub heads: u32,
    pub kv_heads: u32,
    pub head_parts: u32,
    pub table_stride: u32,
    pub window: u32,
    pub scale: f32,
    pub soft_cap: f32,
}

const _: () = assert!(spirv::ATTENTION_PUSH_BYTES as usize == size_of::<Params>());
const _: () = assert!(spirv::ATTENTION_BINDINGS == 9 && spirv::ATTENTION_SPECS == 10);

/// Tile configuration of attention: the part of the work each workgroup takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionTile {
    /// Neighbouring tokens of a session that a workgroup takes at most.
    pub tile_tokens: u32,
    /// Query heads of one kv head that it takes.
    pub heads: u32,
    /// Workgroups that share the positions of a tile, [`SPLIT_TOKENS`] each; 1 where a workgroup
    /// takes them all. The sums have one order either way.
    pub splits: u32,
    /// Cut of a tile for matrix units; `None` for the scalar f32 path.
    pub matrix: Option<Cut>,
}

/// Positions that have a softmax of their own, before what they give is joined: `SPLIT` of the
/// shader.
pub const SPLIT_TOKENS: u32 = 256;

/// Scratch of [`AttentionTile::splits`] above 1.
#[derive(Clone, Copy, Debug)]
pub struct Partials {
    /// Partial results of the splits, f32: [`AttentionTile::partial_bytes`].
    pub sums: BufferSlice,
    /// Count of finished splits, u32 `[tiles, heads]`; zero before and after the dispatch.
    pub done: BufferSlice,
}

impl AttentionTile {
    /// As many query heads and tokens as keep about 64 sums in a lane's registers. GPUs have 256
    /// registers for them, the queries and all else: there, what does not spill
    /// (`make shader-stats`).
    ///
    /// `group`: query heads of a kv head. `one_token_each`: every session in the batch has one
    /// token.
    #[must_use]
    pub fn choose(caps: &Capabilities, head_dim: u32, group: u32, one_token_each: bool) -> Self {
        let rule = Self::by_rule(caps, head_dim, group, one_token_each);
        match tuned::attention(caps, head_dim, group, Batches::plain(one_token_each)) {
            Some(Tile { tile_tokens, heads, .. }) => Self { tile_tokens, heads, ..rule },
            None => rule,
        }
    }

    /// The same whatever was measured.
    #[must_use]
    pub fn by_rule(caps: &Capabilities, head_dim: u32, group: u32, one_token_each: bool) -> Self {
        let values = if caps.is_cpu() { 64 * caps.lanes } else { 1024 };
        // Lanes that load together wait for memory rather than for registers.
        let rows_min = if caps.prefers_cooperative_loads() { 4 } else { 1 };
        let rows_max = (values / head_dim).clamp(rows_min, 8);
        let parts = group.div_ceil(rows_max);
        let heads = group.div_ceil(parts);
        let tile_tokens = if one_token_each { 1 } else { (rows_max / heads).max(1) };
        Self { tile_tokens, heads, splits: 1, matrix: None }
    }

    /// Bytes of what the splits of `tiles` tiles give, whatever the pages hold.
    #[must_use]
    pub fn partial_bytes(
        &self,
        caps: &Capabilities,
        (heads, kv_heads, head_dim): (u32, u32, u32),
        tiles: u64,
    ) -> u64 {
        let row = head_dim.next_multiple_of(4 * caps.lanes) + 2;
        let parts = (heads / kv_heads).div_ceil(self.heads);
        let rows = kv_heads * parts * self.heads * self.tile_tokens;
        4 * u64::from(row) * u64::from(rows) * u64::from(self.splits) * tiles
    }
}

/// One layer's arguments.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    /// Query heads, a multiple of `kv_heads`.
    pub heads: u32,
    /// The pages: their heads, and what these hold.
    pub layout: PageLayout,
    /// Positions a token sees, itself included; 0 for all.
    pub window: u32,
    /// True if a token sees only itself and those before it; else also those behind it, and windows
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
    /// Workspace of split positions; `None` where a tile is not split.
    pub partials: Option<Partials>,
}

impl Attention {
    pub(super) fn params(&self, shape: AttentionTile) -> Params {
        Params {
            addresses: [[0; 2]; 2],
            heads: self.heads,
            kv_heads: self.layout.kv_heads,
            head_parts: (self.heads / self.layout.kv_heads).div_ceil(shape.heads),
            table_stride: self.table_stride,
            window: self.window,
            scale: self.scale,
            soft_cap: self.soft_cap,
        }
    }
}

/// Appends the dispatch for `tiles` tiles of at most `shape.tile_tokens` tokens.
pub fn record(
    recording: &mut Recording,
    caps: &Capabilities,
    args: &Attention,
    shape: AttentionTile,
    tiles: u32,
) {
    if let Some(cut) = shape.matrix {
        recording.dispatch(attention_tiled::dispatch(caps, args, (shape, cut), tiles));
        return;
    }
    let cooperative = args.layout.key_words == 1;
    let params = args.params(shape);
    let spec = vec![
        caps.lanes,
        1,
        1,
        args.layout.head_dim,
        args.layout.format.code(),
        args.layout.key_words,
        shape.tile_tokens,
        shape.heads,
        u32::from(args.causal),
        u32::from(shape.splits > 1),
    ];
    recording.dispatch(Dispatch {
        kernel: match cooperative {
            true => &spirv::ATTENTION_COOPERATIVE,
            false => by_subgroups(caps, &spirv::ATTENTION, &spirv::ATTENTION_SHARED),
        },
        spec,
        bindings: vec![
            args.kv,
            args.q,
            args.steps,
            args.tiles,
            args.tables,
            args.kv,
            args.y,
            args.partials.map_or(args.y, |partials| partials.sums),
            args.partials.map_or(args.y, |partials| partials.done),
        ],
        push: bytemuck::bytes_of(&params).to_vec(),
        pointers: if cooperative { 2 } else { 0 },
        groups: [tiles, args.layout.kv_heads * params.head_parts, shape.splits],
    });
}
