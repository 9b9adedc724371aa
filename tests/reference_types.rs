//! A whole model of every tensor type on the reference executor, against logits that numpy made in
//! float64 of the weights as gguf-py dequantises them.

#[path = "common/blocks.rs"]
mod blocks;
mod common;
#[path = "common/random.rs"]
mod random;
#[path = "common/typed_model.rs"]
mod typed_model;

use common::{Driven, Sizes, check_golden, goldens};
use hob::kernels::KvFormat;
use hob::reference::ReferenceExecutor;
use hob::tensor::DType;

/// f32 against f64, and four digits in the file.
const TOLERANCE: f32 = 2e-3;

#[test]
fn models_of_every_type_give_the_logits_of_numpy() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let all = goldens("tests/data/types/golden.json".as_ref());
    assert_eq!(all.len(), DType::ALL.len() + 2, "a golden for each type and mixture");
    for (index, golden) in all.iter().enumerate() {
        let path = typed_model::write(folder.path(), index, &golden.name);
        let sizes =
            Sizes { context_tokens: 64, sessions: 1, tokens_max: 16, format: KvFormat::F32 };
        let mut model = Driven::load(Box::new(ReferenceExecutor::with_lanes(8)), &path, sizes);
        let worst = check_golden(&mut model, golden, TOLERANCE, 16);
        println!("{}: worst logprob difference {worst:.5}", golden.name);
    }
}
