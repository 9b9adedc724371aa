//! LoRA adapters through the `hobd` program: those of the configuration and those loaded at run
//! time, sessions with different ones side by side, against an engine on the reference executor.
#![allow(clippy::unwrap_used)]

mod adapters;
mod engine_support;
mod hobd_support;
#[path = "common/random.rs"]
mod random;
#[path = "idea/tiny.rs"]
mod tiny;

use std::collections::HashMap;
use std::path::Path;

use adapters::{Adapter, build, keys};
use engine_support::{Engine, request, small_pool};
use hob::engine::{AdapterSource, EngineOptions, GenerateRequest, NamedAdapter};
use hob::tensor::DType;
use hobd_support::{Daemon, hobd};
use serde_json::{Value, json};

/// Of log probabilities: a device's sums are taken in another order, and its cache may be f16.
const TOLERANCE: f64 = 0.02;

const TOKENS: usize = 8;

/// Name, parts of the model and seed of each adapter. The last one is loaded at run time.
const ADAPTERS: [(&str, &[&str], u64); 3] = [
    ("law", &["attn_q", "attn_v", "attn_output"], 11),
    ("verse", &["ffn_gate", "ffn_up", "ffn_down"], 12),
    ("late", &["attn_k", "ffn_up", "ffn_gate"], 13),
];

/// What sessions use: names and scales.
const MIXES: [&[(&str, f32)]; 4] =
    [&[], &[("law", 1.0)], &[("verse", 0.5)], &[("verse", -0.75), ("law", 0.5)]];

const LATE: &[(&str, f32)] = &[("late", 1.0), ("law", 0.25)];

fn write_adapters(folder: &Path, model: &Path) -> Vec<AdapterSource> {
    let base = hob::hf::open_model(model, None).unwrap();
    let write = |(name, parts, seed): &(&str, &[&'static str], u64)| {
        let (parts, seed) = (parts.to_vec(), *seed);
        let adapter = Adapter { seed, rank: 4, alpha: 16.0, parts, dtype: DType::F16 };
        let path = folder.join(format!("{name}.gguf"));
        std::fs::write(&path, build(&base, &adapter)).unwrap();
        AdapterSource { name: (*name).to_owned(), path }
    };
    ADAPTERS.iter().map(write).collect()
}

fn prompt() -> Vec<u32> {
    (0..20).map(|at| (at * 7 + at * at % 5) % 64 + 4).collect()
}

/// Tokens and log probabilities that the reference executor generates.
fn reference(engine: &Engine, mix: &[(&str, f32)]) -> (Vec<u32>, Vec<f64>) {
    let named = |(name, scale): &(&str, f32)| NamedAdapter { name: (*name).into(), scale: *scale };
    let adapters = mix.iter().map(named).collect();
    let request = request(None, &prompt(), TOKENS as u32);
    let result = engine.run(GenerateRequest { adapters, logprobs: Some(0), ..request });
    let logprobs = result.logprobs.unwrap().iter().map(|item| item.logprob.into()).collect();
    (result.tokens, logprobs)
}

fn lora(mix: &[(&str, f32)]) -> Value {
    mix.iter().map(|(name, scale)| json!({"name": name, "scale": scale})).collect()
}

fn params() -> Value {
    json!({"tokens": prompt(), "max_tokens": TOKENS, "temperature": 0, "repeat_penalty": 1,
           "logprobs": 0})
}

fn with(mut params: Value, more: Value) -> Value {
    params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    params
}

/// What a reply says was generated.
fn told(result: &Value) -> (Vec<u32>, Vec<f64>) {
    let tokens: Vec<u32> = serde_json::from_value(result["tokens"].clone()).unwrap();
    let logprobs = result["logprobs"].as_array().unwrap().iter();
    (tokens, logprobs.map(|item| item["logprob"].as_f64().unwrap()).collect())
}

fn assert_near(found: &(Vec<u32>, Vec<f64>), wanted: &(Vec<u32>, Vec<f64>), what: &str) {
    assert_eq!(found.0, wanted.0, "{what}");
    let worst = found.1.iter().zip(&wanted.1).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(worst <= TOLERANCE, "{what}: off by {worst}");
}

/// A daemon with the first two adapters, the paths of all, and the folder they are in. `check`: its
/// kernels at the start.
fn start(check: bool) -> (Daemon, Vec<AdapterSource>, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let [model, _] = tiny::write(folder.path());
    let sources = write_adapters(folder.path(), &model);
    let lora: Vec<String> = sources[..2]
        .iter()
        .map(|source| format!("{}={}", source.name, source.path.display()))
        .collect();
    let config = folder.path().join("hobd.toml");
    let check = if check { "auto" } else { "never" };
    let text = format!(
        "model = {model:?}\nlora = {lora:?}\ncontext_tokens = 96\nself_check = {check:?}\n"
    );
    std::fs::write(&config, text).unwrap();
    let mut command = hobd(folder.path());
    command.arg("--config").arg(&config);
    (Daemon::start_by(command, folder.path()), sources, folder)
}

/// Generates on several sessions at once; results by session.
fn together(daemon: &mut Daemon, sessions: &[u64]) -> HashMap<u64, Value> {
    for session in sessions {
        let id = i64::try_from(*session).unwrap();
        daemon.send(id, "generate", with(params(), json!({"session": session})));
    }
    let reply = |_| {
        let mut reply = daemon.next().unwrap();
        assert!(reply["error"].is_null(), "{reply}");
        (reply["id"].as_u64().unwrap(), reply["result"].take())
    };
    sessions.iter().map(reply).collect()
}

fn create(daemon: &mut Daemon, mix: &[(&str, f32)]) -> u64 {
    daemon.result("session.create", json!({"lora": lora(mix)}))["session"].as_u64().unwrap()
}

#[test]
fn sessions_with_different_adapters_answer_side_by_side_as_alone_and_as_the_reference_does() {
    let (mut daemon, sources, _folder) = start(true);
    let facts = daemon.result("initialize", json!({}));
    assert_eq!(facts["model"]["adapters"], json!(["law", "verse"]));
    let options = EngineOptions { adapters: sources.clone(), ..small_pool() };
    let engine = Engine::start(&options);
    let alone: Vec<Value> = MIXES
        .iter()
        .map(|mix| daemon.result("generate", with(params(), json!({"lora": lora(mix)}))))
        .collect();
    let sessions = MIXES.map(|mix| create(&mut daemon, mix));
    let results = together(&mut daemon, &sessions);
    for ((mix, session), alone) in MIXES.iter().zip(sessions).zip(&alone) {
        let result = &results[&session];
        assert_eq!(result["logprobs"], alone["logprobs"], "{mix:?}: not as alone");
        assert_near(&told(result), &reference(&engine, mix), &format!("{mix:?}"));
    }
    for (at, result) in alone.iter().enumerate().skip(1) {
        assert_ne!(result["logprobs"], alone[0]["logprobs"], "{:?} changes nothing", MIXES[at]);
    }

    // One more, while the model stays and sessions keep their caches.
    let load = json!({"name": "late", "path": sources[2].path});
    let loaded = daemon.result("lora.load", load.clone());
    assert_eq!((&loaded["name"], &loaded["sessions"]), (&json!("late"), &json!(0)));
    assert_eq!(daemon.error("lora.load", load)["code"], -32033);
    let late = create(&mut daemon, LATE);
    let all = [&sessions[..], &[late]].concat();
    let results = together(&mut daemon, &all);
    assert_near(&told(&results[&late]), &reference(&engine, LATE), "late");
    for (session, alone) in sessions.iter().zip(&alone) {
        let result = &results[session];
        assert_eq!(result["usage"]["cached_tokens"], prompt().len() - 1);
        assert_eq!(told(result).0, told(alone).0);
    }
    let list = daemon.result("lora.list", json!({}));
    let counts: Vec<&Value> = list["adapters"].as_array().unwrap().iter().collect();
    assert_eq!(counts.iter().map(|a| &a["sessions"]).collect::<Vec<_>>(), [3, 2, 1]);
    assert!(counts.iter().all(|adapter| adapter["bytes"].as_u64() > Some(1000)), "{list}");

    // It goes once nobody uses it; its name is then free for another file.
    let error = daemon.error("lora.unload", json!({"name": "late"}));
    assert_eq!((&error["code"], &error["data"]["sessions"]), (&json!(-32035), &json!(1)));
    daemon.result("session.close", json!({"session": late}));
    daemon.result("lora.unload", json!({"name": "late"}));
    let error = daemon.error("session.create", json!({"lora": lora(LATE)}));
    assert_eq!(error["message"], "no adapter \"late\"; the model has law, verse");
    daemon.result("lora.load", json!({"name": "late", "path": sources[1].path}));
    let as_verse =
        daemon.result("generate", with(params(), json!({"lora": lora(&[("late", 0.5)])})));
    assert_eq!(as_verse["logprobs"], alone[2]["logprobs"], "the same file, the same bits");
    assert_eq!(daemon.stop().0, Some(0));
    engine.stop();
}

#[test]
fn adapters_of_other_models_are_refused_by_the_daemon_and_all_goes_on() {
    let (mut daemon, sources, folder) = start(false);
    let model = folder.path().join("llama.gguf");
    let path = folder.path().join("other.gguf");
    let base = hob::hf::open_model(&model, None).unwrap();
    let right = build(
        &base,
        &Adapter { seed: 1, rank: 4, alpha: 1.0, parts: vec!["attn_q"], dtype: DType::F32 },
    );
    let zeros = |len: usize| vec![0; len * 4];
    let narrow = keys("llama", 1.0)
        .tensor("blk.0.attn_q.weight.lora_a", DType::F32, &[32, 4], &zeros(128))
        .tensor("blk.0.attn_q.weight.lora_b", DType::F32, &[4, 192], &zeros(768));
    for (bytes, wanted) in [
        (keys("qwen2", 1.0).build(), "wanted \"llama\", found \"qwen2\""),
        (narrow.build(), "wanted shape [64, 4], for blk.0.attn_q.weight of shape [64, 192]"),
        (std::fs::read(&model).unwrap(), "general.type"),
        (right[..right.len() / 2].to_vec(), "other.gguf"),
        (b"no GGUF file".to_vec(), "other.gguf"),
    ] {
        std::fs::write(&path, bytes).unwrap();
        let error = daemon.error("lora.load", json!({"name": "other", "path": path}));
        let message = error["message"].as_str().unwrap();
        assert_eq!(error["code"], -32034, "{message}");
        assert!(message.contains(wanted) && message.contains("other.gguf"), "{message}");
    }
    for (params, wanted) in [
        (json!({"name": "a b", "path": path}), "without spaces"),
        (json!({"name": "a", "path": "other.gguf"}), "an absolute path"),
    ] {
        let error = daemon.error("lora.load", params);
        assert_eq!(error["code"], -32602);
        assert!(error["message"].as_str().unwrap().contains(wanted), "{error}");
    }
    assert_eq!(daemon.error("lora.unload", json!({"name": "none"}))["code"], -32602);
    // Unloaded and loaded again, the model still has what was added to it.
    daemon.result("lora.load", json!({"name": "late", "path": sources[2].path}));
    let with_late = with(params(), json!({"lora": lora(LATE)}));
    let before = daemon.result("generate", with_late.clone());
    daemon.result("model.unload", json!({}));
    assert_eq!(daemon.result("lora.list", json!({}))["adapters"][2]["name"], "late");
    daemon.send(5, "generate", with_late);
    assert_eq!(daemon.next().unwrap()["method"], "model.loading");
    let after = daemon.next().unwrap();
    assert_eq!(after["result"]["logprobs"], before["logprobs"]);
    assert_eq!(daemon.stop().0, Some(0));
}
