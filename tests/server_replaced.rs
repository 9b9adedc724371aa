//! hobd and a model whose file another one takes the place of: it is answered by what is there now.
#![allow(clippy::unwrap_used)]

mod hobd_support;
#[path = "common/random.rs"]
mod random;
#[path = "idea/tiny.rs"]
mod tiny;

use std::fs::{self, File};
use std::path::Path;

use hobd_support::{Daemon, hobd};
use serde_json::{Value, json};

const PROMPT: [u32; 6] = [5, 40, 11, 60, 22, 33];

/// A daemon with a default model, and with the model `x`.
fn start(folder: &Path) -> Daemon {
    let [first, x] = ["first.gguf", "x.gguf"].map(|name| folder.join(name));
    let text = format!(
        "[[model]]\nname = \"first\"\npath = {first:?}\n[[model]]\nname = \"x\"\npath = {x:?}\n"
    );
    let config = folder.join("hobd.toml");
    fs::write(&config, text).unwrap();
    let mut command = hobd(folder);
    command.arg("--config").arg(config).args(["--self-check", "never", "--context-tokens", "96"]);
    Daemon::start_by(command, folder)
}

/// The reply to a request, behind the news of loads.
fn reply(daemon: &mut Daemon, method: &str, params: Value) -> Value {
    daemon.send(1, method, params);
    loop {
        let message = daemon.next().unwrap();
        if message["id"] == 1 {
            return message;
        }
    }
}

fn answer(daemon: &mut Daemon, model: &str) -> Value {
    let params = json!({"model": model, "tokens": PROMPT, "max_tokens": 6, "temperature": 0});
    reply(daemon, "generate", params)
}

fn unload(daemon: &mut Daemon, model: &str) {
    daemon.result("model.unload", json!({"model": model}));
}

#[test]
fn a_model_is_answered_by_the_file_that_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let [one, _] = tiny::write(folder.path());
    let (first, x) = (folder.path().join("first.gguf"), folder.path().join("x.gguf"));
    fs::copy(&one, &first).unwrap();
    fs::copy(&one, &x).unwrap();
    let other = folder.path().join("other");
    fs::write(&other, tiny::other()).unwrap();
    let mut daemon = start(folder.path());
    let old = answer(&mut daemon, "x")["result"]["tokens"].take();
    daemon.result("session.create", json!({"model": "x", "name": "notes"}));
    let in_session = |tokens: &[u32]| json!({"session": "notes", "tokens": tokens, "max_tokens": 1, "temperature": 0});
    daemon.result("generate", in_session(&PROMPT));

    // Replaced by a rename.
    unload(&mut daemon, "x");
    fs::rename(&other, &x).unwrap();
    let new = answer(&mut daemon, "x")["result"]["tokens"].take();
    assert_ne!(new, old);
    let told = daemon.error("generate", in_session(&PROMPT));
    assert_eq!(told["code"], -32003, "{told}");
    assert!(told["message"].as_str().unwrap().contains("another file"), "{told}");
    daemon.result("session.create", json!({"model": "x", "name": "notes"}));
    daemon.result("generate", in_session(&PROMPT));

    // Copied over: cut off first, then whole. A session whose file comes back unchanged goes on.
    unload(&mut daemon, "x");
    let bytes = fs::read(&x).unwrap();
    let file = File::options().write(true).open(&x).unwrap();
    file.set_len(bytes.len() as u64 / 2).unwrap();
    let told = answer(&mut daemon, "x");
    assert_eq!(told["error"]["code"], -32031, "{told}");
    fs::write(&x, &bytes).unwrap();
    assert_eq!(answer(&mut daemon, "x")["result"]["tokens"], new);
    let list = daemon.result("session.list", json!({}));
    assert_eq!(list["sessions"][0]["tokens"], PROMPT.len(), "{list}");

    // Removed.
    unload(&mut daemon, "x");
    fs::remove_file(&x).unwrap();
    let told = answer(&mut daemon, "x");
    assert!(told["error"]["message"].as_str().unwrap().contains("x.gguf"), "{told}");

    // The default model is no exception, and the daemon goes on with it.
    assert_eq!(answer(&mut daemon, "first")["result"]["tokens"], old);
    unload(&mut daemon, "first");
    fs::write(&first, tiny::other()).unwrap();
    assert_eq!(answer(&mut daemon, "first")["result"]["tokens"], new);
    assert_eq!(daemon.result("status", json!({}))["model"]["name"], "first");
    assert_eq!(daemon.stop().0, Some(0));
}
