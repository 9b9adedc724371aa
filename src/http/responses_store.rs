//! Responses that their clients may come back to: in memory, of each user its own.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::chat::ChatMessage;

/// Limits of a store.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Responses of one user.
    user_responses: usize,
    /// Bytes of one user's responses, as JSON.
    user_bytes: usize,
    /// Bytes of all users' responses.
    bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { user_responses: 256, user_bytes: 32 << 20, bytes: 256 << 20 }
    }
}

/// How long a response is kept.
const KEPT: Duration = Duration::from_secs(24 * 60 * 60);

/// One response.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) id: String,
    pub(super) response: Value,
    pub(super) input_items: Vec<Value>,
    /// All that was said up to its end, but for its instructions.
    pub(super) messages: Vec<ChatMessage>,
}

impl Stored {
    fn bytes(&self) -> usize {
        let json = |value: &Value| value.to_string().len();
        let message = |message: &ChatMessage| {
            let text = message.content.bytes();
            text + message.fields.values().map(json).sum::<usize>()
        };
        json(&self.response)
            + self.input_items.iter().map(json).sum::<usize>()
            + self.messages.iter().map(message).sum::<usize>()
    }
}

#[derive(Debug)]
struct Entry {
    stored: Arc<Stored>,
    bytes: usize,
    since: Instant,
}

/// The oldest first.
type Entries = VecDeque<Entry>;

/// All responses that are kept.
#[derive(Debug, Default)]
pub(super) struct ResponseStore {
    limits: Limits,
    users: Mutex<BTreeMap<u32, Entries>>,
}

impl ResponseStore {
    fn users(&self, now: Instant) -> MutexGuard<'_, BTreeMap<u32, Entries>> {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        for entries in users.values_mut() {
            while entries.front().is_some_and(|first| now - first.since > KEPT) {
                entries.pop_front();
            }
        }
        users.retain(|_, entries| !entries.is_empty());
        users
    }

    /// Keeps a response, at the cost of the user's oldest. Where all users together have too much,
    /// the one who has the most of it loses the oldest.
    pub(super) fn put(&self, uid: u32, stored: Stored) {
        let limits = self.limits;
        let bytes = stored.bytes();
        if bytes > limits.user_bytes {
            return;
        }
        let entry = Entry { stored: Arc::new(stored), bytes, since: Instant::now() };
        let mut users = self.users(Instant::now());
        let own = users.entry(uid).or_default();
        own.push_back(entry);
        while own.len() > limits.user_responses || sum(own) > limits.user_bytes {
            own.pop_front();
        }
        while users.values().map(sum).sum::<usize>() > limits.bytes {
            let most = users.iter().max_by_key(|(_, entries)| sum(entries)).map(|(uid, _)| *uid);
            let Some(entries) = most.and_then(|uid| users.get_mut(&uid)) else { break };
            entries.pop_front();
        }
    }

    pub(super) fn get(&self, uid: u32, id: &str) -> Option<Arc<Stored>> {
        let users = self.users(Instant::now());
        let found = users.get(&uid)?.iter().find(|entry| entry.stored.id == id)?;
        Some(Arc::clone(&found.stored))
    }

    /// Forgets a response; true if there was one.
    pub(super) fn remove(&self, uid: u32, id: &str) -> bool {
        let mut users = self.users(Instant::now());
        let Some(entries) = users.get_mut(&uid) else { return false };
        let before = entries.len();
        entries.retain(|entry| entry.stored.id != id);
        entries.len() < before
    }
}

fn sum(entries: &Entries) -> usize {
    entries.iter().map(|entry| entry.bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(id: &str, bytes: usize) -> Stored {
        let response = Value::String("x".repeat(bytes));
        Stored { id: id.to_owned(), response, input_items: Vec::new(), messages: Vec::new() }
    }

    #[test]
    fn nobody_sees_a_response_of_another_user() {
        let store = ResponseStore::default();
        store.put(1, stored("a", 1));
        assert!(store.get(1, "a").is_some());
        assert!(store.get(2, "a").is_none() && !store.remove(2, "a"));
        assert!(store.remove(1, "a") && !store.remove(1, "a"));
        assert!(store.get(1, "a").is_none());
    }

    /// At most three responses and 100 bytes of one user, and 250 bytes in all.
    fn small() -> ResponseStore {
        let limits = Limits { user_responses: 3, user_bytes: 100, bytes: 250 };
        ResponseStore { limits, ..ResponseStore::default() }
    }

    #[test]
    fn the_oldest_of_a_user_go_by_number_and_by_size() {
        let store = small();
        store.put(2, stored("other", 1));
        for id in ["1", "2", "3", "4"] {
            store.put(1, stored(id, 1));
        }
        assert!(store.get(1, "1").is_none() && store.get(1, "2").is_some());
        // Two quotation marks more, as JSON.
        store.put(1, stored("large", 98));
        assert!(store.get(1, "large").is_some() && store.get(1, "4").is_none());
        store.put(1, stored("too large", 99));
        assert!(store.get(1, "too large").is_none() && store.get(1, "large").is_some());
        assert!(store.get(2, "other").is_some());
    }

    #[test]
    fn who_has_the_most_makes_room_for_all() {
        let store = small();
        store.put(0, stored("small", 10));
        for uid in 1..=4 {
            store.put(uid, stored("first", 38));
            store.put(uid, stored("second", 38));
        }
        assert!(store.get(0, "small").is_some());
        let all: usize = store.users(Instant::now()).values().map(sum).sum();
        assert!((200..=250).contains(&all), "{all}");
    }

    #[test]
    fn a_response_is_forgotten_after_a_day() {
        let store = ResponseStore::default();
        let before = Instant::now();
        store.put(1, stored("a", 1));
        assert_eq!(store.users(before + KEPT).len(), 1);
        assert!(store.users(Instant::now() + KEPT * 2).is_empty());
        assert!(store.get(1, "a").is_none());
    }
}
