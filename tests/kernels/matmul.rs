//! `shaders/matmul.comp`.

use hob::gpu::{Capabilities, Executor};
use hob::kernels::matmul::{self, Epilogue, Matmul, Tier, TileConfig};
use hob::kernels::{block_sums, quantize_x};
use hob::tensor::DType;

use super::{Case, Kind, compiles_slowly, on_both_variants, weights};
use crate::device;

/// Relative to the sum of |w x|: sums in another order, and factors of quants that are not folded
/// into their weights. Epilogues with a gate multiply two such sums.
pub(super) const TOLERANCE: f32 = 5e-7;

/// The same for matmuls in f16: weights that are rounded or cut off to it, and in the tier without
/// f32 sums, sums of 16 matmuls. One matmul left out of a row makes ten times as much.
const TOLERANCE_MATRIX: f32 = 2e-4;
const TOLERANCE_HALF: f32 = 4e-4;

/// And for matmuls of bytes, of which the twin has the same: scales and zero points apart.
const TOLERANCE_BYTES: f32 = 1e-6;

/// That of a shape, or of the one chosen without any.
pub(super) fn tolerance_of(shape: Option<TileConfig>) -> f32 {
    match shape.map(|shape| shape.tier) {
        None | Some(Tier::Scalar | Tier::Summed) => TOLERANCE,
        Some(Tier::Matrix) => TOLERANCE_MATRIX,
        Some(Tier::Half) => TOLERANCE_HALF,
        Some(Tier::Bytes) => TOLERANCE_BYTES,
    }
}

/// An RMS norm raises a value to at most this much: inputs and gains are below 1, and the root mean
/// square of the inputs is 0.58.
pub(super) const NORM_MAX: f32 = 2.0;

/// An odd number of blocks: the last unit of a pair is half full.
pub(super) const ROW_LEN_BLOCKS: u64 = 96;
pub(super) const ROW_LEN_K: u64 = 512;

/// Factor of the matmuls, and soft cap.
const SCALE: f32 = 0.75;

#[derive(Clone, Copy, Debug)]
pub(super) struct MatmulCase {
    pub dtype: DType,
    pub rows: u64,
    pub row_len: u64,
    pub tokens: u32,
    pub norm: bool,
    pub bias: bool,
    pub epilogue: Epilogue,
    /// As chosen for the device where there is none.
    pub shape: Option<TileConfig>,
    pub slices: bool,
}

impl MatmulCase {
    /// A plain matmul whose rows fill neither their last group nor their last tile.
    pub(super) fn of(dtype: DType, lanes: u32, tokens: u32) -> Self {
        let row_len = if dtype.block_len() == 256 { ROW_LEN_K } else { ROW_LEN_BLOCKS };
        let rows = u64::from(5 * lanes - lanes / 2);
        let (epilogue, shape) = (Epilogue::Store, None);
        Self {
            dtype,
            rows,
            row_len,
            tokens,
            norm: false,
            bias: false,
            epilogue,
            shape,
            slices: false,
        }
    }

    /// With a gate, rows come in pairs of whole groups.
    pub(super) fn with(self, epilogue: Epilogue, lanes: u32) -> Self {
        let rows = if epilogue.is_glu() { u64::from(6 * lanes) } else { self.rows };
        Self { epilogue, rows, ..self }
    }

    fn add(&self, case: &mut Case) {
        let tokens = self.tokens as usize;
        let matrix = case.matrix(self.dtype, self.rows, self.row_len);
        let rows = if self.epilogue.is_glu() { self.rows / 2 } else { self.rows } as usize;
        // Rows of x and y are wider than the matmul, with garbage in the gaps.
        let (x_stride, y_stride, y_offset) = (self.row_len as usize + 32, rows + 5, 3);
        let mut x = vec![f32::NAN; x_stride * tokens];
        for row in x.chunks_exact_mut(x_stride) {
            let values = case.random.floats(self.row_len as usize, -1.0, 1.0);
            row[..values.len()].copy_from_slice(&values);
        }
        let mut y = vec![f32::NAN; y_stride * tokens];
        if self.epilogue == Epilogue::Residual {
            for row in y.chunks_exact_mut(y_stride) {
                row[y_offset..][..rows].fill_with(|| case.random.between(-1.0, 1.0));
            }
        }
        let gain = case.floats(self.row_len as usize);
        let bias = case.floats(self.rows as usize);
        let workspace_bytes = [quantize_x::bytes, block_sums::bytes]
            .map(|bytes| bytes(self.tokens.into(), self.row_len))
            .into_iter()
            .fold(0, u64::max);
        let product = Matmul {
            weights: &matrix.packed,
            x: case.slice(&x),
            x_stride: x_stride as u64,
            y: case.slice(&y),
            y_stride: y_stride as u64,
            y_offset: y_offset as u64,
            tokens: self.tokens,
            norm: self.norm.then_some((gain, 1e-5)),
            bias: self.bias.then_some(bias),
            scale: if self.epilogue.is_glu() { 1.0 } else { SCALE },
            epilogue: self.epilogue,
            workspace: Some(case.garbage(workspace_bytes.div_ceil(4) as usize)),
        };
        let caps = if self.slices {
            weights::small_bindings(&case.caps, &matrix.packed.packing())
        } else {
            case.caps.clone()
        };
        if self.slices {
            let slices = matrix.packed.row_slices(&caps, matmul::GROUP_MULTIPLE);
            assert!(slices.len() > 1, "{self:?} is to be cut");
        }
        match self.shape {
            Some(shape) => matmul::record_shaped(&mut case.recording, &caps, &product, shape),
            None => matmul::record(&mut case.recording, &caps, &product),
        }
        let sum = matrix.row_sum * if self.norm { NORM_MAX } else { 1.0 };
        let tolerance =
            tolerance_of(self.shape) * if self.epilogue.is_glu() { sum + sum * sum } else { sum };
        case.expect(format!("{self:?}"), product.y, Kind::F32, rows * tokens, tolerance);
    }
}

/// Runs `body` on both variants with interleaved weights, and once more without pointers where the
/// device has them and soon compiles what it never runs by itself.
pub(super) fn on_all_variants(body: impl Fn(&mut dyn Executor, &Capabilities)) {
    on_both_variants(|executor, caps| {
        let caps = &Capabilities { uniform_loads: false, ..caps.clone() };
        if compiles_slowly(caps) {
            println!("left out on this driver");
            return;
        }
        body(executor, caps);
        let soon = !device::compiles_variants_slowly();
        if caps.subgroup_ops && caps.buffer_pointers && soon {
            println!("without pointers");
            body(executor, &Capabilities { buffer_pointers: false, ..caps.clone() });
        }
    });
}

pub(super) fn check(
    executor: &mut dyn Executor,
    caps: &Capabilities,
    seed: u64,
    products: &[MatmulCase],
) -> Vec<Vec<f32>> {
    let mut case = Case::new(caps, seed);
    products.iter().for_each(|product| product.add(&mut case));
    case.check(executor)
}

#[test]
fn matmuls_of_every_type_equal_the_twins() {
    on_all_variants(|executor, caps| {
        for dtype in DType::ALL {
            let [one, some] = [1, 17].map(|tokens| MatmulCase::of(dtype, caps.lanes, tokens));
            let one = MatmulCase { norm: true, ..one.with(Epilogue::SwiGlu, caps.lanes) };
            check(executor, caps, 1, &[one, MatmulCase { bias: true, norm: true, ..some }]);
        }
    });
}

/// Types of each kind of unit: 32 weights, 64 in pairs of blocks, 256; with codes of all widths.
const KINDS: [DType; 8] = [
    DType::F32,
    DType::F16,
    DType::Q8_0,
    DType::Q5_1,
    DType::Q5_0,
    DType::Q4_K,
    DType::Q6_K,
    DType::IQ2_S,
];

#[test]
fn matmuls_of_every_kind_of_type_equal_the_twins_in_other_shapes() {
    on_all_variants(|executor, caps| {
        let mut products = Vec::new();
        for dtype in KINDS {
            let [two, some] = [2, 17].map(|tokens| MatmulCase::of(dtype, caps.lanes, tokens));
            products.extend([
                two.with(Epilogue::Residual, caps.lanes),
                MatmulCase { bias: true, norm: true, row_len: 256, ..some },
                MatmulCase { bias: true, norm: true, tokens: 3, ..some },
            ]);
        }
        check(executor, caps, 8, &products);
    });
}

#[test]
fn every_epilogue_works_for_every_number_of_tokens() {
    on_all_variants(|executor, caps| {
        let lanes = caps.lanes;
        let epilogues = [
            Epilogue::Store,
            Epilogue::Residual,
            Epilogue::SwiGlu,
            Epilogue::GeGlu,
            Epilogue::Gelu,
            Epilogue::SoftCap,
        ];
        let tokens: &[u32] = match device::compiles_variants_slowly() {
            true => &[1, 5],
            false => &[1, 2, 3, 4, 5, 17],
        };
        let mut products = Vec::new();
        for epilogue in epilogues {
            for tokens in tokens.iter().copied() {
                for norm in [false, true] {
                    let product = MatmulCase::of(DType::Q4_1, lanes, tokens).with(epilogue, lanes);
                    let bias = !epilogue.is_glu() && norm;
                    products.push(MatmulCase { norm, bias, ..product });
                }
            }
        }
        check(executor, caps, 2, &products);
    });
}

/// Types whose units differ: 32 weights, 64 in pairs of blocks, and 256 with one scale or two a
/// block.
pub(super) const UNITS: [DType; 4] = [DType::F32, DType::Q5_0, DType::Q4_K, DType::Q6_K];

#[test]
fn shared_rows_and_wide_tiles_give_the_same() {
    let shapes = [(2, 1, 2), (2, 4, 4), (4, 2, 2), (8, 1, 1), (8, 4, 4)];
    on_all_variants(|executor, caps| {
        let lanes = caps.lanes;
        let mut products = Vec::new();
        for dtype in UNITS {
            for (index, (rows, tokens, split)) in shapes.into_iter().enumerate() {
                let shape = Some(TileConfig::scalar(rows, tokens, split));
                // A tile that is not full, and one behind it.
                let product = MatmulCase { shape, ..MatmulCase::of(dtype, lanes, tokens + 1) };
                products.push(match index % 3 {
                    0 => MatmulCase { norm: true, bias: true, ..product },
                    1 => MatmulCase { norm: true, ..product.with(Epilogue::SwiGlu, lanes) },
                    _ => product.with(Epilogue::Residual, lanes),
                });
            }
        }
        check(executor, caps, 3, &products);
    });
}

#[test]
fn more_rows_of_lanes_than_units_add_nothing() {
    on_all_variants(|executor, caps| {
        let lanes = caps.lanes;
        let shape = Some(TileConfig::scalar(2, 1, 8));
        let products = [DType::F16, DType::Q4_0, DType::Q5_1, DType::Q5_K]
            .map(|dtype| MatmulCase { shape, norm: true, ..MatmulCase::of(dtype, lanes, 1) });
        check(executor, caps, 4, &products);
    });
}

#[test]
fn shapes_chosen_for_gpus_work() {
    on_all_variants(|executor, caps| {
        let lanes = caps.lanes;
        let gpu = Capabilities { device_type: hob::gpu::DeviceType::Discrete, ..caps.clone() };
        let mut products = Vec::new();
        for dtype in [DType::BF16, DType::Q8_0] {
            for tokens in [1, 5] {
                let product = MatmulCase {
                    row_len: 1024,
                    norm: true,
                    ..MatmulCase::of(dtype, lanes, tokens)
                };
                let row_len = product.row_len;
                let layout = hob::tensor::layout::Layout {
                    dtype,
                    rows: product.rows,
                    row_len,
                    lanes: lanes.into(),
                };
                let shape = TileConfig::choose(&gpu, &layout, tokens);
                assert!(shape.split > 1, "few rows share K: {shape:?}");
                products.push(MatmulCase { shape: Some(shape), ..product });
            }
        }
        check(executor, caps, 5, &products);
    });
}

#[test]
fn matrices_larger_than_a_binding_are_cut_into_slices() {
    on_all_variants(|executor, caps| {
        let lanes = caps.lanes;
        let rows = u64::from(38 * lanes);
        let mut products = Vec::new();
        for dtype in [DType::Q5_1, DType::Q6_K] {
            let product = MatmulCase { rows, slices: true, ..MatmulCase::of(dtype, lanes, 2) };
            products.push(MatmulCase { rows: rows - 3, bias: true, ..product });
            products.push(MatmulCase { epilogue: Epilogue::GeGlu, ..product });
        }
        check(executor, caps, 6, &products);
    });
}

#[test]
fn a_token_has_one_result_whatever_else_is_in_the_batch() {
    const TOKENS: usize = 9;
    on_both_variants(|executor, caps| {
        let caps = &Capabilities { uniform_loads: false, ..caps.clone() };
        for (dtype, split) in [(DType::Q4_1, 1), (DType::Q6_K, 1), (DType::Q8_0, 4)] {
            let mut case = Case::new(caps, 7);
            let (rows, row_len) = (u64::from(3 * case.caps.lanes), 512);
            let matrix = case.matrix(dtype, rows, row_len);
            let x = case.floats(TOKENS * row_len as usize);
            let gain = case.floats(row_len as usize);
            for (first, tokens, columns) in [(0, 9, 4), (0, 1, 1), (4, 1, 1), (8, 1, 1), (3, 2, 2)]
            {
                let mut from = x;
                // Rows of x start at multiples of every alignment up to 2048.
                from.offset += first * row_len * 4;
                from.bytes -= first * row_len * 4;
                let y = case.garbage(rows as usize * tokens as usize);
                let product = Matmul {
                    weights: &matrix.packed,
                    x: from,
                    x_stride: row_len,
                    y,
                    y_stride: rows,
                    y_offset: 0,
                    tokens,
                    norm: Some((gain, 1e-5)),
                    bias: None,
                    scale: 1.0,
                    epilogue: Epilogue::Store,
                    workspace: None,
                };
                let shape = TileConfig::scalar(2, columns, split);
                matmul::record_shaped(&mut case.recording, &case.caps, &product, shape);
                let tolerance = TOLERANCE * NORM_MAX * matrix.row_sum;
                let name = format!("{dtype} from {first}");
                case.expect(name, y, Kind::F32, rows as usize * tokens as usize, tolerance);
            }
            let found = case.check(executor);
            let rows = rows as usize;
            for (output, first) in [(1, 0), (2, 4), (3, 8), (4, 3), (4, 4)] {
                let within = if output == 4 { first - 3 } else { 0 };
                let alone = &found[output][within * rows..][..rows];
                assert_eq!(alone, &found[0][first * rows..][..rows], "{dtype}: token {first}");
            }
        }
    });
}
