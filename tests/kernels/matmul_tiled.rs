//! `shaders/matmul_tiled.comp`.

use hob::gpu::{Capabilities, Executor};
use hob::kernels::matmul::{Epilogue, Tier, TileConfig};
use hob::kernels::matmul_tiled;
use hob::tensor::DType;

use super::matmul::{MatmulCase, UNITS, check};
use super::on_both_variants;

/// Runs `body` for each tier that the device offers, with interleaved weights.
pub(super) fn for_each_tier(body: impl Fn(&mut dyn Executor, &Capabilities, Tier)) {
    on_both_variants(|executor, caps| {
        let caps = &Capabilities { uniform_loads: false, ..caps.clone() };
        for tier in [Tier::Matrix, Tier::Half] {
            if matmul_tiled::is_offered(caps, tier) {
                println!("tier {}", tier.name());
                body(executor, caps, tier);
            } else {
                println!("this variant of the device offers no tier {}", tier.name());
            }
        }
    });
}

/// A tile of so many groups of rows and so many columns.
pub(super) fn tile(caps: &Capabilities, tier: Tier, rows: u32, tokens: u32) -> TileConfig {
    let split = match (tier, caps.matrix_units) {
        (Tier::Matrix, Some(units)) => (4 * units.subgroup).div_ceil(caps.lanes),
        _ => tokens / 4,
    };
    TileConfig { rows, tokens, split, tier }
}

#[test]
fn tiles_of_every_type_equal_the_twins() {
    for_each_tier(|executor, caps, tier| {
        // As small as can be: unrolled loops take drivers long to compile. Weights are unpacked by
        // the same code in both tiers.
        let small = tile(caps, tier, 2, 16);
        let (shape, types) = match tier {
            Tier::Matrix => (small, DType::ALL.to_vec()),
            _ => (TileConfig { split: 16, ..small }, UNITS.to_vec()),
        };
        let products: Vec<MatmulCase> = (types.into_iter().enumerate())
            .map(|(index, dtype)| {
                let product =
                    MatmulCase { shape: Some(shape), ..MatmulCase::of(dtype, caps.lanes, 17) };
                MatmulCase { norm: index % 2 == 0, bias: index % 3 == 0, ..product }
            })
            .collect();
        check(executor, caps, 31, &products);
    });
}

#[test]
fn tiles_of_all_sizes_take_any_number_of_tokens() {
    for_each_tier(|executor, caps, tier| {
        let kinds = [
            (tile(caps, tier, 2, 16), Epilogue::Residual),
            (tile(caps, tier, 4, 32), Epilogue::SwiGlu),
            (tile(caps, tier, 2, 64), Epilogue::Store),
        ];
        let mut products = Vec::new();
        for (index, tokens) in [1, 15, 16, 17, 33, 64].into_iter().enumerate() {
            for (shape, epilogue) in [kinds[index % 3], kinds[(index + 1) % 3]] {
                let product = MatmulCase::of(DType::Q4_1, caps.lanes, tokens);
                let product =
                    MatmulCase { shape: Some(shape), ..product }.with(epilogue, caps.lanes);
                let bias = epilogue == Epilogue::Store;
                products.push(MatmulCase { bias, norm: index % 2 == 1, ..product });
            }
        }
        check(executor, caps, 32, &products);
    });
}

#[test]
fn a_column_of_tiles_has_one_result_whatever_else_is_in_them() {
    for_each_tier(|executor, caps, tier| {
        let product = MatmulCase { norm: true, ..MatmulCase::of(DType::Q4_1, caps.lanes, 40) };
        let shape = |rows, tokens| Some(tile(caps, tier, rows, tokens));
        let products = [
            MatmulCase { shape: shape(2, 16), ..product },
            MatmulCase { shape: shape(4, 32), ..product },
        ];
        // One seed each: the same weights, and the same rows of x.
        let found = products.map(|product| check(executor, caps, 33, &[product]).remove(0));
        assert!(found[0].iter().map(|v| v.to_bits()).eq(found[1].iter().map(|v| v.to_bits())));
    });
}
