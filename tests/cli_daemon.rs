//! `hob` with a daemon that it did not start: its own model's file, other files, and the end.
#![allow(clippy::unwrap_used)]

#[path = "architectures/mod.rs"]
mod architectures;
mod cli_support;
mod common;
mod hf_support;
mod hobd_support;
#[path = "common/random.rs"]
mod random;

use std::path::Path;
use std::process::{Command, Output};

use architectures::MODELS;
use cli_support::{hob, stderr, stdout};
use hob::gguf::GgufFile;
use hobd_support::Daemon;
use serde_json::json;

fn model(folder: &Path) -> std::path::PathBuf {
    MODELS.iter().find(|tiny| tiny.name == "gemma2").expect("it is there").write(folder)
}

/// `hob` at the daemon of a folder.
fn at(folder: &Path, arguments: &[&str]) -> Output {
    let mut command: Command = hob(arguments);
    command.env("HOB_SOCKET", folder.join("hob.sock")).current_dir(folder).output().unwrap()
}

#[test]
fn only_the_file_that_the_daemon_has_is_taken_for_its_model() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let mut daemon = Daemon::start(&model, folder.path());
    let (own, other) = (model.to_str().unwrap(), folder.path().join("other.gguf"));
    std::fs::copy(&model, &other).unwrap();
    let run =
        |model| at(folder.path(), &["run", "-m", model, "--raw", "--max-tokens", "2", "w1 w2"]);
    assert!(run(own).status.success(), "{}", stderr(&run(own)));
    let refused = run(other.to_str().unwrap());
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("hobd runs already, and not with"), "{}", stderr(&refused));
    let output = at(folder.path(), &["models"]);
    assert!(stdout(&output).contains("(hobd's own)"), "{}", stdout(&output));
    let output = at(folder.path(), &["stop"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(daemon.child.wait().unwrap().success());
    assert_eq!(at(folder.path(), &["stop"]).status.code(), Some(3), "nobody is there");
}

#[test]
fn sessions_of_a_folder_outlive_the_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let file = GgufFile::open(&model(folder.path())).unwrap();
    let hf = folder.path().join("hf");
    std::fs::create_dir(&hf).unwrap();
    hf_support::write_folder(&hf, &file, "gemma2", 1);
    let start = || {
        let mut command = hobd_support::hobd(folder.path());
        command.arg("--model").arg(&hf).args(["--self-check", "never"]);
        Daemon::start_by(command, folder.path())
    };
    let mut daemon = start();
    daemon.result("session.create", json!({"name": "notes"}));
    let params = json!({"session": "notes", "tokens": [1, 2, 3, 4], "max_tokens": 2});
    daemon.result("generate", params);
    daemon.stop();
    let mut daemon = start();
    let list = daemon.result("session.list", json!({}));
    let session = &list["sessions"][0];
    assert_eq!((&session["name"], &session["model"]), (&json!("notes"), &json!("hf")), "{list}");
    assert_eq!(session["tokens"], session["cached_tokens"], "{list}");
    daemon.stop();
}
