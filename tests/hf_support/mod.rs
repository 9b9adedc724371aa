//! Hugging Face folders, written from GGUF files.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // each test uses a part

use std::path::{Path, PathBuf};

use hob::gguf::{GgufFile, TensorInfo};
use hob::tensor::DType;
use serde_json::{Value, json};

/// A tensor as the folder has it: name, type, shape (outermost first), data.
type Weight = (String, DType, Vec<u64>, Vec<u8>);

pub fn data(file: &GgufFile, tensor: &TensorInfo) -> Vec<u8> {
    let mut bytes = vec![0; tensor.bytes as usize];
    file.read_tensor(tensor, 0, &mut bytes).expect("read");
    bytes
}

pub fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("4 bytes"))).collect()
}

pub fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Whether norms are written as what they differ from one, and stand on both sides.
pub fn is_gemma(architecture: &str) -> bool {
    architecture.starts_with("gemma")
}

/// The folder's name of a tensor.
fn folder_name(name: &str, architecture: &str) -> String {
    let gemma = is_gemma(architecture);
    let names = [
        ("attn_norm", "input_layernorm"),
        ("attn_q_norm", "self_attn.q_norm"),
        ("attn_k_norm", "self_attn.k_norm"),
        ("attn_q", "self_attn.q_proj"),
        ("attn_k", "self_attn.k_proj"),
        ("attn_v", "self_attn.v_proj"),
        ("attn_qkv", "self_attn.qkv_proj"),
        ("attn_output", "self_attn.o_proj"),
        ("post_attention_norm", "post_attention_layernorm"),
        ("post_ffw_norm", "post_feedforward_layernorm"),
        ("ffn_norm", if gemma { "pre_feedforward_layernorm" } else { "post_attention_layernorm" }),
        ("ffn_gate", "mlp.gate_proj"),
        ("ffn_up", if architecture == "phi3" { "mlp.gate_up_proj" } else { "mlp.up_proj" }),
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
    let gemma = is_gemma(architecture);
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
        (folder_name(&tensor.name, architecture), dtype, dims, values)
    };
    // A folder's factors stand in its configuration.
    file.tensors().iter().filter(|tensor| !tensor.name.starts_with("rope_")).map(convert).collect()
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

pub fn config(file: &GgufFile, architecture: &str) -> Value {
    let key = |key: &str| format!("{architecture}.{key}");
    let opt_number = |name: &str| file.metadata().opt_u32(&key(name)).expect("a number");
    let number = |name: &str| opt_number(name).expect("a number");
    let opt_float = |name: &str| file.metadata().opt_f32(&key(name)).expect("a number");
    let head_dim = opt_number("attention.key_length")
        .unwrap_or_else(|| number("embedding_length") / number("attention.head_count"));
    let mut config = json!({
        "model_type": if architecture == "gemma3" { "gemma3_text" } else { architecture },
        "num_hidden_layers": number("block_count"),
        "max_position_embeddings": number("context_length"),
        "hidden_size": number("embedding_length"),
        "intermediate_size": number("feed_forward_length"),
        "num_attention_heads": number("attention.head_count"),
        "num_key_value_heads": number("attention.head_count_kv"),
        "head_dim": head_dim,
        "rms_norm_eps": opt_float("attention.layer_norm_rms_epsilon").expect("epsilon"),
        "rope_theta": opt_float("rope.freq_base").unwrap_or(10_000.0),
        "hidden_act": "silu",
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": opt_number("attention.sliding_window"),
        "tie_word_embeddings": file.tensor("output.weight").is_none(),
        "bos_token_id": 1,
        "eos_token_id": 2,
    });
    if architecture == "phi3" {
        config["sliding_window"] = Value::Null; // of the file's it is not followed
    }
    if is_gemma(architecture) {
        config["query_pre_attn_scalar"] = head_dim.into();
    }
    if architecture == "gemma3" {
        config["rope_local_base_freq"] = opt_float("rope.freq_base_swa").unwrap_or(10_000.0).into();
    }
    if architecture == "gemma2" {
        for name in ["attn_logit_softcapping", "final_logit_softcapping"] {
            config[name] = opt_float(name).into();
        }
    }
    if let Some(original) = opt_number("rope.scaling.original_context_length") {
        let factors = |name: &str| floats(&data(file, file.tensor(name).expect("factors")));
        config["original_max_position_embeddings"] = original.into();
        config["rope_scaling"] = json!({
            "type": "longrope",
            "long_factor": factors("rope_factors_long.weight"),
            "short_factor": factors("rope_factors_short.weight"),
        });
    }
    config
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
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ]},
        "model": {
            "type": "BPE", "vocab": vocab, "unk_token": "<unk>", "byte_fallback": true,
            "merges": merges.into_iter().map(|(_, merge)| merge).collect::<Vec<_>>(),
        },
    })
}

pub fn write_json(path: PathBuf, value: &Value) {
    std::fs::write(path, serde_json::to_vec(value).expect("JSON")).expect("written");
}

/// Writes the folder of a GGUF file, its weights in `parts` files.
pub fn write_folder(folder: &Path, file: &GgufFile, architecture: &str, parts: usize) {
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
