//! What architectures differ in on a device, against llama.cpp's outputs on tiny models.

mod architectures;
mod common;
#[path = "common/device.rs"]
mod device;
#[path = "common/random.rs"]
mod random;

use std::time::Duration;

use architectures::MODELS;
use common::{Driven, Sizes};
use hob::config::Numerics;
use hob::engine::{TuneOptions, Tuner, Verdict};
use hob::kernels::KvFormat;
use hob::reference::ReferenceExecutor;

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
            // Of the one whose kernels are checked deep enough for attention to split its past.
            context_tokens: if name == CHOSEN[0] { 640 } else { tiny.context },
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
            // The others take slow drivers too long.
            model.check_kernels();
            check_shapes(&mut model);
        }
        drop(model);
        device::assert_silent(&messages);
    }
}

/// Matmuls that are tuned: for one token, and some for two.
const MATMULS: usize = 7;

/// Whatever shapes the tuner tries and chooses, the bits stay.
fn check_shapes(model: &mut Driven) {
    let bits = |model: &mut Driven| -> Vec<u32> {
        let tokens: Vec<u32> = (0..24).map(|at| at * 7 % 50).collect();
        let lease = model.lease(tokens.len());
        let mut logits = model.evaluate(&lease, 0, &tokens[..20], 2, 64);
        for at in 20..tokens.len() {
            logits.extend(model.evaluate(&lease, at, &tokens[at..=at], 1, 1));
        }
        model.release(lease);
        logits.iter().flatten().map(|logit| logit.to_bits()).collect()
    };
    let before = bits(model);
    let mut tuner = Tuner::new(TuneOptions {
        reference: |lanes| Box::new(ReferenceExecutor::with_lanes(lanes)),
        numerics: Numerics::Exact,
        folder: None,
        measure: true,
        quiet: Duration::ZERO,
    });
    tuner.prepare(&mut model.runner);
    while tuner.step(&mut model.runner).expect("device").is_some() && tuner.done().len() < MATMULS {
    }
    assert!(bits(model) == before, "bits differ by the shapes of matmuls");
    let matmuls = tuner.done();
    assert_eq!(matmuls.len(), MATMULS);
    for matmul in matmuls {
        assert!(matmul.shapes[0].nanoseconds > 0.0, "it takes time");
        let wrong = |verdict: &Verdict| matches!(verdict, Verdict::Wrong(_));
        assert!(!matmul.shapes.iter().any(|measured| wrong(&measured.verdict)), "{matmul:?}");
    }
}
