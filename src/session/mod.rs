//! Sessions: who owns each, and what its cache holds.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::kv_cache::KvLease;

/// A session's number, unique for the life of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u64);

/// Who a session belongs to: the kernel's word, taken when the connection was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// User id of the peer.
    pub uid: u32,
}

/// One session.
#[derive(Debug)]
pub struct Session {
    /// Whose it is.
    pub owner: Owner,
    /// Name its owner gave it.
    pub name: Option<String>,
    /// Positions it may have.
    pub context_tokens: usize,
    /// Made for one request, and gone with it; it is not listed.
    pub ephemeral: bool,
    /// A request is running on it.
    pub busy: bool,
    /// Its pages; `None` until it first runs, and after its cache was given up.
    pub lease: Option<KvLease>,
    /// The tokens whose keys and values its pages hold, from position 0 on.
    pub tokens: Vec<u32>,
    /// When a request last ended on it.
    pub last_used: Instant,
}

impl Session {
    /// How many tokens of `prompt` the cache already holds.
    #[must_use]
    pub fn common_prefix(&self, prompt: &[u32]) -> usize {
        self.tokens.iter().zip(prompt).take_while(|(own, theirs)| own == theirs).count()
    }
}

/// All sessions, by number.
#[derive(Debug, Default)]
pub struct Sessions {
    sessions: BTreeMap<SessionId, Session>,
    next: u64,
}

impl Sessions {
    /// Adds a session.
    pub fn insert(
        &mut self,
        owner: Owner,
        name: Option<String>,
        context_tokens: usize,
        ephemeral: bool,
    ) -> SessionId {
        self.next += 1;
        let id = SessionId(self.next);
        let session = Session {
            owner,
            name,
            context_tokens,
            ephemeral,
            busy: false,
            lease: None,
            tokens: Vec::new(),
            last_used: Instant::now(),
        };
        self.sessions.insert(id, session);
        id
    }

    /// Takes a session out; its lease must then be released.
    pub fn remove(&mut self, id: SessionId) -> Option<Session> {
        self.sessions.remove(&id)
    }

    /// A session that `owner` may name.
    #[must_use]
    pub fn of_owner(&self, owner: Owner, id: SessionId) -> Option<&Session> {
        self.sessions.get(&id).filter(|session| session.owner == owner && !session.ephemeral)
    }

    /// A session that is known to exist.
    ///
    /// # Panics
    /// If it does not: a bug of the caller.
    pub fn get_mut(&mut self, id: SessionId) -> &mut Session {
        self.sessions.get_mut(&id).expect("a live session")
    }

    /// Whether a session holds pages of the cache.
    #[must_use]
    pub fn has_pages(&self, id: SessionId) -> bool {
        self.sessions.get(&id).is_some_and(|session| session.lease.is_some())
    }

    /// The sessions that `owner` may name, oldest first.
    pub fn list(&self, owner: Owner) -> impl Iterator<Item = (SessionId, &Session)> {
        let listed = move |(_, session): &(&SessionId, &Session)| {
            session.owner == owner && !session.ephemeral
        };
        self.sessions.iter().filter(listed).map(|(id, session)| (*id, session))
    }

    /// Sessions of all owners, but for those of a single request.
    #[must_use]
    pub fn count(&self) -> usize {
        self.sessions.values().filter(|session| !session.ephemeral).count()
    }

    /// The idle session with pages that was used longest ago.
    #[must_use]
    pub fn longest_idle(&self) -> Option<SessionId> {
        self.sessions
            .iter()
            .filter(|(_, session)| !session.busy && session.lease.is_some())
            .min_by_key(|(_, session)| session.last_used)
            .map(|(id, _)| *id)
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

    #[test]
    fn a_session_is_invisible_to_other_owners() {
        let mut sessions = Sessions::default();
        let (anna, ben) = (Owner { uid: 1000 }, Owner { uid: 1001 });
        let id = sessions.insert(anna, Some("notes".into()), 512, false);
        let hidden = sessions.insert(anna, None, 512, true);
        assert!(sessions.of_owner(anna, id).is_some());
        assert!(sessions.of_owner(ben, id).is_none());
        assert!(sessions.of_owner(anna, hidden).is_none());
        assert_eq!(sessions.list(ben).count(), 0);
        assert_eq!(sessions.list(anna).count(), 1);
    }

    #[test]
    fn the_cache_is_good_up_to_the_first_other_token() {
        let mut sessions = Sessions::default();
        let id = sessions.insert(Owner { uid: 0 }, None, 512, false);
        sessions.get_mut(id).tokens = vec![1, 2, 3, 4];
        assert_eq!(sessions.get_mut(id).common_prefix(&[1, 2, 9, 4]), 2);
        assert_eq!(sessions.get_mut(id).common_prefix(&[1, 2]), 2);
        assert_eq!(sessions.get_mut(id).common_prefix(&[5]), 0);
    }
}
