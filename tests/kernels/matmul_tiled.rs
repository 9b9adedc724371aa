//! `shaders/matmul_tiled.comp`.

use hob::gpu::{Capabilities, Executor};
use hob::kernels::matmul::{Epilogue, Shape, Tier};
use hob::kernels::matmul_tiled;
use hob::tensor::DType;

use super::matmul::{KINDS, Product, check};
use super::on_both_variants;

/// Runs `body` for each tier that the device offers, with interleaved weights.
fn for_each_tier(body: impl Fn(&mut dyn Executor, &Capabilities, Tier)) {
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
fn tile(caps: &Capabilities, tier: Tier, rows: u32, tokens: u32) -> Shape {
    let split = match (tier, caps.matrix_units) {
        (Tier::Matrix, Some(units)) => (4 * units.subgroup).div_ceil(caps.lanes),
        _ => tokens / 8,
    };
    Shape { rows, tokens, split, tier }
}

#[test]
fn tiles_of_every_type_equal_the_twins() {
    for_each_tier(|executor, caps, tier| {
        // As small as can be: unrolled loops take drivers long to compile.
        let small = tile(caps, tier, 2, 16);
        let shape = Some(if tier == Tier::Half { Shape { split: 16, ..small } } else { small });
        // Weights are unpacked by the same code in both tiers: the second has one of each kind.
        let second = tier == Tier::Half && matmul_tiled::is_offered(caps, Tier::Matrix);
        let types = if second { KINDS.to_vec() } else { DType::ALL.to_vec() };
        let products: Vec<Product> = (types.into_iter().enumerate())
            .map(|(index, dtype)| {
                let product = Product { shape, ..Product::of(dtype, caps.lanes, 17) };
                Product { norm: index % 2 == 0, bias: index % 3 == 0, ..product }
            })
            .collect();
        check(executor, caps, 31, &products);
    });
}

#[test]
fn tiles_of_all_sizes_take_any_number_of_tokens_and_every_epilogue() {
    let epilogues = [
        Epilogue::Store,
        Epilogue::Residual,
        Epilogue::SwiGlu,
        Epilogue::GeGlu,
        Epilogue::Gelu,
        Epilogue::SoftCap,
    ];
    for_each_tier(|executor, caps, tier| {
        let shapes = [(2, 16), (4, 32), (8, 64)].map(|(r, t)| tile(caps, tier, r, t));
        let mut products = Vec::new();
        for (index, tokens) in [1, 15, 16, 17, 33, 64].into_iter().enumerate() {
            let shape = Some(shapes[index % 3]);
            let product = Product { shape, ..Product::of(DType::Q4_1, caps.lanes, tokens) };
            for epilogue in [epilogues[index], epilogues[(index + 1) % 6]] {
                let product = product.with(epilogue, caps.lanes);
                let bias = !epilogue.is_glu() && index % 2 == 0;
                products.push(Product { bias, norm: index % 2 == 1, ..product });
            }
        }
        check(executor, caps, 32, &products);
    });
}

#[test]
fn a_column_of_tiles_has_one_result_whatever_else_is_in_them() {
    for_each_tier(|executor, caps, tier| {
        let product = Product { norm: true, ..Product::of(DType::Q5_K, caps.lanes, 40) };
        let shape = |rows, tokens| Some(tile(caps, tier, rows, tokens));
        let products = [
            Product { shape: shape(2, 16), ..product },
            Product { shape: shape(4, 32), ..product },
        ];
        // One seed each: the same weights, and the same rows of x.
        let found = products.map(|product| check(executor, caps, 33, &[product]).remove(0));
        assert!(found[0].iter().map(|v| v.to_bits()).eq(found[1].iter().map(|v| v.to_bits())));
    });
}
