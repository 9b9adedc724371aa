//! Folders of safetensors against the same model as a GGUF file: the same ids, and the same logits
//! bit for bit.

#[path = "architectures/mod.rs"]
mod architectures;
mod common;
mod hf_support;
#[path = "common/random.rs"]
mod random;

use std::path::Path;

use architectures::MODELS;
use common::{Driven, Sizes};
use hf_support::{bytes, config, data, floats, write_folder, write_json};
use hob::gguf::{GgufBuilder, GgufFile, TensorInfo};
use hob::hf;
use hob::kernels::KvFormat;
use hob::reference::ReferenceExecutor;
use hob::tensor::{DType, dequantize_row};
use hob::tokenizer::{Tokenizer, VocabSource};
use serde_json::{Value, json};

const SIZES: Sizes =
    Sizes { context_tokens: 128, sessions: 1, tokens_max: 64, format: KvFormat::F32 };

const TEXT: &str = "The river runs past 12 old  houses, don't you see? Ünïcode 苹果\n\n  end";

/// The file again, with some keys, and with tensors as `change` makes them.
fn rewritten(
    file: &GgufFile,
    keys: &[(&str, f32)],
    change: impl Fn(&TensorInfo, Vec<u8>) -> Vec<u8>,
) -> Vec<u8> {
    let mut builder = GgufBuilder::new();
    for (key, value) in file.metadata().iter() {
        if !keys.iter().any(|(other, _)| *other == key) {
            builder = builder.metadata(key, value.clone());
        }
    }
    for (key, value) in keys {
        builder = builder.metadata(key, *value);
    }
    for tensor in file.tensors() {
        let values = change(tensor, data(file, tensor));
        let dtype = tensor.supported_dtype().expect("a type");
        builder = builder.tensor(&tensor.name, dtype, &tensor.dims, &values);
    }
    builder.build()
}

/// The GGUF file with Gemma's norms as they are after one was taken away and added again.
fn rounded_norms(file: &GgufFile) -> Vec<u8> {
    rewritten(file, &[], |tensor, values| {
        if !tensor.name.contains("_norm.") {
            return values;
        }
        let round = |value: f32| (value - 1.0) + 1.0;
        bytes(&floats(&values).into_iter().map(round).collect::<Vec<_>>())
    })
}

/// Holds the folder of a GGUF file against the file.
fn compare(path: &Path, architecture: &str, parts: usize) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = GgufFile::open(path).expect("a GGUF file");
    write_folder(folder.path(), &file, architecture, parts);
    let opened = hf::open(folder.path(), None).expect("a folder");
    let tokens = text_tokens(&file);
    assert_eq!(text_tokens(&opened), tokens, "{architecture}");
    assert_eq!(logits(folder.path(), &tokens), logits(path, &tokens), "{architecture}");
}

fn text_tokens(file: &GgufFile) -> Vec<u32> {
    let source = VocabSource::from_metadata(file.metadata()).expect("a vocabulary");
    let tokenizer = Tokenizer::new(source).expect("a tokenizer");
    tokenizer.encode(TEXT, true, true).expect("tokens")
}

fn logits(path: &Path, tokens: &[u32]) -> Vec<Vec<u32>> {
    let executor = Box::new(ReferenceExecutor::with_lanes(8));
    let mut model = Driven::load(executor, path, SIZES);
    let lease = model.lease(tokens.len());
    let rows = model.evaluate(&lease, 0, tokens, 4, 64);
    rows.iter().map(|row| row.iter().map(|value| value.to_bits()).collect()).collect()
}

#[test]
fn a_folder_gives_the_ids_and_the_logits_of_the_gguf_file() {
    let Some(shared) = common::shared() else {
        println!("skipped: shared files absent");
        return;
    };
    for (architecture, parts) in [("llama", 1), ("qwen2", 3), ("qwen3", 1)] {
        compare(&shared.join(format!("tiny/{architecture}.gguf")), architecture, parts);
    }
    let file = GgufFile::open(&shared.join("tiny/gemma3.gguf")).expect("a GGUF file");
    let folder = tempfile::tempdir().expect("a folder");
    let rounded = folder.path().join("rounded.gguf");
    std::fs::write(&rounded, rounded_norms(&file)).expect("written");
    compare(&rounded, "gemma3", 2);
}

#[test]
fn folders_of_gemma_2_and_phi_3_give_the_logits_of_their_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    let made = |name: &str| {
        let tiny = MODELS.iter().find(|tiny| tiny.name == name).expect("a tiny model");
        GgufFile::open(&tiny.write(folder.path())).expect("a GGUF file")
    };
    std::fs::write(&path, rounded_norms(&made("gemma2"))).expect("written");
    compare(&path, "gemma2", 2);
    // sqrt(1 + log(256 / 128) / log(128)), as transformers has it of the two lengths of context.
    let growth = (8.0_f64 / 7.0).sqrt() as f32;
    let keys = [("phi3.rope.scaling.attn_factor", growth)];
    std::fs::write(&path, rewritten(&made("phi3-factor"), &keys, |_, values| values))
        .expect("written");
    compare(&path, "phi3", 1);
}

#[test]
fn matrices_are_quantised_as_they_are_loaded() {
    let Some(shared) = common::shared() else {
        println!("skipped: shared files absent");
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let file = GgufFile::open(&shared.join("tiny/llama.gguf")).expect("a GGUF file");
    write_folder(folder.path(), &file, "llama", 1);
    // Half a step of each type, in parts of the largest value of a tensor, and some.
    let types =
        [(DType::Q8_0, 200.0), (DType::Q6_K, 40.0), (DType::Q5_K, 20.0), (DType::Q4_K, 9.0)];
    for (dtype, steps) in types.into_iter().chain([(DType::Q4_0, 8.0)]) {
        let opened = hf::open(folder.path(), Some(dtype)).expect("a folder");
        for tensor in file.tensors() {
            let found = opened.tensor(&tensor.name).expect("the tensor");
            let fits = tensor.row_len().is_multiple_of(dtype.block_len() as u64);
            let of_matrix = if fits { dtype } else { DType::Q8_0 };
            let wanted = if tensor.rows() > 1 { of_matrix } else { DType::F32 };
            assert_eq!(found.supported_dtype().expect("a type"), wanted, "{}", tensor.name);
            let of = |file: &GgufFile, tensor: &TensorInfo| {
                let mut values = vec![0.0; (tensor.rows() * tensor.row_len()) as usize];
                let dtype = tensor.supported_dtype().expect("a type");
                dequantize_row(dtype, &data(file, tensor), &mut values);
                values
            };
            let (exact, near) = (of(&file, tensor), of(&opened, found));
            let most = exact.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
            for (exact, near) in exact.iter().zip(&near) {
                let off = (exact - near).abs();
                assert!(off <= most / steps, "{dtype} {}: {exact} {near}", tensor.name);
            }
            // A range inside a block is the same as of the whole.
            let (mut part, whole) = (vec![0; 5], data(&opened, found));
            opened.read_tensor(found, 31, &mut part).expect("read");
            assert_eq!(part, whole[31..36], "{}", tensor.name);
        }
    }
}

#[test]
fn what_the_folder_says_of_the_end_and_of_sampling_is_there() {
    let Some(shared) = common::shared() else {
        println!("skipped: shared files absent");
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let file = GgufFile::open(&shared.join("tiny/llama.gguf")).expect("a GGUF file");
    write_folder(folder.path(), &file, "llama", 1);
    let opened = hf::open(folder.path(), None).expect("a folder");
    let keys = opened.metadata();
    for (key, value) in [("temp", 0.5), ("min_p", 0.125), ("penalty_repeat", 1.25)] {
        assert_eq!(keys.f32(&format!("general.sampling.{key}")).expect("a number"), value);
    }
    assert_eq!(keys.u32("general.sampling.top_k").expect("a number"), 7);
    assert_eq!(keys.str("tokenizer.chat_template").expect("a template"), "{{ bos_token }}x");
    let tokenizer = Tokenizer::new(VocabSource::from_metadata(keys).expect("a vocabulary"));
    let tokenizer = tokenizer.expect("a tokenizer");
    assert!(tokenizer.is_stop(2) && tokenizer.is_stop(3) && !tokenizer.is_stop(4));
}

#[test]
fn a_bad_folder_is_refused_with_what_is_wrong() {
    let Some(shared) = common::shared() else {
        println!("skipped: shared files absent");
        return;
    };
    let file = GgufFile::open(&shared.join("tiny/llama.gguf")).expect("a GGUF file");
    let refused = |spoil: &dyn Fn(&Path)| {
        let folder = tempfile::tempdir().expect("a folder");
        write_folder(folder.path(), &file, "llama", 2);
        spoil(folder.path());
        hf::open(folder.path(), None).expect_err("refused").to_string()
    };
    let changed = |key: &'static str, value: Value| {
        let file = &file;
        move |folder: &Path| {
            let mut config = config(file, "llama");
            config[key] = value.clone();
            write_json(folder.join("config.json"), &config);
        }
    };
    let remove = |name: &'static str| {
        move |folder: &Path| std::fs::remove_file(folder.join(name)).expect("removed")
    };
    for (message, wanted) in [
        (refused(&changed("model_type", "gpt2".into())), "one of llama, mistral"),
        (refused(&changed("hidden_act", "gelu".into())), "hidden_act: wanted silu"),
        (refused(&changed("rms_norm_eps", "x".into())), "rms_norm_eps: wanted a number"),
        (refused(&changed("head_dim", u32::MAX.into())), "head_dim: wanted up to 512"),
        (
            refused(&changed("num_hidden_layers", u32::MAX.into())),
            "num_hidden_layers: wanted up to",
        ),
        (refused(&changed("attention_bias", true.into())), "attention_bias: wanted"),
        (refused(&changed("quantization_config", json!({}))), "quantization_config"),
        (refused(&changed("num_attention_heads", 0.into())), "at least 1"),
        (refused(&changed("rope_scaling", json!({"type": "dynamic"}))), "dynamic"),
        (refused(&remove("config.json")), "config.json"),
        (refused(&remove("tokenizer.json")), "tokenizer.json"),
        (refused(&remove("model-1.safetensors")), "model-1.safetensors"),
        (refused(&remove("model.safetensors.index.json")), "model.safetensors"),
    ] {
        assert!(message.contains(wanted), "{message}, wanted {wanted}");
    }
    let other = refused(&|folder| {
        let index = json!({"weight_map": {"x": "../model-0.safetensors"}});
        write_json(folder.join("model.safetensors.index.json"), &index);
    });
    assert!(other.contains("names of files of the folder"), "{other}");
}
