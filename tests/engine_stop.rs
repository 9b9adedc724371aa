//! The end of an engine: tokens are saved whatever the device does, caches as time allows, and
//! what is not saved is told.
#![allow(clippy::unwrap_used)]

#[path = "engine_support/mod.rs"]
mod engine_support;
#[path = "common/faults.rs"]
mod faults;
#[path = "common/random.rs"]
mod random;
#[path = "idea/tiny.rs"]
mod tiny;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use engine_support::{Engine, finish, prompt, request, small_pool};
use faults::{Call, Failing, Fault, Plan};
use hob::engine::{
    AdmitError, Control, EngineCommand, EngineOptions, EngineThread, Saver, SessionAction,
    SessionOptions, StateOptions,
};
use hob::reference::ReferenceExecutor;
use tokio::sync::oneshot;

fn options(folder: &Path) -> EngineOptions {
    let (folder, model) = (folder.to_owned(), "idea".to_owned());
    let state = StateOptions { folder, model, disk_cache_bytes: 1 << 30 };
    EngineOptions { state: Some(state), ..small_pool() }
}

fn named(name: &str) -> SessionOptions {
    SessionOptions { name: Some(name.into()), ..SessionOptions::default() }
}

/// The saved sessions' files.
fn saved(folder: &Path) -> Vec<PathBuf> {
    let models = fs::read_dir(folder.join("sessions")).unwrap().map(|model| model.unwrap().path());
    let files = models.flat_map(|model| fs::read_dir(model).unwrap());
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    files
}

/// Tells the engine to end, and leaves it to it.
fn end(engine: Engine) -> (Saver, EngineThread) {
    engine.handle.commands.control(Control::Shutdown).unwrap();
    (engine.handle.saver, engine.thread)
}

fn join(thread: EngineThread) {
    thread.join().expect("no panic").expect("no failure");
}

#[test]
fn all_tokens_are_saved_while_the_device_takes_its_time_over_a_step() {
    let folder = tempfile::tempdir().unwrap();
    let plan = Plan::default();
    let opener = plan.clone();
    let open = Box::new(move || opener.open(ReferenceExecutor::new()));
    let engine = Engine::start_with(open, &options(folder.path()));
    let (done, slow) = (engine.create(named("done")), engine.create(named("slow")));
    let text = [prompt(1, 40), engine.run(request(done, &prompt(1, 40), 5)).tokens].concat();
    let slow_text = [prompt(2, 30), engine.run(request(slow, &prompt(2, 30), 3)).tokens].concat();
    let until = Arc::new(Mutex::new(()));
    let held = until.lock().unwrap();
    let hang = Failing::Hang(Arc::clone(&until));
    plan.set([Fault { call: Some(Call::Wait), nth: 0, failing: hang }]);
    let waiting = engine.generate(request(slow, &[&slow_text[..], &prompt(3, 20)].concat(), 1));
    while plan.left() > 0 {
        std::thread::yield_now(); // the engine has its step to submit
    }
    // The engine hears nothing now, and the tokens are saved all the same.
    engine.handle.saver.save_tokens();
    engine.handle.saver.flush();
    let unsaved = engine.handle.saver.unsaved();
    assert!(unsaved.iter().all(|session| !session.is_lost), "{unsaved:?}");
    assert_eq!(saved(folder.path()).len(), 2);
    let copy = tempfile::tempdir().unwrap();
    for file in saved(folder.path()) {
        let path = copy.path().join(file.strip_prefix(folder.path()).unwrap());
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::copy(file, path).unwrap();
    }
    drop(held);
    finish(waiting);
    let (saver, thread) = end(engine);
    join(thread);
    assert_eq!(saver.unsaved(), []);

    // As the daemon's next life finds them where it was killed in that step.
    let engine = Engine::start(&options(copy.path()));
    let tokens: Vec<u32> = engine.list().iter().map(|info| info.tokens).collect();
    assert_eq!(tokens, [44, 32], "the last token of an answer is not evaluated yet");
    for (session, text) in [(done, text), (slow, slow_text)] {
        let found = engine.run(request(session, &text, 3));
        assert_eq!(found.cached_tokens, 0, "caches are computed again");
        assert_eq!(found.tokens, engine.run(request(None, &text, 3)).tokens);
    }
    engine.stop();
    // And as it finds them after the end in order.
    let engine = Engine::start(&options(folder.path()));
    assert!(engine.list().iter().all(|info| info.cached_tokens == info.tokens));
    engine.stop();
}

#[test]
fn without_time_for_caches_tokens_are_kept_and_the_loss_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::start(&options(folder.path()));
    let session = engine.create(named("notes"));
    let text = [prompt(1, 40), engine.run(request(session, &prompt(1, 40), 5)).tokens].concat();
    engine.handle.saver.save_tokens();
    engine.handle.saver.flush();
    engine.handle.saver.give_up();
    let (saver, thread) = end(engine);
    join(thread);
    let [unsaved] = &saver.unsaved()[..] else { panic!("one session") };
    assert_eq!((unsaved.session, unsaved.is_lost), (session, false));
    assert_eq!((unsaved.uid, unsaved.name.as_deref()), (7, Some("notes")));

    let engine = Engine::start(&options(folder.path()));
    let info = engine.info(session);
    assert_eq!((info.tokens, info.cached_tokens), (44, 0));
    let again = engine.run(request(session, &text, 3));
    assert_eq!(again.tokens, engine.run(request(None, &text, 3)).tokens);
    engine.stop();
}

#[test]
fn what_has_not_changed_is_not_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::start(&options(folder.path()));
    let sessions = ["first", "second", "third"].map(|name| engine.create(named(name)));
    for (seed, session) in sessions.into_iter().enumerate() {
        engine.run(request(session, &prompt(seed as u32, 30), 1));
    }
    engine.stop();
    let written = || {
        let found = saved(folder.path()).into_iter().map(|file| fs::metadata(file).unwrap());
        found.map(|file| (file.ino(), file.modified().unwrap())).collect::<Vec<_>>()
    };
    let before = written();
    let engine = Engine::start(&options(folder.path()));
    engine.run(request(sessions[1], &prompt(1, 32), 1));
    engine.act(sessions[2], SessionAction::Info).unwrap();
    engine.stop();
    let after = written();
    assert_eq!((before[0], before[2]), (after[0], after[2]));
    assert_ne!(before[1], after[1]);
}

#[test]
fn what_cannot_be_written_is_told_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("sessions"), b"no folder").unwrap();
    let engine = Engine::start(&options(folder.path()));
    let (used, empty) = (engine.create(named("used")), engine.create(named("empty")));
    engine.run(request(used, &prompt(1, 40), 1));
    engine.session(); // nobody waits for one without a name
    let (saver, thread) = end(engine);
    join(thread);
    let unsaved = saver.unsaved();
    assert_eq!(unsaved.iter().map(|lost| lost.session).collect::<Vec<_>>(), [used, empty]);
    for lost in unsaved {
        assert!(lost.is_lost && lost.reason.contains("irectory"), "{lost:?}");
    }
}

#[test]
fn who_closes_a_session_hears_that_its_file_stays() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::start(&options(folder.path()));
    let session = engine.create(named("notes"));
    engine.act(session, SessionAction::Save).unwrap();
    // What cannot be removed, whoever the tests run as.
    let file = saved(folder.path()).pop().unwrap();
    fs::remove_file(&file).unwrap();
    fs::create_dir_all(file.join("folder")).unwrap();
    let (reply, answer) = oneshot::channel();
    let owner = engine_support::OWNER;
    let close = EngineCommand::CloseSession { owner, session, reply };
    engine.handle.commands.blocking_send(owner, close).unwrap();
    let told = answer.blocking_recv().unwrap();
    assert!(
        matches!(&told, Err(AdmitError::FileStays(why)) if why.contains("irectory")),
        "{told:?}"
    );
    assert_eq!(engine.list(), []);
    engine.stop();
}
