//! The `hobd` program up to where it needs a device: flags, configuration, exit statuses.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};

use hob::server::BoundSocket;

/// Runs hobd where nothing of this machine's configuration is seen and no device is found.
fn hobd(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hobd"))
        .args(arguments)
        .env_clear()
        .env("HOME", folder)
        .env("XDG_RUNTIME_DIR", folder)
        .env("VK_DRIVER_FILES", folder.join("none.json"))
        .env("VK_ICD_FILENAMES", folder.join("none.json"))
        .output()
        .unwrap()
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn check_config_reads_the_file_and_says_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hobd.toml");
    let name = file.to_str().unwrap();
    std::fs::write(&file, include_str!("../config/hobd.toml")).unwrap();
    let output = hobd(folder.path(), &["--config", name, "--check-config"]);
    assert_eq!(output.status.code(), Some(0), "{}", told(&output));
    std::fs::write(&file, "\nsockets = \"x\"").unwrap();
    for more in [&["--check-config"][..], &[]] {
        let output = hobd(folder.path(), &[&["--config", name], more].concat());
        assert_eq!(output.status.code(), Some(78));
        let expected = format!("hobd: {name}:2: unknown key \"sockets\"; did you mean \"socket\"?");
        assert!(told(&output).starts_with(&expected), "{}", told(&output));
    }
    // What it names has to be there.
    std::fs::write(folder.path().join("empty.gguf"), b"").unwrap();
    for (text, expected) in [
        ("model = \"nonesuch\"", "nonesuch"),
        ("model = \"empty.gguf\"", "empty.gguf"),
        ("[[model]]\nname = \"x\"", "\"x\""),
        ("allow_users = [\"nobody-of-this-name\"]", "knows no user \"nobody-of-this-name\""),
    ] {
        std::fs::write(&file, text).unwrap();
        let output = hobd(folder.path(), &["--config", name, "--check-config"]);
        assert_eq!(output.status.code(), Some(78), "{text}");
        assert!(told(&output).contains(expected), "{text}: {}", told(&output));
    }
    let output = hobd(folder.path(), &["--config", "/nonexistent"]);
    assert_eq!(output.status.code(), Some(78));
    let output = hobd(folder.path(), &["--kv-dtype", "f8"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn without_a_model_it_says_where_one_can_lie() {
    let folder = tempfile::tempdir().unwrap();
    let output = hobd(folder.path(), &[]);
    assert_eq!(output.status.code(), Some(78));
    assert!(told(&output).contains("hob pull"), "{}", told(&output));
}

#[test]
fn without_a_device_it_says_what_to_install_and_leaves_no_socket() {
    let folder = tempfile::tempdir().unwrap();
    let output = hobd(folder.path(), &["--model", "/dev/null"]);
    assert_eq!(output.status.code(), Some(69), "{}", told(&output));
    assert!(told(&output).contains("apt install"), "{}", told(&output));
    assert!(!folder.path().join("hob/hob.sock").exists());
}

#[tokio::test]
async fn a_second_daemon_ends_before_it_loads_anything() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hob/hob.sock");
    let _first = BoundSocket::bind(&path).unwrap();
    let output = hobd(folder.path(), &["--model", "/dev/null"]);
    assert_eq!(output.status.code(), Some(73), "{}", told(&output));
    let expected = format!("hobd is running already (process {})", std::process::id());
    assert!(told(&output).contains(&expected), "{}", told(&output));
    assert!(path.exists());
}
