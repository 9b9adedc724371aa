//! `hob quantize`: the file it writes loads, says how far off it is, and is as good as its type.

#![allow(clippy::unwrap_used)]

#[path = "common/blocks.rs"]
mod blocks;
mod cli_support;
mod common;
#[path = "common/random.rs"]
mod random;
#[path = "common/typed_model.rs"]
mod typed_model;

use std::path::{Path, PathBuf};

use cli_support::{hob, stderr, stdout};
use common::{Driven, Sizes, log_softmax};
use hob::gguf::{GgufBuilder, GgufFile};
use hob::kernels::KvFormat;
use hob::reference::ReferenceExecutor;
use hob::tensor::DType;
use serde_json::Value;

const PROMPT: [u32; 8] = [1, 17, 42, 5, 80, 33, 60, 2];

/// A small model in F32.
fn model(folder: &Path) -> PathBuf {
    let path = folder.join("in.gguf");
    std::fs::write(&path, typed_model::build(5, &[DType::F32]).build()).unwrap();
    path
}

fn quantize(folder: &Path, arguments: &[&str]) -> std::process::Output {
    hob(&[&["quantize"], arguments].concat()).current_dir(folder).output().unwrap()
}

/// Log-probabilities of every position of the prompt.
fn log_probabilities(path: &Path) -> Vec<Vec<f32>> {
    let sizes = Sizes { context_tokens: 64, sessions: 1, tokens_max: 16, format: KvFormat::F32 };
    let mut model = Driven::load(Box::new(ReferenceExecutor::with_lanes(8)), path, sizes);
    let lease = model.lease(PROMPT.len());
    let rows = model.evaluate(&lease, 0, &PROMPT, PROMPT.len(), 16);
    rows.iter().map(|row| log_softmax(row)).collect()
}

/// Mean Kullback-Leibler divergence of predictions.
fn divergence(exact: &[Vec<f32>], found: &[Vec<f32>]) -> f32 {
    let of_row = |(p, q): (&Vec<f32>, &Vec<f32>)| {
        p.iter().zip(q).map(|(p, q)| p.exp() * (p - q)).sum::<f32>()
    };
    exact.iter().zip(found).map(of_row).sum::<f32>() / exact.len() as f32
}

#[test]
fn every_type_loads_and_predicts_nearly_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let exact = log_probabilities(&model(folder.path()));
    // File type, relative error of uniform weights, divergence.
    let types = [
        ("q8_0", 7, 0.006, 0.002),
        ("q6_k", 18, 0.02, 0.01),
        ("q5_k", 16, 0.04, 0.05),
        ("q4_k", 14, 0.08, 0.2),
        ("q4_0", 2, 0.09, 0.25),
    ];
    for (name, file_type, error_max, divergence_max) in types {
        let output = quantize(folder.path(), &["in.gguf", "out.gguf", name, "--json", "--force"]);
        assert!(output.status.success(), "{name}: {}", stderr(&output));
        let report: Value = serde_json::from_str(stdout(&output)).unwrap();
        let relative = report["total"]["relative"].as_f64().unwrap();
        assert!((error_max / 3.0..error_max).contains(&relative), "{name}: {relative}");

        let out = folder.path().join("out.gguf");
        let file = GgufFile::open(&out).unwrap();
        assert_eq!(report["output_bytes"], file.file_bytes());
        assert_eq!(file.metadata().u32("general.file_type").unwrap(), file_type);
        assert_eq!(file.metadata().u32("general.quantization_version").unwrap(), 2);
        assert_eq!(file.metadata().str("general.architecture").unwrap(), "llama");
        let of = |tensor: &str| file.tensor(tensor).unwrap().dtype.name().to_lowercase();
        assert_eq!((of("output_norm.weight"), of("output.weight")), ("f32".into(), name.into()));
        let off = divergence(&exact, &log_probabilities(&out));
        assert!(off < divergence_max, "{name}: {off}");
    }
}

#[test]
fn errors_are_printed_for_each_tensor_and_all() {
    let folder = tempfile::tempdir().unwrap();
    model(folder.path());
    let output = quantize(folder.path(), &["in.gguf", "out.gguf", "Q8_0"]);
    let text = stdout(&output);
    let line = |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap();
    assert!(line("blk.0.attn_q.weight").contains("F32   Q8_0"), "{text}");
    assert!(line("blk.0.attn_q.weight").contains(" %"), "{text}");
    assert!(line("output_norm.weight").trim_end().ends_with("F32   F32"), "{text}");
    assert!(line("all that changed").contains(" %"), "{text}");
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(left.len(), 2, "nothing is left beside the files");
}

#[test]
fn rows_that_the_type_cannot_hold_fall_back_or_stay() {
    let folder = tempfile::tempdir().unwrap();
    let gguf = GgufBuilder::new().tensor("a.weight", DType::F32, &[96, 2], &[0; 768]).tensor(
        "b.weight",
        DType::F32,
        &[20, 2],
        &[0; 160],
    );
    std::fs::write(folder.path().join("in.gguf"), gguf.build()).unwrap();
    let output = quantize(folder.path(), &["in.gguf", "out.gguf", "q4_k"]);
    let notes = stderr(&output);
    assert!(notes.contains("a.weight becomes Q8_0: its rows of 96 are no whole blocks"), "{notes}");
    assert!(notes.contains("b.weight stays F32: its rows of 20 are no whole blocks"), "{notes}");
    let file = GgufFile::open(&folder.path().join("out.gguf")).unwrap();
    assert_eq!(file.tensor("a.weight").unwrap().dtype.name(), "Q8_0");
}

#[test]
fn what_cannot_be_done_is_refused_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let values: Vec<u8> = [1.0, f32::NAN].repeat(32).iter().flat_map(|v| v.to_le_bytes()).collect();
    let gguf = GgufBuilder::new().tensor("a.weight", DType::F32, &[32, 2], &values);
    std::fs::write(folder.path().join("in.gguf"), gguf.build()).unwrap();
    let output = quantize(folder.path(), &["in.gguf", "out.gguf", "q8_0"]);
    assert_eq!(output.status.code(), Some(78));
    assert!(stderr(&output).contains("a.weight: wanted finite values, found NaN"));
    let output = quantize(folder.path(), &["in.gguf", "in.gguf", "q8_0"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("in.gguf exists; --force replaces it"));
    let output = quantize(folder.path(), &["in.gguf", ".", "q8_0", "--force"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains(". is no regular file, and stays as it is"));
    let output = quantize(folder.path(), &["in.gguf", "out.gguf", "iq2_s"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("wanted one of Q8_0, Q4_0, Q4_K, Q5_K, Q6_K"));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}
