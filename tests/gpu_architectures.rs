//! What architectures differ in on a device, against llama.cpp's outputs on tiny models.

mod architectures;
mod common;
#[path = "common/device.rs"]
mod device;
#[path = "common/random.rs"]
mod random;

use architectures::MODELS;
use common::{Driven, Sizes};
use hob::kernels::KvFormat;

/// As on the reference executor: llama.cpp's own f32 arithmetic, with GELU looked up in f16.
const TOLERANCE: f32 = 0.01;

/// Models with most features between them; kernels have tests of their own, and slow drivers take
/// ten seconds to compile a model's.
const CHOSEN: [&str; 3] = ["gemma2", "gpt2", "olmo3"];

#[test]
fn tiny_models_give_the_logits_of_llama_cpp() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for name in CHOSEN {
        let tiny = MODELS.iter().find(|tiny| tiny.name == name).expect("a model of that name");
        let path = tiny.write(folder.path());
        let executor = device::open(false);
        let messages = executor.messages();
        let sizes = Sizes {
            context_tokens: tiny.context,
            sessions: 1,
            tokens_max: 64,
            format: KvFormat::F32,
        };
        let mut model = Driven::load(Box::new(executor), &path, sizes);
        match architectures::check(&mut model, tiny, TOLERANCE) {
            Ok(worst) => println!("{name}: worst logprob difference {worst:.5}"),
            Err(failure) => panic!("{failure}"),
        }
        if name == CHOSEN[0] {
            model.check_kernels(); // the others take slow drivers too long
        }
        drop(model);
        device::assert_silent(&messages);
    }
}
