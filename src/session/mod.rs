//! Sessions: who owns each, and what its cache holds.

mod file;
mod file_threads;
mod ledger;

pub use file::{Header, Saved, SessionFileError, SessionFolder};
pub use file_threads::{FileThreads, Writing};
pub use ledger::{Ledger, Unsaved};

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::kv_cache::KvLease;
use crate::scheduler::Priority;

/// A session's number, unique for the life of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u64);

/// Owner of a session: the uid reported by the kernel when the connection was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// User id of the peer.
    pub uid: u32,
}

/// Settings of a new session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traits {
    /// Name its owner gave it.
    pub name: Option<String>,
    /// Positions it may have.
    pub context_tokens: usize,
    /// Default priority of its requests.
    pub priority: Priority,
    /// Idle time after which it is closed.
    pub ttl: Option<Duration>,
    /// Made for one request, and gone with it; it is not listed.
    pub ephemeral: bool,
    /// LoRA adapters that it is computed with, by their numbers: what is cached depends on them, so
    /// they never change.
    pub adapters: Vec<UsedAdapter>,
}

impl Traits {
    /// Adapters by their numbers in the model, with their scales.
    #[must_use]
    pub fn mix(&self) -> Vec<(usize, f32)> {
        self.adapters.iter().map(|used| (used.number, used.scale())).collect()
    }
}

/// A LoRA adapter that a session uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsedAdapter {
    /// Name.
    pub name: String,
    /// Digest of its file.
    pub digest: String,
    /// Number in the model, in this daemon.
    #[serde(skip)]
    pub number: usize,
    /// Bits of the factor of what it adds.
    pub scale_bits: u32,
}

impl UsedAdapter {
    /// Factor of what it adds.
    #[must_use]
    pub fn scale(&self) -> f32 {
        f32::from_bits(self.scale_bits)
    }

    /// True if the two compute the same, whatever their numbers are.
    #[must_use]
    pub fn is_same_as(&self, other: &Self) -> bool {
        (&self.name, &self.digest, self.scale_bits)
            == (&other.name, &other.digest, other.scale_bits)
    }
}

/// Location of a session's keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CachePlace {
    /// In the device's memory.
    Device,
    /// In the host's memory.
    Host,
    /// In a file.
    Disk,
    /// Nowhere: they are computed when they are needed.
    None,
}

/// A file that parks a cache; it goes with this.
#[derive(Debug)]
pub struct SpillFile {
    /// The file; it is there, and whole, after a [`FileThreads::flush`].
    pub path: PathBuf,
    /// Bytes of the cache in it.
    pub cache_bytes: u64,
    /// Threads that write and remove it.
    pub threads: FileThreads,
}

impl Drop for SpillFile {
    fn drop(&mut self) {
        self.threads.remove(std::mem::take(&mut self.path), |removed| {
            if let Err(error) = removed {
                tracing::debug!(%error, "a parked cache stays: it goes at the next start");
            }
        });
    }
}

/// A cache outside the device's memory.
#[derive(Debug)]
pub enum Parked {
    /// Pages as returned by [`KvCache::read_pages`](crate::kv_cache::KvCache::read_pages).
    Host(Vec<u8>),
    /// A file that holds them.
    Disk(SpillFile),
}

/// A session: its settings, tokens and cache.
#[derive(Debug)]
pub struct Session {
    /// Whose it is.
    pub owner: Owner,
    /// Settings given by its owner.
    pub traits: Traits,
    /// A request is running or waiting on it.
    pub busy: bool,
    /// KV pages; `None` until it first runs and while its cache is swapped out.
    pub lease: Option<KvLease>,
    /// Swapped-out cache, covering at least its tokens.
    pub parked: Option<Parked>,
    /// Token ids from position 0 on; the cache, if any, holds their keys and values.
    pub tokens: Vec<u32>,
    /// When a request last ended on it.
    pub last_used: Instant,
    /// Goes with it: others see by this that it is closed.
    pub life: Arc<()>,
}

impl Session {
    /// Location of its cache.
    #[must_use]
    pub fn place(&self) -> CachePlace {
        match (&self.lease, &self.parked) {
            (Some(_), _) => CachePlace::Device,
            (None, Some(Parked::Host(_))) => CachePlace::Host,
            (None, Some(Parked::Disk(_))) => CachePlace::Disk,
            (None, None) => CachePlace::None,
        }
    }

    /// Tokens whose keys and values are kept somewhere.
    #[must_use]
    pub fn cached_tokens(&self) -> usize {
        if self.place() == CachePlace::None { 0 } else { self.tokens.len() }
    }

    /// Length of the longest prefix of `prompt` in the cache.
    #[must_use]
    pub fn common_prefix(&self, prompt: &[u32]) -> usize {
        let cached = &self.tokens[..self.cached_tokens()];
        cached.iter().zip(prompt).take_while(|(own, theirs)| own == theirs).count()
    }

    /// True if it has been idle for longer than its owner wanted to keep it.
    #[must_use]
    pub fn expired(&self, now: Instant) -> bool {
        let idle = now.saturating_duration_since(self.last_used);
        !self.busy && self.traits.ttl.is_some_and(|ttl| idle >= ttl)
    }
}

/// All sessions, by number.
#[derive(Debug, Default)]
pub struct Sessions {
    sessions: BTreeMap<SessionId, Session>,
    /// The last number given away; engines of one daemon share it.
    numbers: Arc<AtomicU64>,
}

impl Sessions {
    /// No sessions, whose numbers will follow the last of `numbers`.
    #[must_use]
    pub fn numbered_by(numbers: Arc<AtomicU64>) -> Self {
        Self { sessions: BTreeMap::new(), numbers }
    }

    /// Adds a session.
    pub fn insert(&mut self, owner: Owner, traits: Traits) -> SessionId {
        let id = SessionId(self.numbers.fetch_add(1, Ordering::Relaxed) + 1);
        self.insert_as(id, owner, traits);
        id
    }

    /// Adds a session under a number that it had before.
    ///
    /// # Panics
    /// If there is one of this number: a bug of the caller.
    pub fn insert_as(&mut self, id: SessionId, owner: Owner, traits: Traits) {
        self.reserve(id.0);
        let session = Session {
            owner,
            traits,
            busy: false,
            lease: None,
            parked: None,
            tokens: Vec::new(),
            last_used: Instant::now(),
            life: Arc::default(),
        };
        let before = self.sessions.insert(id, session);
        assert!(before.is_none(), "numbers are unique");
    }

    /// Gives no new session a number up to this one.
    pub fn reserve(&self, number: u64) {
        self.numbers.fetch_max(number, Ordering::Relaxed);
    }

    /// True if a number is taken, by anybody's session.
    #[must_use]
    pub fn contains(&self, id: SessionId) -> bool {
        self.sessions.contains_key(&id)
    }

    /// Takes a session out; its lease must then be released.
    pub fn remove(&mut self, id: SessionId) -> Option<Session> {
        self.sessions.remove(&id)
    }

    /// A session that `owner` may name.
    #[must_use]
    pub fn of_owner(&self, owner: Owner, id: SessionId) -> Option<&Session> {
        self.sessions.get(&id).filter(|session| session.owner == owner && !session.traits.ephemeral)
    }

    /// A session that is known to exist.
    ///
    /// # Panics
    /// If it does not: a bug of the caller.
    pub fn get_mut(&mut self, id: SessionId) -> &mut Session {
        self.sessions.get_mut(&id).expect("a live session")
    }

    /// A session that is known to exist.
    ///
    /// # Panics
    /// If it does not: a bug of the caller.
    #[must_use]
    pub fn get(&self, id: SessionId) -> &Session {
        self.sessions.get(&id).expect("a live session")
    }

    /// The session of `owner` that has this name.
    #[must_use]
    pub fn named(&self, owner: Owner, name: &str) -> Option<SessionId> {
        let has_name = |session: &Session| session.traits.name.as_deref() == Some(name);
        self.list(owner).find(|(_, session)| has_name(session)).map(|(id, _)| id)
    }

    /// True if a session holds pages of the cache.
    #[must_use]
    pub fn has_pages(&self, id: SessionId) -> bool {
        let lease = self.sessions.get(&id).and_then(|session| session.lease.as_ref());
        lease.is_some_and(|lease| !lease.pages().is_empty())
    }

    /// The sessions that `owner` may name, or those of all owners, oldest first.
    pub fn list(
        &self,
        owner: impl Into<Option<Owner>>,
    ) -> impl Iterator<Item = (SessionId, &Session)> {
        let owner = owner.into();
        let listed = move |(_, session): &(&SessionId, &Session)| {
            owner.is_none_or(|owner| session.owner == owner) && !session.traits.ephemeral
        };
        self.sessions.iter().filter(listed).map(|(id, session)| (*id, session))
    }

    /// All sessions of all owners.
    pub fn iter(&self) -> impl Iterator<Item = (SessionId, &Session)> {
        self.sessions.iter().map(|(id, session)| (*id, session))
    }

    /// Sessions of all owners, but for those of a single request.
    #[must_use]
    pub fn count(&self) -> usize {
        self.sessions.values().filter(|session| !session.traits.ephemeral).count()
    }

    /// The idle session with pages that was used longest ago, other than `except`.
    #[must_use]
    pub fn longest_idle(&self, except: SessionId) -> Option<SessionId> {
        self.sessions
            .iter()
            .filter(|(id, session)| **id != except && !session.busy && self.has_pages(**id))
            .min_by_key(|(_, session)| session.last_used)
            .map(|(id, _)| *id)
    }

    /// The idle session parked in the host's memory that was used longest ago.
    #[must_use]
    pub fn longest_on_host(&self) -> Option<SessionId> {
        self.sessions
            .iter()
            .filter(|(_, session)| session.place() == CachePlace::Host)
            .min_by_key(|(_, session)| (session.busy, session.last_used))
            .map(|(id, _)| *id)
    }

    /// Bytes parked in the host's memory.
    #[must_use]
    pub fn host_bytes(&self) -> u64 {
        let bytes = |session: &Session| match &session.parked {
            Some(Parked::Host(bytes)) => bytes.len() as u64,
            _ => 0,
        };
        self.sessions.values().map(bytes).sum()
    }

    /// Bytes parked in files.
    #[must_use]
    pub fn disk_bytes(&self) -> u64 {
        let bytes = |session: &Session| match &session.parked {
            Some(Parked::Disk(file)) => file.cache_bytes,
            _ => 0,
        };
        self.sessions.values().map(bytes).sum()
    }

    /// The sessions that have owners who can name them, the one used last first.
    #[must_use]
    pub fn by_last_use(&self) -> Vec<SessionId> {
        let named = self.sessions.iter().filter(|(_, session)| !session.traits.ephemeral);
        let mut ids: Vec<_> = named.map(|(id, session)| (session.last_used, *id)).collect();
        ids.sort_by(|a, b| b.cmp(a));
        ids.into_iter().map(|(_, id)| id).collect()
    }

    /// Sessions whose time is over.
    #[must_use]
    pub fn expired(&self, now: Instant) -> Vec<SessionId> {
        self.sessions
            .iter()
            .filter(|(_, session)| session.expired(now))
            .map(|(id, _)| *id)
            .collect()
    }

    /// All pages that sessions hold.
    pub fn leases_mut(&mut self) -> impl Iterator<Item = &mut KvLease> {
        self.sessions.values_mut().filter_map(|session| session.lease.as_mut())
    }

    /// Numbers of all sessions.
    #[must_use]
    pub fn ids(&self) -> Vec<SessionId> {
        self.sessions.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traits(name: Option<&str>, ephemeral: bool) -> Traits {
        Traits {
            name: name.map(str::to_owned),
            context_tokens: 512,
            priority: Priority::Normal,
            ttl: None,
            ephemeral,
            adapters: Vec::new(),
        }
    }

    #[test]
    fn a_session_is_invisible_to_other_owners() {
        let mut sessions = Sessions::default();
        let (anna, ben) = (Owner { uid: 1000 }, Owner { uid: 1001 });
        let id = sessions.insert(anna, traits(Some("notes"), false));
        let hidden = sessions.insert(anna, traits(None, true));
        assert!(sessions.of_owner(anna, id).is_some());
        assert!(sessions.of_owner(ben, id).is_none());
        assert!(sessions.of_owner(anna, hidden).is_none());
        assert_eq!(sessions.list(ben).count(), 0);
        assert_eq!(sessions.list(anna).count(), 1);
        assert_eq!(sessions.named(anna, "notes"), Some(id));
        assert_eq!(sessions.named(ben, "notes"), None);
    }

    #[test]
    fn the_cache_is_good_up_to_the_first_other_token() {
        let mut sessions = Sessions::default();
        let id = sessions.insert(Owner { uid: 0 }, traits(None, false));
        let session = sessions.get_mut(id);
        session.tokens = vec![1, 2, 3, 4];
        assert_eq!(session.common_prefix(&[1, 2]), 0, "tokens alone are no cache");
        session.parked = Some(Parked::Host(Vec::new()));
        assert_eq!(sessions.get_mut(id).common_prefix(&[1, 2, 9, 4]), 2);
        assert_eq!(sessions.get_mut(id).common_prefix(&[1, 2]), 2);
        assert_eq!(sessions.get_mut(id).common_prefix(&[5]), 0);
    }
}
