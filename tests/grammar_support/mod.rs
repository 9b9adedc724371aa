//! Tokenizers to follow grammars with, and the walk of a text through one.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // each test uses a part

use std::sync::Arc;

use hob::grammar::{Grammar, GrammarCompiler, GrammarError, GrammarSource, mask_words};
use hob::tokenizer::{Tokenizer, VocabSource};
use serde_json::Value;

/// Control tokens `<t0>` to `<t31>`; the first ids.
pub const CONTROLS: u32 = 32;
/// What ends a text.
pub const END: u32 = CONTROLS + 256;

/// Words that are tokens of their own: those that cross the borders of a grammar's rules above all.
const WORDS: [&str; 28] = [
    "\": \"",
    "\": ",
    "\",",
    "\", \"",
    "{\"",
    "\"}",
    "}]",
    "[[",
    "]]",
    "true",
    "false",
    "null",
    "  ",
    "\n\n",
    "abc",
    "aa",
    "aaaa",
    "foo",
    "bar",
    "123",
    "10",
    " + ",
    "=1",
    "0x",
    ", ",
    "é",
    "🔵",
    "hello world",
];

/// A vocabulary of control tokens, all bytes, an end, and words.
pub fn tokenizer() -> Arc<Tokenizer> {
    let mut tokens: Vec<String> = (0..CONTROLS).map(|id| format!("<t{id}>")).collect();
    let mut token_types = vec![3; CONTROLS as usize];
    tokens.extend((0..=255_u8).map(|byte| format!("<0x{byte:02X}>")));
    token_types.extend([6; 256]);
    tokens.push("</s>".into());
    token_types.push(3);
    tokens.extend(WORDS.map(|word| word.replace(' ', "▁")));
    token_types.extend([1; WORDS.len()]);
    let source = VocabSource {
        model: "llama".into(),
        scores: vec![0.0; tokens.len()],
        tokens: tokens.iter().collect(),
        token_types,
        eos: Some(END),
        ..VocabSource::default()
    };
    Arc::new(Tokenizer::new(source).unwrap())
}

/// A compiler for that vocabulary.
pub fn compiler() -> GrammarCompiler {
    GrammarCompiler::new(tokenizer())
}

/// The tokens of a text: long ones first, or bytes alone.
pub fn tokens_of(text: &str, bytes_alone: bool) -> Vec<u32> {
    let mut rest = text;
    let mut out = Vec::new();
    let mut words: Vec<(usize, &str)> = WORDS.iter().copied().enumerate().collect();
    words.sort_by_key(|(_, word)| std::cmp::Reverse(word.len()));
    while !rest.is_empty() {
        let found = words.iter().find(|(_, word)| !bytes_alone && rest.starts_with(word));
        match found {
            Some((at, word)) => {
                out.push(END + 1 + *at as u32);
                rest = &rest[word.len()..];
            }
            None => {
                let c = rest.chars().next().unwrap();
                let mut bytes = [0; 4];
                let bytes = c.encode_utf8(&mut bytes).as_bytes();
                out.extend(bytes.iter().map(|byte| CONTROLS + u32::from(*byte)));
                rest = &rest[c.len_utf8()..];
            }
        }
    }
    out
}

/// The tokens of a test's text: a text, or a list of texts and tokens.
pub fn tokens_of_case(text: &Value, bytes_alone: bool) -> Vec<u32> {
    let parts = match text {
        Value::Array(parts) => parts.as_slice(),
        one => std::slice::from_ref(one),
    };
    let part = |part: &Value| match part {
        Value::String(text) => tokens_of(text, bytes_alone),
        part => vec![part["token"].as_u64().unwrap() as u32],
    };
    parts.iter().flat_map(part).collect()
}

/// Whether the masks let each of the tokens through, and an end behind them.
pub fn accepts(grammar: &Grammar, vocab: usize, tokens: &[u32]) -> Result<bool, GrammarError> {
    let mut state = grammar.begin(None);
    let mut mask = vec![0; mask_words(vocab)];
    for token in tokens {
        if state.is_over() {
            return Ok(false);
        }
        state.mask(&mut mask)?;
        if mask[*token as usize / 32] >> (token % 32) & 1 == 0 {
            return Ok(false);
        }
        state.accept(*token)?;
    }
    Ok(state.may_end())
}

/// Compiles, or says why not.
pub fn compile(
    compiler: &GrammarCompiler,
    source: &GrammarSource,
) -> Result<Arc<Grammar>, GrammarError> {
    compiler.compile(source)
}
