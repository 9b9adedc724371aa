//! `generation_config.json`: the tokens that end a generation, and how to sample.

use std::path::Path;

use serde_json::Value as Json;

use crate::gguf::{Array, Value};

use super::HfError;
use super::json::Object;

/// Ways of generating that hob does not have, with the values that leave results as they are.
const NEUTRAL: [(&str, f64); 15] = [
    ("typical_p", 1.0),
    ("epsilon_cutoff", 0.0),
    ("eta_cutoff", 0.0),
    ("top_h", 1.0),
    ("num_beams", 1.0),
    ("num_beam_groups", 1.0),
    ("diversity_penalty", 0.0),
    ("penalty_alpha", 0.0),
    ("no_repeat_ngram_size", 0.0),
    ("encoder_no_repeat_ngram_size", 0.0),
    ("encoder_repetition_penalty", 1.0),
    ("guidance_scale", 1.0),
    ("min_length", 0.0),
    ("min_new_tokens", 0.0),
    ("length_penalty", 1.0),
];

/// The same, of which any value changes results.
const REFUSED: [&str; 9] = [
    "bad_words_ids",
    "suppress_tokens",
    "begin_suppress_tokens",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "sequence_bias",
    "exponential_decay_length_penalty",
    "stop_strings",
    "watermarking_config",
];

/// Reads the file, where there is one; `config` is that of the model, whose tokens end a generation
/// where it does not name others. `vocab` counts tokens.
pub(super) fn read(
    folder: &Path,
    config: &Object,
    vocab: usize,
    keys: &mut Vec<(String, Value)>,
) -> Result<(), HfError> {
    let object = Object::read_if_there(&folder.join("generation_config.json"))?;
    let mut add = |key: &str, value: Value| keys.push((key.to_owned(), value));
    let holder = if object.get("eos_token_id").is_some() { &object } else { config };
    let ids = ids(holder, vocab)?;
    if !ids.is_empty() {
        add("tokenizer.ggml.eos_token_ids", Value::Array(Array::U32(ids)));
    }
    for (key, neutral) in NEUTRAL {
        let found = object.opt_f32(key)?.filter(|found| f64::from(*found) != neutral);
        if let Some(found) = found {
            let wanted = format!("{neutral}, or no such key: hob does not generate so");
            return Err(object.refuse(key, &wanted, found));
        }
    }
    for key in REFUSED {
        let is_empty = |value: &Json| value.as_array().is_some_and(Vec::is_empty);
        if let Some(found) = object.get(key).filter(|found| !is_empty(found)) {
            return Err(object.refuse(key, "no such key: hob does not generate so", found));
        }
    }
    if let Some(value) = object.opt_f32("repetition_penalty")? {
        add("general.sampling.penalty_repeat", value.into());
    }
    // Without sampling the rest means nothing.
    if object.opt_bool("do_sample")? == Some(true) {
        for (key, from) in [("temp", "temperature"), ("top_p", "top_p"), ("min_p", "min_p")] {
            if let Some(value) = object.opt_f32(from)? {
                add(&format!("general.sampling.{key}"), value.into());
            }
        }
        // -1 stands for all, as 0 does.
        let all = object.get("top_k").and_then(Json::as_i64) == Some(-1);
        let top_k = if all { Some(0) } else { object.opt_u32("top_k")? };
        if let Some(top_k) = top_k {
            add("general.sampling.top_k", top_k.into());
        }
    }
    Ok(())
}

/// The tokens that end a generation: one, or a list of them.
fn ids(object: &Object, vocab: usize) -> Result<Vec<u32>, HfError> {
    let key = "eos_token_id";
    let listed = match object.get(key) {
        Some(Json::Array(ids)) => ids.clone(),
        Some(id) => vec![id.clone()],
        None => Vec::new(),
    };
    let wanted = format!("ids below {vocab}");
    let id = |id: &Json| {
        let known = id.as_u64().filter(|id| *id < vocab as u64).map(|id| id as u32);
        known.ok_or_else(|| object.refuse(key, &wanted, id))
    };
    listed.iter().map(id).collect()
}
