//! Sessions in files: saved on request and at the end, brought back at the start; and parked there
//! when the host's memory for caches is full.
//!
//! At the end, tokens and settings of all changed sessions come first, then caches, the one used
//! last first: there may be no time for all, and a cache can be computed again. A session without a
//! name ends with the connection that made it, so none is saved.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::saver::Saver;
use super::sessions::Answer;
use super::types::{AdmitError, SessionInfo};
use super::worker::Worker;
use crate::gpu::DeviceError;
use crate::scheduler::Priority;
use crate::session::{
    CachePlace, FileThreads, Header, Ledger, Owner, Parked, Saved, SessionFileError, SessionFolder,
    SessionId, SpillFile, Traits, Writing,
};

/// Folder of session files, and its size limit.
#[derive(Clone, Debug)]
pub struct StateOptions {
    /// The daemon's folder: that of all its engines.
    pub folder: PathBuf,
    /// Name of the engine's model in the daemon, where several may be of one file.
    pub model: String,
    /// Bytes of caches that may be parked there.
    pub disk_cache_bytes: u64,
}

/// The files of an engine.
#[derive(Debug)]
pub(super) struct Files {
    folder: SessionFolder,
    disk_cache_bytes: u64,
    /// Identifier of the model and form of caches.
    made_by: String,
    threads: FileThreads,
    /// Sessions that outlive the daemon.
    ledger: Ledger,
}

/// How often the tokens of sessions whose requests run are noted.
const NOTE_PERIOD: Duration = Duration::from_millis(100);

impl Files {
    pub(super) fn new(options: &StateOptions, made_by: String) -> io::Result<Self> {
        let folder = SessionFolder::new(&options.folder, &options.model, &made_by);
        let disk_cache_bytes = options.disk_cache_bytes;
        let (threads, ledger) = (FileThreads::start()?, Ledger::default());
        Ok(Self { folder, disk_cache_bytes, made_by, threads, ledger })
    }

    /// What saves these sessions without the engine.
    pub(super) fn saver(&self) -> Saver {
        Saver::new(self.ledger.clone(), self.threads.clone(), self.folder.clone())
    }

    /// Removes a saved session's file, and says when there is none; most have none.
    pub(super) fn forget(
        &self,
        owner: Owner,
        id: SessionId,
        done: impl FnOnce(io::Result<()>) + Send + 'static,
    ) {
        self.ledger.forget(id);
        self.threads.remove(self.saved(owner, id), move |removed| {
            if let Err(error) = &removed {
                tracing::warn!(
                    session = id.0,
                    %error,
                    "the file of a closed session stays: the session comes back at the next start"
                );
            }
            done(removed);
        });
    }

    /// Leaves a session's file as it is until the session is noted again.
    pub(super) fn leave_alone(&self, id: SessionId) {
        self.ledger.forget(id);
    }

    /// Path of a saved session.
    pub(super) fn saved(&self, owner: Owner, id: SessionId) -> PathBuf {
        self.folder.saved(owner.uid, id.0)
    }

    /// Reads a file after all writes queued before it, and reports its contents.
    pub(super) fn fetch(
        &self,
        path: PathBuf,
        done: impl FnOnce(Result<Saved, SessionFileError>) + Send + 'static,
    ) {
        self.threads.read(path, self.made_by.clone(), done);
    }

    /// Reads a file that was written before.
    fn read(&self, path: &Path) -> Result<Saved, SessionFileError> {
        self.threads.flush();
        Saved::read(path, &self.made_by)
    }
}

fn name_of(priority: Priority) -> &'static str {
    match priority {
        Priority::Interactive => "interactive",
        Priority::Normal => "normal",
        Priority::Background => "background",
    }
}

impl Worker {
    /// Brings the saved sessions back. Their caches are in the host's memory then, as far as there
    /// is room; what cannot be used is told and left alone.
    pub(super) fn restore_sessions(&mut self) {
        let Some(files) = &self.files else { return };
        let mut restored = 0;
        let (made_by, threads) = (files.made_by.clone(), files.threads.clone());
        // Whatever becomes of them, no other session is saved in their place; and those of models
        // that are loaded later come back with their numbers.
        self.sessions.reserve(files.folder.highest_number());
        for path in files.folder.list() {
            let inserted = match Saved::read(&path, &made_by) {
                // It was to end with a connection, and has outlived it by a crash.
                Ok(saved) if saved.header.name.is_none() => {
                    threads.remove(path, drop);
                    continue;
                }
                Ok(saved) => self.insert_saved(saved).map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            match inserted {
                Ok(_) => restored += 1,
                Err(error) => tracing::warn!("a saved session does not come back: {error}"),
            }
        }
        if restored > 0 {
            tracing::info!(restored, "sessions are back");
        }
    }

    fn insert_saved(&mut self, saved: Saved) -> Result<SessionId, AdmitError> {
        let Saved { header, tokens, cache } = saved;
        let owner = Owner { uid: header.uid };
        let priority = Priority::ALL.into_iter().find(|p| name_of(*p) == header.priority);
        let adapters = self.find_saved_adapters(&header.adapters)?;
        let traits = Traits {
            name: header.name,
            context_tokens: (header.context_tokens as usize)
                .min(self.info.context_tokens as usize)
                .max(1),
            priority: priority.unwrap_or_default(),
            ttl: header.ttl_seconds.map(Duration::from_secs),
            ephemeral: false,
            adapters,
        };
        let id = SessionId(header.session);
        self.check_new_session(owner, traits.name.as_deref())?;
        if self.sessions.contains(id) {
            return Err(AdmitError::SessionExists(id.0.to_string()));
        }
        self.sessions.insert_as(id, owner, traits);
        self.give_cache(id, tokens, cache);
        self.note_as_in_file(id);
        Ok(id)
    }

    /// Notes what is to outlive the daemon of a session, and its version.
    pub(super) fn note_session(&self, id: SessionId) -> Option<u64> {
        let (files, session) = (self.files.as_ref()?, self.sessions.get(id));
        if session.traits.name.is_none() || self.fetches.restores(id) {
            return None;
        }
        Some(files.ledger.note(self.header(id, 0), &session.tokens))
    }

    /// Notes a session that is now as its file has it.
    fn note_as_in_file(&self, id: SessionId) {
        if let (Some(version), Some(files)) = (self.note_session(id), &self.files) {
            files.ledger.note_saved(id, version, true);
        }
    }

    /// Notes the sessions whose requests run, every now and then.
    pub(super) fn note_running(&mut self) {
        if self.files.is_some() && self.last_noted.elapsed() >= NOTE_PERIOD {
            self.last_noted = Instant::now();
            for generation in &self.running {
                self.note_session(generation.session);
            }
        }
    }

    /// Puts a saved cache in the place of a session's own.
    fn give_cache(&mut self, id: SessionId, tokens: Vec<u32>, cache: Vec<u8>) {
        let session = self.sessions.get_mut(id);
        session.tokens.clear();
        session.parked = None;
        if let Some(lease) = session.lease.take() {
            self.runner.kv_mut().0.release(lease);
        }
        let right = cache.len() == self.runner.kv_config().bytes_of(tokens.len());
        let session = self.sessions.get_mut(id);
        session.tokens = tokens;
        session.last_used = Instant::now();
        session.parked = (right && !cache.is_empty()).then_some(Parked::Host(cache));
        self.trim_host();
    }

    /// A session as its file is to hold it.
    fn snapshot(&mut self, id: SessionId) -> Result<Saved, DeviceError> {
        let session = self.sessions.get(id);
        let tokens = session.tokens.clone();
        let cache = match (&session.lease, &session.parked) {
            (Some(_), _) => {
                let (kv, executor) = self.runner.kv_mut();
                let lease = self.sessions.get(id).lease.as_ref().expect("seen above");
                kv.read_pages(executor, lease, tokens.len())?
            }
            (None, Some(Parked::Host(bytes))) => {
                self.runner.kv_config().first_pages(bytes, tokens.len())
            }
            (None, Some(Parked::Disk(file))) => {
                let bytes = self.read_parked(file).unwrap_or_default(); // tokens are still saved
                self.runner.kv_config().first_pages(&bytes, tokens.len())
            }
            (None, None) => Vec::new(),
        };
        Ok(Saved { header: self.header(id, cache.len()), tokens, cache })
    }

    /// Header of a session's file.
    fn header(&self, id: SessionId, cache_bytes: usize) -> Header {
        let session = self.sessions.get(id);
        Header {
            uid: session.owner.uid,
            session: id.0,
            name: session.traits.name.clone(),
            context_tokens: session.traits.context_tokens as u64,
            priority: name_of(session.traits.priority).into(),
            ttl_seconds: session.traits.ttl.map(|ttl| ttl.as_secs()),
            adapters: session.traits.adapters.clone(),
            made_by: self.files.as_ref().map_or_else(String::new, |files| files.made_by.clone()),
            tokens: session.tokens.len() as u64,
            cache_bytes: cache_bytes as u64,
        }
    }

    /// Saves a session as it is now: the file is on the disk when `done` is told.
    pub(super) fn save_session(
        &mut self,
        id: SessionId,
        done: impl FnOnce(Answer) + Send + 'static,
    ) -> Result<(), DeviceError> {
        let Some(files) = &self.files else {
            done(Err(AdmitError::NoStateFolder));
            return Ok(());
        };
        let path = files.saved(self.sessions.get(id).owner, id);
        let (threads, ledger) = (files.threads.clone(), files.ledger.clone());
        let version = self.note_session(id);
        let saved = match self.snapshot(id) {
            Ok(saved) => saved,
            Err(error) => {
                done(Err(AdmitError::NotSaved(error.to_string())));
                return Err(error);
            }
        };
        let cached = !saved.cache.is_empty();
        let info = self.session_info(id);
        threads.write(saved, path, Writing::Saved, move |written| {
            match (&written, version) {
                (Ok(()), Some(version)) => ledger.note_saved(id, version, cached),
                (Err(error), Some(version)) => ledger.note_failure(id, version, &error.reason()),
                (_, None) => {}
            }
            done(written.map(|()| info).map_err(|error| AdmitError::NotSaved(error.reason())));
        });
        Ok(())
    }

    /// Makes a session what its file says.
    pub(super) fn restore_from(
        &mut self,
        id: SessionId,
        found: Result<Saved, SessionFileError>,
    ) -> Result<SessionInfo, AdmitError> {
        if !self.sessions.contains(id) {
            return Err(AdmitError::UnknownSession(id.0)); // closed meanwhile
        }
        self.sessions.get_mut(id).busy = false;
        self.note_session(id); // it stays as it is where the file is of no use
        let saved = found.map_err(|error| AdmitError::NotSaved(why_not_read(&error)))?;
        let adapters = self.find_saved_adapters(&saved.header.adapters)?;
        if adapters != self.sessions.get(id).traits.adapters {
            let what = "it was computed with other adapters";
            return Err(AdmitError::NotSaved(what.to_owned()));
        }
        self.give_cache(id, saved.tokens, saved.cache);
        self.note_as_in_file(id);
        Ok(self.session_info(id))
    }

    /// Saves what has changed: tokens and settings of all sessions, then caches, the one used last
    /// first, until the time is over.
    pub(super) fn save_all(&mut self) {
        let Some(files) = &self.files else { return };
        let (saver, ledger, threads) = (files.saver(), files.ledger.clone(), files.threads.clone());
        let sessions = self.sessions.by_last_use();
        for id in &sessions {
            self.note_session(*id);
            let session = self.sessions.get(*id);
            if session.traits.name.is_none() {
                files.forget(session.owner, *id, drop); // nobody could find it
            }
        }
        saver.end();
        saver.save_tokens();
        saver.flush();
        for id in sessions {
            self.heartbeat.beat();
            if threads.has_given_up() {
                break;
            }
            if !ledger.lacks_cache(id) {
                continue;
            }
            if self.sessions.get(id).place() == CachePlace::None {
                ledger.note_cacheless(id);
                continue;
            }
            // A device that fails now has nothing else to do: what it holds is not saved.
            let _ = self.save_session(id, move |saved| {
                if let Err(error) = saved {
                    tracing::warn!(session = id.0, %error, "the cache of a session was not saved");
                }
            });
        }
        threads.flush();
    }

    /// True if a cache of so many bytes may be moved into a file.
    pub(super) fn disk_room(&self, bytes: u64) -> bool {
        let limit = self.files.as_ref().map_or(0, |files| files.disk_cache_bytes);
        self.sessions.disk_bytes() + bytes <= limit
    }

    /// Moves a cache from the host's memory into a file; whether there is room for it. Where it
    /// cannot be written it is lost, and computed again.
    pub(super) fn park_on_disk(&mut self, id: SessionId) -> bool {
        let Some(files) = &self.files else { return false };
        let session = self.sessions.get(id);
        let Some(Parked::Host(bytes)) = &session.parked else { return false };
        if !self.disk_room(bytes.len() as u64) {
            return false;
        }
        let path = files.folder.parked(session.owner.uid, id.0);
        let threads = files.threads.clone();
        let config = *self.runner.kv_config();
        let session = self.sessions.get_mut(id);
        let Some(Parked::Host(bytes)) = session.parked.take() else { return false };
        let tokens = session.tokens.clone();
        // Tokens may have been cut off since it was moved out.
        let cache = match bytes.len() == config.bytes_of(tokens.len()) {
            true => bytes,
            false => config.first_pages(&bytes, tokens.len()),
        };
        let saved = Saved { header: self.header(id, cache.len()), tokens, cache };
        let cache_bytes = saved.cache.len() as u64;
        let not_written = self.fetches.not_written(id, path.clone());
        threads.write(saved, path.clone(), Writing::Parked, |written| {
            if let Err(error) = written {
                tracing::warn!(%error, "a cache could not be moved to the disk");
                not_written();
            }
        });
        let file = SpillFile { path, cache_bytes, threads };
        self.sessions.get_mut(id).parked = Some(Parked::Disk(file));
        true
    }

    /// The cache in a file that parks it; `None` if the file is not what was written.
    pub(super) fn read_parked(&self, file: &SpillFile) -> Option<Vec<u8>> {
        match self.files.as_ref()?.read(&file.path) {
            Ok(saved) => Some(saved.cache),
            Err(error) => {
                tracing::warn!(%error, "a parked cache is lost and computed again");
                None
            }
        }
    }
}

/// What a caller is told of a file that was to be read.
fn why_not_read(error: &SessionFileError) -> String {
    match error {
        SessionFileError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
            "it was not saved".into()
        }
        error => error.reason(),
    }
}
