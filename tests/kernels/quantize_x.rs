//! `shaders/quantize_x.comp`.

use hob::gpu::Command;
use hob::kernels::matmul::{self, Epilogue, Matmul, Tier, TileConfig};
use hob::kernels::quantize_x::{self, QuantizedX};
use hob::tensor::DType;

use super::{Case, Kind, on_both_variants};

/// A sum in another order, and a driver's own inverse root.
const FACTOR_TOLERANCE: f32 = 2e-6;

#[test]
fn rows_of_any_size_are_narrowed_to_the_nearest_halves_and_bytes() {
    on_both_variants(|executor, caps| {
        if !caps.subgroup_ops {
            return println!(
                "it has no variant without subgroup operations, and is not used there"
            );
        }
        let mut case = Case::new(caps, 21);
        let (tokens, row_len) = (5, 96);
        let matrix = case.matrix(DType::F32, 8, row_len);
        // Tiny rows, huge ones, one of zeros, and one of a single value.
        let mut x = Vec::new();
        for size in [1e-30_f32, 1.0, 3e9, 0.0, 2.0] {
            x.extend(case.random.floats(row_len as usize, -size, size));
        }
        x[4 * row_len as usize..].fill(0.0);
        x[4 * row_len as usize + 7] = -7.25;
        let x = case.slice(&x);
        let gain = case.floats(row_len as usize);
        for norm in [None, Some((gain, 1e-5))] {
            let y = case.garbage(64);
            let product = Matmul {
                weights: &matrix.packed,
                x,
                x_stride: row_len,
                y,
                y_stride: 8,
                y_offset: 0,
                tokens,
                norm,
                bias: None,
                scale: 1.0,
                epilogue: Epilogue::Store,
                workspace: None,
            };
            let mut plain = hob::gpu::Recording::new();
            matmul::record_shaped(&mut plain, &case.caps, &product, TileConfig::scalar(2, 1, 1));
            let [Command::Dispatch(product)] = &plain.commands[..] else { panic!("a dispatch") };
            let blocks = (u64::from(tokens) * row_len / 32) as usize;
            for (tier, kind, words, values) in
                [(Tier::Half, Kind::F16, 16, 32), (Tier::Bytes, Kind::Blocks, 12, 34)]
            {
                let quantized = QuantizedX {
                    x: case.garbage(blocks * words),
                    factors: case.garbage(tokens as usize),
                };
                for split in [1, 2] {
                    let mut dispatch = quantize_x::of_matmul(&case.caps, product, tier, &quantized);
                    dispatch.spec[1] = split;
                    case.recording.dispatch(dispatch);
                }
                let name = format!("{}, {norm:?}", tier.name());
                case.expect(name.clone(), quantized.x, kind, blocks * values, 0.0);
                let (name, rows) = (format!("factors of {name}"), tokens as usize);
                case.expect_relative(name, quantized.factors, Kind::F32, rows, FACTOR_TOLERANCE);
            }
        }
        case.check(executor);
    });
}
