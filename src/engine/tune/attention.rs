//! Attention as it is measured: over pages of its own, so that no session's are needed, at a depth
//! at which a context tells.

use super::WorkSize;
use crate::engine::runner::Runner;
use crate::gpu::{BufferHandle, BufferSlice, Capabilities, Command, Dispatch, Recording};
use crate::kernels::attention::{self, Attention, Partials, SPLIT_TOKENS};
use crate::kernels::tuned::{Batches, Tile};
use crate::kernels::{PageLayout, tuned};
use crate::probe::{self, Probe};
use crate::scheduler::{Batch, TokenSpan};

/// Positions before the tokens where attention is timed.
const TIMED_DEPTH: u32 = 1024;

/// Tokens of a prompt's slice then: the least there are on a software driver, where all cores are
/// soon busy, and as many as keep a GPU so.
fn timed_tokens(caps: &Capabilities) -> u32 {
    if caps.is_cpu() { 32 } else { 256 }
}

/// The same where it is held against the reference, which is slow: past the start of a split.
const CHECKED_DEPTH: u32 = SPLIT_TOKENS - 7;
const CHECKED_TOKENS: u32 = 24;

/// Places of the buffers among a probe's contents.
const KV: u32 = 0;
const Q: u32 = 1;
const STEPS: u32 = 2;
const TILES: u32 = 3;
const TABLES: u32 = 4;
const Y: u32 = 5;
const SUMS: u32 = 6;
const DONE: u32 = 7;

/// Whose attention is measured, and for which batches.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heads {
    heads: u32,
    layout: PageLayout,
    causal: bool,
    scale: f32,
    soft_cap: f32,
    batches: Batches,
}

impl Heads {
    /// Attention jobs of the model, one for each kind of batch.
    pub(super) fn all(runner: &Runner) -> Vec<Self> {
        let (model, caps) = (runner.model(), runner.executor().capabilities());
        let hyper = model.hyper();
        let of = |batches| Self {
            heads: hyper.heads,
            layout: runner.kv().config().layout,
            causal: !hyper.encoder,
            scale: hyper.attention_scale,
            soft_cap: hyper.attention_soft_cap,
            batches,
        };
        // The last compete with the tile that was chosen for prompts.
        let mut kinds = vec![Batches::Single, Batches::Prompts, Batches::ReducedPrecisionPrompts];
        // An encoder takes texts whole.
        kinds.retain(|batches| !hyper.encoder || *batches != Batches::Single);
        let is_had = |heads: &Self| match heads.batches {
            Batches::ReducedPrecisionPrompts => {
                model.limits().reduced_precision && heads.rule(caps).is_some()
            }
            Batches::Single | Batches::Prompts => true,
        };
        kinds.into_iter().map(of).filter(is_had).collect()
    }

    fn group(&self) -> u32 {
        self.heads / self.layout.kv_heads
    }

    /// Key shared by all work with the same choice on a device.
    pub(super) fn size(&self) -> WorkSize {
        WorkSize::Attention {
            head_dim: self.layout.head_dim,
            group: self.group(),
            cache: self.layout.format.name().to_owned(),
            one_token_each: self.batches == Batches::Single,
            narrow: self.batches == Batches::ReducedPrecisionPrompts,
        }
    }

    /// The choice's place in [`Capabilities::tuned`].
    pub(super) fn work(&self) -> crate::gpu::Work {
        tuned::attention_work(self.layout.head_dim, self.group(), self.batches)
    }

    fn rule(&self, caps: &Capabilities) -> Option<Tile> {
        tuned::tile_by_rule(caps, self.layout.head_dim, self.group(), self.batches)
    }

    /// The tile by rule, and the others there are.
    pub(super) fn tiles(&self, caps: &Capabilities) -> (Tile, Vec<Tile>) {
        let rule = self.rule(caps).expect("the model has such batches on the device");
        (rule, tuned::tiles(caps, self.layout.head_dim, self.group(), self.batches))
    }

    /// Name of the kernel.
    pub(super) fn kernel(&self, caps: &Capabilities) -> &'static str {
        let slice = BufferSlice { buffer: BufferHandle(0), offset: 0, bytes: 0 };
        self.dispatch(caps, self.tiles(caps).0, [slice; 8], (1, 1, 1)).kernel.name
    }

    /// The dispatch over buffers in their order above, of so many tiles and splits, with so many
    /// pages in a table.
    fn dispatch(
        &self,
        caps: &Capabilities,
        tile: Tile,
        buffers: [BufferSlice; 8],
        (tiles, splits, table_stride): (u32, u32, u32),
    ) -> Dispatch {
        let [kv, q, steps, tiles_at, tables, y, sums, done] = buffers;
        let args = Attention {
            heads: self.heads,
            layout: self.layout,
            window: 0,
            causal: self.causal,
            scale: self.scale,
            soft_cap: self.soft_cap,
            table_stride,
            q,
            steps,
            tiles: tiles_at,
            tables,
            kv,
            y,
            partials: Some(Partials { sums, done }),
        };
        let mut recording = Recording::new();
        attention::record(&mut recording, caps, &args, tile.shape(splits), tiles);
        let Some(Command::Dispatch(dispatch)) = recording.commands.pop() else {
            unreachable!("attention is a dispatch")
        };
        dispatch
    }
}

/// Tokens of one session, and keys and values of all its positions.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    heads: Heads,
    batch: Batch,
    positions: u32,
    kv: Vec<u8>,
}

impl Sample {
    /// Case compared with the reference.
    pub(super) fn checked(heads: Heads) -> Self {
        Self::new(heads, CHECKED_DEPTH, CHECKED_TOKENS)
    }

    /// Case that is timed.
    pub(super) fn timed(caps: &Capabilities, heads: Heads) -> Self {
        Self::new(heads, TIMED_DEPTH, timed_tokens(caps))
    }

    fn new(heads: Heads, depth: u32, tokens: u32) -> Self {
        // A single token sees as many positions as the last one of a prompt.
        let (depth, tokens) = if heads.batches == Batches::Single {
            (depth + tokens - 1, 1)
        } else {
            (depth, tokens)
        };
        let span =
            TokenSpan { table: 0, position: depth, tokens: vec![0; tokens as usize], logits: 0 };
        let (layout, positions) = (heads.layout, depth + tokens);
        let pages = u64::from(positions.div_ceil(PageLayout::TOKENS));
        let mut words = vec![0_u32; (pages * layout.page_bytes() / 4) as usize];
        let mut floats = probe::floats();
        let mut row = vec![0.0; layout.head_dim as usize];
        for at in 0..positions {
            let (page, slot) = (at / PageLayout::TOKENS, at % PageLayout::TOKENS);
            for head in 0..layout.kv_heads {
                for is_value in [false, true] {
                    row.iter_mut().zip(&mut floats).for_each(|(value, float)| *value = float);
                    layout.store(&mut words, page, slot, head, is_value, &row);
                }
            }
        }
        let kv = bytemuck::cast_slice(&words).to_vec();
        Self { heads, batch: Batch { spans: vec![span] }, positions, kv }
    }

    /// Attention of the tokens in such tiles.
    pub(super) fn probe(&self, caps: &Capabilities, tile: Tile) -> Probe {
        let Heads { heads, layout, batches, .. } = self.heads;
        let tiles = self.batch.tiles(tile.tile_tokens);
        let pages = self.positions.div_ceil(PageLayout::TOKENS);
        let splits = if batches == Batches::Single {
            self.positions.div_ceil(SPLIT_TOKENS).next_power_of_two()
        } else {
            1
        };
        let rows = self.batch.token_count() * (heads * layout.head_dim) as usize;
        let sums = tile.shape(splits).partial_bytes(
            caps,
            (heads, layout.kv_heads, layout.head_dim),
            tiles.len() as u64,
        );
        let words = |words: &[u32]| bytemuck::cast_slice::<u32, u8>(words).to_vec();
        let mut contents = vec![Vec::new(); 8];
        contents[KV as usize].clone_from(&self.kv);
        contents[Q as usize] = probe::floats().take(rows).flat_map(f32::to_le_bytes).collect();
        contents[STEPS as usize] = words(self.batch.steps().as_flattened());
        contents[TILES as usize] = words(tiles.as_flattened());
        contents[TABLES as usize] = words(&(0..pages).collect::<Vec<u32>>());
        contents[Y as usize] = vec![0; 4 * rows];
        contents[SUMS as usize] = vec![0; if splits > 1 { sums as usize } else { 16 }];
        contents[DONE as usize] = vec![0; 4 * tiles.len() * heads as usize];
        let slice = |index: u32| BufferSlice {
            buffer: BufferHandle(index),
            offset: 0,
            bytes: contents[index as usize].len() as u64,
        };
        let buffers = [KV, Q, STEPS, TILES, TABLES, Y, SUMS, DONE].map(slice);
        let sizes = (tiles.len() as u32, splits, pages);
        let dispatch = self.heads.dispatch(caps, tile, buffers, sizes);
        Probe::over(vec![dispatch], contents)
    }
}
