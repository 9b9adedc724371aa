//! WordPiece and Unigram vocabularies against the libraries that made them
//! (`tests/data/tokenizers/make.py`).

#![allow(clippy::unwrap_used)]

use std::path::Path;

use hob::tokenizer::{Tokenizer, VocabSource};
use serde_json::Value;

fn data(name: &str) -> Value {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tokenizers");
    serde_json::from_slice(&std::fs::read(folder.join(name)).unwrap()).unwrap()
}

fn numbers(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn tokenizer(data: &Value) -> Tokenizer {
    let id = |key: &str| data[key].as_u64().map(|id| id as u32);
    let scores = data["scores"].as_array().into_iter().flatten();
    let hex = data["charsmap"].as_str().unwrap_or_default();
    Tokenizer::new(VocabSource {
        model: data["model"].as_str().unwrap().to_owned(),
        tokens: data["tokens"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect(),
        scores: scores.map(|score| score.as_f64().unwrap() as f32).collect(),
        token_types: numbers(&data["token_types"]).into_iter().map(u32::cast_signed).collect(),
        bos: id("bos"),
        sep: id("sep"),
        unk: id("unk"),
        add_space_prefix: data["add_space_prefix"].as_bool(),
        remove_extra_whitespaces: data["remove_extra_whitespaces"].as_bool(),
        charsmap: (0..hex.len() / 2)
            .map(|at| u8::from_str_radix(&hex[at * 2..at * 2 + 2], 16).unwrap())
            .collect(),
        ..VocabSource::default()
    })
    .unwrap()
}

#[test]
fn every_text_has_the_ids_of_the_library() {
    for name in ["unigram.json", "wordpiece.json"] {
        let data = data(name);
        let tokenizer = tokenizer(&data);
        for case in data["cases"].as_array().unwrap() {
            let text = case[0].as_str().unwrap();
            let ids = tokenizer.encode(text, true, true).unwrap();
            assert_eq!(ids, numbers(&case[1]), "{name}: {text:?}");
        }
    }
}

#[test]
fn decoding_shows_the_words() {
    for name in ["unigram.json", "wordpiece.json"] {
        let tokenizer = tokenizer(&data(name));
        let ids = tokenizer.encode("free software for all", true, true).unwrap();
        assert_eq!(tokenizer.decode(&ids, false).unwrap(), "free software for all", "{name}");
    }
}
