//! `shaders/matmul_bytes.comp`.

use hob::gpu::{Capabilities, Executor};
use hob::kernels::by_name;
use hob::kernels::matmul::{Epilogue, Tier, TileConfig};
use hob::tensor::DType;

use super::matmul::{MatmulCase, check};
use super::on_both_variants;

/// Runs `body` where there are matmuls of bytes, fast or not, with interleaved weights.
pub(super) fn where_it_runs(body: impl Fn(&mut dyn Executor, &Capabilities)) {
    on_both_variants(|executor, caps| {
        if caps.int8_matmuls && caps.subgroup_ops {
            let (uniform_loads, int8_dot_accelerated) = (false, true);
            let caps = Capabilities { uniform_loads, int8_dot_accelerated, ..caps.clone() };
            body(executor, &caps);
        } else {
            println!("this variant of the device multiplies no bytes");
        }
    });
}

/// A tile of so many groups of rows, and columns, of which a lane has `tokens / split`.
fn tile(rows: u32, tokens: u32, split: u32) -> Option<TileConfig> {
    Some(TileConfig { rows, tokens, split, tier: Tier::Bytes })
}

#[test]
fn matmuls_of_bytes_equal_the_twins_for_every_type_that_has_them() {
    where_it_runs(|executor, caps| {
        let mut products = Vec::new();
        for dtype in DType::ALL {
            let name = dtype.name().to_ascii_lowercase();
            if by_name(&format!("matmul_bytes_{name}")).is_some() {
                let odd = products.len() % 2 == 1;
                let product = MatmulCase::of(dtype, caps.lanes, 17);
                products.push(MatmulCase {
                    shape: tile(2, 16, 8),
                    norm: odd,
                    bias: odd,
                    ..product
                });
            }
        }
        assert_eq!(products.len(), 10);
        check(executor, caps, 41, &products);
    });
}

#[test]
fn matmuls_of_bytes_take_any_number_of_tokens() {
    where_it_runs(|executor, caps| {
        let kinds = [(tile(2, 16, 8), Epilogue::GeGlu), (tile(4, 32, 16), Epilogue::Residual)];
        let mut products = Vec::new();
        for (index, tokens) in [1, 15, 16, 17, 33, 64].into_iter().enumerate() {
            let (shape, epilogue) = kinds[index % 2];
            let product =
                MatmulCase::of(DType::Q6_K, caps.lanes, tokens).with(epilogue, caps.lanes);
            products.push(MatmulCase { shape, norm: index > 2, ..product });
        }
        check(executor, caps, 42, &products);
    });
}
