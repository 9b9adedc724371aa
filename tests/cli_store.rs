//! `hob pull`, `hob models` and `hob rm`, and names of the store where a model is taken.

#![allow(clippy::unwrap_used)]

mod cli_support;

use std::path::{Path, PathBuf};
use std::process::Command;

use cli_support::{hob, stderr, stdout, with_stdin};
use hob::gguf::{GgufBuilder, StrArray};
use hob::tensor::DType;
use serde_json::Value;

/// A folder for the store, and a model beside it.
struct Setting {
    folder: tempfile::TempDir,
    model: PathBuf,
}

impl Setting {
    fn new() -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let tokens: StrArray = ["<unk>", "a", "b", "ab"].iter().collect();
        let bytes = GgufBuilder::new()
            .metadata("general.architecture", "llama")
            .metadata("llama.context_length", 512u32)
            .metadata("tokenizer.ggml.model", "llama")
            .metadata("tokenizer.ggml.tokens", tokens)
            .metadata("tokenizer.ggml.scores", vec![0f32, 0.0, 0.0, 1.0])
            .metadata("tokenizer.ggml.token_type", vec![2i32, 1, 1, 1])
            .metadata("tokenizer.ggml.add_space_prefix", false)
            .tensor("output.weight", DType::Q8_0, &[32, 2], &[0; 68])
            .build();
        let model = folder.path().join("Small.gguf");
        std::fs::write(&model, bytes).unwrap();
        Self { folder, model }
    }

    fn hob(&self, arguments: &[&str]) -> Command {
        let mut command = hob(arguments);
        command.env("XDG_DATA_HOME", self.folder.path());
        command.env("XDG_RUNTIME_DIR", self.folder.path());
        command
    }

    fn pulled(more: &[&str]) -> Self {
        let setting = Self::new();
        let model = setting.model.to_str().unwrap();
        let output = setting.hob(&[&["pull", model], more].concat()).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(stdout(&output), "small\n");
        setting
    }

    fn models(&self) -> Value {
        let output = self.hob(&["models", "--json"]).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

#[test]
fn a_pulled_model_is_listed_used_by_name_and_removed() {
    let setting = Setting::pulled(&["--alias", "s"]);
    let output = setting.hob(&["models"]).output().unwrap();
    let text = stdout(&output).replace(setting.folder.path().to_str().unwrap(), "DATA");
    insta::assert_snapshot!(text, @"
    NAME   ALIASES  ARCHITECTURE  TYPE   SIZE  CONTEXT  STATE  FILE
    small  s        llama         Q8_0  576 B      512  -      DATA/hob/models/small/Small.gguf
    ");
    assert_eq!(setting.models()[0]["parameters"], 64);
    for name in ["small", "s"] {
        let output = with_stdin(setting.hob(&["tokenize", "-m", name, "--json"]), b"ab");
        assert_eq!(stdout(&output), "[3]\n", "{}", stderr(&output));
    }
    let output = setting.hob(&["rm", "s"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--yes"), "{}", stderr(&output));
    let output = setting.hob(&["rm", "s", "--yes"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(setting.models(), Value::Array(vec![]));
    assert!(!setting.folder.path().join("hob/models/small").exists());
}

#[test]
fn what_is_not_there_is_told_with_what_is() {
    let setting = Setting::pulled(&["--link"]);
    let output = setting.hob(&["inspect", "smal"]).output().unwrap();
    let expected = "error: no model \"smal\" in the store; it has small\n";
    assert_eq!((output.status.code(), stderr(&output)), (Some(2), expected));
    let output = setting.hob(&["pull", "nowhere"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("hf:OWNER/REPO"), "{}", stderr(&output));
    let output = setting.hob(&["rm", "small", "-y"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(setting.model.exists(), "a linked model stays");
}

#[test]
fn what_can_run_is_listed() {
    let output = hob(&["models", "--supported", "--json"]).output().unwrap();
    let supported: Value = serde_json::from_slice(&output.stdout).unwrap();
    let has = |list: &str, is: &dyn Fn(&Value) -> bool| {
        supported[list].as_array().unwrap().iter().any(is)
    };
    assert!(has("architectures", &|known| known["name"] == "llama"), "{supported}");
    assert!(has("types", &|known| known == "Q4_K"), "{supported}");
}

/// hobd where there is no device: how far it comes tells whether it has found its model.
fn hobd(data: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_hobd"))
        .args(arguments)
        .env_clear()
        .env("HOME", data)
        .env("XDG_DATA_HOME", data)
        .env("XDG_RUNTIME_DIR", data)
        .env("VK_DRIVER_FILES", data.join("none.json"))
        .env("VK_ICD_FILENAMES", data.join("none.json"))
        .output()
        .unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn the_daemon_takes_names_of_the_store_too() {
    let setting = Setting::pulled(&[]);
    let data = setting.folder.path();
    for arguments in [&["--model", "small"][..], &[]] {
        let (status, told) = hobd(data, arguments);
        assert_eq!(status, Some(69), "{told}");
        assert!(told.contains("small/Small.gguf"), "{told}");
    }
    let (status, told) = hobd(data, &["--model", "other"]);
    assert_eq!(status, Some(78));
    assert!(told.contains("no model \"other\" in the store; it has small"), "{told}");
}

#[test]
fn a_variable_that_is_empty_is_not_set() {
    let setting = Setting::new();
    let mut command = setting.hob(&["status"]);
    let output = command.env("HOB_SOCKET", "").output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let socket = setting.folder.path().join("hob/hob.sock");
    assert!(stderr(&output).contains(socket.to_str().unwrap()), "{}", stderr(&output));
}

#[test]
fn without_a_device_the_status_is_that_of_the_daemon() {
    let setting = Setting::new();
    let model = setting.model.to_str().unwrap();
    for arguments in [&["devices"][..], &["bench", "--force", "--model", model]] {
        let none = setting.folder.path().join("none.json");
        let mut command = setting.hob(arguments);
        command.env("VK_DRIVER_FILES", &none).env("VK_ICD_FILENAMES", &none);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(69), "{}", stderr(&output));
    }
}
