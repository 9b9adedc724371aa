//! What one user may take of the engine: sessions, memory, places in the queue and in the batch.

use std::collections::BTreeMap;

use super::request::Generation;
use super::types::{AdmitError, UserCounts};
use super::worker::Worker;
use crate::gpu::DeviceError;
use crate::session::{Owner, Session, SessionId};

/// Limits of one user; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// Number of sessions.
    pub sessions_max: Option<usize>,
    /// Bytes of cached keys and values.
    pub kv_bytes_max: Option<u64>,
    /// Requests that wait.
    pub requests_queued_max: Option<usize>,
    /// Requests in the batch; more wait.
    pub requests_running_max: Option<usize>,
}

impl Quota {
    /// Limits that never bind, for somebody who is to have none.
    pub const UNLIMITED: Self = Self {
        sessions_max: Some(usize::MAX),
        kv_bytes_max: Some(u64::MAX),
        requests_queued_max: Some(usize::MAX),
        requests_running_max: Some(usize::MAX),
    };

    /// These limits, and those of `other` where there is none.
    fn or(self, other: Self) -> Self {
        Self {
            sessions_max: self.sessions_max.or(other.sessions_max),
            kv_bytes_max: self.kv_bytes_max.or(other.kv_bytes_max),
            requests_queued_max: self.requests_queued_max.or(other.requests_queued_max),
            requests_running_max: self.requests_running_max.or(other.requests_running_max),
        }
    }
}

/// Limits of all users.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quotas {
    /// Quota of users not named below.
    pub default: Quota,
    /// Quotas of single users, by uid.
    pub of: BTreeMap<u32, Quota>,
    /// User of the daemon, who as root is limited by `default` and `of` alone: all others get at
    /// most half of a thing that these set no limit for. `None`: nobody is limited so.
    pub halved_but_for: Option<u32>,
}

/// Limits of all users of an engine.
#[derive(Debug)]
pub(super) struct UserLimits {
    quotas: Quotas,
    /// Half of everything that the engine has.
    half: Quota,
}

impl UserLimits {
    /// The limits of a user.
    pub(super) fn of(&self, owner: Owner) -> Quota {
        let quotas = &self.quotas;
        let own = quotas.of.get(&owner.uid).copied().unwrap_or(quotas.default);
        match quotas.halved_but_for {
            Some(operator) if owner.uid != 0 && owner.uid != operator => own.or(self.half),
            _ => own,
        }
    }

    /// Limits in an engine that has `all` in all. A half of its cache is at least one context.
    pub(super) fn new(quotas: Quotas, all: Quota, context_bytes: u64) -> Self {
        let half = |count: usize| count.div_ceil(2);
        let half = Quota {
            sessions_max: all.sessions_max.map(half),
            kv_bytes_max: all.kv_bytes_max.map(|bytes| (bytes / 2).max(context_bytes)),
            requests_queued_max: all.requests_queued_max.map(half),
            requests_running_max: all.requests_running_max.map(half),
        };
        Self { quotas, half }
    }
}

impl Worker {
    /// Refuses one more session than the user may have.
    pub(super) fn check_sessions_of(&self, owner: Owner) -> Result<(), AdmitError> {
        match self.quotas.of(owner).sessions_max {
            Some(limit) if self.sessions.list(owner).count() >= limit => {
                Err(AdmitError::UserSessions { limit })
            }
            _ => Ok(()),
        }
    }

    /// Refuses a request that the user may not queue, or that could never run within its memory.
    pub(super) fn check_request_of(&self, owner: Owner, tokens: usize) -> Result<(), AdmitError> {
        let quota = self.quotas.of(owner);
        let to_embed = self.embeddings.iter().filter(|other| other.request.owner == owner);
        let waiting = self.waiting.iter().filter(|other| other.request.owner == owner).count()
            + to_embed.count();
        if let Some(limit) = quota.requests_queued_max.filter(|limit| waiting >= *limit) {
            return Err(AdmitError::UserQueueFull { waiting, limit });
        }
        let wanted_bytes = self.kv_bytes(tokens);
        match quota.kv_bytes_max {
            Some(limit_bytes) if wanted_bytes > limit_bytes => {
                Err(AdmitError::UserKvFull { wanted_bytes, limit_bytes })
            }
            _ => Ok(()),
        }
    }

    /// Finds a place for one more request among those that wait. Where all are taken, the user who
    /// has the most gives up the one that came last, unless the caller would then have as many.
    pub(super) fn find_place_to_wait(&mut self, owner: Owner) -> Result<(), AdmitError> {
        let waiting = self.waiting.len() + self.embeddings.len();
        let limit = self.requests_queued_max;
        if waiting < limit {
            return Ok(());
        }
        let generations = self.waiting.iter();
        let generations = generations.map(|g| (g.request.owner.uid, g.number, g.has_started()));
        let embeddings = self.embeddings.iter();
        let embeddings = embeddings.map(|e| (e.request.owner.uid, e.number, e.has_started()));
        let all: Vec<(u32, u64, bool)> = generations.chain(embeddings).collect();
        let count = |uid| all.iter().filter(|(other, ..)| *other == uid).count();
        let most = all.iter().map(|(uid, ..)| *uid).max_by_key(|uid| count(*uid));
        let most = most.filter(|uid| count(*uid) > count(owner.uid) + 1);
        let of_most = all.iter().filter(|(uid, _, started)| Some(*uid) == most && !started);
        let Some((uid, last, _)) = of_most.max_by_key(|(_, number, _)| *number) else {
            return Err(AdmitError::QueueFull { waiting, limit });
        };
        let waiting = count(*uid);
        let refusal = AdmitError::UserQueueFull { waiting, limit: waiting - 1 };
        if let Some(at) = self.embeddings.iter().position(|e| e.number == *last) {
            self.end_embedding(at, refusal);
        } else {
            let generation = self.take_waiting(*last);
            self.refuse(generation, refusal);
        }
        Ok(())
    }

    /// True if the user's other running requests leave room for this one.
    pub(super) fn is_within_quota(&self, generation: &Generation) -> bool {
        let owner = generation.request.owner;
        let quota = self.quotas.of(owner);
        let others = || self.running.iter().filter(|other| other.request.owner == owner);
        if quota.requests_running_max.is_some_and(|limit| others().count() >= limit) {
            return false;
        }
        let Some(limit) = quota.kv_bytes_max else { return true };
        self.promised_bytes(owner) + self.kv_bytes(generation.tokens_wanted()) <= limit
    }

    /// True if one more request of the user may run beside those that generate and `beside` more.
    pub(super) fn may_run_beside(&self, owner: Owner, beside: usize) -> bool {
        let running = self.running.iter().filter(|other| other.request.owner == owner).count();
        let limit = self.quotas.of(owner).requests_running_max;
        limit.is_none_or(|limit| running + beside < limit)
    }

    /// Bytes that the user's running requests have or will come to have.
    fn promised_bytes(&self, owner: Owner) -> u64 {
        let own = self.running.iter().filter(|other| other.request.owner == owner);
        own.map(|other| self.kv_bytes(other.tokens_wanted())).sum::<u64>()
            + self.embedding_bytes(owner)
    }

    /// Moves caches of the user's sessions that do not run out of the device's memory, the one
    /// unused for longest first, until session `id` may hold `tokens` positions; whether it may
    /// then.
    pub(super) fn make_room_within_quota(
        &mut self,
        id: SessionId,
        tokens: usize,
    ) -> Result<bool, DeviceError> {
        let owner = self.sessions.get(id).owner;
        let Some(limit) = self.quotas.of(owner).kv_bytes_max else { return Ok(true) };
        let wanted = self.promised_bytes(owner) + self.kv_bytes(tokens);
        loop {
            let runs =
                |id| self.running.iter().any(|other| other.session == id) || self.is_embedding(id);
            let rests = |(other, session): &(SessionId, &Session)| {
                session.owner == owner && *other != id && session.lease.is_some() && !runs(*other)
            };
            let resting = || self.sessions.iter().filter(rests);
            let held: u64 = resting().map(|(_, session)| self.held_bytes(session)).sum();
            if wanted + held <= limit {
                return Ok(true);
            }
            let oldest = resting().min_by_key(|(_, session)| session.last_used);
            let Some(victim) = oldest.map(|(id, _)| id) else { return Ok(false) };
            self.park(victim)?;
        }
    }

    /// Bytes of the pages for so many positions.
    fn kv_bytes(&self, tokens: usize) -> u64 {
        self.runner.kv_config().bytes_of(tokens) as u64
    }

    /// Bytes of the pages that a session holds; those that forks share count for each of them.
    pub(super) fn held_bytes(&self, session: &Session) -> u64 {
        session.lease.as_ref().map_or(0, |lease| self.kv_bytes(lease.tokens_max()))
    }

    /// Counts of every user that has anything here, by uid.
    pub(super) fn user_counts(&self) -> Vec<UserCounts> {
        let mut users: BTreeMap<u32, UserCounts> = BTreeMap::new();
        let mut of = |owner: Owner, count: &dyn Fn(&mut UserCounts)| {
            let user = users.entry(owner.uid).or_default();
            user.uid = owner.uid;
            count(user);
        };
        for (_, session) in self.sessions.iter() {
            of(session.owner, &|user| {
                user.sessions += usize::from(!session.traits.ephemeral);
                user.kv_bytes += self.held_bytes(session);
            });
        }
        self.running.iter().for_each(|other| of(other.request.owner, &|user| user.running += 1));
        self.waiting.iter().for_each(|other| of(other.request.owner, &|user| user.queued += 1));
        for other in &self.embeddings {
            of(other.request.owner, &|user| match other.has_started() {
                true => user.running += 1,
                false => user.queued += 1,
            });
        }
        users.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_than_root_and_the_daemons_user_get_half_where_nothing_is_said() {
        let all = Quota {
            sessions_max: Some(5),
            kv_bytes_max: Some(1000),
            requests_queued_max: Some(64),
            requests_running_max: Some(1),
        };
        let own = Quota { sessions_max: Some(5), ..Quota::default() };
        let quotas = Quotas {
            of: [(7, own), (8, Quota::UNLIMITED)].into(),
            halved_but_for: Some(1000),
            ..Quotas::default()
        };
        let quotas = UserLimits::new(quotas, all, 600);
        let half = Quota {
            sessions_max: Some(3),
            kv_bytes_max: Some(600),
            requests_queued_max: Some(32),
            requests_running_max: Some(1),
        };
        let of = |uid| quotas.of(Owner { uid });
        assert_eq!((of(0), of(1000)), (Quota::default(), Quota::default()));
        assert_eq!((of(1001), of(8)), (half, Quota::UNLIMITED));
        assert_eq!(of(7), Quota { sessions_max: Some(5), ..half });
    }
}
