//! What one user leaves in the device's memory, no other ever reads: a marker is written into the
//! pages of a user who then goes, and looked for on every path by which the next one's pages are
//! read. Where the device zeroes nothing, the same test finds it.
#![allow(clippy::unwrap_used)]

#[path = "engine_support/mod.rs"]
mod engine_support;
#[path = "common/poison.rs"]
mod poison;
#[path = "common/random.rs"]
mod random;
#[path = "idea/tiny.rs"]
mod tiny;

use std::fs;
use std::path::{Path, PathBuf};

use engine_support::{Engine, finish, keep, prompt, request, small_pool};
use hob::engine::{
    AdmitError, CachePlace, EngineCommand, EngineOptions, GenerateRequest, GenerateResult, Owner,
    SessionAction, SessionId, SessionInfo, SessionOptions, StateOptions, Timings,
};
use hob::vulkan::{VulkanConfig, VulkanExecutor};
use poison::{Poison, is_marked};

const ADA: Owner = Owner { uid: 1000 };
const BEN: Owner = Owner { uid: 1001 };

/// One user's view of an engine.
struct User<'e> {
    engine: &'e Engine,
    owner: Owner,
}

impl User<'_> {
    fn session(&self) -> SessionId {
        let (owner, options) = (self.owner, SessionOptions::default());
        let create = |reply| EngineCommand::CreateSession { owner, options, reply };
        keep(self.engine.ask(create)).unwrap().id
    }

    fn act(&self, session: SessionId, action: SessionAction) -> Result<SessionInfo, AdmitError> {
        let owner = self.owner;
        self.engine.ask(|reply| EngineCommand::OnSession { owner, session, action, reply })
    }

    fn fork(&self, session: SessionId, at: u32) -> Result<SessionInfo, AdmitError> {
        let (owner, name, at) = (self.owner, None, Some(at));
        let fork = |reply| EngineCommand::ForkSession { owner, session, name, at, reply };
        keep(self.engine.ask(fork))
    }

    fn close(&self, session: SessionId) {
        let owner = self.owner;
        self.engine.ask(|reply| EngineCommand::CloseSession { owner, session, reply }).unwrap();
    }

    fn run(
        &self,
        session: impl Into<Option<SessionId>>,
        tokens: &[u32],
        most: u32,
    ) -> GenerateResult {
        let request = request(session, tokens, most);
        let request = GenerateRequest { owner: self.owner, logprobs: Some(5), ..request };
        let result = finish(self.engine.generate(request));
        GenerateResult { timings: Timings::default(), ..result }
    }
}

/// What is compared: all that a user gets to see.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    results: Vec<GenerateResult>,
    places: Vec<CachePlace>,
}

/// All that reads pages: generation, a fork and its copy of a shared page, saving, leaving for a
/// file and coming back, going back to what was saved. Whether a file has the marker.
fn read_by_every_path(user: &User<'_>, folder: &Path, seen: &mut Seen) -> bool {
    let session = user.session();
    seen.results.push(user.run(session, &prompt(5, 40), 3));
    user.act(session, SessionAction::Save).unwrap();
    let fork = user.fork(session, 35).unwrap().id;
    let other = [prompt(5, 35), prompt(9, 6)].concat();
    seen.results.push(user.run(fork, &other, 2));
    user.act(fork, SessionAction::Save).unwrap();
    // A request that needs more than is free moves them out.
    seen.results.push(user.run(None, &prompt(6, 90), 2));
    for id in [session, fork] {
        seen.places.push(user.act(id, SessionAction::Info).unwrap().place);
    }
    let files = files(folder);
    let parked = files.iter().any(|path| path.extension().is_some_and(|end| end == "parked"));
    assert!(parked, "a cache is in a file: {files:?}");
    let marked = files.iter().any(|path| is_marked(&fs::read(path).unwrap()));
    seen.results.push(user.run(session, &prompt(5, 48), 3));
    user.act(session, SessionAction::Save).unwrap();
    user.act(fork, SessionAction::Restore).unwrap();
    seen.results.push(user.run(fork, &other, 2));
    marked
}

/// Every file of the folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// An engine whose caches go to files, on a device that is watched.
fn start(poison: &Poison, folder: &Path) -> Engine {
    let state =
        StateOptions { folder: folder.to_owned(), model: String::new(), disk_cache_bytes: 1 << 30 };
    let options = EngineOptions { host_cache_bytes: 0, state: Some(state), ..small_pool() };
    let executor = VulkanExecutor::new(&VulkanConfig::default()).unwrap();
    Engine::start_on(poison.on(executor), &options)
}

/// A user takes every page, has the marker written into all of them, and goes.
fn leave_marked_pages(user: &User<'_>, poison: &Poison) {
    let sessions = [user.session(), user.session()];
    user.run(sessions[0], &prompt(1, 95), 0);
    user.run(sessions[1], &prompt(2, 60), 0);
    assert_eq!(user.engine.status().kv_tokens_used, 160, "no page is left");
    poison.write_at_next_read();
    user.act(sessions[0], SessionAction::Save).unwrap();
    sessions.into_iter().for_each(|session| user.close(session));
    poison.watch();
}

/// What a user sees after another one; the reads of the device, those that had the marker in them,
/// and whether a file has it.
fn after_another(poison: &Poison) -> (Seen, [u64; 2], bool) {
    let folder = tempfile::tempdir().unwrap();
    let engine = start(poison, folder.path());
    leave_marked_pages(&User { engine: &engine, owner: ADA }, poison);
    let mut seen = Seen::default();
    let user = User { engine: &engine, owner: BEN };
    let marked = read_by_every_path(&user, folder.path(), &mut seen);
    engine.stop(); // and saves what there is
    let saved = files(folder.path());
    let marked_at_end = saved.iter().any(|path| is_marked(&fs::read(path).unwrap()));
    (seen, poison.seen(), marked || marked_at_end)
}

#[test]
fn no_path_reads_what_another_user_left() {
    let (seen, [reads, marked], in_files) = after_another(&Poison::default());
    assert!(reads > 20, "{reads} reads were looked at");
    assert_eq!((marked, in_files), (0, false), "of {reads} reads of the device");
    let folder = tempfile::tempdir().unwrap();
    let engine = start(&Poison::default(), folder.path());
    let mut alone = Seen::default();
    read_by_every_path(&User { engine: &engine, owner: BEN }, folder.path(), &mut alone);
    engine.stop();
    assert_eq!(seen, alone);
    assert!(seen.places.contains(&CachePlace::Disk), "{:?}", seen.places);
}

#[test]
fn what_is_not_zeroed_is_found() {
    let poison = Poison::default();
    poison.zero_nothing();
    let (_, [reads, marked], in_files) = after_another(&poison);
    assert!(marked > 0 && in_files, "{marked} of {reads} reads, in files: {in_files}");
}
