//! Times of masks over a vocabulary of 152,000 tokens: each step of a JSON text under a schema.
//!
//!     cargo bench --bench masks

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hob::gguf::GgufFile;
use hob::grammar::{GrammarCompiler, GrammarKind, GrammarSource, mask_words};
use hob::tokenizer::{Tokenizer, VocabSource};

const SCHEMA: &str = r#"{"type": "object", "properties": {
    "name": {"type": "string"}, "age": {"type": "integer", "minimum": 0},
    "tags": {"type": "array", "items": {"type": "string", "maxLength": 40}},
    "address": {"type": "object", "properties": {"street": {"type": "string"},
        "kind": {"enum": ["home", "work", "other"]}}, "required": ["street", "kind"]}},
    "required": ["name", "age", "tags", "address"], "additionalProperties": false}"#;

const TEXT: &str = r#"{"name": "Ada Lovelace, of the analytical engine", "age": 36,
  "tags": ["first programmer", "notes on Menabrea", "countess"],
  "address": {"street": "12 St James's Square, London", "kind": "home"}}"#;

const ROUNDS: usize = 50;

fn main() {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared");
    let shared = std::env::var_os("HOB_SHARED").map_or(default, PathBuf::from);
    let path = shared.join("vocabs/ggml-vocab-qwen2.gguf");
    if !path.is_file() {
        println!("no vocabulary at {}", path.display());
        return;
    }
    let file = GgufFile::open(&path).unwrap();
    let source = VocabSource::from_metadata(file.metadata()).unwrap();
    let tokenizer = Arc::new(Tokenizer::new(source).unwrap());
    let compiler = GrammarCompiler::new(Arc::clone(&tokenizer));
    let source = GrammarSource::new(GrammarKind::JsonSchema, SCHEMA);
    let started = Instant::now();
    compiler.compile(&source).unwrap();
    println!("the trie and a first schema: {:?}", started.elapsed());
    let started = Instant::now();
    let grammar = compiler.compile(&source).unwrap();
    println!("a schema: {:?}", started.elapsed());
    let started = Instant::now();
    drop(grammar.begin(None));
    println!("a text's own copy: {:?}", started.elapsed());
    let tokens = tokenizer.encode(TEXT, false, false).unwrap();
    let mut mask = vec![0; mask_words(tokenizer.vocab_size())];
    let mut times: Vec<Duration> = Vec::new();
    for _ in 0..ROUNDS {
        let mut state = grammar.begin(None);
        for token in &tokens {
            let started = Instant::now();
            state.mask(&mut mask).unwrap();
            times.push(started.elapsed());
            state.accept(*token).unwrap();
        }
    }
    times.sort();
    let count = times.len();
    let mean = times.iter().sum::<Duration>() / count as u32;
    let (middle, p99, worst) = (times[count / 2], times[count * 99 / 100], times[count - 1]);
    println!("{count} masks of {} tokens:", tokenizer.vocab_size());
    println!("{mean:?} on average, {middle:?} in the middle, {p99:?} at p99, {worst:?} at most");
}
