//! Token ids of real vocabularies against llama.cpp's, for every text that ships with them.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use hob::gguf::{GgufFault, GgufFile};
use hob::tokenizer::{StreamDecoder, Tokenizer, VocabSource};
use serde_json::Value;

/// The folder of shared reference data, or `None`, said aloud, where a checkout has none.
fn shared() -> Option<PathBuf> {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared");
    let folder = std::env::var_os("HOB_SHARED").map_or(default, PathBuf::from);
    if folder.join("vocabs").is_dir() {
        return Some(folder);
    }
    eprintln!("skipped: shared files absent");
    None
}

fn models() -> PathBuf {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/models");
    std::env::var_os("HOB_MODELS").map_or(default, PathBuf::from)
}

fn load(path: &Path) -> Tokenizer {
    let file = GgufFile::open(path).unwrap();
    Tokenizer::new(VocabSource::from_metadata(file.metadata()).unwrap()).unwrap()
}

#[test]
fn every_case_of_the_shared_vocabularies() {
    let Some(shared) = shared() else { return };
    let mut cases = 0;
    for name in ["gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2"] {
        let path = shared.join(format!("vocabs/ggml-vocab-{name}.gguf"));
        let read =
            |suffix: &str| std::fs::read_to_string(format!("{}.{suffix}", path.display())).unwrap();
        let (input, output) = (read("inp"), read("out"));
        // Each text is followed by the separator, the last too.
        let mut texts: Vec<_> = input.split("\n__ggml_vocab_test__\n").collect();
        assert_eq!(texts.pop(), Some(""), "{name}");
        let ids: Vec<Vec<u32>> = output
            .lines()
            .map(|line| line.split_whitespace().map(|id| id.parse().unwrap()).collect())
            .collect();
        assert_eq!(texts.len(), ids.len(), "{name}");
        let tokenizer = load(&path);
        for (text, ids) in texts.iter().zip(&ids) {
            assert_eq!(&tokenizer.encode(text, false, false).unwrap(), ids, "{name}: {text:?}");
            assert_eq!(&tokenizer.decode(ids, true).unwrap(), text, "{name}");
            let mut stream = StreamDecoder::beginning(&tokenizer, true);
            let mut streamed: String =
                ids.iter().map(|id| stream.push(&tokenizer, *id).unwrap()).collect();
            streamed.push_str(&stream.flush());
            assert_eq!(&streamed, text, "{name}");
            cases += 1;
        }
    }
    assert!(cases > 200, "only {cases} cases");
}

/// Holds a model against the prompts of a golden file.
fn check_golden(model: &Path, golden: &Path) {
    let file = match GgufFile::open(model) {
        // A type that hob does not have is refused by its number.
        Err(error) if matches!(error.fault, GgufFault::TensorType { .. }) => return,
        opened => opened.unwrap(),
    };
    let tokenizer = Tokenizer::new(VocabSource::from_metadata(file.metadata()).unwrap()).unwrap();
    let cases: Value = serde_json::from_slice(&std::fs::read(golden).unwrap()).unwrap();
    for case in cases.as_array().unwrap() {
        let wanted: Vec<u64> =
            case["tokens"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
        // Goldens of encoders have texts in place of prompts.
        let Some(prompt) = case["prompt"].as_str() else { continue };
        let found = tokenizer.encode(prompt, true, true).unwrap();
        let found: Vec<u64> = found.into_iter().map(u64::from).collect();
        assert_eq!(found, wanted, "{} {}", golden.display(), case["name"]);
        check_content(&tokenizer, case, golden);
    }
}

/// The generated tokens are the text that was generated.
fn check_content(tokenizer: &Tokenizer, case: &Value, golden: &Path) {
    let mut stream = StreamDecoder::continuing(false);
    let mut text = String::new();
    for step in case["steps"].as_array().unwrap() {
        let id = step["id"].as_u64().unwrap() as u32;
        if tokenizer.is_stop(id) {
            break;
        }
        text.push_str(&stream.push(tokenizer, id).unwrap());
    }
    let Some(content) = case["content"].as_str() else { return };
    if !text.contains('\u{FFFD}') && !content.contains('\u{FFFD}') {
        let name = &case["name"];
        assert!(
            content.starts_with(&text) || text.starts_with(content),
            "{} {name}: {text:?}, wanted {content:?}",
            golden.display()
        );
    }
}

#[test]
fn every_prompt_of_the_tiny_models() {
    let Some(shared) = shared() else { return };
    let mut models = 0;
    for folder in ["tiny", "tiny/malformed"] {
        for entry in std::fs::read_dir(shared.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let Some(stem) = path.to_str().unwrap().strip_suffix(".golden.json") else { continue };
            let stem = stem.strip_suffix(".ctx256").unwrap_or(stem);
            // A model may have several goldens: NAME.steps48.golden.json.
            let stem = stem.strip_suffix(".steps48").unwrap_or(stem);
            check_golden(Path::new(&format!("{stem}.gguf")), &path);
            models += 1;
        }
    }
    assert!(models > 20, "only {models} models");
}

#[test]
fn every_prompt_of_the_real_models() {
    let Some(shared) = shared() else { return };
    for (model, golden) in [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2.json"),
        ("gemma-3-270m-q4_k_m.gguf", "gemma3.json"),
    ] {
        let path = models().join(model);
        if !path.is_file() {
            eprintln!("skipped: {} absent", path.display());
            continue;
        }
        check_golden(&path, &shared.join("golden").join(golden));
    }
}

#[test]
fn a_bad_vocabulary_in_a_file_is_refused_by_name() {
    let Some(shared) = shared() else { return };
    let refusal = |name: &str| {
        let path = shared.join("tiny/malformed").join(name);
        let file = match GgufFile::open(&path) {
            Ok(file) => file,
            Err(error) => return error.to_string(),
        };
        match VocabSource::from_metadata(file.metadata()) {
            Ok(source) => Tokenizer::new(source).unwrap_err().to_string(),
            Err(error) => error.to_string(),
        }
    };
    let message = refusal("bad-token-types-too-short.gguf");
    assert!(message.contains("token_type") && message.contains("259"), "{message}");
    let message = refusal("bad-tokens-missing.gguf");
    assert!(message.contains("tokenizer.ggml.tokens"), "{message}");
}
