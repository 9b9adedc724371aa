//! LoRA adapters through the engine: sessions with different ones decode together, nobody's bits
//! depend on anybody else's, caches stay with their adapters, and saved sessions are bound to them.
#![allow(clippy::unwrap_used)]

mod adapters;
mod engine_support;
#[path = "common/random.rs"]
mod random;
#[path = "idea/tiny.rs"]
mod tiny;

use std::path::{Path, PathBuf};

use adapters::{Adapter, build};
use engine_support::{Engine, finish, prompt, request, small_pool};
use hob::engine::{
    AdapterSource, AdmitError, EngineEvent, EngineOptions, GenerateRequest, GenerateResult,
    NamedAdapter, SessionAction, SessionId, SessionOptions, StateOptions,
};
use hob::tensor::DType;

/// Writes two adapters of the tiny model, the first one's values by `seed`.
fn sources(folder: &Path, seed: u64) -> Vec<AdapterSource> {
    let [model, _] = tiny::write(folder);
    let base = hob::hf::open_model(&model, None).unwrap();
    let write = |name: &str, seed: u64, parts: &[&'static str]| {
        let parts = parts.to_vec();
        let adapter = Adapter { seed, rank: 4, alpha: 16.0, parts, dtype: DType::F32 };
        let path = folder.join(format!("{name}.gguf"));
        std::fs::write(&path, build(&base, &adapter)).unwrap();
        AdapterSource { name: name.to_owned(), path }
    };
    vec![
        write("law", seed, &["attn_q", "attn_k", "attn_v", "attn_output"]),
        write("verse", seed + 1, &["ffn_gate", "ffn_up", "ffn_down"]),
    ]
}

fn options(folder: &Path, seed: u64, state: Option<PathBuf>) -> EngineOptions {
    EngineOptions {
        adapters: sources(folder, seed),
        kv_tokens: 640,
        state: state.map(|folder| StateOptions {
            folder,
            model: "tiny".to_owned(),
            disk_cache_bytes: 0,
        }),
        ..small_pool()
    }
}

fn named(adapters: &[(&str, f32)]) -> Vec<NamedAdapter> {
    let of = |(name, scale): &(&str, f32)| NamedAdapter { name: (*name).to_owned(), scale: *scale };
    adapters.iter().map(of).collect()
}

fn session(engine: &Engine, adapters: &[(&str, f32)]) -> SessionId {
    engine.create(SessionOptions { adapters: named(adapters), ..SessionOptions::default() })
}

fn with_logprobs(request: GenerateRequest) -> GenerateRequest {
    GenerateRequest { logprobs: Some(3), ..request }
}

/// What was generated, to the bit.
fn told(result: &GenerateResult) -> (Vec<u32>, Vec<u32>) {
    let logprobs = result.logprobs.as_ref().unwrap();
    (result.tokens.clone(), logprobs.iter().map(|item| item.logprob.to_bits()).collect())
}

#[test]
fn sessions_with_different_adapters_decode_together_to_the_bits_that_each_has_alone() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::start(&options(folder.path(), 1, None));
    assert_eq!(engine.handle.model.adapters.list(), ["law", "verse"]);
    let mixes: [&[(&str, f32)]; 4] =
        [&[], &[("law", 1.0)], &[("verse", 0.5)], &[("verse", 1.0), ("law", -0.5)]];
    let text = prompt(4, 30);
    let request = || with_logprobs(request(None, &text, 12));
    let alone: Vec<_> = mixes
        .iter()
        .map(|mix| told(&engine.run(GenerateRequest { adapters: named(mix), ..request() })))
        .collect();
    let sessions = mixes.map(|mix| session(&engine, mix));
    let ask = |id: SessionId| engine.generate(GenerateRequest { session: Some(id), ..request() });
    let together = sessions.map(ask).map(finish);
    for ((alone, together), mix) in alone.iter().zip(&together).zip(mixes) {
        assert_eq!(&told(together), alone, "{mix:?}");
    }
    assert!((1..4).all(|at| alone[at] != alone[0]), "every adapter changes what is generated");
    engine.stop();
}

#[test]
fn a_session_and_its_forks_keep_their_adapters_and_their_caches() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::start(&options(folder.path(), 1, None));
    let law = session(&engine, &[("law", 1.0)]);
    let text = prompt(6, 40);
    let first = engine.run(with_logprobs(request(law, &text, 6)));
    let fork = engine.fork(law, None, Some(35)).unwrap();
    assert_eq!(fork.adapters, engine.info(law).adapters);
    let again = engine.run(with_logprobs(request(fork.id, &text, 6)));
    assert_eq!((again.cached_tokens, told(&again)), (35, told(&first)));
    // The same text under other adapters begins with an empty cache.
    let plain = engine.run(with_logprobs(request(session(&engine, &[]), &text, 6)));
    assert_eq!(plain.cached_tokens, 0);
    assert_ne!(told(&plain), told(&first));
    engine.stop();
}

#[test]
fn adapters_that_are_not_there_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::start(&options(folder.path(), 1, None));
    for (adapters, told) in [
        (named(&[("low", 1.0)]), "no adapter \"low\"; the model has law, verse"),
        (named(&[("law", 1.0), ("law", 2.0)]), "the adapter \"law\" is named twice"),
    ] {
        let request = GenerateRequest { adapters, ..request(None, &[5], 1) };
        match engine.generate(request).blocking_recv() {
            Some(EngineEvent::Refused(error)) => assert_eq!(error.to_string(), told),
            other => panic!("wanted a refusal, found {other:?}"),
        }
    }
    engine.stop();
}

#[test]
fn saved_sessions_are_bound_to_their_adapters() {
    let folder = tempfile::tempdir().unwrap();
    let state = tempfile::tempdir().unwrap();
    let options = |seed| options(folder.path(), seed, Some(state.path().to_owned()));
    let engine = Engine::start(&options(1));
    let named = |name: &str, adapters| {
        let name = Some(name.into());
        engine.create(SessionOptions { name, adapters, ..SessionOptions::default() })
    };
    let law = named("law", self::named(&[("law", 0.75)]));
    let plain = named("plain", Vec::new());
    for id in [law, plain] {
        engine.run(request(id, &prompt(2, 40), 1));
    }
    let saved = engine.info(law).adapters;
    engine.stop();

    let engine = Engine::start(&options(1));
    assert_eq!(engine.info(law).adapters, saved);
    let again = engine.run(with_logprobs(request(law, &prompt(2, 40), 4)));
    assert_eq!(again.cached_tokens, 39);
    let alone = GenerateRequest {
        adapters: self::named(&[("law", 0.75)]),
        ..with_logprobs(request(None, &prompt(2, 40), 4))
    };
    assert_eq!(told(&again), told(&engine.run(alone)));
    engine.stop();

    // Another file behind the name, and then none: the session stays in its file.
    let engine = Engine::start(&options(7));
    assert_eq!(engine.list().iter().map(|info| info.id).collect::<Vec<_>>(), [plain]);
    engine.stop();
    let engine = Engine::start(&EngineOptions { adapters: Vec::new(), ..options(1) });
    assert_eq!(engine.list().iter().map(|info| info.id).collect::<Vec<_>>(), [plain]);
    let restored = engine.act(law, SessionAction::Restore);
    assert_eq!(restored, Err(AdmitError::UnknownSession(law.0)));
    engine.stop();
    let engine = Engine::start(&options(1));
    assert_eq!(engine.info(law).adapters, saved, "its file was left as it is");
    engine.stop();
}
