//! Folders of safetensors against the same model as a GGUF file: the same ids, and the same logits
//! bit for bit.

mod common;

use std::path::{Path, PathBuf};

use common::{Driven, Sizes};
use hob::gguf::{GgufBuilder, GgufFile, TensorInfo};
use hob::hf;
use hob::kernels::KvFormat;
use hob::reference::ReferenceExecutor;
use hob::tensor::{DType, dequantize_row};
use hob::tokenizer::{Tokenizer, VocabSource};
use serde_json::{Value, json};

/// A tensor as the folder has it: name, type, shape (outermost first), data.
type Weight = (String, DType, Vec<u64>, Vec<u8>);

const SIZES: Sizes =
    Sizes { context_tokens: 128, sessions: 1, tokens_max: 64, format: KvFormat::F32 };

const TEXT: &str = "The river runs past 12 old  houses, don't you see? Ünïcode 苹果\n\n  end";

fn data(file: &GgufFile, tensor: &TensorInfo) -> Vec<u8> {
    let mut bytes = vec![0; tensor.bytes as usize];
    file.read_tensor(tensor, 0, &mut bytes).expect("read");
    bytes
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("4 bytes"))).collect()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// The folder's name of a tensor.
fn folder_name(name: &str, gemma: bool) -> String {
    let names = [
        ("attn_norm", "input_layernorm"),
        ("attn_q_norm", "self_attn.q_norm"),
        ("attn_k_norm", "self_attn.k_norm"),
        ("attn_q", "self_attn.q_proj"),
        ("attn_k", "self_attn.k_proj"),
        ("attn_v", "self_attn.v_proj"),
        ("attn_output", "self_attn.o_proj"),
        ("post_attention_norm", "post_attention_layernorm"),
        ("post_ffw_norm", "post_feedforward_layernorm"),
        ("ffn_norm", if gemma { "pre_feedforward_layernorm" } else { "post_attention_layernorm" }),
        ("ffn_gate", "mlp.gate_proj"),
        ("ffn_up", "mlp.up_proj"),
        ("ffn_down", "mlp.down_proj"),
    ];
    match name {
        "token_embd.weight" => "model.embed_tokens.weight".to_owned(),
        "output_norm.weight" => "model.norm.weight".to_owned(),
        "output.weight" => "lm_head.weight".to_owned(),
        _ => {
            let mut parts = name.strip_prefix("blk.").expect("of a layer").split('.');
            let (layer, module) = (parts.next().expect("a layer"), parts.next().expect("a module"));
            let kind = parts.next().expect("a kind");
            let (_, module) = names.iter().find(|(known, _)| *known == module).expect("known");
            format!("model.layers.{layer}.{module}.{kind}")
        }
    }
}

/// Rows of each head from neighbours (0, 1), (2, 3) back to halves.
fn to_halves(bytes: &[u8], rows: usize, heads: usize) -> Vec<u8> {
    let (row, per_head) = (bytes.len() / rows, rows / heads);
    let source = |at: usize| {
        let (head, at) = (at / per_head, at % per_head);
        head * per_head + at % (per_head / 2) * 2 + at / (per_head / 2)
    };
    (0..rows).flat_map(|at| bytes[source(at) * row..][..row].to_vec()).collect()
}

/// The weights of a GGUF file as a folder has them.
fn weights(file: &GgufFile, architecture: &str) -> Vec<Weight> {
    let heads = |key: &str| file.metadata().u32(&format!("{architecture}.{key}")).expect("heads");
    let gemma = architecture == "gemma3";
    let convert = |tensor: &TensorInfo| {
        let mut values = data(file, tensor);
        let rows = *tensor.dims.last().expect("a dimension") as usize;
        if architecture == "llama" && tensor.name.contains("attn_q.") {
            values = to_halves(&values, rows, heads("attention.head_count") as usize);
        }
        if architecture == "llama" && tensor.name.contains("attn_k.") {
            values = to_halves(&values, rows, heads("attention.head_count_kv") as usize);
        }
        if gemma && tensor.name.contains("_norm.") {
            values = bytes(&floats(&values).iter().map(|value| value - 1.0).collect::<Vec<_>>());
        }
        let dtype = tensor.supported_dtype().expect("a type");
        let dims = tensor.dims.iter().rev().copied().collect();
        (folder_name(&tensor.name, gemma), dtype, dims, values)
    };
    file.tensors().iter().map(convert).collect()
}

fn write_safetensors(path: &Path, weights: &[Weight]) {
    let mut header = serde_json::Map::new();
    let mut at = 0;
    for (name, dtype, dims, data) in weights {
        let entry =
            json!({"dtype": dtype.name(), "shape": dims, "data_offsets": [at, at + data.len()]});
        header.insert(name.clone(), entry);
        at += data.len();
    }
    let header = serde_json::to_vec(&header).expect("JSON");
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header);
    weights.iter().for_each(|(.., data)| out.extend(data));
    std::fs::write(path, out).expect("written");
}

fn config(file: &GgufFile, architecture: &str) -> Value {
    let number =
        |key: &str| file.metadata().u32(&format!("{architecture}.{key}")).expect("a number");
    let gemma = architecture == "gemma3";
    let base = file.metadata().opt_f32(&format!("{architecture}.rope.freq_base")).expect("a base");
    let epsilon = format!("{architecture}.attention.layer_norm_rms_epsilon");
    let head_dim = file.metadata().opt_u32(&format!("{architecture}.attention.key_length"));
    json!({
        "model_type": if gemma { "gemma3_text" } else { architecture },
        "num_hidden_layers": number("block_count"),
        "max_position_embeddings": number("context_length"),
        "hidden_size": number("embedding_length"),
        "intermediate_size": number("feed_forward_length"),
        "num_attention_heads": number("attention.head_count"),
        "num_key_value_heads": number("attention.head_count_kv"),
        "head_dim": head_dim.expect("a number"),
        "rms_norm_eps": file.metadata().f32(&epsilon).expect("epsilon"),
        "rope_theta": base.unwrap_or(10_000.0),
        "hidden_act": "silu",
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": if gemma { 32 } else { 0 },
        "tie_word_embeddings": file.tensor("output.weight").is_none(),
        "bos_token_id": 1,
        "eos_token_id": 2,
    })
}

/// The tokenizer of a GGUF file as a folder has it.
fn tokenizer(file: &GgufFile) -> Value {
    let keys = file.metadata();
    let tokens: Vec<_> = keys.str_array("tokenizer.ggml.tokens").expect("tokens").iter().collect();
    let types = keys.i32_array("tokenizer.ggml.token_type").expect("types");
    let vocab: serde_json::Map<_, _> =
        tokens.iter().enumerate().map(|(id, text)| ((*text).to_owned(), id.into())).collect();
    let added: Vec<_> = (0..tokens.len())
        .filter(|id| matches!(types[*id], 2..=4))
        .map(|id| json!({"id": id, "content": tokens[id], "special": types[id] != 4}))
        .collect();
    if keys.str("tokenizer.ggml.model").expect("a model") == "gpt2" {
        let merges = keys.str_array("tokenizer.ggml.merges").expect("merges");
        let pattern = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
        return json!({
            "added_tokens": added,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"},
                {"type": "ByteLevel", "use_regex": false},
            ]},
            "model": {"type": "BPE", "vocab": vocab, "merges": merges.iter().collect::<Vec<_>>()},
        });
    }
    let scores = keys.f32_array("tokenizer.ggml.scores").expect("scores");
    let mut merges = Vec::new();
    for (id, token) in tokens.iter().enumerate().filter(|(id, _)| types[*id] == 1) {
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if vocab.contains_key(left) && vocab.contains_key(right) {
                merges.push((scores[id], json!([left, right])));
            }
        }
    }
    merges.sort_by(|a, b| b.0.total_cmp(&a.0));
    json!({
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}]},
        "model": {
            "type": "BPE", "vocab": vocab, "unk_token": "<unk>", "byte_fallback": true,
            "merges": merges.into_iter().map(|(_, merge)| merge).collect::<Vec<_>>(),
        },
    })
}

fn write_json(path: PathBuf, value: &Value) {
    std::fs::write(path, serde_json::to_vec(value).expect("JSON")).expect("written");
}

/// Writes the folder of a GGUF file, its weights in `parts` files.
fn write_folder(folder: &Path, file: &GgufFile, architecture: &str, parts: usize) {
    let weights = weights(file, architecture);
    if parts == 1 {
        write_safetensors(&folder.join("model.safetensors"), &weights);
    } else {
        let mut map = serde_json::Map::new();
        for (part, weights) in weights.chunks(weights.len().div_ceil(parts)).enumerate() {
            let name = format!("model-{part}.safetensors");
            write_safetensors(&folder.join(&name), weights);
            map.extend(weights.iter().map(|(tensor, ..)| (tensor.clone(), name.clone().into())));
        }
        write_json(folder.join("model.safetensors.index.json"), &json!({"weight_map": map}));
    }
    write_json(folder.join("config.json"), &config(file, architecture));
    write_json(folder.join("tokenizer.json"), &tokenizer(file));
    let adds_bos = file.metadata().opt_bool("tokenizer.ggml.add_bos_token").expect("a flag");
    write_json(
        folder.join("tokenizer_config.json"),
        &json!({"add_bos_token": adds_bos.unwrap_or(false), "chat_template": "{{ bos_token }}x"}),
    );
    write_json(
        folder.join("generation_config.json"),
        &json!({"eos_token_id": [2, 3], "do_sample": true, "temperature": 0.5, "top_k": 7,
                "min_p": 0.125, "repetition_penalty": 1.25}),
    );
}

/// The GGUF file with Gemma's norms as they are after one was taken away and added again.
fn rounded_norms(file: &GgufFile) -> Vec<u8> {
    let mut builder = GgufBuilder::new();
    for (key, value) in file.metadata().iter() {
        builder = builder.metadata(key, value.clone());
    }
    for tensor in file.tensors() {
        let mut values = data(file, tensor);
        if tensor.name.contains("_norm.") {
            let round = |value: f32| (value - 1.0) + 1.0;
            values = bytes(&floats(&values).into_iter().map(round).collect::<Vec<_>>());
        }
        let dtype = tensor.supported_dtype().expect("a type");
        builder = builder.tensor(&tensor.name, dtype, &tensor.dims, &values);
    }
    builder.build()
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
    for (architecture, parts) in [("llama", 1), ("qwen2", 3), ("qwen3", 1), ("gemma3", 2)] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = shared.join(format!("tiny/{architecture}.gguf"));
        let mut file = GgufFile::open(&path).expect("a GGUF file");
        let rounded = folder.path().join("rounded.gguf");
        if architecture == "gemma3" {
            std::fs::write(&rounded, rounded_norms(&file)).expect("written");
            file = GgufFile::open(&rounded).expect("a GGUF file");
        }
        write_folder(folder.path(), &file, architecture, parts);
        let opened = hf::open(folder.path(), None).expect("a folder");
        let tokens = text_tokens(&file);
        assert_eq!(text_tokens(&opened), tokens, "{architecture}");
        let path = if architecture == "gemma3" { rounded } else { path };
        assert_eq!(logits(folder.path(), &tokens), logits(&path, &tokens), "{architecture}");
    }
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
