//! The JSON-Schema-Test-Suite through the masks: what is compiled accepts nothing invalid.

#![allow(clippy::unwrap_used)]

#[path = "grammar_support/mod.rs"]
mod grammar_support;

use std::path::{Path, PathBuf};

use grammar_support::{CONTROLS, accepts, compiler, tokenizer, tokens_of};
use hob::grammar::{GrammarKind, GrammarSource, mask_words};
use serde_json::Value;

/// What became of a suite.
#[derive(Debug, Default)]
struct Outcome {
    groups: usize,
    compiled: usize,
    right: usize,
    /// Valid instances that are refused: those that give properties in another order than the
    /// schema's, among others.
    refused: usize,
    /// Invalid instances that are accepted; there must be none.
    wrong: Vec<String>,
}

fn run(path: &Path) -> Outcome {
    let suite: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let (compiler, vocab) = (compiler(), tokenizer().vocab_size());
    let mut outcome = Outcome::default();
    for (file, groups) in suite["files"].as_object().unwrap() {
        for group in groups.as_array().unwrap() {
            outcome.groups += 1;
            let source = GrammarSource::new(GrammarKind::JsonSchema, group["schema"].to_string());
            let Ok(grammar) = compiler.compile(&source) else { continue };
            outcome.compiled += 1;
            for test in group["tests"].as_array().unwrap() {
                let text = test["data"].to_string();
                // A grammar that gives up accepts nothing.
                let accepted = accepts(&grammar, vocab, &tokens_of(&text, false)).unwrap_or(false);
                match (accepted, test["valid"].as_bool().unwrap()) {
                    (true, false) => outcome.wrong.push(format!(
                        "{file}: {}: {}: {text}",
                        group["description"], test["description"]
                    )),
                    (false, true) => outcome.refused += 1,
                    _ => outcome.right += 1,
                }
            }
        }
    }
    println!(
        "{}: {} of {} schemas compile; {} instances are judged right, {} valid ones refused",
        path.display(),
        outcome.compiled,
        outcome.groups,
        outcome.right,
        outcome.refused
    );
    outcome
}

#[test]
fn a_sample_of_the_suite() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/grammars/schemas.json");
    let outcome = run(&data);
    assert!(outcome.wrong.is_empty(), "{}", outcome.wrong.join("\n"));
    assert!(outcome.compiled > 0 && outcome.right > outcome.refused, "{outcome:?}");
}

/// Instances that are accepted although the suite has them as invalid. ECMAScript counts U+FEFF as
/// white space, Rust's regular expressions do not.
const KNOWN: [&str; 1] = ["optional/ecmascript-regex.json: \"ECMA 262 \\\\S matches everything"];

#[test]
fn the_whole_suite_where_it_is() {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared");
    let shared = std::env::var_os("HOB_SHARED").map_or(default, PathBuf::from);
    let suite = shared.join("clients/json-schema/draft2020-12.json");
    if !suite.is_file() {
        println!("no suite at {}: not run", suite.display());
        return;
    }
    let mut outcome = run(&suite);
    outcome.wrong.retain(|wrong| !KNOWN.iter().any(|known| wrong.starts_with(known)));
    assert!(outcome.wrong.is_empty(), "{}", outcome.wrong.join("\n"));
    assert!(outcome.compiled * 3 > outcome.groups, "{outcome:?}");
}

#[test]
fn what_a_schema_cannot_do_is_refused_by_name() {
    let compiler = compiler();
    let refused = |schema: &str| {
        let source = GrammarSource::new(GrammarKind::JsonSchema, schema);
        compiler.compile(&source).expect_err(schema).to_string()
    };
    for (schema, word) in [
        (r#"{"type": "array", "uniqueItems": true}"#, "uniqueItems"),
        (r#"{"not": {"type": "string"}}"#, "not"),
        (r#"{"type": "string", "format": "no-such-format"}"#, "no-such-format"),
        (r#"{"type": "strange"}"#, "strange"),
        ("[1]", "object"),
        ("{", "JSON"),
        ("false", "false"),
    ] {
        let message = refused(schema);
        assert!(message.contains(word), "{schema}: {message}");
    }
    let deep = format!("{}true{}", r#"{"items":"#.repeat(120), "}".repeat(120));
    assert!(refused(&deep).contains("levels"), "{}", refused(&deep));
    let long = format!(r#"{{"const": "{}"}}"#, "a".repeat(600 << 10));
    assert!(refused(&long).contains("bytes"));
}

#[test]
fn white_space_ends() {
    let (compiler, vocab) = (compiler(), tokenizer().vocab_size());
    for (kind, text) in [(GrammarKind::JsonObject, ""), (GrammarKind::JsonSchema, "{}")] {
        let grammar = compiler.compile(&GrammarSource::new(kind, text)).unwrap();
        let judge = |text: &str| accepts(&grammar, vocab, &tokens_of(text, true)).unwrap();
        assert!(judge(r#"{"a": [1, 2]}"#) && judge("{\n  \"a\": 1\n}") && judge("{}"), "{kind}");
        assert!(!judge(r#"{  "a": 1}"#) && !judge("{\n\n\"a\": 1}"), "{kind}");
        let far = format!("{{\n{}\"a\": 1}}", " ".repeat(65));
        assert!(!judge(&far), "{kind}");
    }
}

#[test]
fn special_tokens_come_only_where_the_grammar_names_them() {
    let (compiler, vocab) = (compiler(), tokenizer().vocab_size());
    let any = compiler.compile(&GrammarSource::new(GrammarKind::Regex, "(?s:.*)")).unwrap();
    let mut mask = vec![0; mask_words(vocab)];
    any.begin(None).mask(&mut mask).unwrap();
    let allowed = |token: u32| mask[token as usize / 32] >> (token % 32) & 1 == 1;
    assert!((0..CONTROLS).all(|token| !allowed(token)));
    assert!(allowed(CONTROLS + u32::from(b'<')));
    let lark = GrammarSource::new(GrammarKind::Lark, r#"start: <t3> "a" <[5]>"#);
    let named = compiler.compile(&lark).unwrap();
    let a = CONTROLS + u32::from(b'a');
    assert!(accepts(&named, vocab, &[3, a, 5]).unwrap());
    assert!(!accepts(&named, vocab, &[4, a, 5]).unwrap());
    // A text that merely spells a token is not the token.
    let spelled: Vec<u32> = tokens_of("<t3>", true).into_iter().chain([a, 5]).collect();
    assert!(!accepts(&named, vocab, &spelled).unwrap());
}
