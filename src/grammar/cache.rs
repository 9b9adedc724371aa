//! Compiled grammars kept for later requests of the same user.
//!
//! No user gets at what another compiled, and so nobody learns, by the time it takes, what others
//! ask for.

use std::sync::Arc;

use super::{Grammar, GrammarSource};

/// Grammars kept for one user.
const PER_USER_MAX: usize = 16;
/// Grammars kept for all users of a model.
const MAX: usize = 128;

/// Least recently used first.
#[derive(Debug, Default)]
pub(super) struct Cache {
    entries: Vec<(u32, GrammarSource, Arc<Grammar>)>,
}

impl Cache {
    pub(super) fn get(&mut self, uid: u32, source: &GrammarSource) -> Option<Arc<Grammar>> {
        let at =
            self.entries.iter().position(|(user, known, _)| *user == uid && known == source)?;
        let entry = self.entries.remove(at);
        let grammar = Arc::clone(&entry.2);
        self.entries.push(entry);
        Some(grammar)
    }

    pub(super) fn put(&mut self, uid: u32, source: GrammarSource, grammar: Arc<Grammar>) {
        self.entries.retain(|(user, known, _)| *user != uid || *known != source);
        self.entries.push((uid, source, grammar));
        if self.count(uid) > PER_USER_MAX {
            self.forget_oldest_of(uid);
        } else if self.entries.len() > MAX {
            // Whoever has the most makes room.
            let users = self.entries.iter().map(|(user, ..)| *user);
            if let Some(most) = users.max_by_key(|user| self.count(*user)) {
                self.forget_oldest_of(most);
            }
        }
    }

    fn count(&self, uid: u32) -> usize {
        self.entries.iter().filter(|(user, ..)| *user == uid).count()
    }

    fn forget_oldest_of(&mut self, uid: u32) {
        if let Some(at) = self.entries.iter().position(|(user, ..)| *user == uid) {
            self.entries.remove(at);
        }
    }
}
