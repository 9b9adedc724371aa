//! A model's file that is replaced, written to, cut off or gone: no engine answers with what is no
//! longer there, or with what never was a model.
#![allow(clippy::unwrap_used)]

#[path = "engine_support/mod.rs"]
mod engine_support;
#[path = "common/faults.rs"]
mod faults;
#[path = "common/random.rs"]
mod random;
#[path = "idea/tiny.rs"]
mod tiny;

use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use engine_support::{Engine, prompt, request, small_pool};
use faults::{Call, Failing, Fault, Plan};
use hob::engine::{self, Control, LoadFailure, OpenError};
use hob::reference::ReferenceExecutor;

/// An engine whose model is off the device, and its file.
fn unloaded() -> (Engine, PathBuf) {
    let engine = Engine::start_to_reload(&small_pool());
    let path = engine.folder.as_ref().unwrap().path().join("llama.gguf");
    assert!(engine.unload());
    (engine, path)
}

fn load(engine: &Engine) -> Result<(), LoadFailure> {
    engine.control(|reply| Control::Load { reply })
}

#[test]
fn a_file_that_was_replaced_is_not_loaded_in_the_place_of_the_one_before() {
    let (engine, path) = unloaded();
    load(&engine).unwrap();
    assert!(engine.unload());
    // Another one by rename, of the same size.
    let new = path.with_extension("new");
    fs::write(&new, tiny::other()).unwrap();
    fs::rename(&new, &path).unwrap();
    let failure = load(&engine).unwrap_err();
    assert!(failure.replaced && failure.message.contains("another file"), "{failure:?}");
    // Nor does a request that comes by itself get an answer of it.
    let mut events = engine.generate(request(None, &prompt(1, 5), 2));
    let told = format!("{:?}", events.blocking_recv().unwrap());
    assert!(told.contains("NotLoaded") && told.contains("another file"), "{told}");
    engine.stop();
}

#[test]
fn a_file_that_was_copied_over_cut_off_or_removed_is_an_error() {
    let (engine, path) = unloaded();
    let whole = fs::read(&path).unwrap();
    // The same file, with other contents.
    fs::write(&path, tiny::other()).unwrap();
    let failure = load(&engine).unwrap_err();
    assert!(failure.replaced, "{failure:?}");
    File::options().write(true).open(&path).unwrap().set_len(whole.len() as u64 / 2).unwrap();
    let failure = load(&engine).unwrap_err();
    assert!(failure.message.contains("llama.gguf"), "{failure:?}");
    fs::remove_file(&path).unwrap();
    let failure = load(&engine).unwrap_err();
    assert!(failure.message.contains("cannot open") && !failure.replaced, "{failure:?}");
    engine.stop();
}

#[test]
fn a_file_that_is_written_to_while_it_is_loaded_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let [path, _] = tiny::write(folder.path());
    let plan = Plan::default();
    let until = Arc::new(Mutex::new(()));
    let held = until.lock().unwrap();
    let hang = Failing::Hang(Arc::clone(&until));
    plan.set([Fault { call: Some(Call::CreateBuffer), nth: 5, failing: hang }]);
    let (opener, model) = (plan.clone(), path.clone());
    let loading = std::thread::spawn(move || {
        let open = Box::new(move || opener.open(ReferenceExecutor::new()));
        engine::open_with(open, &model, &small_pool(), &mut |_, _| {}).map(drop).map_err(Box::new)
    });
    while plan.left() > 0 {
        std::thread::yield_now(); // it has buffers to make
    }
    fs::write(&path, tiny::other()).unwrap();
    drop(held);
    let error = loading.join().unwrap().unwrap_err();
    assert!(matches!(*error, OpenError::Changed { .. }), "{error}");
}
