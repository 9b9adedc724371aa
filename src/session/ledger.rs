//! Tokens and settings of the sessions that outlive the daemon, and which of them are in files.
//!
//! The engine notes here what it changes. Whoever ends the daemon can so save all tokens, a few
//! kilobytes each, while the engine waits for its device; caches follow as time allows, since they
//! can be computed again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::SessionId;
use super::file::{Header, Saved};

/// A session: its settings, tokens and cache.
#[derive(Debug)]
struct Record {
    /// Without a cache.
    header: Header,
    tokens: Vec<u32>,
    /// Counts changes, from 1 on.
    version: u64,
    /// The version that is in a file; 0: none.
    saved: u64,
    /// True if that file has the cache as well.
    cached: bool,
    /// Why the last attempt to save this version failed.
    failure: Option<String>,
}

impl Record {
    fn is_saved(&self) -> bool {
        self.saved == self.version
    }

    fn lacks_cache(&self) -> bool {
        !(self.tokens.is_empty() || self.is_saved() && self.cached)
    }
}

/// A session that was not saved as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsaved {
    /// Whose it is.
    pub uid: u32,
    /// Number.
    pub session: SessionId,
    /// Name.
    pub name: Option<String>,
    /// True if its tokens and settings are not in a file; else its cache alone is not, which is
    /// computed again.
    pub is_lost: bool,
    /// Why.
    pub reason: String,
}

/// All sessions of an engine that outlive it; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Ledger(Arc<Mutex<BTreeMap<SessionId, Record>>>);

impl Ledger {
    fn records(&self) -> MutexGuard<'_, BTreeMap<SessionId, Record>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what a session is now, and returns its version: another one than before if anything
    /// has changed.
    pub fn note(&self, header: Header, tokens: &[u32]) -> u64 {
        let header = Header { cache_bytes: 0, ..header };
        let mut records = self.records();
        let record = records.entry(SessionId(header.session)).or_insert_with(|| Record {
            header: header.clone(),
            tokens: Vec::new(),
            version: 0,
            saved: 0,
            cached: false,
            failure: None,
        });
        if record.version == 0 || record.header != header || record.tokens != tokens {
            record.header = header;
            record.tokens.clear();
            record.tokens.extend_from_slice(tokens);
            record.version += 1;
            record.failure = None;
        }
        record.version
    }

    /// Notes that a file has this version of a session.
    pub fn note_saved(&self, id: SessionId, version: u64, cached: bool) {
        if let Some(record) = self.records().get_mut(&id)
            && record.saved <= version
        {
            record.cached = cached || (record.saved == version && record.cached);
            record.saved = version;
            record.failure = None;
        }
    }

    /// Notes that a session has no cache to save.
    pub fn note_cacheless(&self, id: SessionId) {
        if let Some(record) = self.records().get_mut(&id)
            && record.is_saved()
        {
            record.cached = true;
        }
    }

    /// Notes why a version of a session, or its cache, could not be saved.
    pub fn note_failure(&self, id: SessionId, version: u64, reason: &str) {
        if let Some(record) = self.records().get_mut(&id)
            && record.version == version
        {
            record.failure = Some(reason.to_owned());
        }
    }

    /// Leaves a session's file alone from now on.
    pub fn forget(&self, id: SessionId) {
        self.records().remove(&id);
    }

    /// Sessions whose tokens or settings are in no file, without their caches, and their versions.
    #[must_use]
    pub fn changed(&self) -> Vec<(u64, Saved)> {
        let records = self.records();
        let changed = records.values().filter(|record| !record.is_saved());
        let saved = |record: &Record| {
            let (header, tokens) = (record.header.clone(), record.tokens.clone());
            (record.version, Saved { header, tokens, cache: Vec::new() })
        };
        changed.map(saved).collect()
    }

    /// True if no file has a session's tokens, or none has its cache.
    #[must_use]
    pub fn lacks_cache(&self, id: SessionId) -> bool {
        self.records().get(&id).is_some_and(Record::lacks_cache)
    }

    /// True if this version of a session is still to be saved.
    #[must_use]
    pub fn wants(&self, id: SessionId, version: u64) -> bool {
        let records = self.records();
        records.get(&id).is_some_and(|record| record.version == version && !record.is_saved())
    }

    /// Sessions that are not in a file as they are.
    #[must_use]
    pub fn unsaved(&self) -> Vec<Unsaved> {
        let records = self.records();
        let unsaved =
            records.iter().filter(|(_, record)| !record.is_saved() || record.lacks_cache());
        let told = |(id, record): (&SessionId, &Record)| Unsaved {
            uid: record.header.uid,
            session: *id,
            name: record.header.name.clone(),
            is_lost: !record.is_saved(),
            reason: record.failure.clone().unwrap_or_else(|| "there was no time left".into()),
        };
        unsaved.map(told).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(tokens: u64) -> Header {
        Header {
            uid: 7,
            session: 3,
            name: Some("notes".into()),
            context_tokens: 96,
            priority: "normal".into(),
            ttl_seconds: None,
            adapters: Vec::new(),
            made_by: "this".into(),
            tokens,
            cache_bytes: 8,
        }
    }

    #[test]
    fn what_has_changed_since_it_was_saved_is_unsaved() {
        let (ledger, id) = (Ledger::default(), SessionId(3));
        let first = ledger.note(header(1), &[5]);
        assert_eq!(ledger.note(header(1), &[5]), first, "nothing has changed");
        let [(version, saved)] = &ledger.changed()[..] else { panic!("one session") };
        assert_eq!((*version, &saved.tokens[..], saved.header.cache_bytes), (first, &[5][..], 0));
        ledger.note_saved(id, first, true);
        assert_eq!((ledger.changed().len(), ledger.unsaved().len()), (0, 0));
        let second = ledger.note(header(2), &[5, 6]);
        assert!(ledger.wants(id, second) && !ledger.wants(id, first));
        ledger.note_failure(id, first, "of another version");
        ledger.note_failure(id, second, "the disk is full");
        let [unsaved] = &ledger.unsaved()[..] else { panic!("one session") };
        assert_eq!((unsaved.is_lost, &unsaved.reason[..]), (true, "the disk is full"));
        ledger.note_cacheless(id);
        assert!(ledger.unsaved()[0].is_lost, "its tokens are in no file");
        ledger.note_saved(id, second, false);
        assert!(!ledger.unsaved()[0].is_lost && ledger.lacks_cache(id));
        ledger.note_saved(id, first, true);
        assert!(ledger.lacks_cache(id), "an older file does not take a newer one's place");
        ledger.note_saved(id, second, true);
        ledger.note_saved(id, second, false);
        assert!(!ledger.lacks_cache(id), "the file with the cache is the newer one");
        ledger.forget(id);
        assert!(ledger.unsaved().is_empty());
    }
}
