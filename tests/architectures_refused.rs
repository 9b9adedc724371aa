//! Files that would load and answer nonsense are refused in one line.

mod architectures;
mod common;
#[path = "common/random.rs"]
mod random;

use std::path::Path;

use architectures::{MODELS, Tiny};
use hob::gguf::{Array, GgufBuilder, GgufFile, Value};
use hob::model::{FAMILIES, Limits, Model, read_hyper_params};
use hob::reference::ReferenceExecutor;

fn model(name: &str) -> Tiny {
    *MODELS.iter().find(|tiny| tiny.name == name).expect("a model of that name")
}

/// What is said of a file that must be refused.
fn refusal(bytes: Vec<u8>, context_tokens: usize) -> String {
    let limits = Limits {
        tokens_max: 8,
        logit_rows_max: 1,
        context_tokens,
        kv_bytes: 0,
        adapter_bytes: 0,
        reduced_precision: false,
    };
    let file = GgufFile::from_bytes(Path::new("tiny.gguf"), bytes).expect("a GGUF file");
    let mut executor = ReferenceExecutor::with_lanes(8);
    let error = Model::load(&mut executor, &file, limits, &mut |_, _| {}).expect_err("a refusal");
    error.to_string()
}

/// The file with the first `name` made another of the same length.
fn renamed(tiny: &Tiny, name: &str, to: &str) -> Vec<u8> {
    assert_eq!(name.len(), to.len());
    let mut bytes = tiny.build();
    let at = bytes.windows(name.len()).position(|found| found == name.as_bytes());
    bytes[at.expect("the file has it")..][..name.len()].copy_from_slice(to.as_bytes());
    bytes
}

#[test]
fn unknown_architectures_are_named_beside_those_that_hob_knows() {
    for name in ["mamba", "deepseek2", "gemma3n", "mpt"] {
        let message = refusal(Tiny { architecture: name, ..Tiny::LLAMA }.build(), 64);
        assert!(message.contains(&format!("architecture {name:?} is not supported")), "{message}");
        for family in FAMILIES {
            assert!(message.contains(family.architecture), "{message}");
        }
        assert!(!message.contains('\n'));
    }
}

#[test]
fn scaling_that_hob_does_not_know_is_refused() {
    let of_kind = |metadata| refusal(Tiny { metadata, ..Tiny::LLAMA }.build(), 64);
    let message = of_kind(|maker| maker.key("rope.scaling.type", "dynamic"));
    assert!(message.contains("llama.rope.scaling.type"), "{message}");
    assert!(message.contains("dynamic"), "{message}");
    // Without factors of its own, an architecture has no use for the kind.
    let metadata = |maker: &mut architectures::Maker| maker.key("rope.scaling.type", "longrope");
    let message = refusal(Tiny { metadata, ..model("internlm2") }.build(), 64);
    assert!(message.contains("longrope"), "{message}");
}

#[test]
fn tensors_that_an_architecture_cannot_do_without_are_missed() {
    for (name, tensor) in [
        ("gemma2", "blk.1.post_ffw_norm.weight"),
        ("phi2", "output.bias"),
        ("phi2", "blk.1.ffn_up.bias"),
        ("gpt2", "position_embd.weight"),
        ("gpt2", "blk.1.attn_qkv.bias"),
        ("gptneox", "blk.0.ffn_norm.bias"),
        ("falcon-40b", "blk.1.attn_norm_2.weight"),
        ("stablelm", "output.weight"),
        ("stablelm", "blk.1.ffn_norm.weight"),
        ("stablelm-12b", "blk.1.attn_k_norm.weight"),
        ("olmo3", "blk.2.attn_q_norm.weight"),
        ("command-r-plus", "blk.0.attn_q_norm.weight"),
        ("glm4", "blk.1.post_attention_norm.weight"),
        ("internlm2", "output.weight"),
    ] {
        let broken = format!("x{}", &tensor[1..]);
        let message = refusal(renamed(&model(name), tensor, &broken), 64);
        assert!(message.contains(&format!("tensor {tensor}: wanted")), "{name}: {message}");
    }
}

#[test]
fn tensors_that_an_architecture_has_no_use_for_are_refused() {
    for (name, tensor, other) in [
        ("llama-joined-biases", "blk.0.attn_output.bias", "blk.0.attn_output.what"),
        ("exaone", "rope_freqs.weight", "rope_freq_.weight"),
    ] {
        let message = refusal(renamed(&model(name), tensor, other), 64);
        assert!(message.contains(other), "{name}: {message}");
    }
}

#[test]
fn contexts_past_the_last_position_are_refused() {
    let message = refusal(model("gpt2").build(), 257);
    assert!(message.contains("257") && message.contains("256 positions"), "{message}");
    let message = refusal(model("mistral3").build(), 129);
    assert!(message.contains("128 positions"), "{message}");
}

/// The model with further keys, each behind its architecture's name.
fn with_keys(name: &str, keys: &[(&str, Value)]) -> Vec<u8> {
    let file = GgufFile::from_bytes(Path::new("tiny.gguf"), model(name).build());
    let file = file.expect("a GGUF file");
    let architecture = file.metadata().str("general.architecture").expect("a name");
    let further: Vec<_> =
        keys.iter().map(|(key, value)| (format!("{architecture}.{key}"), value)).collect();
    let mut builder = GgufBuilder::new();
    for (name, value) in file.metadata().iter() {
        if !further.iter().any(|(key, _)| key == name) {
            builder = builder.metadata(name, value.clone());
        }
    }
    for (key, value) in further {
        builder = builder.metadata(&key, value.clone());
    }
    for tensor in file.tensors() {
        let mut bytes = vec![0; tensor.bytes as usize];
        file.read_tensor(tensor, 0, &mut bytes).expect("it is there");
        let dtype = tensor.supported_dtype().expect("a known type");
        builder = builder.tensor(&tensor.name, dtype, &tensor.dims, &bytes);
    }
    builder.build()
}

#[test]
fn windows_are_those_that_a_file_lists() {
    let windowed = |name: &str, listed: &[bool]| {
        let keys = [
            ("attention.sliding_window", 8_u32.into()),
            ("attention.sliding_window_pattern", Value::Array(Array::Bool(listed.to_vec()))),
        ];
        with_keys(name, &keys)
    };
    for name in ["cohere2", "gemma2", "olmo3", "phi3-factor", "llama-yarn", "qwen2-joined"] {
        let file = GgufFile::from_bytes(Path::new("tiny.gguf"), model(name).build()).expect(name);
        let layers = read_hyper_params(&file).expect(name).layers.len();
        let listed: Vec<bool> = (0..layers).map(|layer| layer % 3 != 1).collect();
        let file = GgufFile::from_bytes(Path::new("tiny.gguf"), windowed(name, &listed));
        let hyper = read_hyper_params(&file.expect(name)).expect(name);
        let found: Vec<bool> = hyper.layers.iter().map(|layer| layer.window == 8).collect();
        assert_eq!(found, listed, "{name}");
        let message = refusal(windowed(name, &listed[1..]), 64);
        assert!(
            message.contains("attention.sliding_window_pattern: wanted true or false for each")
        );
    }
}

#[test]
fn keys_that_would_change_results_are_followed_or_refused_by_name() {
    let refused = |name: &str, key: &str, value: Value| {
        let message = refusal(with_keys(name, &[(key, value)]), 64);
        assert!(message.contains(&format!(".{key}: wanted no such key")), "{name}: {message}");
    };
    refused("llama-yarn", "attention.sliding_window", 8_u32.into());
    refused("llama-yarn", "attention.clamp_kqv", 8.0_f32.into());
    refused("llama-yarn", "rope.scaling.yarn_log_multiplier", 0.5_f32.into());
    refused("gemma", "final_logit_softcapping", 30.0_f32.into());
    refused("phi2", "logit_scale", 0.5_f32.into());
    refused("smollm3", "expert_count", 4_u32.into());
    // What changes nothing passes.
    for (key, value) in [
        ("attention.clamp_kqv", 0.0_f32.into()),
        ("logit_scale", 1.0_f32.into()),
        ("attention.causal", true.into()),
        ("attention.sliding_window", u32::MAX.into()),
        ("vocab_size", 7_u32.into()),
        ("some.thing", "else".into()),
    ] {
        let bytes = with_keys("llama-yarn", &[(key, value)]);
        let file = GgufFile::from_bytes(Path::new("tiny.gguf"), bytes).expect("a GGUF file");
        read_hyper_params(&file).expect(key);
    }
    let bytes = with_keys("gemma2", &[("attention.scale", 0.5_f32.into())]);
    let file = GgufFile::from_bytes(Path::new("tiny.gguf"), bytes).expect("a GGUF file");
    assert_eq!(read_hyper_params(&file).expect("a model").attention_scale, 0.5);
    let turns = [
        ("rope.scaling.yarn_beta_fast", 16.0_f32.into()),
        ("rope.scaling.yarn_beta_slow", 2.0_f32.into()),
    ];
    let bytes = with_keys("llama-yarn", &turns);
    let file = GgufFile::from_bytes(Path::new("tiny.gguf"), bytes).expect("a GGUF file");
    let yarn = read_hyper_params(&file).expect("a model").ropes[0].yarn.expect("YaRN");
    assert_eq!((yarn.fast, yarn.slow), (16.0, 2.0));
}

/// The file with one of its keys made an array.
fn with_array(tiny: &Tiny, key: &str, array: Array) -> Vec<u8> {
    let file = GgufFile::from_bytes(Path::new("tiny.gguf"), tiny.build()).expect("a GGUF file");
    let mut builder = GgufBuilder::new();
    for (name, value) in file.metadata().iter() {
        let value = if name == key { Value::Array(array.clone()) } else { value.clone() };
        builder = builder.metadata(name, value);
    }
    for tensor in file.tensors() {
        let mut bytes = vec![0; tensor.bytes as usize];
        file.read_tensor(tensor, 0, &mut bytes).expect("it is there");
        let dtype = tensor.supported_dtype().expect("a known type");
        builder = builder.tensor(&tensor.name, dtype, &tensor.dims, &bytes);
    }
    builder.build()
}

#[test]
fn layers_of_different_shapes_are_refused_and_a_list_of_equal_ones_is_not() {
    let tiny = Tiny::LLAMA;
    let file = GgufFile::from_bytes(Path::new("tiny.gguf"), tiny.build()).expect("a GGUF file");
    let of = |key: &str| file.metadata().u32(key).expect("a number");
    let layers = of("llama.block_count") as usize;
    for part in ["attention.head_count", "attention.head_count_kv", "feed_forward_length"] {
        let key = format!("llama.{part}");
        let count = of(&key) as i32;
        let equal = with_array(&tiny, &key, Array::I32(vec![count; layers]));
        let equal = GgufFile::from_bytes(Path::new("tiny.gguf"), equal).expect("a GGUF file");
        let read = |file| read_hyper_params(file).expect("a shape");
        assert_eq!(read(&equal), read(&file), "{key}");
        let mut counts = vec![count; layers];
        counts[layers - 1] = 2 * count;
        let message = refusal(with_array(&tiny, &key, Array::I32(counts)), 64);
        assert!(message.contains(&key) && message.contains("one number for all"), "{message}");
        let message = refusal(with_array(&tiny, &key, Array::Bool(vec![true; layers])), 64);
        assert!(message.contains(&key), "{message}");
        let message = refusal(with_array(&tiny, &key, Array::U32(Vec::new())), 64);
        assert!(message.contains(&key), "{message}");
    }
}

#[test]
fn the_biases_of_phi2_are_missed_in_either_form() {
    let broken = renamed(&model("phi2"), "blk.1.attn_qkv.bias", "xlk.1.attn_qkv.bias");
    let message = refusal(broken, 64);
    assert!(message.contains("tensor blk.1.attn_q.bias: wanted"), "{message}");
}

#[test]
fn a_model_that_sees_what_comes_later_is_no_model_that_generates() {
    let metadata = |maker: &mut architectures::Maker| maker.key("attention.causal", false);
    let message = refusal(Tiny { metadata, ..Tiny::LLAMA }.build(), 64);
    assert!(message.contains("llama.attention.causal: wanted true"), "{message}");
}
