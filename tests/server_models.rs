//! Several models behind one server: loads on demand, room, and whose sessions are whose.
#![allow(clippy::unwrap_used)]

#[path = "server_support/mod.rs"]
mod server_support;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use hob::config::Config;
use hob::engine::{EngineHandle, EngineThread, GenerateRequest, LoadFailure, Owner};
use hob::server::{Library, ModelSpec, Models, SaveLimits, Server, ServerOptions};
use serde_json::{Value, json};
use server_support::{ADA, Client, HOLD, Mock, PATIENCE, code};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Models a, b (alias bee), p (pinned) and big, beside the default.
#[derive(Debug, Default)]
struct Shelf {
    numbers: Arc<AtomicU64>,
    started: Mutex<Vec<String>>,
    engines: Mutex<Vec<(String, mpsc::UnboundedReceiver<GenerateRequest>)>>,
    handles: Mutex<BTreeMap<String, EngineHandle>>,
    /// The next loads of `big` that fail for want of memory.
    refusals: Mutex<usize>,
}

fn spec(name: &str) -> ModelSpec {
    ModelSpec { name: name.to_owned(), pinned: name == "p", ..ModelSpec::default() }
}

impl Library for Shelf {
    fn models(&self) -> Vec<ModelSpec> {
        let bee = ModelSpec { aliases: vec!["bee".to_owned()], ..spec("b") };
        vec![spec("a"), bee, spec("p"), spec("big"), spec("broken")]
    }

    fn look_at(&self, model: &ModelSpec) -> Result<(), LoadFailure> {
        let message = "broken.gguf: not a GGUF file".to_owned();
        match model.name == "broken" {
            true => Err(LoadFailure { message, no_room: false, replaced: false }),
            false => Ok(()),
        }
    }

    fn start(&self, model: &ModelSpec) -> Result<(EngineHandle, EngineThread), LoadFailure> {
        let failure = |message: &str, no_room| {
            Err(LoadFailure { message: message.to_owned(), no_room, replaced: false })
        };
        let mut refusals = self.refusals.lock().unwrap();
        if model.name == "big" && *refusals > 0 {
            *refusals -= 1;
            return failure("no memory", true);
        }
        self.started.lock().unwrap().push(model.name.clone());
        let mock = Mock::named(&model.name, Arc::clone(&self.numbers));
        self.engines.lock().unwrap().push((model.name.clone(), mock.arrived));
        self.handles.lock().unwrap().insert(model.name.clone(), mock.handle.clone());
        Ok((mock.handle, std::thread::spawn(|| Ok(()))))
    }
}

struct Setting {
    shelf: Arc<Shelf>,
    models: Models,
    server: Server,
}

impl Setting {
    async fn shut_down(&self) {
        let limits = SaveLimits { patience: PATIENCE, while_it_moves: false };
        self.models.shut_down(limits, || ()).await;
    }

    fn start(loaded_max: usize) -> Self {
        let shelf = Arc::new(Shelf::default());
        let mock = Mock::named("first", Arc::clone(&shelf.numbers));
        shelf.engines.lock().unwrap().push(("first".to_owned(), mock.arrived));
        let library: Arc<dyn Library> = Arc::<Shelf>::clone(&shelf);
        let models = Models::new(spec("first"), mock.handle, library, loaded_max);
        let options = ServerOptions::from(&Config::default());
        let server = Server::with_models(models.clone(), options, CancellationToken::new());
        Self { shelf, models, server }
    }

    fn connect(&self) -> Client {
        self.connect_as(ADA)
    }

    fn connect_as(&self, owner: Owner) -> Client {
        let (ours, theirs) = UnixStream::pair().unwrap();
        self.server.serve_stream(theirs, owner);
        Client::new(ours)
    }

    /// Names of the models on the device.
    async fn loaded(&self, client: &mut Client) -> Vec<String> {
        let list = client.call("model.list", json!({})).await;
        let models = list["result"]["models"].as_array().unwrap().iter();
        let loaded = models.filter(|model| model["state"] == "loaded");
        loaded.map(|model| model["name"].as_str().unwrap().to_owned()).collect()
    }

    /// Requests that a model's engine got since the last look.
    fn arrived(&self, name: &str) -> usize {
        let mut engines = self.shelf.engines.lock().unwrap();
        let engine = engines.iter_mut().find(|(known, _)| known == name);
        engine.map_or(0, |(_, arrived)| std::iter::from_fn(|| arrived.try_recv().ok()).count())
    }
}

/// Generates a token, passing over the news of loads; the reply, and how many there were.
async fn generate(client: &mut Client, model: Value) -> (Value, usize) {
    client.ask("g", "generate", json!({"model": model, "tokens": [100], "max_tokens": 1})).await;
    let mut loads = 0;
    loop {
        let message = client.message().await;
        if message["method"] != "model.loading" {
            return (message, loads);
        }
        assert_eq!(message["params"]["id"], "g", "{message}");
        loads += 1;
    }
}

#[tokio::test]
async fn a_model_is_loaded_when_it_is_named_and_its_client_hears_of_it() {
    let setting = Setting::start(3);
    let mut client = setting.connect();
    let (reply, loads) = generate(&mut client, Value::Null).await;
    assert_eq!((&reply["result"]["text"], loads), (&json!("a"), 0));
    assert_eq!((setting.arrived("first"), setting.arrived("b")), (1, 0));
    let (reply, loads) = generate(&mut client, json!("bee")).await;
    assert_eq!((&reply["result"]["text"], loads), (&json!("a"), 1));
    assert_eq!((setting.arrived("first"), setting.arrived("b")), (0, 1));
    assert_eq!(generate(&mut client, json!("b")).await.1, 0);
    let tokens = client.call("tokenize", json!({"model": "b", "text": "x"})).await;
    assert!(tokens["result"]["tokens"].is_array(), "{tokens}");
    let facts = client.call("model.load", json!({"model": "bee"})).await;
    assert_eq!(
        (&facts["result"]["name"], &facts["result"]["facts"]["name"]),
        (&json!("b"), &json!("b"))
    );
    assert_eq!(setting.loaded(&mut client).await, ["first", "b"]);
    assert_eq!(*setting.shelf.started.lock().unwrap(), ["b"]);
    let limits = SaveLimits { patience: PATIENCE, while_it_moves: false };
    let ending = setting.models.shut_down(limits, || ()).await;
    assert_eq!((ending.lost(), ending.panicked), (0, false));
}

#[tokio::test]
async fn what_is_not_there_or_cannot_be_loaded_is_told() {
    let setting = Setting::start(1);
    let mut client = setting.connect();
    let (reply, _) = generate(&mut client, json!("bea")).await;
    assert_eq!(code(&reply), -32030);
    let message = reply["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("no model \"bea\"; there are first, a, b, p, big"), "{message}");
    assert_eq!(reply["error"]["data"]["models"][0], "first");
    let before = setting.loaded(&mut client).await.len();
    let (reply, _) = generate(&mut client, json!("broken")).await;
    assert_eq!(code(&reply), -32031);
    let message = reply["error"]["message"].as_str().unwrap();
    assert!(message.contains("broken.gguf: not a GGUF file"), "{message}");
    assert_eq!(setting.loaded(&mut client).await.len(), before, "nobody made way for it");
    assert_eq!(code(&client.call("model.unload", json!({"model": "x"})).await), -32030);
    // All goes on.
    assert_eq!(generate(&mut client, json!("a")).await.0["result"]["text"], "a");
}

#[tokio::test]
async fn the_one_unused_for_longest_gives_way_unless_it_is_pinned_or_in_use() {
    let setting = Setting::start(2);
    let mut client = setting.connect();
    generate(&mut client, json!("a")).await;
    generate(&mut client, Value::Null).await;
    generate(&mut client, json!("b")).await;
    assert_eq!(setting.loaded(&mut client).await, ["first", "b"], "a was used before the default");
    generate(&mut client, json!("p")).await;
    assert_eq!(setting.loaded(&mut client).await, ["b", "p"]);
    generate(&mut client, json!("a")).await;
    assert_eq!(setting.loaded(&mut client).await, ["a", "p"], "p is pinned");
    // While a is used, there is nobody to make room.
    setting.arrived("a");
    let mut holder = setting.connect();
    holder.ask(1, "generate", json!({"model": "a", "tokens": [HOLD], "max_tokens": 1})).await;
    let held = async {
        while setting.arrived("a") < 1 {
            sleep(std::time::Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, held).await.expect("it runs");
    let (reply, _) = generate(&mut client, json!("b")).await;
    assert_eq!(code(&reply), -32031);
    assert!(reply["error"]["message"].as_str().unwrap().contains("in use or pinned"), "{reply}");
    assert_eq!(code(&client.call("model.unload", json!({"model": "a"})).await), -32032);
    holder.ask(2, "cancel", json!({"id": 1})).await;
    assert_eq!(holder.message().await["result"]["cancelled"], true);
    assert_eq!(holder.message().await["result"]["finish_reason"], "cancelled");
    // The default comes back with the engine it had; so does what is unloaded by hand.
    let (reply, loads) = generate(&mut client, Value::Null).await;
    assert_eq!((&reply["result"]["text"], loads), (&json!("a"), 1));
    let mut operator = setting.connect_as(stranger(0));
    let unloaded = operator.call("model.unload", json!({"model": "p"})).await;
    assert_eq!(unloaded["result"]["name"], "p");
    assert_eq!(setting.loaded(&mut client).await, ["first"]);
    assert_eq!(*setting.shelf.started.lock().unwrap(), ["a", "b", "p"]);
}

#[tokio::test]
async fn a_model_that_left_the_device_by_itself_is_loaded_when_it_is_named() {
    let setting = Setting::start(2);
    let mut client = setting.connect();
    generate(&mut client, json!("a")).await;
    setting.shelf.handles.lock().unwrap()["a"].on_device.store(false, Ordering::Release);
    assert_eq!(setting.loaded(&mut client).await, ["first"]);
    // It takes nobody's place meanwhile.
    generate(&mut client, json!("b")).await;
    assert_eq!(setting.loaded(&mut client).await, ["first", "b"]);
    let (reply, loads) = generate(&mut client, json!("a")).await;
    assert_eq!((&reply["result"]["text"], loads), (&json!("a"), 1));
    assert_eq!(setting.loaded(&mut client).await, ["a", "b"]);
    let metrics = client.call("metrics", json!({})).await;
    let text = metrics["result"]["text"].as_str().unwrap();
    for model in ["first", "a", "b"] {
        assert!(text.contains(&format!("hob_sessions{{model=\"{model}\"}} 0")), "{text}");
    }
}

#[tokio::test]
async fn status_counts_all_models_and_tells_of_each() {
    let setting = Setting::start(3);
    let mut client = setting.connect();
    for (model, name) in [("first", "one"), ("a", "two"), ("a", "three")] {
        client.ask(1, "session.create", json!({"model": model, "name": name})).await;
        while client.message().await["id"] != 1 {}
    }
    client.call("model.unload", json!({"model": "first"})).await;
    let status = client.call("status", json!({})).await["result"].take();
    assert_eq!((&status["model"]["name"], &status["sessions"]), (&json!("first"), &json!(3)));
    let of = |at: usize| {
        let model = &status["models"][at];
        (model["name"].clone(), model["sessions"].clone())
    };
    assert_eq!([of(0), of(1)], [(json!("first"), json!(1)), (json!("a"), json!(2))]);
    assert_eq!(status["models"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn a_device_that_is_full_makes_others_give_way_too() {
    let setting = Setting::start(8);
    let mut client = setting.connect();
    for model in ["a", "b"] {
        generate(&mut client, json!(model)).await;
    }
    *setting.shelf.refusals.lock().unwrap() = 2;
    let (reply, _) = generate(&mut client, json!("big")).await;
    assert_eq!(reply["result"]["text"], "a", "{reply}");
    assert_eq!(setting.loaded(&mut client).await, ["b", "big"]);
    client.call("model.unload", json!({"model": "big"})).await;
    // Without anybody to give way, the failure is told; big's engine is there, so it only waits.
    assert_eq!(generate(&mut client, json!("big")).await.0["result"]["text"], "a");
}

#[tokio::test]
async fn sessions_belong_to_a_model_and_are_found_without_it() {
    let setting = Setting::start(3);
    let mut client = setting.connect();
    generate(&mut client, json!("a")).await;
    setting.arrived("a");
    let create = |model: &str, name: &str| json!({"model": model, "name": name});
    let made = client.call("session.create", create("a", "notes")).await;
    let number = made["result"]["session"].as_u64().unwrap();
    let other = client.call("session.create", create("first", "other")).await;
    assert_ne!(other["result"]["session"], number);
    let taken = client.call("session.create", create("first", "notes")).await;
    assert_eq!(code(&taken), -32005, "one name, one session, whatever the model");
    for session in [json!(number), json!("notes")] {
        let params = json!({"session": session, "tokens": [100], "max_tokens": 1});
        let reply = client.call("generate", params).await;
        assert_eq!(reply["result"]["text"], "a", "{reply}");
    }
    assert_eq!((setting.arrived("a"), setting.arrived("first")), (2, 0));
    let params = json!({"model": "first", "session": "notes", "tokens": [100]});
    assert_eq!(code(&client.call("generate", params).await), -32003);
    let list = client.call("session.list", json!({})).await;
    assert_eq!(list["result"]["sessions"].as_array().unwrap().len(), 2);
    // Unloaded, it keeps them, and comes back for them.
    client.call("model.unload", json!({"model": "a"})).await;
    client.ask("g", "generate", json!({"session": number, "tokens": [100], "max_tokens": 1})).await;
    assert_eq!(client.message().await["method"], "model.loading");
    assert_eq!(client.message().await["result"]["text"], "a");
    assert_eq!(
        client.call("session.close", json!({"session": "notes"})).await["result"]["session"],
        number
    );
}

#[tokio::test]
async fn a_session_without_a_name_ends_with_the_connection_that_made_it() {
    let setting = Setting::start(3);
    let mut first = setting.connect();
    let named = first.call("session.create", json!({"name": "kept"})).await;
    first.call("session.create", json!({})).await;
    first.call("session.fork", json!({"session": "kept"})).await;
    let mut second = setting.connect();
    let count = async |client: &mut Client| {
        let list = client.call("session.list", json!({})).await;
        list["result"]["sessions"].as_array().unwrap().clone()
    };
    assert_eq!(count(&mut second).await.len(), 3);
    drop(first);
    let gone = async {
        while count(&mut second).await.len() > 1 {
            sleep(std::time::Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, gone).await.expect("they end");
    assert_eq!(count(&mut second).await[0]["session"], named["result"]["session"]);
}

/// Another user than root and this process's own.
fn stranger(number: u32) -> Owner {
    Owner { uid: rustix::process::geteuid().as_raw() + number }
}

#[tokio::test]
async fn users_unload_what_they_alone_use_and_operators_what_they_will() {
    let setting = Setting::start(4);
    setting.models.load_pinned().await;
    let (mut eve, mut bob) = (setting.connect_as(stranger(1)), setting.connect_as(stranger(2)));
    let mut operator = setting.connect_as(stranger(0));
    for model in ["a", "b"] {
        assert_eq!(generate(&mut bob, json!(model)).await.1, 1);
    }
    assert_eq!(generate(&mut eve, json!("b")).await.1, 0);
    for model in ["a", "b", "p"] {
        let refused = eve.call("model.unload", json!({"model": model})).await;
        assert_eq!(code(&refused), -32024, "{model}: {refused}");
    }
    assert_eq!(setting.loaded(&mut eve).await, ["first", "a", "b", "p"]);
    let unloaded = bob.call("model.unload", json!({"model": "a"})).await;
    assert_eq!(unloaded["result"]["name"], "a", "nobody else has used it");
    for model in ["b", "p"] {
        let unloaded = operator.call("model.unload", json!({"model": model})).await;
        assert_eq!(unloaded["result"]["name"], model, "{unloaded}");
    }
    setting.shut_down().await;
}

#[tokio::test]
async fn a_user_takes_others_models_off_the_device_once_in_a_while() {
    let setting = Setting::start(2);
    let (mut eve, mut bob) = (setting.connect_as(stranger(1)), setting.connect_as(stranger(2)));
    assert_eq!(generate(&mut bob, json!("first")).await.1, 0);
    assert_eq!(generate(&mut bob, json!("a")).await.1, 1);
    assert_eq!(generate(&mut eve, json!("b")).await.1, 1, "one load may");
    assert_eq!(setting.loaded(&mut eve).await, ["a", "b"], "of those, the one used longest ago");
    let (own, _) = generate(&mut eve, json!("big")).await;
    assert_eq!(own["result"]["text"], "a", "its own model makes way: {own}");
    assert_eq!(setting.loaded(&mut eve).await, ["a", "big"]);
    assert_eq!(generate(&mut bob, json!("big")).await.1, 0, "now others use that as well");
    let (refused, _) = generate(&mut eve, json!("b")).await;
    assert_eq!(code(&refused), -32031, "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("try again in"), "{refused}");
    assert_eq!(setting.loaded(&mut eve).await, ["a", "big"], "nobody made way");
    assert_eq!(generate(&mut bob, json!("first")).await.1, 1, "others have turns of their own");
    setting.shut_down().await;
}
