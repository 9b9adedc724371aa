//! `shaders/matmul.comp` with EXPERTS, and the tiers of its lists.

use hob::gpu::Capabilities;
use hob::kernels::matmul::{Epilogue, Tier, TileConfig};
use hob::kernels::matmul_experts::{self, MatmulExperts, PackedExperts, Routes};
use hob::kernels::moe_lists;
use hob::kernels::quantize_x;
use hob::tensor::DType;

use super::matmul::{NORM_MAX, ROW_LEN_BLOCKS, ROW_LEN_K, on_all_variants, tolerance_of};
use super::matmul_bytes::where_it_runs as where_bytes_run;
use super::matmul_tiled::{for_each_tier, tile};
use super::{Case, Kind};

const EXPERTS: u32 = 5;
const USED: u32 = 2;

#[derive(Clone, Copy, Debug)]
struct MatmulCase {
    dtype: DType,
    tokens: u32,
    listed: bool,
    /// Whether the routes of a token share a row of x.
    shares_x: bool,
    norm: bool,
    epilogue: Epilogue,
    shape: Option<TileConfig>,
    slices: bool,
}

impl MatmulCase {
    fn of(dtype: DType, tokens: u32, listed: bool) -> Self {
        let epilogue = Epilogue::Store;
        let (shares_x, norm) = (true, true);
        Self { dtype, tokens, listed, shares_x, norm, epilogue, shape: None, slices: false }
    }

    fn add(&self, case: &mut Case) {
        let row_len = if self.dtype.block_len() == 256 { ROW_LEN_K } else { ROW_LEN_BLOCKS };
        let lanes = u64::from(case.caps.lanes);
        // Without a gate the last group of every expert is half full.
        let rows = if self.epilogue.is_glu() { 6 * lanes } else { 5 * lanes - lanes / 2 };
        let (weights, row_sum) = case.experts(self.dtype, EXPERTS, rows, row_len);
        let y_rows = if self.epilogue.is_glu() { rows / 2 } else { rows } as usize;
        let routes = self.tokens * USED;
        // The last expert is never chosen, and the first more often than others.
        let chosen: Vec<u32> =
            (0..routes).map(|route| [0, 1, 0, 2, 3][route as usize % 5]).collect();
        let experts = case.slice(&chosen);
        let used = if self.shares_x { USED } else { 1 };
        let (x_stride, y_stride, y_offset) = (row_len as usize + 8, y_rows + 5, 3);
        let mut x = vec![f32::NAN; x_stride * (routes / used) as usize];
        for row in x.chunks_exact_mut(x_stride) {
            let values = case.random.floats(row_len as usize, -1.0, 1.0);
            row[..values.len()].copy_from_slice(&values);
        }
        let gain = case.floats(row_len as usize);
        let caps =
            if self.slices { small_bindings(&case.caps, &weights) } else { case.caps.clone() };
        let routing = if self.listed {
            let lists = case.garbage((EXPERTS * (1 + routes)) as usize);
            let sizes = (routes, EXPERTS, routes);
            moe_lists::record(&mut case.recording, &caps, experts, lists, sizes);
            Routes::Listed(lists, routes)
        } else {
            Routes::Each(experts)
        };
        let workspace_bytes = quantize_x::bytes(u64::from(routes / used), row_len);
        let workspace = case.garbage(workspace_bytes.div_ceil(4) as usize);
        let product = MatmulExperts {
            weights: &weights,
            routes: routing,
            route_count: routes,
            used,
            x: case.slice(&x),
            x_stride: x_stride as u64,
            y: case.garbage(y_stride * routes as usize),
            y_stride: y_stride as u64,
            y_offset: y_offset as u64,
            norm: self.norm.then_some((gain, 1e-5)),
            epilogue: self.epilogue,
            workspace: Some(workspace),
        };
        match self.shape {
            Some(shape) => {
                matmul_experts::record_shaped(&mut case.recording, &caps, &product, shape);
            }
            None => matmul_experts::record(&mut case.recording, &caps, &product),
        }
        let sum = row_sum * if self.norm { NORM_MAX } else { 1.0 };
        let tolerance =
            tolerance_of(self.shape) * if self.epilogue.is_glu() { sum + sum * sum } else { sum };
        let written = y_rows * routes as usize;
        case.expect(format!("{self:?}"), product.y, Kind::F32, written, tolerance);
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Capabilities whose bindings hold one expert, or as few as alignment allows.
fn small_bindings(caps: &Capabilities, weights: &PackedExperts) -> Capabilities {
    let layout = &weights.layout;
    let bytes = layout.group_quad_bytes().max(layout.group_word_bytes()) * layout.groups();
    let mut caps = Capabilities { storage_range_max: bytes, ..caps.clone() };
    while !PackedExperts::is_bindable(layout, weights.experts, &caps) {
        caps.storage_range_max += bytes;
    }
    if weights.slices(&caps).len() == 1 {
        // With few lanes, several small experts lie between two offsets that can be bound.
        assert!(caps.lanes < 8, "the experts are to be cut");
        println!("left out on this driver: experts of {bytes} bytes in several slices");
    }
    caps
}

#[test]
fn experts_of_every_type_equal_the_twins() {
    on_all_variants(|executor, caps| {
        let mut case = Case::new(caps, 71);
        for dtype in DType::ALL {
            MatmulCase::of(dtype, 9, true).add(&mut case);
        }
        case.check(executor);
    });
}

#[test]
fn experts_gate_slice_and_share_rows() {
    on_all_variants(|executor, caps| {
        let mut case = Case::new(caps, 72);
        for dtype in [DType::F32, DType::Q6_K] {
            for listed in [false, true] {
                let product = MatmulCase::of(dtype, 3, listed);
                let shape = Some(TileConfig::scalar(2, if listed { 4 } else { 1 }, 2));
                MatmulCase { epilogue: Epilogue::SwiGlu, ..product }.add(&mut case);
                MatmulCase { shares_x: false, norm: false, shape, ..product }.add(&mut case);
                MatmulCase { slices: true, epilogue: Epilogue::GeGlu, ..product }.add(&mut case);
            }
        }
        case.check(executor);
    });
}

#[test]
fn a_routes_result_is_the_same_alone_and_listed() {
    on_all_variants(|executor, caps| {
        for dtype in [DType::Q5_0, DType::Q4_K] {
            let [each, listed] = [false, true].map(|listed| {
                let mut case = Case::new(caps, 73);
                MatmulCase::of(dtype, 11, listed).add(&mut case);
                bits(&case.check(executor)[0])
            });
            assert!(each == listed, "{dtype}: bits differ");
        }
    });
}

/// Lists of tiles of some sizes: one that holds more routes than a tile has columns, others that do
/// not fill it, and an empty one.
fn tiled(dtype: DType, shape: TileConfig) -> [MatmulCase; 3] {
    let product = MatmulCase { norm: false, shape: Some(shape), ..MatmulCase::of(dtype, 26, true) };
    [
        MatmulCase { norm: true, epilogue: Epilogue::SwiGlu, ..product },
        MatmulCase { slices: true, shares_x: false, ..product },
        MatmulCase { tokens: 1, ..product },
    ]
}

#[test]
fn experts_lists_equal_the_twins_in_every_tier() {
    for_each_tier(|executor, caps, tier| {
        // Types are unpacked as for plain matmuls. As few and small as can be without matrix
        // units: unrolled loops take drivers long to compile.
        let shapes = match tier {
            Tier::Matrix => [tile(caps, tier, 2, 16), tile(caps, tier, 4, 32)],
            _ => [16, 8].map(|split| TileConfig { split, ..tile(caps, tier, 2, 16) }),
        };
        let mut case = Case::new(caps, 74);
        for (dtype, shape) in [DType::Q4_K, DType::F16].into_iter().zip(shapes) {
            tiled(dtype, shape).iter().for_each(|each| each.add(&mut case));
        }
        case.check(executor);
    });
    where_bytes_run(|executor, caps| {
        let mut case = Case::new(caps, 75);
        for dtype in [DType::Q5_0, DType::Q6_K] {
            let shape = TileConfig { rows: 2, tokens: 16, split: 8, tier: Tier::Bytes };
            tiled(dtype, shape).iter().for_each(|each| each.add(&mut case));
        }
        case.check(executor);
    });
}

#[test]
fn a_routes_result_in_a_tier_is_the_same_whatever_else_is_in_its_list() {
    for_each_tier(|executor, caps, tier| {
        let [some, many] = [11, 30].map(|tokens| {
            let mut case = Case::new(caps, 76);
            let shape = Some(tile(caps, tier, 2, 16));
            let product = MatmulCase::of(DType::Q4_K, tokens, true);
            let product = MatmulCase { shape, norm: false, ..product };
            product.add(&mut case);
            case.check(executor).remove(0)
        });
        let width = some.len() / 22;
        assert!(bits(&some[..21 * width]) == bits(&many[..21 * width]), "bits differ");
    });
}
