//! Settings of Hugging Face folders: every key of the configuration classes and every step of
//! `tokenizer.json` is followed, refused by its name, or changes nothing.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use hob::gguf::{GgufFile, Value as Key};
use hob::hf;
use hob::tokenizer::{Tokenizer, VocabSource};
use serde_json::{Value, json};

const LAYERS: usize = 4;

fn write_json(folder: &Path, name: &str, value: &Value) {
    std::fs::write(folder.join(name), serde_json::to_vec(value).unwrap()).unwrap();
}

/// A folder with some weights of a model of this class.
fn write_weights(folder: &Path, class: &str) {
    let mut names = vec!["model.embed_tokens.weight", "lm_head.weight"];
    names.push("model.layers.0.mlp.gate_proj.weight");
    names.push("model.layers.0.self_attn.q_proj.weight");
    if class == "qwen2" {
        names.push("model.layers.0.self_attn.q_proj.bias");
    }
    let (mut header, mut at) = (serde_json::Map::new(), 0);
    for name in names {
        let (shape, bytes) =
            if name.ends_with("bias") { (vec![64], 256) } else { (vec![64, 4], 1024) };
        let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [at, at + bytes]});
        header.insert(name.to_owned(), entry);
        at += bytes;
    }
    let header = serde_json::to_vec(&header).unwrap();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    file.resize(file.len() + at, 0);
    std::fs::write(folder.join("model.safetensors"), file).unwrap();
}

/// The tokenizers of `make.py`, with the ids that the package `tokenizers` gives.
fn tokenizers() -> Vec<Value> {
    serde_json::from_str(include_str!("data/hf/tokenizers.json")).unwrap()
}

/// A configuration in which every key of the class means something.
fn config(class: &str) -> Value {
    let mut config = json!({
        "model_type": if class == "gemma3" { "gemma3_text" } else { class },
        "num_hidden_layers": LAYERS, "hidden_size": 64, "intermediate_size": 96,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "sliding_window": 8, "eos_token_id": 2, "bos_token_id": 1,
    });
    if class.starts_with("qwen") {
        config["use_sliding_window"] = true.into();
        config["max_window_layers"] = 1.into();
    }
    if class == "phi3" {
        let factors = [1.5; 8];
        config["rope_parameters"] = json!({
            "rope_type": "longrope", "short_factor": factors, "long_factor": factors,
        });
    }
    config
}

fn open(folder: &Path, config: &Value) -> Result<GgufFile, String> {
    write_json(folder, "config.json", config);
    hf::open(folder, None).map_err(|error| error.to_string())
}

/// The metadata and the tensors' names.
fn contents(file: &GgufFile) -> (Vec<(String, Key)>, Vec<String>) {
    let keys = file.metadata().iter().map(|(key, value)| (key.to_owned(), value.clone()));
    (keys.collect(), file.tensors().iter().map(|tensor| tensor.name.clone()).collect())
}

fn folder(class: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    write_weights(folder.path(), class);
    write_json(folder.path(), "tokenizer.json", &tokenizers()[0]["tokenizer"]);
    folder
}

/// Settings that change nothing that is computed for an answer: they are for training or for
/// memory, or say again what the tensors or the tokenizer say.
const INERT: [&str; 7] = [
    "attention_dropout",
    "resid_pdrop",
    "embd_pdrop",
    "initializer_range",
    "use_cache",
    "pretraining_tp",
    "vocab_size",
];

/// Another value than the key has in `config` or by default.
fn other_value(class: &str, key: &str) -> Value {
    match key {
        "rope_parameters" if class == "gemma3" => json!({"full_attention": {"rope_theta": 77.0}}),
        "rope_parameters" => json!({"rope_theta": 77.0, "rope_type": "default"}),
        "layer_types" => json!(vec!["full_attention"; LAYERS]),
        "hidden_act" | "hidden_activation" => "relu".into(),
        "tie_word_embeddings" => (!class.starts_with("gemma")).into(),
        "rms_norm_eps" | "initializer_range" => 0.5.into(),
        "attention_dropout" | "resid_pdrop" | "embd_pdrop" => 0.5.into(),
        "use_cache" | "use_sliding_window" => false.into(),
        "attention_bias" | "mlp_bias" | "use_bidirectional_attention" => true.into(),
        "head_dim" | "num_attention_heads" => 8.into(),
        "max_window_layers" => 3.into(),
        "eos_token_id" => json!([2, 3]),
        "num_key_value_heads" => 4.into(),
        "num_hidden_layers" => 3.into(),
        _ => 40.into(),
    }
}

#[test]
fn every_key_of_the_configuration_classes_is_followed_or_refused_or_inert() {
    let classes: Value = serde_json::from_str(include_str!("data/hf/keys.json")).unwrap();
    for (class, keys) in classes.as_object().unwrap() {
        let folder = folder(class);
        let usual = contents(&open(folder.path(), &config(class)).unwrap());
        for key in keys.as_array().unwrap().iter().map(|key| key.as_str().unwrap()) {
            let mut changed = config(class);
            changed[key] = other_value(class, key);
            // Gemma 3's model does not pass this one on.
            let is_inert =
                INERT.contains(&key) || class == "gemma3" && key == "attn_logit_softcapping";
            match open(folder.path(), &changed) {
                Ok(file) => assert_eq!(contents(&file) == usual, is_inert, "{class}: {key}"),
                Err(message) => assert!(message.contains(&format!(" {key}: wanted")), "{message}"),
            }
        }
    }
}

/// The value of a key of the made file.
fn number(file: &GgufFile, key: &str) -> f32 {
    file.metadata().f32(key).unwrap()
}

#[test]
fn rotation_is_read_in_the_old_and_the_new_spelling() {
    let gemma = folder("gemma3");
    let bases = |change: &dyn Fn(&mut Value)| {
        let mut config = config("gemma3");
        change(&mut config);
        let file = open(gemma.path(), &config)?;
        let base = |name: &str| number(&file, &format!("gemma3.rope.{name}"));
        Ok::<_, String>((base("freq_base"), base("freq_base_swa")))
    };
    assert_eq!(bases(&|_| {}), Ok((1e6, 1e4)));
    let old = |config: &mut Value| {
        config["rope_theta"] = 5e5.into();
        config["rope_local_base_freq"] = 2e4.into();
    };
    assert_eq!(bases(&old), Ok((5e5, 2e4)));
    let nested = json!({
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
    });
    assert_eq!(bases(&|config| config["rope_parameters"] = nested.clone()), Ok((5e5, 2e4)));
    let flat = bases(&|config| config["rope_parameters"] = json!({"rope_theta": 7.0}));
    assert!(flat.unwrap_err().contains("rope_parameters.rope_theta: wanted no such key"));
    let local = json!({"sliding_attention": {"rope_type": "yarn"}});
    let local = bases(&|config| config["rope_parameters"] = local.clone()).unwrap_err();
    assert!(local.contains("rope_parameters.sliding_attention.rope_type: wanted default"));

    let llama = folder("llama");
    let yarn = |further: &Value| {
        let mut config = config("llama");
        let mut scaling = json!({"rope_type": "yarn", "factor": 4.0, "rope_theta": 5e4,
            "original_max_position_embeddings": 512});
        for (key, value) in further.as_object().unwrap() {
            scaling[key] = value.clone();
        }
        config["rope_parameters"] = scaling;
        open(llama.path(), &config)
    };
    let size = 1.0 + 0.1 * 4.0_f64.ln();
    let attn_factor =
        |further: Value| number(&yarn(&further).unwrap(), "llama.rope.scaling.attn_factor");
    assert!((f64::from(attn_factor(json!({"attention_factor": 1.5}))) - 1.5 / size).abs() < 1e-6);
    let scales = json!({"mscale": 1.0, "mscale_all_dim": 0.5});
    let wanted = 1.0 / (1.0 + 0.05 * 4.0_f64.ln());
    assert!((f64::from(attn_factor(scales)) - wanted).abs() < 1e-6);
    let file = yarn(&json!({"beta_fast": 16, "beta_slow": 2})).unwrap();
    assert_eq!(number(&file, "llama.rope.scaling.yarn_beta_fast"), 16.0);
    assert_eq!(number(&file, "llama.rope.scaling.yarn_beta_slow"), 2.0);
    assert_eq!(number(&file, "llama.rope.freq_base"), 5e4);
    for (further, blamed) in [
        (json!({"truncate": false}), "rope_parameters.truncate: wanted true"),
        (json!({"long_mscale": 2.0}), "rope_parameters.long_mscale: wanted no such key"),
        (json!({"partial_rotary_factor": 0.5}), "rope_parameters.partial_rotary_factor: wanted 1"),
    ] {
        let message = yarn(&further).unwrap_err();
        assert!(message.contains(blamed), "{message}");
    }
}

#[test]
fn windows_are_those_of_the_layers_that_have_them() {
    let windowed = |class: &str, change: &[(&str, Value)]| {
        let folder = folder(class);
        let mut config = config(class);
        for (key, value) in change {
            config[*key] = value.clone();
        }
        let file = open(folder.path(), &config)?;
        let name = file.metadata().str("general.architecture").unwrap().to_owned();
        match file.metadata().get(&format!("{name}.attention.sliding_window_pattern")) {
            None => Ok(String::new()),
            Some(Key::Array(hob::gguf::Array::Bool(listed))) => {
                Ok(listed.iter().map(|windowed| if *windowed { 'w' } else { '-' }).collect())
            }
            other => Err(format!("{other:?}")),
        }
    };
    let kinds = |kinds: &str| {
        let kind = |kind| if kind == 'w' { "sliding_attention" } else { "full_attention" };
        ("layer_types", json!(kinds.chars().map(kind).collect::<Vec<_>>()))
    };
    for (class, change, wanted) in [
        ("llama", vec![], ""),
        ("mistral", vec![], "wwww"),
        ("mistral", vec![("sliding_window", Value::Null)], ""),
        ("phi3", vec![], "wwww"),
        ("phi3", vec![("sliding_window", Value::Null)], ""),
        ("qwen2", vec![], "-www"),
        ("qwen3", vec![("use_sliding_window", false.into())], ""),
        ("qwen3", vec![kinds("w--w")], "w--w"),
        ("gemma2", vec![], "w-w-"),
        ("gemma3", vec![], "wwww"),
        ("gemma3", vec![("sliding_window_pattern", 3.into())], "ww-w"),
        ("gemma3", vec![kinds("-ww-")], "-ww-"),
    ] {
        assert_eq!(windowed(class, &change), Ok(wanted.to_owned()), "{class} {change:?}");
    }
    let message = windowed("gemma3", &[("layer_types", json!(["chunked_attention"]))]);
    assert!(message.unwrap_err().contains("layer_types: wanted 4 of"));
}

#[test]
fn texts_become_the_tokens_of_the_tokenizers_package() {
    let folder = folder("llama");
    for case in tokenizers() {
        write_json(folder.path(), "tokenizer.json", &case["tokenizer"]);
        let file = open(folder.path(), &config("llama")).unwrap();
        let source = VocabSource::from_metadata(file.metadata()).unwrap();
        let tokenizer = Tokenizer::new(source).unwrap();
        for (text, ids) in case["ids"].as_object().unwrap() {
            let found = tokenizer.encode(text, true, true).unwrap();
            assert_eq!(json!(found), *ids, "{}: {text:?}", case["name"]);
        }
    }
}

#[test]
fn steps_of_a_tokenizer_that_are_not_followed_are_refused_by_name() {
    let folder = folder("llama");
    let all = tokenizers();
    let of =
        |name: &str| all.iter().find(|case| case["name"] == name).unwrap()["tokenizer"].clone();
    for (base, pointer, value, blamed) in [
        ("prepend", "/normalizer", json!({"type": "Lowercase"}), "normalizer"),
        ("prepend", "/normalizer", Value::Null, "normalizer"),
        ("metaspace first", "/pre_tokenizer/split", true.into(), "pre_tokenizer.split"),
        ("prepend", "/added_tokens/3/single_word", true.into(), "added_tokens"),
        ("prepend", "/added_tokens/3/normalized", true.into(), "added_tokens"),
        ("prepend", "/model/dropout", 0.1.into(), "model.dropout"),
        ("prepend", "/model/ignore_merges", true.into(), "model.ignore_merges"),
        ("bytes", "/normalizer", json!({"type": "StripAccents"}), "normalizer"),
        ("bytes", "/pre_tokenizer", json!({"type": "Whitespace"}), "pre_tokenizer"),
        ("bytes", "/pre_tokenizer/pretokenizers/0/behavior", "Removed".into(), "pre_tokenizer"),
        ("bytes", "/post_processor", json!({"type": "BertProcessing"}), "post_processor"),
        ("bytes", "/decoder", json!({"type": "WordPiece"}), "decoder"),
    ] {
        let mut tokenizer = of(base);
        *tokenizer.pointer_mut(pointer).unwrap() = value;
        write_json(folder.path(), "tokenizer.json", &tokenizer);
        let message = open(folder.path(), &config("llama")).err().unwrap_or_default();
        assert!(message.contains(&format!("tokenizer.json: {blamed}")), "{pointer}: {message}");
    }
}

#[test]
fn the_end_and_the_way_of_sampling_are_read_wherever_they_stand() {
    let folder = folder("llama");
    let with = |generation: Value| {
        write_json(folder.path(), "generation_config.json", &generation);
        let mut config = config("llama");
        config["eos_token_id"] = json!([2, 5]);
        open(folder.path(), &config)
    };
    let ends = |file: &GgufFile| {
        file.metadata().opt_u32_array("tokenizer.ggml.eos_token_ids").unwrap().unwrap().into_owned()
    };
    assert_eq!(ends(&with(json!({})).unwrap()), [2, 5]);
    assert_eq!(ends(&with(json!({"eos_token_id": 7})).unwrap()), [7]);
    let all = with(json!({"do_sample": true, "top_k": -1, "num_beams": 1})).unwrap();
    assert_eq!(all.metadata().u32("general.sampling.top_k").unwrap(), 0);
    for (key, value) in [
        ("num_beams", json!(4)),
        ("typical_p", json!(0.5)),
        ("suppress_tokens", json!([3])),
        ("no_repeat_ngram_size", json!(3)),
        ("eos_token_id", json!([1_000_000])),
        ("top_k", json!(-2)),
    ] {
        let message = with(json!({"do_sample": true, key: value})).unwrap_err();
        assert!(message.contains(&format!("generation_config.json: {key}: wanted")), "{message}");
    }
}
