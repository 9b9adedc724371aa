//! `shaders/matmul_sliced.comp`.

use hob::gpu::{Capabilities, Executor};
use hob::kernels::block_sums;
use hob::kernels::matmul::{self, Epilogue, Matmul, Tier, TileConfig};
use hob::tensor::{DType, sliced};

use super::matmul::{MatmulCase, NORM_MAX, TOLERANCE, check};
use super::{Case, Kind, on_both_variants};

/// Runs `body` on devices that have their weights sliced: no other ever runs the kernel.
pub(super) fn where_it_runs(body: impl Fn(&mut dyn Executor, &Capabilities)) {
    on_both_variants(|executor, caps| {
        if caps.slices_weights() {
            body(executor, caps);
        } else {
            println!("this variant of the device slices no weights");
        }
    });
}

/// A shape in which x is added up before.
fn summed(columns: u32) -> TileConfig {
    TileConfig { tier: Tier::Summed, ..TileConfig::scalar(4, columns, 1) }
}

#[test]
fn sliced_matmuls_of_every_type_equal_the_twins() {
    where_it_runs(|executor, caps| {
        let mut products = Vec::new();
        for dtype in DType::ALL {
            let row_len = sliced::unit(dtype).0 as u64;
            let [one, two, some] = [1, 2, 17].map(|tokens| MatmulCase {
                row_len: 3 * row_len,
                ..MatmulCase::of(dtype, 8, tokens)
            });
            products.extend([
                MatmulCase { norm: true, ..one.with(Epilogue::SwiGlu, 8) },
                two.with(Epilogue::Residual, 8),
                MatmulCase { norm: true, tokens: 2, ..one },
                MatmulCase { bias: true, norm: true, row_len, ..some },
                MatmulCase { bias: true, norm: true, tokens: 3, ..some },
                MatmulCase { norm: true, shape: Some(summed(8)), ..some },
                MatmulCase { shape: Some(summed(1)), ..one },
            ]);
        }
        check(executor, caps, 1, &products);
    });
}

#[test]
fn sliced_matmuls_have_every_epilogue_for_every_number_of_tokens() {
    where_it_runs(|executor, caps| {
        let epilogues = [
            Epilogue::Store,
            Epilogue::Residual,
            Epilogue::SwiGlu,
            Epilogue::GeGlu,
            Epilogue::Gelu,
            Epilogue::SoftCap,
        ];
        let mut products = Vec::new();
        for epilogue in epilogues {
            for tokens in [1, 2, 3, 4, 5] {
                for norm in [false, true] {
                    let product = MatmulCase::of(DType::Q5_1, 8, tokens).with(epilogue, 8);
                    let bias = !epilogue.is_glu() && norm;
                    let shape = (tokens == 5).then(|| summed(4));
                    products.push(MatmulCase { norm, bias, shape, ..product });
                }
            }
        }
        check(executor, caps, 2, &products);
    });
}

#[test]
fn sliced_matmuls_have_tiles_of_every_number_of_tokens() {
    where_it_runs(|executor, caps| {
        let products: Vec<MatmulCase> = (1..=18)
            .map(|tokens| MatmulCase {
                norm: true,
                shape: Some(summed(8)),
                ..MatmulCase::of(DType::Q6_K, 8, tokens)
            })
            .collect();
        check(executor, caps, 4, &products);
    });
}

#[test]
fn sliced_matrices_larger_than_a_binding_are_cut() {
    where_it_runs(|executor, caps| {
        let mut products = Vec::new();
        for dtype in [DType::Q5_1, DType::Q6_K] {
            let product = MatmulCase { rows: 304, slices: true, ..MatmulCase::of(dtype, 8, 2) };
            products.push(MatmulCase { rows: 301, bias: true, ..product });
            products.push(MatmulCase { epilogue: Epilogue::GeGlu, ..product });
            products.push(MatmulCase { norm: true, shape: Some(summed(2)), ..product });
        }
        check(executor, caps, 3, &products);
    });
}

#[test]
fn a_token_of_a_sliced_matmul_has_one_result_whatever_else_is_in_the_batch() {
    const TOKENS: u64 = 9;
    const ROWS: u64 = 56;
    where_it_runs(|executor, caps| {
        for dtype in DType::ALL {
            let mut case = Case::new(caps, 7);
            let row_len = 512;
            let matrix = case.matrix(dtype, ROWS, row_len);
            let x = case.floats((TOKENS * row_len) as usize);
            let gain = case.floats(row_len as usize);
            let workspace = case.garbage(block_sums::bytes(TOKENS, row_len) as usize / 4);
            let parts = [
                (0, 9, None),
                (0, 1, None),
                (4, 1, None),
                (8, 1, None),
                (3, 2, None),
                (0, 8, Some(summed(8))),
                (1, 3, Some(summed(4))),
                (5, 1, Some(summed(1))),
            ];
            for (first, tokens, shape) in parts {
                let mut from = x;
                from.offset += first * row_len * 4;
                from.bytes -= first * row_len * 4;
                let y = case.garbage((ROWS * tokens) as usize);
                let product = Matmul {
                    weights: &matrix.packed,
                    x: from,
                    x_stride: row_len,
                    y,
                    y_stride: ROWS,
                    y_offset: 0,
                    tokens: tokens as u32,
                    norm: Some((gain, 1e-5)),
                    bias: None,
                    scale: 1.0,
                    epilogue: Epilogue::Store,
                    workspace: shape.map(|_| workspace),
                };
                let (recording, caps) = (&mut case.recording, &case.caps);
                match shape {
                    Some(shape) => matmul::record_shaped(recording, caps, &product, shape),
                    None => matmul::record(recording, caps, &product),
                }
                let tolerance = TOLERANCE * NORM_MAX * matrix.row_sum;
                let name = format!("{dtype} from {first}");
                case.expect(name, y, Kind::F32, (ROWS * tokens) as usize, tolerance);
            }
            let found = case.check(executor);
            for (output, (first, tokens, shape)) in parts.into_iter().enumerate().skip(1) {
                let whole = &found[0][(first * ROWS) as usize..][..(tokens * ROWS) as usize];
                assert_eq!(
                    &found[output][..whole.len()],
                    whole,
                    "{dtype}: {tokens} tokens from {first} on, {shape:?}"
                );
            }
        }
    });
}
