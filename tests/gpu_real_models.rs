//! The two real models on the Vulkan driver of the environment, against llama.cpp's outputs.

mod common;
#[path = "common/device.rs"]
mod device;

use common::{Driven, Sizes, check_golden, golden_data, real_model};
use hob::gpu::Executor as _;
use hob::kernels::KvFormat;
use hob::vulkan::{VulkanConfig, VulkanExecutor};

/// llama.cpp's own f32 arithmetic, summed in another order.
const TOLERANCE_F32: f32 = 0.02;
/// The reference of Gemma looks GELU up in a table of f16, and after 600 tokens that noise alone
/// moves one of the 320 logprobs by 0.0203 (rounding GELU's input likewise moves it by 0.146).
const TOLERANCE_F16_GELU: f32 = 0.025;
/// The same with keys and values rounded to f16.
const TOLERANCE_F16: f32 = 0.05;
/// And rounded to bytes with a scale for 32: few numbers of a key are large, and set their block's
/// scale. Rare tokens notice: one of another prompt of SmolLM2's moves by 0.57.
const TOLERANCE_Q8_0: f32 = 0.4;
/// How many prompts show that.
const PROMPTS_Q8_0: usize = 3;

/// Beside weights and cache, for prompts taken 512 tokens at a time.
const SCRATCH_MIB_MAX: u64 = 64;

/// Rounding shows in short prompts as in long ones, and the time is short.
const F16_PROMPT_TOKENS_MAX: usize = 100;

fn check(file: &str, golden: &str, tolerance_f32: f32) {
    let model = real_model(file);
    let tolerances = [
        (KvFormat::F32, tolerance_f32),
        (KvFormat::F16, TOLERANCE_F16),
        (KvFormat::Q8_0, TOLERANCE_Q8_0),
    ];
    for (format, tolerance) in tolerances {
        let executor = VulkanExecutor::new(&VulkanConfig::default()).unwrap_or_else(|error| {
            panic!("{error}\n(tests need a Vulkan driver: run `make deps`)")
        });
        let goldens = golden_data(golden);
        let count = match (device::runs_all(executor.capabilities()), format) {
            (true, KvFormat::Q8_0) => PROMPTS_Q8_0,
            (true, _) => goldens.len(),
            (false, KvFormat::F16) => 1,
            (false, _) => continue, // as small models have it
        };
        let sizes = Sizes { context_tokens: 1024, sessions: 1, tokens_max: 512, format };
        let mut driven = Driven::load(Box::new(executor), &model, sizes);
        let scratch = driven.runner.model().scratch_bytes() >> 20;
        assert!(scratch <= SCRATCH_MIB_MAX, "{scratch} MiB of scratch, of {SCRATCH_MIB_MAX}");
        if format == KvFormat::F16 && !device::compiles_variants_slowly() {
            driven.check_kernels(); // also those that only large matrices are worth
        }
        for golden in &goldens[..count] {
            if format != KvFormat::F32 && golden.tokens.len() > F16_PROMPT_TOKENS_MAX {
                continue;
            }
            let worst = check_golden(&mut driven, golden, tolerance, 128);
            let (cache, prompt) = (format.name(), &golden.name);
            println!("{file}, cache of {cache}, {prompt}: worst logprob difference {worst:.4}");
        }
    }
}

#[test]
fn smollm2_gives_the_logits_of_llama_cpp() {
    check("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2", TOLERANCE_F32);
}

#[test]
fn gemma3_gives_the_logits_of_llama_cpp() {
    check("gemma-3-270m-q4_k_m.gguf", "gemma3", TOLERANCE_F16_GELU);
}
