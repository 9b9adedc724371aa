//! The Vulkan executor against llama.cpp's outputs, on whatever driver the environment names, under
//! the validation layer.

mod common;
#[path = "common/device.rs"]
mod device;

use std::path::Path;

use common::{Driven, SMALL_MODELS, Sizes, check_golden, goldens};

/// llama.cpp's own f32 arithmetic, summed in another order.
const TOLERANCE_F32: f32 = 0.02;
/// The same with keys and values rounded to f16.
const TOLERANCE_F16: f32 = 0.05;

fn check(path: &Path, half: bool, disable_subgroup_ops: bool, prompts: usize) -> f32 {
    let executor = device::open(disable_subgroup_ops);
    let sizes = Sizes { context_tokens: 512, sessions: 1, tokens_max: 64, half };
    let messages = executor.messages();
    let mut model = Driven::load(Box::new(executor), path, sizes);
    let tolerance = if half { TOLERANCE_F16 } else { TOLERANCE_F32 };
    let mut worst = 0.0_f32;
    for golden in goldens(&path.with_extension("golden.json")).iter().take(prompts) {
        worst = worst.max(check_golden(&mut model, golden, tolerance, 64));
    }
    drop(model);
    device::assert_silent(&messages);
    worst
}

#[test]
fn small_models_give_the_logits_of_llama_cpp() {
    let Some(shared) = common::shared() else {
        println!("skipped: shared files absent");
        return;
    };
    for name in SMALL_MODELS {
        let path = shared.join("tiny").join(format!("{name}.gguf"));
        // Rounding keys and values concerns attention alone: types of weights and of rotation share
        // it.
        let halves: &[bool] = if ["-Q", "-BF", "-longrope"].iter().any(|part| name.contains(part)) {
            &[false]
        } else {
            &[false, true]
        };
        for half in halves.iter().copied() {
            let worst = check(&path, half, false, 2);
            println!("{name} f16 KV {half}: worst {worst:.4}");
        }
    }
}

#[test]
fn variants_without_subgroup_operations_give_them_too() {
    let Some(shared) = common::shared() else {
        println!("skipped: shared files absent");
        return;
    };
    if device::compiles_variants_slowly() {
        println!("left out: this driver takes minutes to compile what it never runs by itself");
        return;
    }
    // One model of each kind of shader; heads of 64 dimensions, which every driver compiles
    // quickly.
    for name in ["llama-Q4_K_M", "gemma3"] {
        let worst = check(&shared.join("tiny").join(format!("{name}.gguf")), false, true, 1);
        println!("{name} shared memory: worst {worst:.4}");
    }
}
