//! The idea on Chinese texts, with real vocabularies: a small reference model and SmolLM2.

use std::path::{Path, PathBuf};

use hob::gguf::GgufFile;
use hob::gpu::Executor as _;
use hob::tokenizer::{Tokenizer, VocabSource};

use super::{SIZES, check_causal, check_contextual, common, device, on_all_executors};

/// The models that this machine has.
fn models() -> Vec<PathBuf> {
    let mut found = Vec::new();
    match common::shared() {
        Some(shared) => found.push(shared.join("tiny/llama.gguf")),
        None => println!("skipped: shared files absent"),
    }
    let folder = std::env::var_os("HOB_MODELS").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/target/models")),
        PathBuf::from,
    );
    let smollm2 = folder.join("SmolLM2-135M-Instruct.Q4_1.gguf");
    if !device::runs_all(device::open(false).capabilities()) {
        println!("left out on this driver, which is slow: {}", smollm2.display());
    } else if smollm2.is_file() {
        found.push(smollm2);
    } else {
        println!("skipped: {} is not there (`make models`)", smollm2.display());
    }
    found
}

fn tokens(path: &Path, text: &str) -> Vec<u32> {
    let file = GgufFile::open(path).unwrap();
    let tokenizer = Tokenizer::new(VocabSource::from_metadata(file.metadata()).unwrap()).unwrap();
    let tokens = tokenizer.encode(text, false, false).unwrap();
    println!("{text}: {tokens:?}");
    tokens
}

#[test]
fn an_apple_to_eat_and_an_apple_that_was_released_have_different_keys() {
    for path in models() {
        let texts = ["好吃的苹果", "发布的苹果"].map(|text| tokens(&path, text));
        // Cut in front, so that the last token stands at the same position in both.
        let length = texts[0].len().min(texts[1].len());
        let texts = texts.each_ref().map(|tokens| &tokens[tokens.len() - length..]);
        on_all_executors(&path, SIZES, |model| check_contextual(model, texts));
    }
}

#[test]
fn an_apple_does_not_know_what_will_be_said_of_it() {
    for path in models() {
        let texts = ["苹果很好吃", "苹果发布了"].map(|text| tokens(&path, text));
        let apple = tokens(&path, "苹果");
        let same = texts[0].iter().zip(&texts[1]).take_while(|(a, b)| a == b).count();
        assert!(same > 0 && same >= apple.len(), "both texts begin with {apple:?}");
        let texts = texts.each_ref().map(Vec::as_slice);
        on_all_executors(&path, SIZES, |model| check_causal(model, texts, same));
    }
}
