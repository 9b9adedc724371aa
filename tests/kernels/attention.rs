//! `shaders/attention.comp`.

use hob::gpu::{BufferSlice, Capabilities};
use hob::kernels::attention::{self, Attention, AttentionTile, Partials, SPLIT_TOKENS};
use hob::kernels::{KvFormat, PageLayout};
use hob::scheduler::{Batch, TokenSpan};

use super::{Case, GARBAGE, Kind, compiles_slowly, on_both_variants};
use crate::device;

/// Results are means of values below 1; scores of up to 20 lose a few places in exp.
const TOLERANCE: f32 = 2e-5;
/// By matrix units weights are rounded to f16, and each by another scale than the twin's.
const TOLERANCE_TILED: f32 = 1e-3;

/// Spans of a batch, as session, first position and tokens.
pub(super) type Spans = &'static [(u32, u32, u32)];

const DECODE: Spans = &[(0, 0, 1), (2, 45, 1), (1, 31, 1), (3, 100, 1)];
const PREFILL: Spans = &[(1, 0, 17), (0, 60, 5), (2, 7, 1), (3, 32, 3)];
/// Positions of the longest session; a multiple of the page, so that the last one is met full.
pub(super) const CONTEXT: u32 = 3 * SPLIT_TOKENS;
const SESSIONS: u32 = 4;

#[derive(Clone, Copy, Debug)]
pub(super) struct Layer {
    pub spans: Spans,
    pub kv_heads: u32,
    pub group: u32,
    pub head_dim: u32,
    pub format: KvFormat,
    pub window: u32,
    pub causal: bool,
    pub soft_cap: f32,
    /// As chosen for the device where there is none.
    pub shape: Option<AttentionTile>,
    /// Session 2 has a NaN at position 20, in the value there or in the key.
    pub spoilt: Option<Spoilt>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spoilt {
    Key,
    Value,
}

impl Layer {
    fn layout(&self, caps: &Capabilities) -> PageLayout {
        PageLayout::new(caps, self.kv_heads, self.head_dim, self.format)
    }

    fn batch(&self) -> Batch {
        let span = |(table, position, tokens): &(u32, u32, u32)| TokenSpan {
            table: *table,
            position: *position,
            tokens: vec![u32::MAX; *tokens as usize],
            logits: 0,
        };
        Batch { spans: self.spans.iter().map(span).collect() }
    }

    fn shape(&self, caps: &Capabilities) -> AttentionTile {
        let one_token_each = self.spans.iter().all(|(_, _, tokens)| *tokens == 1);
        self.shape.unwrap_or_else(|| {
            AttentionTile::choose(caps, self.head_dim, self.group, one_token_each)
        })
    }

    /// Whether the driver can be asked for it. One that takes half a minute for each of a variant's
    /// pipelines is asked for the one of a decode step alone, and of those that it runs by itself
    /// for small ones.
    fn compiles_soon(&self, caps: &Capabilities) -> bool {
        let is_plain = self.format == KvFormat::F16 && self.head_dim == PLAIN.head_dim;
        let decodes = self.spans.iter().all(|(_, _, tokens)| *tokens == 1);
        let is_small =
            self.head_dim <= PLAIN.head_dim && (decodes || self.format != KvFormat::Q8_0);
        let alone = is_plain && decodes && self.causal && self.shape.is_none();
        (is_small || !device::compiles_variants_slowly()) && (alone || !compiles_slowly(caps))
    }

    /// Pages with keys and values at every position of a session up to its last token, and garbage
    /// in all others, in page 0, and in the pages that are not leased; with the sessions' block
    /// tables.
    fn pages(&self, case: &mut Case) -> (BufferSlice, BufferSlice, u32) {
        let layout = self.layout(&case.caps);
        let stride = CONTEXT / PageLayout::TOKENS;
        let pages = SESSIONS * stride + 1;
        let mut words = vec![
            u32::from_le_bytes([GARBAGE; 4]);
            (pages * layout.page_bytes() as u32 / 4) as usize
        ];
        let mut tables = vec![0_u32; (SESSIONS * stride) as usize];
        let mut next = pages;
        for (session, position, tokens) in self.spans {
            for at in 0..position + tokens {
                let entry = &mut tables[(session * stride + at / PageLayout::TOKENS) as usize];
                if at % PageLayout::TOKENS == 0 {
                    next -= 1; // backwards, so that no order of pages is taken for granted
                    *entry = next;
                }
                for head in 0..self.kv_heads {
                    for is_value in [false, true] {
                        let mut values = case.random.floats(self.head_dim as usize, -1.0, 1.0);
                        let spoilt = if is_value { Spoilt::Value } else { Spoilt::Key };
                        if self.spoilt == Some(spoilt) && (*session, at, head) == (2, 20, 0) {
                            values[3] = f32::NAN;
                        }
                        let slot = at % PageLayout::TOKENS;
                        layout.store(&mut words, *entry, slot, head, is_value, &values);
                    }
                }
            }
        }
        (case.slice(&words), case.slice(&tables), stride)
    }

    /// Room for what splits give, and for how many are done.
    fn partials(&self, case: &mut Case, shape: AttentionTile, tiles: usize) -> Partials {
        let heads = (self.group * self.kv_heads, self.kv_heads, self.head_dim);
        let bytes = shape.partial_bytes(&case.caps, heads, tiles as u64);
        Partials {
            sums: case.garbage(bytes as usize / 4),
            done: case.slice(&vec![0_u32; tiles * heads.0 as usize]),
        }
    }

    pub(super) fn add(&self, case: &mut Case) {
        let shape = self.shape(&case.caps);
        self.add_in(case, &[shape]);
    }

    /// Results that are no numbers: of the heads that share the spoilt key, or of its dimension of
    /// the spoilt value, and of what shares a scale with it.
    fn spoilt_values(&self) -> usize {
        let dims = match self.spoilt {
            None => 0,
            Some(Spoilt::Key) => self.head_dim,
            Some(Spoilt::Value) if self.format == KvFormat::Q8_0 => KvFormat::BLOCK,
            Some(Spoilt::Value) => 1,
        };
        (self.group * dims) as usize
    }

    /// The same tokens in several shapes, each with results of its own.
    pub(super) fn add_in(&self, case: &mut Case, shapes: &[AttentionTile]) {
        let batch = self.batch();
        let heads = self.group * self.kv_heads;
        let count = batch.token_count() * (heads * self.head_dim) as usize;
        let (kv, tables, table_stride) = self.pages(case);
        let (q, steps) = (case.floats(count), case.slice(&batch.steps()));
        for shape in shapes.iter().copied() {
            let tiles = batch.tiles(shape.tile_tokens);
            let args = Attention {
                heads,
                layout: self.layout(&case.caps),
                window: self.window,
                causal: self.causal,
                // Scores of several, so that a softmax has a few winners.
                scale: 4.0 / (self.head_dim as f32).sqrt(),
                soft_cap: self.soft_cap,
                table_stride,
                q,
                steps,
                tiles: case.slice(&tiles),
                tables,
                kv,
                y: case.garbage(count),
                partials: Some(self.partials(case, shape, tiles.len())),
            };
            attention::record(&mut case.recording, &case.caps, &args, shape, tiles.len() as u32);
            let name = format!("{self:?} in {shape:?}");
            let tolerance = if shape.matrix.is_some() { TOLERANCE_TILED } else { TOLERANCE };
            case.expect(name, args.y, Kind::F32, count - self.spoilt_values(), tolerance);
        }
    }
}

pub(super) const PLAIN: Layer = Layer {
    spans: DECODE,
    kv_heads: 2,
    group: 3,
    head_dim: 64,
    format: KvFormat::F16,
    window: 0,
    soft_cap: 0.0,
    causal: true,
    shape: None,
    spoilt: None,
};

fn check(seed: u64, layers: &[Layer]) {
    on_both_variants(|executor, caps| {
        let (soon, late): (Vec<&Layer>, Vec<&Layer>) =
            layers.iter().partition(|layer| layer.compiles_soon(caps));
        late.iter().for_each(|layer| println!("left out on this driver: {layer:?}"));
        if soon.is_empty() {
            return;
        }
        let mut case = Case::new(caps, seed);
        soon.iter().for_each(|layer| layer.add(&mut case));
        case.check(executor);
    });
}

/// Few rows, because drivers take long to compile many rows of large heads.
const fn few(tile_tokens: u32, heads: u32) -> Option<AttentionTile> {
    Some(AttentionTile { tile_tokens, heads, splits: 1, matrix: None })
}

const PLAIN_F32: Layer =
    Layer { spans: PREFILL, format: KvFormat::F32, group: 1, shape: few(2, 1), ..PLAIN };

#[test]
fn heads_of_every_size_and_group_attend() {
    check(
        61,
        &[
            PLAIN,
            Layer { spans: PREFILL, ..PLAIN },
            PLAIN_F32,
            Layer { spans: PREFILL, head_dim: 8, group: 4, ..PLAIN },
            Layer { head_dim: 8, group: 8, format: KvFormat::F32, ..PLAIN },
            Layer { head_dim: 80, group: 4, shape: few(1, 2), ..PLAIN },
            Layer { head_dim: 80, shape: few(1, 1), ..PLAIN_F32 },
            Layer { head_dim: 128, group: 8, kv_heads: 1, shape: few(1, 2), ..PLAIN },
            Layer { head_dim: 256, group: 4, kv_heads: 1, shape: few(1, 1), ..PLAIN },
        ],
    );
}

#[test]
fn keys_and_values_in_blocks_of_bytes_attend() {
    let plain = Layer { format: KvFormat::Q8_0, ..PLAIN };
    check(
        65,
        &[
            plain,
            Layer { spans: PREFILL, window: 20, ..plain },
            Layer { head_dim: 32, group: 1, ..plain },
            Layer { head_dim: 96, shape: few(1, 1), ..plain },
            Layer { head_dim: 128, kv_heads: 1, shape: few(1, 2), ..plain },
            Layer { head_dim: 256, kv_heads: 1, shape: few(1, 1), ..plain },
        ],
    );
}

#[test]
fn windows_and_soft_caps_limit_what_is_seen() {
    let windowed = Layer { window: 20, soft_cap: 3.0, ..PLAIN };
    let prefill = Layer { spans: PREFILL, ..windowed };
    check(
        62,
        &[
            windowed,
            prefill,
            Layer { window: 1, ..windowed },
            Layer { window: 1, ..prefill },
            Layer { window: 33, soft_cap: 0.0, ..prefill },
            Layer { window: CONTEXT, ..prefill },
        ],
    );
}

#[test]
fn tiles_and_head_parts_that_are_not_full_write_only_their_own() {
    let shapes = [(1, 2), (3, 2)];
    let layers = shapes.map(|(tile_tokens, heads)| Layer {
        spans: PREFILL,
        shape: few(tile_tokens, heads),
        ..PLAIN
    });
    check(63, &layers);
}

#[test]
fn a_key_or_value_that_is_no_number_leaves_no_number_behind() {
    let key = Layer { spoilt: Some(Spoilt::Key), ..PLAIN };
    let layers = [
        key,
        Layer { soft_cap: 3.0, ..key },
        Layer { format: KvFormat::F32, ..key },
        Layer { format: KvFormat::Q8_0, ..key },
    ];
    let values = layers.map(|layer| Layer { spoilt: layer.spoilt.map(|_| Spoilt::Value), ..layer });
    check(67, &layers);
    check(68, &values);
}

#[test]
fn a_long_context_keeps_its_precision() {
    const LONG: Spans = &[(0, CONTEXT - 1, 1), (3, CONTEXT - 8, 8)];
    check(64, &[Layer { spans: LONG, ..PLAIN }, Layer { spans: LONG, ..PLAIN_F32 }]);
}

#[test]
fn splits_and_tiles_give_the_bits_of_one_workgroup_and_one_token() {
    const DEEP: Spans = &[(0, 250, 12), (1, 0, 1), (2, 600, 3), (3, CONTEXT - 1, 1)];
    let shapes = [(1, 1), (2, 1), (1, 4)].map(|(tile_tokens, splits)| AttentionTile {
        tile_tokens,
        heads: 1,
        splits,
        matrix: None,
    });
    let plain = Layer { spans: DEEP, group: 1, ..PLAIN };
    for layer in [plain, Layer { window: 300, soft_cap: 3.0, format: KvFormat::Q8_0, ..plain }] {
        on_both_variants(|executor, caps| {
            if compiles_slowly(caps) || !layer.compiles_soon(caps) {
                println!("left out on this driver: {layer:?}");
                return;
            }
            let mut case = Case::new(caps, 66);
            layer.add_in(&mut case, &shapes);
            let found = case.check(executor);
            let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            for (shape, values) in shapes.iter().zip(&found) {
                assert!(bits(values) == bits(&found[0]), "{shape:?} gives other bits");
            }
        });
    }
}

#[test]
fn without_causality_a_token_sees_the_whole_session() {
    let plain = Layer { spans: PREFILL, causal: false, format: KvFormat::F32, ..PLAIN };
    check(10, &[plain, Layer { head_dim: 32, group: 1, ..plain }]);
}
