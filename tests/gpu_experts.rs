//! Mixtures of experts on a device: llama.cpp's outputs, and the same bits for a token whatever
//! else is in the batch.

mod common;
#[path = "common/device.rs"]
mod device;
#[path = "common/recorded.rs"]
mod recorded;
#[path = "common/spoofed.rs"]
mod spoofed;

use common::{Driven, Sizes, check_golden, log_softmax, mixture};
use hob::gpu::Executor as _;
use hob::kernels::matmul::Tier;
use hob::kernels::{KvFormat, matmul_tiled};
use hob::reference::ReferenceExecutor;
use recorded::matmuls_of;
use spoofed::SpoofedDevice;

/// llama.cpp's own f32 arithmetic, summed in another order.
const TOLERANCE: f32 = 0.02;

/// And with matmuls of numbers of f16.
const TOLERANCE_REDUCED: f32 = 0.05;

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

/// One step, which is what has other numbers. The reference executor has the tier without matrix
/// units too, which drivers take long to compile.
#[test]
fn a_prompt_by_matrix_units_gives_nearly_the_logits_of_f32() {
    let executor = device::open(false);
    if !matmul_tiled::is_offered(executor.capabilities(), Tier::Matrix) {
        println!("this device has no matrix units");
        return;
    }
    let messages = executor.messages();
    let (path, goldens) = mixture(NAMES[1]);
    let lanes = executor.capabilities().lanes;
    let reference = ReferenceExecutor::with_lanes(lanes);
    let executor = SpoofedDevice::gpu(Box::new(executor), Tier::Matrix);
    let mut narrow = Driven::load_reduced_precision(Box::new(executor), &path, SIZES);
    let [_, of_experts] = matmuls_of(&narrow, Tier::Matrix, 40);
    assert_eq!(of_experts, 2, "of the layer with experts");
    let mut plain = Driven::load(Box::new(reference), &path, SIZES);
    let [found, wanted] = [&mut narrow, &mut plain].map(|model| {
        model.logit_rows_max = 40; // of a step that ends in logits
        let lease = model.lease(40);
        let logits = model.evaluate(&lease, 0, &goldens[1].tokens[..40], 1, 40);
        model.release(lease);
        log_softmax(&logits[0])
    });
    let pairs = found.iter().zip(&wanted);
    let worst = pairs.map(|(found, wanted)| (found - wanted).abs()).fold(0.0, f32::max);
    println!("worst logprob difference {worst:.6}");
    assert!(worst <= TOLERANCE_REDUCED, "{worst}");
    drop(narrow);
    device::assert_silent(&messages);
}
