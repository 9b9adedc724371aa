//! Commands that need no daemon: `inspect`, `tokenize --model`, help, completions, man pages.

#![allow(clippy::unwrap_used)]

mod cli_support;

use std::path::{Path, PathBuf};

use cli_support::{hob, stderr, stdout, with_stdin};
use hob::gguf::{GgufBuilder, StrArray};
use hob::tensor::DType;
use serde_json::{Value, json};

/// A small file of each kind of metadata, with a name that would clear a terminal.
fn small_model(folder: &Path) -> PathBuf {
    let tokens: StrArray = (0..20).map(|n| format!("t{n}")).collect();
    let bytes = GgufBuilder::new()
        .metadata("general.architecture", "llama")
        .metadata("general.name", "small\nmodel")
        .metadata("llama.block_count", 1u32)
        .metadata("llama.rope.freq_base", 10000f32)
        .metadata("llama.eps", 1e-5f32)
        .metadata("tokenizer.ggml.add_bos_token", true)
        .metadata("tokenizer.ggml.tokens", tokens)
        .metadata("short", vec![1, 2, -3])
        .tensor("output_norm.weight", DType::F32, &[4], &[0; 16])
        .tensor("output.weight", DType::Q8_0, &[32, 2], &[0; 68])
        .build();
    let path = folder.join("small.gguf");
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn inspect_for_people() {
    let folder = tempfile::tempdir().unwrap();
    let path = small_model(folder.path());
    let output = hob(&["inspect", path.to_str().unwrap()]).output().unwrap();
    let text = stdout(&output).replace(path.to_str().unwrap(), "FILE");
    insta::assert_snapshot!(text, @r"
    file        FILE
    size        800 B
    format      GGUF 3, aligned to 32
    parameters  68

    KEY                           TYPE             VALUE
    general.architecture          string           llama
    general.name                  string           small␊model
    llama.block_count             u32              1
    llama.rope.freq_base          f32              10000.0
    llama.eps                     f32              0.00001
    tokenizer.ggml.add_bos_token  bool             true
    tokenizer.ggml.tokens         array of string  [t0, t1, t2, t3, t4, t5, t6, t7, … 20 in all]
    short                         array of i32     [1, 2, -3]

    TENSOR              TYPE  SHAPE   SIZE
    output_norm.weight  F32   4       16 B
    output.weight       Q8_0  32 × 2  68 B

    TYPE  TENSORS  PARAMETERS  SIZE
    F32         1           4  16 B
    Q8_0        1          64  68 B
    ");
}

#[test]
fn inspect_for_programs() {
    let folder = tempfile::tempdir().unwrap();
    let path = small_model(folder.path());
    let path = path.to_str().unwrap();
    let output = hob(&["inspect", "--json", path]).output().unwrap();
    assert!(stdout(&output).contains("\"llama.eps\":0.00001"), "{}", stdout(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["parameters"], 68);
    assert_eq!(report["metadata"]["general.name"], "small\nmodel");
    assert_eq!(report["metadata"]["short"], json!([1, 2, -3]));
    assert_eq!(report["metadata"]["tokenizer.ggml.tokens"]["length"], 20);
    assert_eq!(
        report["tensors"][1],
        json!(
        {"name": "output.weight", "type": "Q8_0", "shape": [32, 2], "bytes": 68})
    );
    assert_eq!(report["types"]["F32"], json!({"tensors": 1, "parameters": 4, "bytes": 16}));
    let output = hob(&["inspect", "--json", "--full", path]).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["metadata"]["tokenizer.ggml.tokens"][19], "t19");
}

#[test]
fn unusable_files_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("not.gguf");
    std::fs::write(&path, "GGML and more of it").unwrap();
    for command in [&["inspect"][..], &["tokenize", "--model"]] {
        let mut hob = hob(command);
        let output = hob.arg(&path).output().unwrap();
        assert_eq!(output.status.code(), Some(78));
        let told = stderr(&output);
        assert!(told.contains("not.gguf: not a GGUF file"), "{told}");
        assert_eq!(told.lines().count(), 1, "{told}");
    }
    let output = hob(&["inspect", "/nowhere.gguf"]).output().unwrap();
    assert!(stderr(&output).contains("/nowhere.gguf"), "{}", stderr(&output));
}

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

#[test]
fn every_malformed_model_is_refused_by_name_or_read() {
    let Some(shared) = shared() else { return };
    for entry in std::fs::read_dir(shared.join("tiny/malformed")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "gguf") {
            continue;
        }
        for command in [&["inspect"][..], &["tokenize", "--json", "--model"]] {
            let mut hob = hob(command);
            hob.arg(&path);
            let output = with_stdin(hob, b"hello");
            let code = output.status.code();
            assert!(matches!(code, Some(0 | 65 | 78)), "{}: {code:?}", path.display());
            if code != Some(0) {
                assert!(stderr(&output).starts_with("error: "), "{}", stderr(&output));
            }
        }
    }
}

#[test]
fn vocabularies_tokenize_exactly_what_is_piped_in() {
    let Some(shared) = shared() else { return };
    let path = shared.join("vocabs/ggml-vocab-llama-spm.gguf");
    let path = path.to_str().unwrap();
    let run = |flags: &[&str], text: &[u8]| {
        let output = with_stdin(hob(&[&["tokenize", "--model", path], flags].concat()), text);
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output).to_owned()
    };
    assert_eq!(run(&["--json"], b"Hello world"), "[15043,3186]\n");
    assert_eq!(run(&["--json"], b"Hello world\n"), "[15043,3186,13]\n");
    assert_eq!(run(&["--json", "--add-special"], b"Hello world"), "[1,15043,3186]\n");
    assert_eq!(run(&["--json", "--parse-special"], b"</s>"), "[2]\n");
    assert_eq!(run(&["--json"], b""), "[]\n");
    let back = with_stdin(hob(&["detokenize", "--model", path]), b"[15043,3186,13]");
    assert_eq!(stdout(&back), "Hello world\n");
    let output = with_stdin(hob(&["tokenize", "--model", path]), b"ok \xff");
    assert_eq!(output.status.code(), Some(65));
    assert!(stderr(&output).contains("byte 0xff at offset 3"), "{}", stderr(&output));
}

#[test]
fn devices_without_a_driver_say_what_to_install() {
    let mut command = hob(&["devices"]);
    command.env("VK_ICD_FILENAMES", "/nowhere.json").env("VK_DRIVER_FILES", "/nowhere.json");
    let output = command.output().unwrap();
    assert_eq!((output.status.code(), stdout(&output)), (Some(69), ""));
    assert!(stderr(&output).contains("install"), "{}", stderr(&output));
}

#[test]
fn completions_for_each_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = hob(&["completions", shell]).output().unwrap();
        assert!(output.status.success());
        assert!(stdout(&output).contains("perplexity"), "{shell}");
        assert!(!stdout(&output).contains("start-detached"), "{shell}");
    }
}

#[test]
fn a_man_page_for_each_command() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man1");
    assert!(hob(&["man", pages.to_str().unwrap()]).status().unwrap().success());
    let mut names: Vec<String> = std::fs::read_dir(&pages)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let commands = [
        "bench",
        "chat",
        "completions",
        "detokenize",
        "devices",
        "embed",
        "inspect",
        "lora-load",
        "lora-unload",
        "lora",
        "man",
        "metrics",
        "models-load",
        "models-unload",
        "models",
        "perplexity",
        "pull",
        "quantize",
        "rm",
        "run",
        "sessions-close",
        "sessions-create",
        "sessions-fork",
        "sessions-info",
        "sessions-restore",
        "sessions-save",
        "sessions-truncate",
        "sessions",
        "status",
        "stop",
        "tokenize",
        "top",
        "tune",
    ];
    let expected = commands.map(|command| format!("hob-{command}.1"));
    assert_eq!(names, [&expected[..], &["hob.1".into(), "hobd.1".into()]].concat());
    let page = std::fs::read_to_string(pages.join("hob-run.1")).unwrap();
    assert!(page.contains("Examples:") && page.contains("\\-\\-temperature"));
    let one = hob(&["man"]).output().unwrap();
    assert!(stdout(&one).contains(".TH hob 1"));
}

#[test]
fn every_command_teaches_by_example() {
    let commands = [
        "run",
        "chat",
        "status",
        "stop",
        "devices",
        "embed",
        "sessions",
        "tokenize",
        "detokenize",
        "inspect",
        "quantize",
        "perplexity",
        "bench",
        "completions",
        "man",
    ];
    let overview = hob(&["--help"]).output().unwrap();
    for command in commands {
        let output = hob(&[command, "--help"]).output().unwrap();
        let example = format!("hob {command}");
        let examples = stdout(&output).split("Examples:").nth(1).unwrap_or_default();
        assert!(examples.contains(&example), "{command}");
        assert!(stdout(&overview).contains(&format!("\n  {command} ")), "{command}");
    }
    assert!(!stdout(&overview).contains("start-detached"));
}

#[test]
fn wrong_usage_exits_with_2() {
    for arguments in [
        &["run", "--top-p", "1.5", "x"][..],
        &["run", "--temperature", "NaN", "x"],
        &["run", "--raw", "--system", "s", "x"],
        &["bench", "--model", "m", "-p", "0", "-n", "0"],
        &["bench", "--model", "m", "--load", "-p", "1"],
        &["perplexity", "--model", "m", "-f", "f", "--context", "2"],
        &["nonsense"],
        &[],
    ] {
        let output = hob(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
    }
}
