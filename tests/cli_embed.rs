//! `hobd` with an encoder on a device, and `hob embed` in front of it.
#![allow(clippy::unwrap_used)]

mod cli_support;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use cli_support::{hob, stderr, stdout, with_stdin};
use serde_json::Value;

/// A running daemon; killed where a test fails.
struct Daemon {
    child: Child,
    folder: tempfile::TempDir,
}

impl Daemon {
    fn start(model: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_hobd"));
        command.arg("--model").arg(model).arg("--socket").arg(folder.path().join("hob.sock"));
        for name in ["XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"] {
            command.env(name, folder.path());
        }
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        assert!(log.any(|line| line.contains(" ready")), "hobd ended: {}", child.wait().unwrap());
        std::thread::spawn(move || log.for_each(drop));
        Self { child, folder }
    }

    fn hob(&self, arguments: &[&str]) -> Command {
        let mut command = hob(arguments);
        command.env("HOB_SOCKET", self.folder.path().join("hob.sock"));
        command
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}

/// The texts of the golden file of this encoder, whose words are `w0`, `w1` and so on, and what
/// llama.cpp makes of them.
fn goldens() -> Vec<(String, Vec<f64>)> {
    let golden = include_str!("data/encoders/bert-mean.golden.json");
    let goldens: Vec<Value> = serde_json::from_str(golden).unwrap();
    let word = |token: &Value| match token.as_u64().unwrap() {
        token @ 5..45 => Some(format!("w{}", token - 5)),
        2 | 3 => Some(String::new()),
        _ => None, // a piece of a word
    };
    let of = |golden: &Value| {
        let words: Option<Vec<String>> =
            golden["tokens"].as_array().unwrap().iter().map(word).collect();
        let text = words?.join(" ").trim().to_owned();
        Some((text, serde_json::from_value(golden["embedding"].clone()).unwrap()))
    };
    goldens.iter().filter_map(of).collect()
}

#[test]
fn an_encoder_is_served_and_generates_nothing() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/encoders/bert-mean.gguf");
    let daemon = Daemon::start(&model);
    let goldens = goldens();
    assert!(!goldens.is_empty());
    let lines: Vec<&str> = goldens.iter().map(|(text, _)| text.as_str()).collect();
    let output = with_stdin(daemon.hob(&["embed", "--json"]), lines.join("\n").as_bytes());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let told: Vec<Value> =
        stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(told.len(), goldens.len());
    for ((text, wanted), found) in goldens.iter().zip(&told) {
        assert_eq!(found["text"], text.as_str());
        let values: Vec<f64> = serde_json::from_value(found["embedding"].clone()).unwrap();
        assert_eq!(values.len(), wanted.len());
        let worst = values.iter().zip(wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(worst < 0.001, "{text}: off by {worst}");
    }
    // The same digits alone as among others.
    let alone = daemon.hob(&["embed", lines[0]]).output().unwrap();
    let numbers: Vec<f64> =
        stdout(&alone).split_whitespace().map(|number| number.parse().unwrap()).collect();
    assert_eq!(Value::from(numbers), told[0]["embedding"]);
    let long = vec!["w7"; 500].join(" ");
    let output = daemon.hob(&["embed", "--json", &long]).output().unwrap();
    let cut: Value = serde_json::from_str(stdout(&output)).unwrap();
    assert_eq!((&cut["tokens"], &cut["truncated"]), (&Value::from(128), &Value::from(true)));
    assert!(stderr(&output).contains("had more than 128 tokens"), "{}", stderr(&output));
    let output = daemon.hob(&["embed", "--no-truncate", &long]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("502 tokens; the context holds 128"), "{}", stderr(&output));
    let output = with_stdin(daemon.hob(&["run", "hello"]), b"");
    assert_eq!(output.status.code(), Some(1));
    let told = stderr(&output);
    assert!(told.contains("bert models make embeddings and generate no text"), "{told}");
    let output = with_stdin(daemon.hob(&["embed"]), b"\n\n");
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}
