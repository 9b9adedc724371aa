//! The reference executor against llama.cpp's outputs on small models.

mod common;
#[path = "common/spoofed.rs"]
mod spoofed;

use common::{Driven, SMALL_MODELS, Sizes, check_golden, golden_data, goldens, real_model};
use hob::kernels::KvFormat;
use hob::kernels::matmul::Tier;
use hob::reference::ReferenceExecutor;
use spoofed::SpoofedDevice;

/// llama.cpp's own f32 arithmetic, summed in another order.
const TOLERANCE: f32 = 0.02;

/// And with matmuls of numbers of f16.
const TOLERANCE_REDUCED: f32 = 0.05;

#[test]
fn small_models_give_the_logits_of_llama_cpp() {
    let Some(shared) = common::shared() else {
        println!("skipped: shared files absent");
        return;
    };
    for name in SMALL_MODELS {
        let path = shared.join("tiny").join(format!("{name}.gguf"));
        let sizes =
            Sizes { context_tokens: 512, sessions: 1, tokens_max: 64, format: KvFormat::F32 };
        let mut model = Driven::load(Box::new(ReferenceExecutor::with_lanes(8)), &path, sizes);
        let mut worst = 0.0_f32;
        for golden in goldens(&path.with_extension("golden.json")) {
            worst = worst.max(check_golden(&mut model, &golden, TOLERANCE, 64));
        }
        println!("{name}: worst logprob difference {worst:.4}");
    }
}

#[test]
fn short_factors_divide_the_frequencies_of_a_context_that_needs_no_long_ones() {
    let Some(shared) = common::shared() else {
        println!("skipped: shared files absent");
        return;
    };
    let path = shared.join("tiny/phi3-longrope.gguf");
    let sizes = Sizes { context_tokens: 256, sessions: 1, tokens_max: 64, format: KvFormat::F32 };
    let mut model = Driven::load(Box::new(ReferenceExecutor::with_lanes(8)), &path, sizes);
    for golden in goldens(&path.with_extension("ctx256.golden.json")) {
        check_golden(&mut model, &golden, TOLERANCE, 64);
    }
}

/// Prompts that the scalar code takes some seconds for: a chat, and text of rare tokens. All of
/// them, and long ones, are for devices.
const REAL_PROMPTS: [&str; 2] = ["capital", "chinese"];

#[test]
fn real_models_give_the_logits_of_llama_cpp() {
    for (file, golden) in
        [("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2"), ("gemma-3-270m-q4_k_m.gguf", "gemma3")]
    {
        let sizes =
            Sizes { context_tokens: 1024, sessions: 1, tokens_max: 128, format: KvFormat::F32 };
        let executor = Box::new(ReferenceExecutor::new());
        let mut model = Driven::load(executor, &real_model(file), sizes);
        let mut goldens = golden_data(golden);
        goldens.retain(|golden| REAL_PROMPTS.contains(&&*golden.name));
        assert_eq!(goldens.len(), REAL_PROMPTS.len(), "prompts of {golden}");
        for golden in goldens {
            let worst = check_golden(&mut model, &golden, TOLERANCE, 128);
            println!("{file} {}: worst logprob difference {worst:.4}", golden.name);
        }
    }
}

#[test]
fn mixtures_of_experts_give_the_logits_of_llama_cpp() {
    for name in common::MIXTURES {
        let (path, goldens) = common::mixture(name);
        let sizes =
            Sizes { context_tokens: 256, sessions: 1, tokens_max: 64, format: KvFormat::F32 };
        let mut model = Driven::load(Box::new(ReferenceExecutor::with_lanes(8)), &path, sizes);
        let mut worst = 0.0_f32;
        for golden in goldens {
            worst = worst.max(check_golden(&mut model, &golden, TOLERANCE, 64));
        }
        println!("{name}: worst logprob difference {worst:.6}");
    }
}

/// llama.cpp looks GELU up in a table of f16; the values of an embedding of length 1 are about 0.1.
const EMBEDDING_TOLERANCE: f32 = 0.001;

#[test]
fn encoders_give_the_embeddings_of_llama_cpp() {
    for name in common::ENCODERS {
        let (path, goldens) = common::encoder(name);
        let sizes =
            Sizes { context_tokens: 128, sessions: 3, tokens_max: 128, format: KvFormat::F32 };
        let mut model = Driven::load(Box::new(ReferenceExecutor::with_lanes(8)), &path, sizes);
        let worst = common::check_embeddings(&mut model, &goldens, EMBEDDING_TOLERANCE);
        println!("{name}: worst difference {worst:.6}");
    }
}

/// llama.cpp's logits nearly, and the check at the start cuts such matmuls down as it should: the
/// reference finds itself right.
#[test]
fn mixtures_give_nearly_those_logits_in_halves() {
    let executor = SpoofedDevice::gpu(Box::new(ReferenceExecutor::with_lanes(8)), Tier::Half);
    let sizes = Sizes { context_tokens: 256, sessions: 1, tokens_max: 200, format: KvFormat::F32 };
    let (path, goldens) = common::mixture("qwen2moe");
    let mut model = Driven::load_reduced_precision(Box::new(executor), &path, sizes);
    let worst = check_golden(&mut model, &goldens[1], TOLERANCE_REDUCED, 40);
    println!("worst logprob difference {worst:.4}");
    let passed = model.check_kernels();
    // Columns of a tile, that they are routes, no bias, and the epilogue of up and of down.
    for constants in [",16,1,0,2", ",16,1,0,0"] {
        let is_tile = |name: &String| name.contains("_half ") && name.ends_with(constants);
        assert!(passed.iter().any(is_tile), "{constants}: {passed:?}");
    }
}
