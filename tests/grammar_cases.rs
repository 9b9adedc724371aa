//! Grammars of llama.cpp and llguidance: which texts they accept, token by token through the masks.

#![allow(clippy::unwrap_used)]

#[path = "grammar_support/mod.rs"]
mod grammar_support;

use std::path::Path;

use grammar_support::{accepts, compiler, tokenizer, tokens_of_case};
use hob::grammar::{GrammarCompiler, GrammarKind, GrammarSource};
use serde_json::Value;

/// Texts that llguidance judges differently than llama.cpp's own converter, in cases that stand
/// twice: a number of more digits than llama.cpp takes, arrays and objects where the schema does
/// not say that the value is one, and `uniqueItems`, which no grammar can hold to.
const DIFFERENT: [&str; 4] =
    ["integration/002", "integration/050", "integration/051", "integration/056"];

fn json(path: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/grammars").join(path);
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn source(case: &Value) -> GrammarSource {
    let text = |key: &str| case[key].as_str().map(str::to_owned);
    let kind = GrammarKind::named(case["kind"].as_str().unwrap()).unwrap();
    let text_of_it = text("grammar").or(text("schema")).unwrap();
    GrammarSource { root: text("root"), ..GrammarSource::new(kind, text_of_it) }
}

/// What a grammar judges wrongly.
fn wrong(compiler: &GrammarCompiler, source: &GrammarSource, case: &Value) -> Vec<String> {
    let grammar = match compiler.compile(source) {
        Ok(grammar) => grammar,
        Err(error) => return vec![format!("does not compile: {error}")],
    };
    let vocab = tokenizer().vocab_size();
    let mut wrong = Vec::new();
    for (key, wanted) in [("accept", true), ("refuse", false)] {
        for text in case[key].as_array().unwrap() {
            for bytes_alone in [false, true] {
                let tokens = tokens_of_case(text, bytes_alone);
                match accepts(&grammar, vocab, &tokens) {
                    Ok(found) if found == wanted => {}
                    Ok(_) => wrong.push(format!("{key} {text} (bytes alone: {bytes_alone})")),
                    Err(error) => wrong.push(format!("{key} {text}: {error}")),
                }
            }
        }
    }
    wrong
}

#[test]
fn the_cases_of_llama_cpp_and_llguidance() {
    let compiler = compiler();
    let cases = json("cases.json");
    let cases = cases.as_array().unwrap();
    assert_eq!(cases.len(), 60);
    let mut failed = Vec::new();
    for case in cases {
        let id = case["id"].as_str().unwrap();
        let source = source(case);
        if case["compiles"] == Value::Bool(false) {
            let is_left_recursion = case["group"] == "failure_left_recursion";
            if compiler.compile(&source).is_ok() && !is_left_recursion {
                failed.push(format!("{id} compiles"));
            }
            continue;
        }
        let wrong = wrong(&compiler, &source, case);
        if !DIFFERENT.contains(&id) {
            failed.extend(wrong.into_iter().map(|what| format!("{id}: {what}")));
        } else if wrong.is_empty() {
            failed.push(format!("{id} is no longer different: take it off the list"));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn gbnf_files_mean_what_they_mean_to_llama_cpp() {
    let compiler = compiler();
    let texts = json("gbnf/texts.json");
    let mut failed = Vec::new();
    for (file, case) in texts.as_object().unwrap() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/grammars/gbnf");
        let text = std::fs::read_to_string(path.join(file)).unwrap();
        let wrong = wrong(&compiler, &GrammarSource::new(GrammarKind::Gbnf, text), case);
        failed.extend(wrong.into_iter().map(|what| format!("{file}: {what}")));
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
