//! Room in the KV cache: who takes pages, and whose cache moves out of the device's memory for it.
//!
//! Caches move in this order: of sessions at rest, the one unused for longest first; of requests
//! that wait; of requests that run and are less urgent, or came later. What moves goes to the
//! host's memory and comes back when it is used. A request that has to give up its pages goes back
//! to those that wait and goes on later where it was: what it has streamed stays.

use super::request::Generation;
use super::types::AdmitError;
use super::worker::Worker;
use crate::gpu::DeviceError;
use crate::kernels::PageLayout;
use crate::scheduler::Priority;
use crate::session::{CachePlace, Parked, SessionId};

/// Requester of memory: it decides which caches may be swapped out or preempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asker {
    /// Somebody without a request: sessions at rest alone give way.
    Nobody,
    /// A request that is to run: those that wait and less urgent ones give way.
    Waiting(Priority),
    /// A request that runs: later ones of its urgency give way as well.
    Running(Priority, u64),
}

impl Worker {
    /// Moves caches out of the device's memory until `pages` pages are free beside those that
    /// running requests still need; whether that was possible.
    pub(super) fn free_pages(
        &mut self,
        pages: usize,
        asker: Asker,
        session: SessionId,
    ) -> Result<bool, DeviceError> {
        loop {
            let promised = match asker {
                Asker::Running(..) => 0,
                _ => self.pages_promised(),
            };
            if self.runner.kv().pages_available() >= pages + promised {
                return Ok(true);
            }
            if !self.make_way(asker, session)? {
                return Ok(false);
            }
        }
    }

    /// Gives the session a row of the block tables, if it has none.
    pub(super) fn take_table(&mut self, id: SessionId, asker: Asker) -> Result<bool, DeviceError> {
        while self.sessions.get(id).lease.is_none() {
            match self.runner.kv_mut().0.lease() {
                Ok(lease) => self.sessions.get_mut(id).lease = Some(lease),
                Err(_) if self.make_way(asker, id)? => {}
                Err(_) => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Makes the session's pages hold `tokens` positions, with all behind its tokens its own to
    /// write.
    pub(super) fn hold(
        &mut self,
        id: SessionId,
        tokens: usize,
        asker: Asker,
    ) -> Result<bool, DeviceError> {
        let session = self.sessions.get(id);
        let Some(lease) = &session.lease else { return Ok(false) };
        let wanted = self.runner.kv().pages_wanted(lease, session.tokens.len(), tokens);
        if wanted == 0 {
            return Ok(true);
        }
        if !self.free_pages(wanted, asker, id)? {
            return Ok(false);
        }
        let (kv, executor) = self.runner.kv_mut();
        let session = self.sessions.get_mut(id);
        let Some(lease) = &mut session.lease else { return Ok(false) };
        Ok(kv.grow(executor, lease, session.tokens.len(), tokens)?.is_ok())
    }

    /// Pages that requests which run will take until their next token.
    fn pages_promised(&self) -> usize {
        let of = |generation: &Generation| {
            let session = self.sessions.get(generation.session);
            let lease = session.lease.as_ref();
            lease.map_or(0, |lease| {
                let used = session.tokens.len();
                self.runner.kv().pages_wanted(lease, used, generation.history().len())
            })
        };
        self.running.iter().map(of).sum()
    }

    /// Moves one cache out of the device's memory, of anybody but `session`; whether there was one
    /// to move.
    pub(super) fn make_way(
        &mut self,
        asker: Asker,
        session: SessionId,
    ) -> Result<bool, DeviceError> {
        if let Some(idle) = self.sessions.longest_idle(session) {
            self.park(idle)?;
            return Ok(true);
        }
        if asker == Asker::Nobody {
            return Ok(false);
        }
        let has_pages =
            |g: &&Generation| g.session != session && self.sessions.has_pages(g.session);
        let last = self.waiting.iter().filter(has_pages).max_by_key(|g| (g.priority, g.number));
        if let Some(id) = last.map(|g| g.session) {
            self.park(id)?;
            return Ok(true);
        }
        let may_take = |g: &Generation| match asker {
            Asker::Nobody => false,
            Asker::Waiting(priority) => g.priority > priority,
            Asker::Running(priority, number) => (g.priority, g.number) > (priority, number),
        };
        let last = self.running.iter().filter(|g| g.session != session && may_take(g));
        let last = last.max_by_key(|g| (g.priority, g.number));
        let Some(number) = last.map(|g| g.number) else { return Ok(false) };
        let id = self.pause(number);
        self.park(id)?;
        Ok(true)
    }

    /// Puts a request that runs back to those that wait; it keeps its pages until they are needed.
    pub(super) fn pause(&mut self, number: u64) -> SessionId {
        let at = self.running.iter().position(|g| g.number == number).expect("it runs");
        let generation = self.running.remove(at);
        let id = generation.session;
        self.totals.preemptions += 1;
        self.waiting.push_front(generation);
        id
    }

    /// Moves a session's cache from the device to the host's memory or a file, or gives it up where
    /// there is no room: its tokens are then computed again when they are needed.
    pub(super) fn park(&mut self, id: SessionId) -> Result<(), DeviceError> {
        let session = self.sessions.get(id);
        let (tokens, bytes) =
            (session.tokens.len(), self.runner.kv_config().bytes_of(session.tokens.len()));
        let on_host = tokens > 0 && self.host_room(bytes as u64);
        let keep = on_host || tokens > 0 && self.disk_room(bytes as u64);
        let session = self.sessions.get_mut(id);
        let Some(lease) = session.lease.take() else { return Ok(()) };
        let (kv, executor) = self.runner.kv_mut();
        let read = if keep { Some(kv.read_pages(executor, &lease, tokens)) } else { None };
        kv.release(lease);
        session.parked = read.transpose()?.map(Parked::Host);
        if !on_host {
            self.leave_host(id);
        }
        let session = self.sessions.get(id);
        self.totals.activity.evictions += 1;
        tracing::debug!(session = id.0, tokens, place = ?session.place(), "a cache moved out");
        Ok(())
    }

    /// True if the host has room for `bytes` more, at the cost of caches parked before.
    pub(super) fn host_room(&mut self, bytes: u64) -> bool {
        if bytes > self.host_cache_bytes {
            return false;
        }
        while self.sessions.host_bytes() + bytes > self.host_cache_bytes {
            let Some(oldest) = self.sessions.longest_on_host() else { return false };
            self.leave_host(oldest);
        }
        true
    }

    /// Moves caches on to the disk, or gives them up, as far as the host has no room for them;
    /// those that are about to be used stay.
    pub(super) fn trim_host(&mut self) {
        while self.sessions.host_bytes() > self.host_cache_bytes {
            let oldest = self.sessions.longest_on_host();
            let Some(oldest) = oldest.filter(|id| !self.sessions.get(*id).busy) else { break };
            self.leave_host(oldest);
        }
    }

    /// Moves a cache from the host's memory into a file, or gives it up where there is no room.
    fn leave_host(&mut self, id: SessionId) {
        if !self.park_on_disk(id) {
            self.sessions.get_mut(id).parked = None;
        }
    }

    /// Brings the first `keep` tokens of a session's cache back to the device, and forgets the
    /// rest; the session has a row of the block tables and `hold` its pages. `false`: no room.
    pub(super) fn bring_back(
        &mut self,
        id: SessionId,
        keep: usize,
        asker: Asker,
    ) -> Result<bool, DeviceError> {
        let session = self.sessions.get_mut(id);
        let Some(parked) = session.parked.take() else {
            // On the device; or given up for the room that it was to have, and computed again.
            let cached = session.cached_tokens();
            session.tokens.truncate(keep.min(cached));
            return self.take_table(id, asker);
        };
        let tokens = std::mem::take(&mut session.tokens);
        let ready =
            self.take_table(id, asker).and_then(|taken| Ok(taken && self.hold(id, keep, asker)?));
        let session = self.sessions.get_mut(id);
        session.tokens = tokens;
        if !matches!(ready, Ok(true)) {
            if let Some(lease) = session.lease.take() {
                self.runner.kv_mut().0.release(lease);
            }
            session.parked = Some(parked);
            return ready;
        }
        let bytes = match parked {
            Parked::Host(bytes) => Some(bytes),
            Parked::Disk(_) => None, // who needs it has had it read before
        };
        let (kv, executor) = self.runner.kv_mut();
        let session = self.sessions.get_mut(id);
        let Some(bytes) = bytes else {
            session.tokens.clear(); // computed again
            return Ok(true);
        };
        let lease = session.lease.as_ref().expect("it has a table");
        kv.write_pages(executor, lease, keep, &bytes)?;
        session.tokens.truncate(keep);
        Ok(true)
    }

    /// The device pages that a session's first `tokens` tokens would still need.
    pub(super) fn pages_missing(&self, id: SessionId, keep: usize, tokens: usize) -> usize {
        let session = self.sessions.get(id);
        match (&session.lease, session.place()) {
            (Some(lease), CachePlace::Device) => self.runner.kv().pages_wanted(lease, keep, tokens),
            _ => tokens.div_ceil(PageLayout::TOKENS as usize),
        }
    }

    /// Error for a request whose KV demand cannot be met.
    pub(super) fn kv_full(&self, wanted_tokens: usize) -> AdmitError {
        let free_tokens = self.runner.kv().tokens_free();
        let full = AdmitError::KvFull { wanted_tokens, free_tokens };
        self.check_memory(wanted_tokens).err().unwrap_or(full)
    }
}
