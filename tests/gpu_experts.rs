//! Mixtures of experts on a device: llama.cpp's outputs, and the same bits for a token whatever
//! else is in the batch.

mod common;
#[path = "common/device.rs"]
mod device;

use common::{Driven, Sizes, check_golden, mixture};
use hob::kernels::KvFormat;

/// llama.cpp's own f32 arithmetic, summed in another order.
const TOLERANCE: f32 = 0.02;

const SIZES: Sizes =
    Sizes { context_tokens: 256, sessions: 1, tokens_max: 64, format: KvFormat::F32 };

/// The most different ones; the reference executor runs them all.
const NAMES: [&str; 2] = ["qwen2moe", "deepseek"];

#[test]
fn mixtures_of_experts_give_the_logits_of_llama_cpp() {
    for name in NAMES {
        let executor = device::open(false);
        let messages = executor.messages();
        let (path, goldens) = mixture(name);
        let mut model = Driven::load(Box::new(executor), &path, SIZES);
        let mut worst = 0.0_f32;
        for golden in &goldens {
            worst = worst.max(check_golden(&mut model, golden, TOLERANCE, 64));
        }
        println!("{name}: worst logprob difference {worst:.6}");
        check_bits(&mut model, &goldens[1].tokens[..24], name);
        if name == NAMES[0] {
            model.check_kernels(); // both take slow drivers too long
        }
        drop(model);
        device::assert_silent(&messages);
    }
}

/// One step lists the routes of each expert, the other takes them one by one.
fn check_bits(model: &mut Driven, tokens: &[u32], name: &str) {
    let [at_once, one_by_one] = [24, 1].map(|chunk| {
        let lease = model.lease(tokens.len());
        let logits = model.evaluate(&lease, 0, tokens, 8, chunk);
        model.release(lease);
        logits
    });
    let bits = |rows: &[Vec<f32>]| -> Vec<u32> {
        rows.iter().flatten().map(|logit| logit.to_bits()).collect()
    };
    assert!(bits(&at_once) == bits(&one_by_one), "{name}: bits differ by the batch");
}
