//! `shaders/qkv_post.comp`.

use hob::kernels::qkv_post::{self, NormKind, Norms, QkvPost};
use hob::kernels::{KvFormat, PageLayout};

use super::{Case, GARBAGE, Kind, on_both_variants};

/// Values are below 4 after a norm: a few units in their last place.
const TOLERANCE: f32 = 2e-6;
/// The same rounded to f16, where a value next to a tie may fall to either side.
const TOLERANCE_F16: f32 = 4.0 / 1024.0;

/// And to bytes: one step of a block's scale.
const TOLERANCE_Q8_0: f32 = 4.1 / 127.0;

const PAGES: usize = 5;
const TABLE_STRIDE: u32 = 3;
/// Pages of two sessions; the last entry is not leased.
const TABLES: [u32; 6] = [4, 1, 0, 3, 0, u32::MAX];
/// Position and block table of each token: both sides of a page's end and of a coarse step of RoPE.
const STEPS: [(u32, u32); 7] = [(0, 0), (1, 0), (31, 0), (32, 0), (63, 0), (64, 0), (33, 1)];

#[derive(Clone, Copy, Debug)]
struct Layer {
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    rope_dim: u32,
    format: KvFormat,
    neox: bool,
    norms: Option<NormKind>,
    /// A key and a value of the third token have a NaN each.
    spoilt: bool,
}

impl Layer {
    fn add(&self, case: &mut Case) {
        let layout = PageLayout::new(&case.caps, self.kv_heads, self.head_dim, self.format);
        let tokens = STEPS.len();
        let width = ((self.heads + 2 * self.kv_heads) * self.head_dim) as usize;
        let steps = STEPS.map(|(position, table)| [u32::MAX, position, table, u32::MAX]);
        let rope_coarse = 2;
        // Cosines and sines of any angles: the kernel only multiplies them.
        let angles =
            case.random.floats(((rope_coarse + 64) * self.rope_dim / 2) as usize, -3.0, 3.0);
        let rope: Vec<[f32; 2]> = angles.iter().map(|angle| [angle.cos(), angle.sin()]).collect();
        let gain = |case: &mut Case, heads: u32| {
            let heads = if self.norms == Some(NormKind::Head) { 1 } else { heads };
            case.floats((heads * self.head_dim) as usize)
        };
        let (q_gain, k_gain) = (gain(case, self.heads), gain(case, self.kv_heads));
        let q_count = tokens * (self.heads * self.head_dim) as usize;
        let mut qkv = case.random.floats(tokens * width, -1.0, 1.0);
        if self.spoilt {
            let key = 2 * width + (self.heads * self.head_dim) as usize;
            let value = key + (self.kv_heads * self.head_dim) as usize;
            [qkv[key + 3], qkv[value + 5]] = [f32::NAN; 2];
        }
        let args = QkvPost {
            heads: self.heads,
            layout,
            neox: self.neox,
            rope_dim: self.rope_dim,
            rope_coarse,
            table_stride: TABLE_STRIDE,
            qkv: case.slice(&qkv),
            steps: case.slice(&steps),
            tables: case.slice(&TABLES),
            rope: (self.rope_dim > 0).then(|| case.slice(&rope)),
            norms: self.norms.map(|kind| Norms { kind, q_gain, k_gain, epsilon: 1e-6 }),
            q: case.garbage(q_count),
            kv: case.slice(&vec![GARBAGE; PAGES * layout.page_bytes() as usize]),
        };
        qkv_post::record(&mut case.recording, &case.caps, &args, tokens as u32);
        let (kind, tolerance) = match self.format {
            KvFormat::F32 => (Kind::F32, TOLERANCE),
            KvFormat::F16 => (Kind::F16, TOLERANCE_F16),
            KvFormat::Q8_0 => (Kind::Pages(layout), TOLERANCE_Q8_0),
        };
        // With each goes what shares a scale with it.
        let spoilt = match self.format {
            _ if !self.spoilt => 0,
            KvFormat::Q8_0 => 2 * KvFormat::BLOCK as usize,
            _ => 2,
        };
        let kv_count = 2 * tokens * (self.kv_heads * self.head_dim) as usize - spoilt;
        case.expect(format!("q of {self:?}"), args.q, Kind::F32, q_count, TOLERANCE);
        case.expect(format!("pages of {self:?}"), args.kv, kind, kv_count, tolerance);
    }
}

#[test]
fn q_is_rotated_and_k_and_v_reach_their_pages() {
    let plain = Layer {
        heads: 6,
        kv_heads: 2,
        head_dim: 64,
        rope_dim: 64,
        format: KvFormat::F16,
        neox: false,
        norms: None,
        spoilt: false,
    };
    let spoilt = Layer { spoilt: true, rope_dim: 0, ..plain };
    let head = Some(NormKind::Head);
    let layers = [
        plain,
        Layer { format: KvFormat::F32, neox: true, norms: head, ..plain },
        Layer { neox: true, rope_dim: 24, ..plain },
        Layer { format: KvFormat::F32, rope_dim: 24, norms: head, ..plain },
        Layer { format: KvFormat::F32, norms: Some(NormKind::Whole), ..plain },
        Layer { neox: true, rope_dim: 0, norms: Some(NormKind::LayerNormHead), ..plain },
        Layer { head_dim: 8, rope_dim: 8, heads: 3, kv_heads: 3, ..plain },
        Layer { head_dim: 80, rope_dim: 20, neox: true, norms: head, ..plain },
        Layer {
            head_dim: 128,
            rope_dim: 128,
            format: KvFormat::F32,
            heads: 8,
            kv_heads: 1,
            ..plain
        },
        Layer { head_dim: 256, rope_dim: 256, neox: true, norms: head, kv_heads: 1, ..plain },
        Layer { format: KvFormat::Q8_0, ..plain },
        Layer { format: KvFormat::Q8_0, head_dim: 32, rope_dim: 32, norms: head, ..plain },
        Layer { format: KvFormat::Q8_0, head_dim: 96, rope_dim: 96, neox: true, ..plain },
        Layer { format: KvFormat::Q8_0, head_dim: 256, rope_dim: 64, kv_heads: 1, ..plain },
        spoilt,
        Layer { format: KvFormat::F32, ..spoilt },
        Layer { format: KvFormat::Q8_0, ..spoilt },
    ];
    on_both_variants(|executor, caps| {
        let mut case = Case::new(caps, 51);
        layers.iter().for_each(|layer| layer.add(&mut case));
        case.check(executor);
    });
}
