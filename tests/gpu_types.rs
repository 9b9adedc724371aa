//! Models that mix the tensor types of which there are no other model files, on whatever driver the
//! environment names, against numpy's logits.

#[path = "common/blocks.rs"]
mod blocks;
mod common;
#[path = "common/device.rs"]
mod device;
#[path = "common/random.rs"]
mod random;
#[path = "common/typed_model.rs"]
mod typed_model;

use common::{Driven, Sizes, check_golden, goldens};
use hob::kernels::KvFormat;

/// f32 in another order, against f64.
const TOLERANCE: f32 = 5e-3;

#[test]
fn models_of_mixed_types_give_the_logits_of_numpy() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let all = goldens("tests/data/types/golden.json".as_ref());
    let mixed = all.iter().enumerate().filter(|(_, golden)| golden.name.starts_with("mixed"));
    assert_eq!(mixed.clone().count(), 2);
    for (index, golden) in mixed {
        let path = typed_model::write(folder.path(), index, &golden.name);
        let executor = device::open(false);
        let messages = executor.messages();
        let sizes =
            Sizes { context_tokens: 64, sessions: 1, tokens_max: 16, format: KvFormat::F32 };
        let mut model = Driven::load(Box::new(executor), &path, sizes);
        check_golden(&mut model, golden, TOLERANCE, 16);
        drop(model);
        device::assert_silent(&messages);
    }
}
