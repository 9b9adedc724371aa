//! `shaders/attention_tiled.comp`.

use hob::gpu::{Capabilities, Executor};
use hob::kernels::KvFormat;
use hob::kernels::attention::AttentionTile;
use hob::kernels::attention_tiled::{self, Cut};

use super::attention::{CONTEXT, Layer, PLAIN, Spans};
use super::{Case, on_both_variants};

/// A prompt of several tiles, a part of one behind a past of many blocks, a token that is decoded
/// beside them, and a tile that ends with a page.
const PROMPTS: Spans = &[(1, 0, 70), (0, 250, 21), (2, 45, 1), (3, 60, 4)];

/// Heads are small, and q stays in shared memory, where nothing else is said: what is unrolled
/// takes drivers long to compile.
const PROMPT: Layer = Layer { spans: PROMPTS, head_dim: 16, ..PLAIN };

/// Runs `body` where there are matrix units, with keys as GPUs have them.
fn where_it_runs(body: impl Fn(&mut dyn Executor, &Capabilities)) {
    on_both_variants(|executor, caps| {
        if attention_tiled::is_offered(caps) {
            println!("{:?}", caps.matrix_units);
            body(executor, &Capabilities { uniform_loads: false, ..caps.clone() });
        } else {
            println!("this variant of the device multiplies no matrices");
        }
    });
}

/// How a layer is taken.
#[derive(Clone, Copy)]
struct Way {
    /// Of a workgroup.
    rows: u32,
    positions: u32,
    q_shared: bool,
}

const WAY: Way = Way { rows: 16, positions: 32, q_shared: true };

/// `None` where the head does not fit the device's units.
fn shape(caps: &Capabilities, layer: &Layer, way: Way) -> Option<AttentionTile> {
    let Way { rows, positions, q_shared } = way;
    let shape = attention_tiled::shape(caps, layer.head_dim, layer.group, rows);
    assert!(shape.is_some() || !layer.head_dim.is_multiple_of(16), "{layer:?}");
    let cut = |cut| Cut { positions, q_shared, ..cut };
    shape.map(|shape| AttentionTile { matrix: shape.matrix.map(cut), ..shape })
}

fn check(executor: &mut dyn Executor, caps: &Capabilities, seed: u64, layers: &[(Layer, Way)]) {
    let mut case = Case::new(caps, seed);
    for (layer, way) in layers {
        match shape(caps, layer, *way) {
            Some(shape) => Layer { shape: Some(shape), ..*layer }.add(&mut case),
            None => println!("this device's units do not fit {layer:?}"),
        }
    }
    case.check(executor);
}

#[test]
fn heads_of_every_size_and_group_attend_by_matrices() {
    let layers = [
        (PROMPT, Way { rows: 64, q_shared: false, ..WAY }),
        (Layer { head_dim: 32, ..PROMPT }, Way { positions: 16, ..WAY }),
        (Layer { group: 20, kv_heads: 1, ..PROMPT }, WAY), // several parts of heads
        (Layer { head_dim: 24, group: 2, ..PROMPT }, WAY),
        (Layer { head_dim: 64, group: 1, ..PROMPT }, WAY),
    ];
    where_it_runs(|executor, caps| check(executor, caps, 71, &layers));
}

#[test]
fn pages_of_every_format_attend_by_matrices() {
    let f32 = Layer { format: KvFormat::F32, ..PROMPT };
    let q8_0 = Layer { format: KvFormat::Q8_0, head_dim: 64, group: 2, ..PROMPT };
    where_it_runs(|executor, caps| {
        check(executor, caps, 72, &[(f32, WAY), (q8_0, WAY)]);
        // Where lanes load together, the words of a key are apart.
        let uniform_loads = executor.capabilities().uniform_loads;
        let caps = Capabilities { uniform_loads, ..caps.clone() };
        check(executor, &caps, 75, &[(PROMPT, WAY)]);
    });
}

#[test]
fn windows_soft_caps_and_both_directions_attend_by_matrices() {
    let windowed = Layer { window: 20, soft_cap: 3.0, ..PROMPT };
    let layers = [
        windowed,
        Layer { window: 1, soft_cap: 0.0, ..windowed },
        Layer { window: 33, ..windowed },
        Layer { window: CONTEXT, ..windowed },
        Layer { causal: false, ..PROMPT },
    ]
    .map(|layer| (layer, Way { rows: 64, ..WAY }));
    where_it_runs(|executor, caps| check(executor, caps, 73, &layers));
}

/// Rows of q and keys of values below 1 lose half of 2^-11 each by rounding; scores of up to 20
/// then are off by a thousandth or two, in most of which it cancels.
const TOLERANCE_F32: f32 = 2e-3;

#[test]
fn a_row_has_the_same_bits_in_every_tile_and_nearly_the_result_of_f32() {
    where_it_runs(|executor, caps| {
        let layer = Layer { window: 50, ..PROMPT };
        let ways = [16, 32, 64].map(|rows| Way { rows, ..WAY });
        let tiled = ways.map(|way| shape(caps, &layer, way).expect("it fits"));
        let of_one = AttentionTile { tile_tokens: 1, ..tiled[0] };
        let scalar = AttentionTile { heads: 1, matrix: None, ..of_one };
        let shapes = [tiled[0], tiled[1], tiled[2], of_one, scalar];
        let mut case = Case::new(caps, 74);
        layer.add_in(&mut case, &shapes);
        let found = case.check(executor);
        let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        for (shape, values) in shapes.iter().zip(&found).take(4) {
            assert!(bits(values) == bits(&found[0]), "{shape:?} gives other bits");
        }
        let off = found[0].iter().zip(&found[4]).map(|(found, exact)| (found - exact).abs());
        let worst = off.filter(|off| off.is_finite()).fold(0.0, f32::max);
        println!("off from f32 by at most {worst}");
        assert!(worst > 0.0 && worst < TOLERANCE_F32, "off from f32 by {worst}");
    });
}
