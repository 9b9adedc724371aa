//! Who holds which connection: shares per user, reserved places, and who gives way.
//!
//! A connection counts once it has spoken. Those that have said nothing yet are bounded too, and
//! the oldest of the user who has the most of them goes without a word. Of those that have spoken,
//! one user holds at most a share; the last places are for the daemon's own user and for root.
//! Where there is no place, a connection at rest gives way: first one that has sent nothing for
//! [`IDLE_MIN`], else the one at rest for longest of a user who holds more than the newcomer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::protocol::{ErrorCode, ErrorObject};

/// A connection that has sent nothing for so long is the first to give way.
pub(super) const IDLE_MIN: Duration = Duration::from_secs(30);

/// One place in so many is reserved for root, and as many again for the daemon's own user.
const RESERVED_SHARE: u32 = 32;

/// Share of one user, where the configuration says none.
const USER_SHARE: u32 = 4;

/// Limits of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct TableLimits {
    connections_max: u32,
    user_max: u32,
    own_uid: u32,
}

impl TableLimits {
    /// `user_max` of 0: a quarter of `connections_max`.
    pub(super) fn new(connections_max: u32, user_max: u32, own_uid: u32) -> Self {
        let user_max = if user_max == 0 { connections_max / USER_SHARE } else { user_max };
        Self { connections_max, user_max: user_max.clamp(1, connections_max.max(1)), own_uid }
    }

    /// Connections of all users among which one of `uid` may still be opened.
    fn places(self, uid: u32) -> usize {
        let reserved = self.connections_max / RESERVED_SHARE;
        let places = match uid {
            0 => self.connections_max,
            _ if uid == self.own_uid => self.connections_max - reserved,
            _ => self.connections_max - 2 * reserved,
        };
        places as usize
    }

    fn is_operator(self, uid: u32) -> bool {
        uid == 0 || uid == self.own_uid
    }

    fn most_of(self, uid: u32) -> usize {
        if self.is_operator(uid) { self.places(uid) } else { self.user_max as usize }
    }
}

/// No place for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoPlace {
    /// The user holds as many as one may.
    OfUser { limit: u32 },
    /// There are as many as may be, and none gives way.
    OfAll { limit: u32 },
}

impl From<NoPlace> for ErrorObject {
    fn from(refusal: NoPlace) -> Self {
        let (limit, message) = match refusal {
            NoPlace::OfUser { limit } => {
                (limit, format!("you have {limit} connections, the most that one user may have"))
            }
            NoPlace::OfAll { limit } => {
                (limit, format!("there are {limit} connections, the most there may be"))
            }
        };
        Self::new(ErrorCode::TOO_MANY_CONNECTIONS, message).with_data(json!({"limit": limit}))
    }
}

#[derive(Debug)]
struct Entry {
    uid: u32,
    spoken: bool,
    in_flight: u32,
    /// When it was opened, last sent a frame, or was last answered.
    active: Instant,
    evicted: CancellationToken,
}

#[derive(Debug, Default)]
struct State {
    entries: BTreeMap<u64, Entry>,
    next: u64,
}

impl State {
    fn count(&self, of: impl Fn(&Entry) -> bool) -> usize {
        self.entries.values().filter(|entry| of(entry)).count()
    }

    fn held(&self, uid: u32) -> usize {
        self.count(|entry| entry.spoken && entry.uid == uid)
    }

    fn longest_at_rest(&self, of: impl Fn(&Entry) -> bool) -> Option<u64> {
        let at_rest = self.entries.iter().filter(|(_, entry)| entry.in_flight == 0 && of(entry));
        at_rest.min_by_key(|(_, entry)| entry.active).map(|(number, _)| *number)
    }

    fn evict(&mut self, number: u64) {
        if let Some(entry) = self.entries.remove(&number) {
            entry.evicted.cancel();
        }
    }

    /// Makes room among the connections that have not spoken: the user with most of them loses one.
    fn evict_silent(&mut self) {
        let silent = |uid| self.count(|entry| !entry.spoken && entry.uid == uid);
        let users = self.entries.values().filter(|entry| !entry.spoken).map(|entry| entry.uid);
        let Some(most) = users.max_by_key(|uid| silent(*uid)) else { return };
        let oldest = self.longest_at_rest(|entry| !entry.spoken && entry.uid == most);
        oldest.into_iter().for_each(|number| self.evict(number));
    }
}

/// All connections of a server.
#[derive(Debug)]
pub(super) struct ConnectionTable {
    limits: TableLimits,
    state: Mutex<State>,
}

impl ConnectionTable {
    pub(super) fn new(limits: TableLimits) -> Self {
        Self { limits, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connections that have spoken.
    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.state().count(|entry| entry.spoken)).unwrap_or(u32::MAX)
    }

    /// A connection that has said nothing yet.
    pub(super) fn open(self: &Arc<Self>, uid: u32, now: Instant) -> Place {
        let mut state = self.state();
        let of_user = state.count(|entry| !entry.spoken && entry.uid == uid);
        if of_user >= self.limits.most_of(uid) {
            let oldest = state.longest_at_rest(|entry| !entry.spoken && entry.uid == uid);
            oldest.into_iter().for_each(|number| state.evict(number));
        }
        if state.count(|entry| !entry.spoken) >= self.limits.connections_max as usize {
            state.evict_silent();
        }
        let number = state.next;
        state.next += 1;
        let evicted = CancellationToken::new();
        let entry = Entry { uid, spoken: false, in_flight: 0, active: now, evicted };
        let evicted = entry.evicted.clone();
        state.entries.insert(number, entry);
        Place { table: Arc::clone(self), number, evicted }
    }

    fn speak(&self, number: u64, now: Instant) -> Result<(), NoPlace> {
        let limits = self.limits;
        let mut state = self.state();
        let Some(entry) = state.entries.get(&number).filter(|entry| !entry.spoken) else {
            return Ok(());
        };
        let uid = entry.uid;
        let idle = |entry: &Entry| entry.spoken && now - entry.active >= IDLE_MIN;
        if state.held(uid) >= limits.most_of(uid) {
            let gives_way = state.longest_at_rest(|entry| entry.uid == uid && idle(entry));
            let limit = limits.most_of(uid) as u32;
            state.evict(gives_way.ok_or(match limits.is_operator(uid) {
                true => NoPlace::OfAll { limit },
                false => NoPlace::OfUser { limit },
            })?);
        }
        if state.count(|entry| entry.spoken) >= limits.places(uid) {
            let held = state.held(uid);
            let may_evict =
                |entry: &Entry| limits.is_operator(uid) || !limits.is_operator(entry.uid);
            let gives_way = state
                .longest_at_rest(|entry| {
                    idle(entry) && may_evict(entry) && state.held(entry.uid) >= held
                })
                .or_else(|| {
                    state.longest_at_rest(|entry| {
                        entry.spoken && may_evict(entry) && state.held(entry.uid) > held + 1
                    })
                });
            let limit = limits.places(uid) as u32;
            state.evict(gives_way.ok_or(NoPlace::OfAll { limit })?);
        }
        if let Some(entry) = state.entries.get_mut(&number) {
            (entry.spoken, entry.active) = (true, now);
        }
        Ok(())
    }

    fn change(&self, number: u64, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.state().entries.get_mut(&number) {
            change(entry);
        }
    }
}

/// One connection's entry, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    table: Arc<ConnectionTable>,
    number: u64,
    evicted: CancellationToken,
}

impl Place {
    /// The first byte has come: the connection counts from now on.
    pub(super) fn speak(&self, now: Instant) -> Result<(), NoPlace> {
        self.table.speak(self.number, now)
    }

    /// Cancelled when the connection has to give way to others.
    pub(super) fn evicted(&self) -> &CancellationToken {
        &self.evicted
    }

    /// A frame has come.
    pub(super) fn touch(&self) {
        self.table.change(self.number, |entry| entry.active = Instant::now());
    }

    /// A request runs until the guard is dropped; meanwhile the connection is not at rest.
    pub(super) fn busy(self: &Arc<Self>) -> Busy {
        self.table.change(self.number, |entry| entry.in_flight += 1);
        Busy { place: Arc::clone(self) }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.table.state().entries.remove(&self.number);
    }
}

/// Keeps a connection from counting as at rest.
#[derive(Debug)]
pub struct Busy {
    place: Arc<Place>,
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.place.table.change(self.place.number, |entry| {
            entry.in_flight -= 1;
            entry.active = Instant::now();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: u32 = 500;
    const ALICE: u32 = 1000;
    const BOB: u32 = 1001;

    /// 64 connections, of which 16 of one user.
    fn table() -> Arc<ConnectionTable> {
        Arc::new(ConnectionTable::new(TableLimits::new(64, 0, OWN)))
    }

    fn spoken(table: &Arc<ConnectionTable>, uid: u32, now: Instant) -> Result<Place, NoPlace> {
        let place = table.open(uid, now);
        place.speak(now).map(|()| place)
    }

    fn fill(table: &Arc<ConnectionTable>, uid: u32, count: usize, now: Instant) -> Vec<Place> {
        (0..count).map(|_| spoken(table, uid, now).expect("there is room")).collect()
    }

    #[test]
    fn one_user_holds_a_quarter_and_others_come_in() {
        let (table, now) = (table(), Instant::now());
        let held = fill(&table, ALICE, 16, now);
        let refused = spoken(&table, ALICE, now).map(drop);
        assert_eq!(refused, Err(NoPlace::OfUser { limit: 16 }));
        for uid in [BOB, OWN, 0] {
            spoken(&table, uid, now).expect("not alice's");
        }
        drop(held);
        spoken(&table, ALICE, now).expect("hers are free again");
    }

    #[test]
    fn the_last_places_are_roots_and_the_daemons_users() {
        let (table, now) = (table(), Instant::now());
        let mut held: Vec<Place> = (0..60)
            .map(|n| {
                let place = spoken(&table, 2000 + n % 5, now).expect("there is room");
                table.change(place.number, |entry| entry.in_flight = 1);
                place
            })
            .collect();
        assert_eq!(
            spoken(&table, ALICE, now).map(drop),
            Err(NoPlace::OfAll { limit: 60 }),
            "all are busy"
        );
        held.extend(fill(&table, OWN, 2, now));
        held.iter().for_each(|place| table.change(place.number, |entry| entry.in_flight = 1));
        assert!(spoken(&table, OWN, now).is_err());
        held.extend(fill(&table, 0, 2, now));
        assert_eq!(table.count(), 64);
    }

    #[test]
    fn who_sent_nothing_for_thirty_seconds_gives_way_first() {
        let (table, start) = (table(), Instant::now());
        let idle = spoken(&table, ALICE, start).expect("there is room");
        let now = start + IDLE_MIN;
        let held = fill(&table, ALICE, 15, now);
        let next = spoken(&table, ALICE, now).expect("in the idle one's place");
        assert!(idle.evicted().is_cancelled() && !next.evicted().is_cancelled());
        assert!(held.iter().all(|place| !place.evicted().is_cancelled()));
        assert!(spoken(&table, ALICE, now).is_err(), "the others have just spoken");
    }

    #[test]
    fn a_newcomer_takes_the_place_of_who_holds_more() {
        let (table, now) = (table(), Instant::now());
        let held: Vec<_> = (0..4).flat_map(|n| fill(&table, 2000 + n, 15, now)).collect();
        let _alice = spoken(&table, ALICE, now + Duration::from_secs(1)).expect("a fair share");
        assert!(held[0].evicted().is_cancelled(), "the first of those at rest for longest");
        assert_eq!(held.iter().filter(|place| place.evicted().is_cancelled()).count(), 1);
        // Nobody gives way to one who holds as many.
        assert!(spoken(&table, 2001, now).is_err());
    }

    #[test]
    fn a_busy_connection_and_an_operators_never_give_way_to_a_user() {
        let table = Arc::new(ConnectionTable::new(TableLimits::new(2, 2, OWN)));
        let start = Instant::now();
        let own = spoken(&table, OWN, start).expect("there is room");
        let busy = spoken(&table, BOB, start).expect("there is room");
        table.change(busy.number, |entry| entry.in_flight = 1);
        let later = start + IDLE_MIN * 2;
        assert_eq!(spoken(&table, ALICE, later).map(drop), Err(NoPlace::OfAll { limit: 2 }));
        table.change(busy.number, |entry| entry.in_flight = 0);
        spoken(&table, ALICE, later).expect("bob's is at rest");
        assert!(busy.evicted().is_cancelled() && !own.evicted().is_cancelled());
    }

    #[test]
    fn silent_connections_count_apart_and_the_oldest_go() {
        let (table, now) = (table(), Instant::now());
        let flood: Vec<Place> = (0..500).map(|_| table.open(ALICE, now)).collect();
        assert_eq!(table.count(), 0);
        let left = flood.iter().filter(|place| !place.evicted().is_cancelled());
        assert_eq!(left.count(), 16, "the newest");
        assert!(!flood[499].evicted().is_cancelled());
        let others: Vec<Place> = (0..200).map(|n| table.open(3000 + n, now)).collect();
        assert_eq!(table.state().entries.len(), 64);
        assert!(!others[199].evicted().is_cancelled());
        spoken(&table, BOB, now).expect("silent ones take no place");
    }
}
