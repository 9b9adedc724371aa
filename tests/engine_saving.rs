//! Sessions in files: they outlive the engine, and no file is ever half of one.
#![allow(clippy::unwrap_used)]

#[path = "engine_support/mod.rs"]
mod engine_support;
#[path = "common/random.rs"]
mod random;
#[path = "idea/tiny.rs"]
mod tiny;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use engine_support::{Engine, OWNER, finish, keep, prompt, request, small_pool};
use hob::engine::{
    AdmitError, CachePlace, EngineCommand, EngineOptions, Priority, SessionAction, SessionOptions,
    StateOptions,
};
use tokio::sync::oneshot;

fn options(folder: &Path) -> EngineOptions {
    let (folder, model) = (folder.to_owned(), "idea".to_owned());
    let state = StateOptions { folder, model, disk_cache_bytes: 1 << 30 };
    EngineOptions { state: Some(state), ..small_pool() }
}

fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|found| found == ending) {
                found.push(path);
            }
        }
    }
    found
}

fn named(name: &str) -> SessionOptions {
    SessionOptions {
        name: Some(name.into()),
        context_tokens: Some(80),
        priority: Priority::Background,
        ..SessionOptions::default()
    }
}

#[test]
fn sessions_come_back_with_their_caches_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::start(&options(folder.path()));
    let (notes, empty) = (engine.create(named("notes")), engine.named("empty"));
    let first = engine.run(request(notes, &prompt(1, 50), 5));
    let before = engine.list();
    engine.stop();

    let engine = Engine::start(&options(folder.path()));
    let after = engine.list();
    assert_eq!(after.len(), 2, "nobody could find one without a name");
    assert_eq!((after[0].id, after[1].id), (notes, empty));
    assert_eq!(after[0].name.as_deref(), Some("notes"));
    assert_eq!((after[0].context_tokens, after[0].priority), (80, Priority::Background));
    assert_eq!((after[0].tokens, after[0].cached_tokens), (before[0].tokens, before[0].tokens));
    let text = [prompt(1, 50), first.tokens.clone()].concat();
    let again = engine.run(request(notes, &text, 5));
    assert_eq!(again.cached_tokens, 54, "all but the last token");
    let alone = engine.run(request(None, &text, 5));
    assert_eq!(again.tokens, alone.tokens);
    assert!(engine.session() > empty, "numbers are not given twice");
    engine.close(notes);
    engine.stop();

    let engine = Engine::start(&options(folder.path()));
    assert!(engine.list().iter().all(|info| info.id != notes), "a closed session is gone");
    engine.stop();
}

#[test]
fn sessions_without_a_name_do_not_outlive_the_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::start(&options(folder.path()));
    let (unnamed, notes) = (engine.session(), engine.named("notes"));
    for session in [unnamed, notes] {
        engine.run(request(session, &prompt(1, 50), 1));
    }
    // A point to go back to, while it lives.
    engine.act(unnamed, SessionAction::Save).unwrap();
    let left: Vec<_> = files(folder.path(), "session")
        .into_iter()
        .map(|file| (fs::read(&file).unwrap(), file))
        .collect();
    assert_eq!(left.len(), 1);
    engine.stop();
    assert_eq!(files(folder.path(), "session").len(), 1, "that of the named one");

    // A daemon that was killed left it, or one of before.
    left.iter().for_each(|(content, file)| fs::write(file, content).unwrap());
    assert_eq!(files(folder.path(), "session").len(), 2);
    let engine = Engine::start(&options(folder.path()));
    let back: Vec<_> = engine.list().into_iter().map(|info| info.id).collect();
    assert_eq!(back, [notes]);
    engine.stop();
    assert_eq!(files(folder.path(), "session").len(), 1, "what nobody can find is gone");
}

#[test]
fn a_damaged_file_is_refused_and_kept_and_nothing_takes_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::start(&options(folder.path()));
    let session = engine.named("notes");
    engine.run(request(session, &prompt(1, 50), 1));
    engine.stop();
    let [file] = &files(folder.path(), "session")[..] else { panic!("one file") };
    let mut bytes = fs::read(file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(file, &bytes).unwrap();

    let engine = Engine::start(&options(folder.path()));
    assert_eq!(engine.list(), []);
    assert!(engine.session() > session);
    engine.stop();
    assert_eq!(fs::read(file).unwrap(), bytes);
}

#[test]
fn a_session_goes_back_to_what_was_saved() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::start(&options(folder.path()));
    let session = engine.session();
    let restore = || engine.act(session, SessionAction::Restore);
    assert_eq!(restore(), Err(AdmitError::NotSaved("it was not saved".into())));
    engine.run(request(session, &prompt(1, 40), 1));
    engine.act(session, SessionAction::Save).unwrap();
    engine.run(request(session, &prompt(2, 60), 1));
    let back = restore().unwrap();
    assert_eq!((back.tokens, back.cached_tokens), (40, 40));
    assert_eq!(engine.run(request(session, &prompt(1, 41), 1)).cached_tokens, 40);
    engine.stop();

    let engine = Engine::start(&small_pool());
    let session = engine.session();
    assert_eq!(engine.act(session, SessionAction::Save), Err(AdmitError::NoStateFolder));
    engine.stop();
}

#[test]
fn caches_go_on_to_the_disk_where_the_host_has_no_room() {
    let folder = tempfile::tempdir().unwrap();
    let options = EngineOptions { host_cache_bytes: 0, ..options(folder.path()) };
    let engine = Engine::start(&options);
    let sessions: Vec<_> = (0..4).map(|_| engine.session()).collect();
    let run = |seed: usize| engine.run(request(sessions[seed], &prompt(seed as u32, 50), 3));
    let first: Vec<_> = (0..4).map(run).collect();
    assert_eq!(engine.info(sessions[0]).place, CachePlace::Disk);
    assert!(engine.status().disk_cache_bytes > 0);
    let again = run(0);
    assert_eq!((again.cached_tokens, &again.tokens), (49, &first[0].tokens));
    // A file that is not what was written is not used.
    engine.act(sessions[0], SessionAction::Save).unwrap(); // what was to be written before is
    let parked = files(folder.path(), "parked");
    assert!(!parked.is_empty());
    parked.iter().for_each(|file| fs::write(file, b"something else").unwrap());
    let again = run(1);
    assert_eq!((again.cached_tokens, &again.tokens), (0, &first[1].tokens));
    // Nor does a fork begin with it.
    let parked = (0..4).find(|at| engine.info(sessions[*at]).place == CachePlace::Disk).unwrap();
    files(folder.path(), "parked").iter().for_each(|file| fs::write(file, b"else").unwrap());
    let fork = engine.fork(sessions[parked], None, Some(49)).unwrap();
    assert_eq!((fork.tokens, fork.cached_tokens), (49, 0));
    let begun = engine.run(request(fork.id, &prompt(parked as u32, 50), 3));
    assert_eq!((begun.cached_tokens, &begun.tokens), (0, &first[parked].tokens));
    engine.close(fork.id);
    sessions.iter().for_each(|session| engine.close(*session));
    engine.stop();
    for ending in ["parked", "session"] {
        assert_eq!(files(folder.path(), ending), [] as [PathBuf; 0]);
    }
}

#[test]
fn a_slow_disk_holds_up_only_those_who_wait_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let options = EngineOptions { host_cache_bytes: 0, ..options(folder.path()) };
    let engine = Engine::start(&options);
    let sessions: Vec<_> = (0..4).map(|_| engine.session()).collect();
    let ask = |seed: usize| request(sessions[seed], &prompt(seed as u32, 50), 3);
    let first: Vec<_> = (0..4).map(|seed| engine.run(ask(seed))).collect();
    assert_eq!(engine.info(sessions[0]).place, CachePlace::Disk);
    engine.act(sessions[3], SessionAction::Save).unwrap(); // what was to be written before is
    let name = format!("-{}.parked", sessions[0].0);
    let parked = files(folder.path(), "parked");
    let file = parked.iter().find(|file| file.to_string_lossy().ends_with(&name)).unwrap();
    let content = fs::read(file).unwrap();
    // A pipe gives nothing until somebody writes to it.
    fs::remove_file(file).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, file, rustix::fs::Mode::RWXU).unwrap();
    let slow = engine.generate(ask(0));
    for _ in 0..3 {
        assert_eq!(engine.run(ask(3)).tokens, first[3].tokens);
    }
    assert!(engine.info(sessions[0]).busy);
    // What needs that cache waits for it; sessions come and go.
    let (owner, session, at) = (OWNER, sessions[0], Some(40));
    let fork = |reply| EngineCommand::ForkSession { owner, session, name: None, at, reply };
    let fork = engine.send(owner, fork);
    let action = SessionAction::Save;
    let save = |reply| EngineCommand::OnSession { owner, session, action, reply };
    let mut saved = engine.send(owner, save);
    for _ in 0..5 {
        engine.close(engine.session());
    }
    assert!(saved.try_recv().is_err());
    fs::write(file, content).unwrap();
    assert_eq!(keep(fork.blocking_recv().unwrap()).unwrap().tokens, 40);
    let slow = finish(slow);
    assert_eq!((slow.cached_tokens, slow.tokens), (49, first[0].tokens.clone()));
    saved.blocking_recv().unwrap().unwrap();
    engine.stop();
}

#[test]
fn nothing_is_saved_over_what_is_being_restored() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::start(&options(folder.path()));
    let session = engine.session();
    engine.run(request(session, &prompt(1, 40), 1));
    engine.act(session, SessionAction::Save).unwrap();
    engine.run(request(session, &prompt(2, 3), 1));
    let file = files(folder.path(), "session").pop().unwrap();
    let content = fs::read(&file).unwrap();
    fs::remove_file(&file).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &file, rustix::fs::Mode::RWXU).unwrap();
    let (reply, restored) = oneshot::channel();
    let (owner, action) = (OWNER, SessionAction::Restore);
    let call = EngineCommand::OnSession { owner, session, action, reply };
    engine.handle.commands.blocking_send(OWNER, call).unwrap();
    let busy = Err(AdmitError::SessionBusy(session.0));
    assert_eq!(engine.act(session, SessionAction::Save), busy);
    assert_eq!(engine.act(session, SessionAction::Restore), busy);
    assert_eq!(engine.act(session, SessionAction::Truncate { tokens: 1 }), busy);
    // A flood of commands does not keep the engine from looking at the file.
    let flood: Vec<_> = (0..2000)
        .map(|_| {
            let (reply, answer) = oneshot::channel();
            let (owner, action) = (OWNER, SessionAction::Info);
            let call = EngineCommand::OnSession { owner, session, action, reply };
            engine.handle.commands.blocking_send(OWNER, call).unwrap();
            answer
        })
        .collect();
    fs::write(&file, content).unwrap();
    let back = restored.blocking_recv().unwrap().unwrap();
    assert_eq!((back.tokens, back.cached_tokens, back.busy), (40, 40, false));
    assert_eq!(flood.into_iter().filter_map(|answer| answer.blocking_recv().ok()).count(), 2000);
    engine.stop();
}

#[test]
fn a_cache_that_cannot_be_written_is_not_told_to_be_on_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let options = EngineOptions { host_cache_bytes: 0, ..options(folder.path()) };
    fs::write(folder.path().join("sessions"), b"no folder").unwrap();
    let engine = Engine::start(&options);
    let sessions: Vec<_> = (0..4).map(|_| engine.session()).collect();
    let run = |seed: usize| engine.run(request(sessions[seed], &prompt(seed as u32, 50), 3));
    let first: Vec<_> = (0..4).map(run).collect();
    let saved = engine.act(sessions[0], SessionAction::Save);
    assert!(
        matches!(&saved, Err(AdmitError::NotSaved(why)) if why.contains("irectory")),
        "{saved:?}"
    );
    // What was to be written before has failed by now.
    assert_eq!(engine.info(sessions[0]).place, CachePlace::None);
    assert_eq!(engine.status().disk_cache_bytes, 0);
    let again = run(0);
    assert_eq!((again.cached_tokens, &again.tokens), (0, &first[0].tokens));
    engine.stop();
}

#[test]
fn an_unloaded_model_keeps_its_sessions_in_files_as_well() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::start_to_reload(&options(folder.path()));
    let (saved, ended) = (engine.named("saved"), engine.named("ended"));
    engine.run(request(saved, &prompt(1, 40), 1));
    engine.run(request(ended, &prompt(2, 50), 1));
    assert!(engine.unload());
    let info = engine.act(saved, SessionAction::Save).unwrap();
    assert_eq!((info.tokens, info.place), (40, CachePlace::Host));
    engine.act(saved, SessionAction::Truncate { tokens: 10 }).unwrap();
    assert_eq!(engine.act(saved, SessionAction::Restore).unwrap().cached_tokens, 40);
    engine.stop(); // off the device

    let engine = Engine::start(&options(folder.path()));
    for (session, seed, tokens) in [(saved, 1, 40), (ended, 2, 50)] {
        let again = engine.run(request(session, &prompt(seed, tokens + 1), 1));
        assert_eq!(again.cached_tokens, tokens);
    }
    engine.stop();
}

#[test]
fn engines_of_one_folder_keep_their_sessions_apart() {
    let folder = tempfile::tempdir().unwrap();
    let engine_of = |model: &str, numbers: &Arc<AtomicU64>| {
        let mut options = options(folder.path());
        options.state.as_mut().unwrap().model = model.into();
        options.session_numbers = Arc::clone(numbers);
        Engine::start(&options)
    };
    let ids = |engine: &Engine| engine.list().iter().map(|info| info.id.0).collect::<Vec<_>>();
    // The same file under two names.
    let numbers = Arc::default();
    let (first, second) = (engine_of("first", &numbers), engine_of("second", &numbers));
    let made = [first.named("a").0, second.named("b").0, second.named("c").0];
    assert_eq!(made, [1, 2, 3]);
    first.stop();
    second.stop();

    // A model that is loaded later still has its numbers to itself.
    let numbers = Arc::default();
    let first = engine_of("first", &numbers);
    assert_eq!((ids(&first), first.session().0), (vec![1], 4));
    let second = engine_of("second", &numbers);
    assert_eq!((ids(&second), second.session().0), (vec![2, 3], 5));
    first.stop();
    second.stop();
}
