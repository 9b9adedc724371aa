//! The Vulkan executor against llama.cpp's outputs, on whatever driver the environment names, under
//! the validation layer.

mod common;
#[path = "common/device.rs"]
mod device;

use std::path::Path;

use common::{Driven, Sizes, check_golden, goldens};
use device::compiles_variants_slowly;
use hob::vulkan::{VulkanConfig, VulkanExecutor};

/// llama.cpp's own f32 arithmetic, summed in another order.
const TOLERANCE_F32: f32 = 0.02;
/// The same with keys and values rounded to f16.
const TOLERANCE_F16: f32 = 0.05;

fn open(disable_subgroup_ops: bool) -> VulkanExecutor {
    let config = VulkanConfig { validation: true, disable_subgroup_ops, ..Default::default() };
    VulkanExecutor::new(&config).unwrap_or_else(|error| {
        panic!("{error}\n(tests need a Vulkan driver and the validation layer: run `make deps`)")
    })
}

fn check(path: &Path, half: bool, disable_subgroup_ops: bool, prompts: usize) -> f32 {
    let executor = open(disable_subgroup_ops);
    let sizes = Sizes { context_tokens: 512, sessions: 1, tokens_max: 64, half };
    let messages = executor.messages();
    let mut model = Driven::load(Box::new(executor), path, sizes);
    let tolerance = if half { TOLERANCE_F16 } else { TOLERANCE_F32 };
    let mut worst = 0.0_f32;
    for golden in goldens(&path.with_extension("golden.json")).iter().take(prompts) {
        worst = worst.max(check_golden(&mut model, golden, tolerance, 64));
    }
    drop(model);
    let messages = messages.lock().expect("no thread panicked");
    assert!(messages.is_empty(), "validation: {messages:#?}");
    worst
}

#[test]
fn small_models_give_the_logits_of_llama_cpp() {
    let Some(shared) = common::shared() else {
        println!("skipped: shared files absent");
        return;
    };
    let names = [
        "llama",
        "llama-BF16",
        "llama-Q8_0",
        "llama-Q4_0",
        "llama-Q4_1",
        "llama-Q5_0",
        "llama-Q5_1",
        "llama-Q6_K",
        "llama-Q4_K_M",
        "llama-mha",
        "llama-tied",
        "llama-linear",
        "llama3-ropefreqs",
        "llama-hd128-bias",
        "qwen2",
        "qwen3",
        "gemma3",
        "malformed/ok-plain",
    ];
    for name in names {
        let path = shared.join("tiny").join(format!("{name}.gguf"));
        // Rounding keys and values concerns attention alone: the types of weights share it.
        let halves: &[bool] =
            if name.contains("-Q") || name.contains("-BF") { &[false] } else { &[false, true] };
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
    if compiles_variants_slowly() {
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
