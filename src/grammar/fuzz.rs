//! The entry points for fuzzers: grammars from anywhere.

use std::sync::{Arc, OnceLock};

use super::{GrammarCompiler, GrammarKind, GrammarSource};
use crate::tokenizer::{Tokenizer, VocabSource};

/// Compiles `data` as a GBNF grammar and takes a few steps: must return, whatever the data.
pub fn fuzz_gbnf(data: &[u8]) {
    run(GrammarKind::Gbnf, data);
}

/// Compiles `data` as a JSON Schema and takes a few steps: must return, whatever the data.
pub fn fuzz_schema(data: &[u8]) {
    run(GrammarKind::JsonSchema, data);
}

fn run(kind: GrammarKind, data: &[u8]) {
    static COMPILER: OnceLock<GrammarCompiler> = OnceLock::new();
    let compiler = COMPILER.get_or_init(|| GrammarCompiler::new(Arc::new(bytes())));
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(grammar) = compiler.compile(&GrammarSource::new(kind, text)) else { return };
    let mut state = grammar.begin(None);
    let mut mask = [0; 9];
    for _ in 0..16 {
        if state.is_over() || state.mask(&mut mask).is_err() {
            return;
        }
        let allowed = |token: &u32| mask[*token as usize / 32] >> (token % 32) & 1 == 1;
        let Some(token) = (0..257).rev().find(allowed) else { return };
        if token == 256 || state.accept(token).is_err() {
            return;
        }
    }
}

/// A vocabulary of all bytes and an end.
fn bytes() -> Tokenizer {
    let tokens = (0..=255_u8).map(|byte| format!("<0x{byte:02X}>"));
    let source = VocabSource {
        model: "llama".into(),
        tokens: tokens.chain(["</s>".to_owned()]).collect(),
        token_types: [6; 256].into_iter().chain([3]).collect(),
        scores: vec![0.0; 257],
        eos: Some(256),
        ..VocabSource::default()
    };
    Tokenizer::new(source).expect("a vocabulary of all bytes")
}
