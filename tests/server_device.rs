//! The `hobd` program on a Vulkan device, with the tiny models of the shared reference files.
#![allow(clippy::unwrap_used)]

#[path = "architectures/mod.rs"]
mod architectures;
mod common;
mod hf_support;
mod hobd_support;
#[path = "common/random.rs"]
mod random;
#[path = "idea/tiny.rs"]
mod tiny;

use std::path::{Path, PathBuf};
use std::time::Duration;

use architectures::Tiny;
use hob::gguf::GgufFile;
use hobd_support::{Daemon, hobd};
use serde_json::{Value, json};

/// hobd promises to end in 5 s.
const STOP_MAX: Duration = Duration::from_secs(5);

fn models() -> Option<PathBuf> {
    let shared = std::env::var_os("HOB_SHARED").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../shared")),
        PathBuf::from,
    );
    let folder = shared.join("tiny/malformed");
    if folder.is_dir() {
        return Some(folder);
    }
    println!("skipped: shared files absent");
    None
}

#[test]
fn a_daemon_generates_and_ends_in_order_while_it_is_busy() {
    let Some(models) = models() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut daemon = Daemon::start(&models.join("ok-plain.gguf"), folder.path());
    let params = json!({"tokens": [5, 6, 7], "max_tokens": 4, "temperature": 0, "logprobs": 2});
    let alone = daemon.result("generate", params.clone());
    assert_eq!(alone["usage"]["prompt_tokens"], 3);
    assert_eq!(daemon.result("generate", params)["logprobs"], alone["logprobs"]);
    assert_eq!(daemon.result("status", json!({}))["running"], 0);
    // A token outside its vocabulary, and a prompt past its context.
    daemon.send(2, "generate", json!({"tokens": [999_999]}));
    assert_eq!(daemon.next().unwrap()["error"]["code"], -32008);
    daemon.send(3, "generate", json!({"tokens": vec![5; 100_000]}));
    assert_eq!(daemon.next().unwrap()["error"]["code"], -32002);
    let long = json!({"tokens": [5], "max_tokens": 100_000, "stream": true, "temperature": 100});
    daemon.send(4, "generate", long);
    assert_eq!(daemon.next().unwrap()["method"], "generate.token");
    let (code, took) = daemon.stop();
    assert_eq!(code, Some(0));
    assert!(took < STOP_MAX, "{took:?}");
    let mut last = Value::Null;
    while let Some(message) = daemon.next() {
        last = message;
    }
    // It may just have come to its end by itself.
    let reason = last["result"]["finish_reason"].as_str();
    assert!(matches!(reason, Some("cancelled" | "length" | "stop")), "{last}");
    assert!(!folder.path().join("hob.sock").exists());
}

#[test]
fn two_models_take_turns_on_a_device_that_may_hold_one() {
    let folder = tempfile::tempdir().unwrap();
    let models = tiny::write(folder.path());
    let tables = models.each_ref().map(|path| {
        let name = path.file_stem().unwrap().to_str().unwrap();
        format!("[[model]]\nname = {name:?}\npath = {path:?}\ncontext_tokens = 96\n")
    });
    let names =
        models.each_ref().map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned());
    let config = folder.path().join("hobd.toml");
    std::fs::write(&config, format!("models_loaded_max = 1\n{}", tables.concat())).unwrap();
    let mut command = hobd(folder.path());
    command.arg("--config").arg(&config);
    let mut daemon = Daemon::start_by(command, folder.path());

    daemon.result("session.create", json!({"name": "kept"}));
    let prompt = json!([5, 6, 7, 8, 9]);
    let params = |more: Value| {
        let mut params = json!({"tokens": prompt, "max_tokens": 6, "temperature": 0});
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        params
    };
    let first = daemon.result("generate", params(json!({"session": "kept"})));
    // The other is loaded in its place, and the first comes back with its session's cache.
    daemon.send(2, "generate", params(json!({"model": names[1]})));
    let news = daemon.next().unwrap();
    assert_eq!(
        (&news["method"], &news["params"]["model"]),
        (&json!("model.loading"), &json!(names[1]))
    );
    let second = daemon.next().unwrap();
    assert_eq!(second["result"]["tokens"].as_array().unwrap().len(), 6, "{second}");
    let list = daemon.result("model.list", json!({}));
    let states = [0, 1].map(|at| list["models"][at]["state"].clone());
    assert_eq!(states, ["unloaded", "loaded"]);
    daemon.send(3, "generate", params(json!({"session": "kept"})));
    assert_eq!(daemon.next().unwrap()["method"], "model.loading");
    let again = daemon.next().unwrap();
    assert_eq!(again["result"]["tokens"], first["tokens"]);
    assert_eq!(again["result"]["usage"]["cached_tokens"], 4);
    assert_eq!(daemon.stop().0, Some(0));
}

#[test]
fn a_folder_is_served_as_the_file_of_its_weights_is() {
    let place = tempfile::tempdir().unwrap();
    let file = Tiny::LLAMA.write(place.path());
    let folder = place.path().join("river");
    std::fs::create_dir(&folder).unwrap();
    hf_support::write_folder(&folder, &GgufFile::open(&file).unwrap(), "llama", 2);
    let answer = |model: &Path| {
        let own = tempfile::tempdir().unwrap();
        let mut daemon = Daemon::start(model, own.path());
        let facts = daemon.result("initialize", json!({}))["model"].take();
        let params = json!({
            "prompt": "A river", "max_tokens": 8, "temperature": 0, "repeat_penalty": 1, "logprobs": 1,
        });
        let answer = daemon.result("generate", params);
        assert_eq!(answer["usage"]["completion_tokens"], 8, "{answer}");
        assert_eq!(daemon.stop().0, Some(0));
        (facts, answer["logprobs"].clone())
    };
    let (facts, logprobs) = answer(&folder);
    assert_eq!((&facts["name"], &facts["has_chat_template"]), (&json!("river"), &json!(true)));
    // As its generation_config.json has it, and otherwise built in.
    let sampling = json!({
        "temperature": 0.5, "top_k": 7, "top_p": 0.95, "min_p": 0.125, "repeat_penalty": 1.25,
        "presence_penalty": 0.0, "frequency_penalty": 0.0,
    });
    assert_eq!(facts["sampling"], sampling);
    assert_eq!(logprobs, answer(&file).1);
}

#[test]
fn malformed_models_are_named_with_what_is_wrong() {
    let Some(models) = models() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut count = 0;
    for entry in std::fs::read_dir(models).unwrap() {
        let model = entry.unwrap().path();
        let name = model.file_name().unwrap().to_str().unwrap().to_owned();
        if !name.starts_with("bad-") {
            continue;
        }
        count += 1;
        let mut command = hobd(folder.path());
        command.arg("--model").arg(&model).args(["--log-level", "error"]);
        let output = command.output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(78), "{name}: {told}");
        assert!(told.contains(&*model.to_string_lossy()), "{name}: {told}");
        assert!(!folder.path().join("hob.sock").exists(), "{name}");
    }
    assert!(count > 30, "{count} files");
}
