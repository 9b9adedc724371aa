//! Whose turn it is: start-time fair queueing over priorities, then uids, then sessions.
//!
//! Whoever is served moves ahead by the tokens that were computed for him, over his weight; whoever
//! is furthest behind is next. Who comes back from a rest begins where the others are: nobody saves
//! up turns, and nobody waits for another's past. As every turn moves its owner ahead, nobody with
//! work is passed over for ever.

use std::collections::HashMap;
use std::hash::Hash;

use super::Priority;

/// A request for the device: its user, session, priority and arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The request, unique.
    pub request: u64,
    /// Whose it is.
    pub uid: u32,
    /// Number of the session.
    pub session: u64,
    /// Priority of the request.
    pub priority: Priority,
}

/// One level: how far each of its members is, in tokens over weight.
#[derive(Debug)]
struct Level<K> {
    /// Virtual start time of the member served last.
    now: f64,
    /// Virtual time of each member; members at or behind `now` are left out.
    ahead: HashMap<K, f64>,
}

impl<K> Default for Level<K> {
    fn default() -> Self {
        Self { now: 0.0, ahead: HashMap::new() }
    }
}

impl<K: Copy + Eq + Hash> Level<K> {
    fn start(&self, member: K) -> f64 {
        self.ahead.get(&member).copied().unwrap_or(self.now).max(self.now)
    }

    fn charge(&mut self, member: K, service: f64) {
        let start = self.start(member);
        self.now = start.max(self.now);
        self.ahead.insert(member, start + service);
        let now = self.now;
        self.ahead.retain(|_, at| *at > now);
    }
}

/// Virtual time of users and their sessions, for fair queueing.
#[derive(Debug, Default)]
pub struct Fairness {
    priorities: Level<Priority>,
    uids: [Level<u32>; 3],
    sessions: HashMap<(Priority, u32), Level<u64>>,
}

/// Position in the order of service: compared level by level, the request's number last.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Rank {
    by_priority: f64,
    priority: Priority,
    by_uid: f64,
    /// Sessions of one uid are compared with one another alone.
    uid: u32,
    by_session: f64,
    request: u64,
}

impl Fairness {
    /// Rank of a claim; the smallest is served next.
    #[must_use]
    pub fn rank(&self, claim: &Claim) -> Rank {
        let sessions = self.sessions.get(&(claim.priority, claim.uid));
        Rank {
            by_priority: self.priorities.start(claim.priority),
            priority: claim.priority,
            by_uid: self.uids[claim.priority as usize].start(claim.uid),
            uid: claim.uid,
            by_session: sessions.map_or(0.0, |level| level.start(claim.session)),
            request: claim.request,
        }
    }

    /// The order in which claims are next.
    #[must_use]
    pub fn order(&self, claims: &[Claim]) -> Vec<usize> {
        let ranks: Vec<Rank> = claims.iter().map(|claim| self.rank(claim)).collect();
        let mut order: Vec<usize> = (0..claims.len()).collect();
        order.sort_by(|a, b| ranks[*a].partial_cmp(&ranks[*b]).expect("no part is NaN"));
        order
    }

    /// Notes that `tokens` tokens were computed for a claim.
    pub fn charge(&mut self, claim: &Claim, tokens: usize) {
        let service = tokens as f64;
        let weight = f64::from(claim.priority.weight());
        self.priorities.charge(claim.priority, service / weight);
        self.uids[claim.priority as usize].charge(claim.uid, service);
        let sessions = self.sessions.entry((claim.priority, claim.uid)).or_default();
        sessions.charge(claim.session, service);
    }

    /// Forgets who has no work, once there are many: they begin anew where the others are.
    pub fn forget_idle(&mut self, busy: &[Claim]) {
        const KEPT_MAX: usize = 256;
        if self.sessions.len() > KEPT_MAX {
            self.sessions.retain(|(priority, uid), _| {
                busy.iter().any(|claim| (claim.priority, claim.uid) == (*priority, *uid))
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(request: u64, uid: u32, session: u64, priority: Priority) -> Claim {
        Claim { request, uid, session, priority }
    }

    #[test]
    fn the_urgent_come_first_and_the_others_keep_their_share() {
        let claims = [
            claim(1, 1, 1, Priority::Background),
            claim(2, 1, 2, Priority::Normal),
            claim(3, 1, 3, Priority::Interactive),
        ];
        let mut fair = Fairness::default();
        assert_eq!(fair.order(&claims), [2, 1, 0]);
        let mut served = [0; 3];
        for _ in 0..2100 {
            let next = fair.order(&claims)[0];
            served[next] += 1;
            fair.charge(&claims[next], 32);
        }
        assert_eq!(served, [100, 400, 1600]);
    }

    #[test]
    fn a_uid_with_many_sessions_has_one_share() {
        let mut claims: Vec<Claim> = (0..9).map(|at| claim(at, 1, at, Priority::Normal)).collect();
        claims.push(claim(9, 2, 9, Priority::Normal));
        let mut fair = Fairness::default();
        let mut served = [0; 10];
        for _ in 0..180 {
            let next = fair.order(&claims)[0];
            served[next] += 1;
            fair.charge(&claims[next], 7);
        }
        assert_eq!(served, [10, 10, 10, 10, 10, 10, 10, 10, 10, 90]);
    }

    #[test]
    fn a_rest_saves_up_no_turns() {
        let (a, b) = (claim(1, 1, 1, Priority::Normal), claim(2, 2, 2, Priority::Normal));
        let mut fair = Fairness::default();
        (0..1000).for_each(|_| fair.charge(&a, 100)); // while b rests
        let mut served = [0; 2];
        for _ in 0..10 {
            let next = fair.order(&[a, b])[0];
            served[next] += 1;
            fair.charge(&[a, b][next], 100);
        }
        assert_eq!(served, [5, 5]);
    }
}
