//! The Vulkan executor against llama.cpp's outputs, on whatever driver the environment names, under
//! the validation layer.

mod common;
#[path = "common/device.rs"]
mod device;
#[path = "common/recorded.rs"]
mod recorded;
#[path = "common/spoofed.rs"]
mod spoofed;

use std::path::Path;

use common::{Driven, SMALL_MODELS, Sizes, check_golden, goldens};
use hob::gpu::Executor as _;
use hob::kernels::matmul::Tier;
use hob::kernels::{KvFormat, matmul_tiled};
use recorded::{attention_of, matmuls_of};
use spoofed::SpoofedDevice;

/// llama.cpp's own f32 arithmetic, summed in another order.
const TOLERANCE_F32: f32 = 0.02;
/// The same with keys and values rounded to f16.
const TOLERANCE_F16: f32 = 0.05;
/// And rounded to bytes with a scale for 32.
const TOLERANCE_Q8_0: f32 = 0.3;

/// Models whose keys and values are also rounded where a driver is slow: heads of two sizes, and
/// windows.
const ROUNDED: [&str; 3] = ["llama", "llama-hd128-bias", "gemma3"];

/// And with matmuls of numbers of f16.
const TOLERANCE_REDUCED: f32 = 0.05;

fn check(path: &Path, format: KvFormat, disable_subgroup_ops: bool, prompts: usize) -> f32 {
    let executor = device::open(disable_subgroup_ops);
    let sizes = Sizes { context_tokens: 512, sessions: 1, tokens_max: 64, format };
    let messages = executor.messages();
    let mut model = Driven::load(Box::new(executor), path, sizes);
    let tolerance = match format {
        KvFormat::F32 => TOLERANCE_F32,
        KvFormat::F16 => TOLERANCE_F16,
        KvFormat::Q8_0 => TOLERANCE_Q8_0,
    };
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
    let all = device::runs_all(device::open(false).capabilities());
    for name in SMALL_MODELS {
        let path = shared.join("tiny").join(format!("{name}.gguf"));
        // Rounding keys and values concerns attention alone: types of weights and of rotation share
        // it.
        let rounded = if all {
            !["-Q", "-BF", "-longrope"].iter().any(|part| name.contains(part))
        } else {
            ROUNDED.contains(&name)
        };
        let formats = [KvFormat::F32, KvFormat::F16, KvFormat::Q8_0];
        // Heads of 16 dimensions are no whole blocks.
        let count = if !rounded { 1 } else { 3 - usize::from(name.starts_with("malformed")) };
        for format in &formats[..count] {
            let prompts = if *format == KvFormat::Q8_0 || !all { 1 } else { 2 };
            let worst = check(&path, *format, false, prompts);
            println!("{name}, cache of {}: worst {worst:.4}", format.name());
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
        let worst =
            check(&shared.join("tiny").join(format!("{name}.gguf")), KvFormat::F32, true, 1);
        println!("{name} shared memory: worst {worst:.4}");
    }
}

fn check_reduced_precision(path: &Path, tier: Tier) -> f32 {
    let executor = device::open(false);
    let messages = executor.messages();
    let executor = SpoofedDevice::gpu(Box::new(executor), tier);
    let sizes = Sizes { context_tokens: 512, sessions: 1, tokens_max: 64, format: KvFormat::F32 };
    let mut model = Driven::load_reduced_precision(Box::new(executor), path, sizes);
    let [plain, _] = matmuls_of(&model, tier, 64);
    assert!(plain >= 4, "{plain} matmuls by tier {}", tier.name());
    let tiled = attention_of(&model, 64, false) == "attention_tiled";
    assert_eq!(
        tiled,
        tier == Tier::Matrix,
        "a prompt attends by matrix units where there are such"
    );
    assert_ne!(attention_of(&model, 15, false), "attention_tiled", "too few tokens");
    assert_ne!(attention_of(&model, 64, true), "attention_tiled", "tokens of 64 sessions");
    let goldens = goldens(&path.with_extension("golden.json"));
    let worst = check_golden(&mut model, &goldens[0], TOLERANCE_REDUCED, 64);
    drop(model);
    device::assert_silent(&messages);
    worst
}

#[test]
fn small_models_give_nearly_those_logits_in_narrower_numbers() {
    let Some(shared) = common::shared() else {
        println!("skipped: shared files absent");
        return;
    };
    if device::compiles_variants_slowly() {
        return println!("this driver takes minutes to compile a step in f16: others are asked");
    }
    let caps = device::open(false).capabilities().clone();
    for (tier, name) in [(Tier::Matrix, "gemma3"), (Tier::Half, "llama-Q4_K_M")] {
        if !matmul_tiled::is_offered(&caps, tier) {
            println!("this device offers no tier {}", tier.name());
            continue;
        }
        let worst =
            check_reduced_precision(&shared.join("tiny").join(format!("{name}.gguf")), tier);
        println!("{name} by tier {}: worst {worst:.4}", tier.name());
    }
}
