//! What is done with sessions between requests: made, forked, shortened, closed.

use std::io;
use std::time::Instant;

use tokio::sync::oneshot;

use super::new_session::NewSession;
use super::room::Asker;
use super::types::{AdmitError, FinishReason, SessionAction, SessionInfo, SessionOptions};
use super::worker::Worker;
use crate::gpu::DeviceError;
use crate::session::{Owner, SessionId, Traits};

/// Answer to the owner of a session.
pub(super) type Answer = Result<SessionInfo, AdmitError>;

/// A session that was to be made.
pub(super) type Made = Result<NewSession, AdmitError>;

/// Call on a session.
#[derive(Debug)]
pub(super) struct SessionCall {
    pub owner: Owner,
    pub session: SessionId,
    pub task: SessionTask,
}

/// The same, and where the answer goes.
#[derive(Debug)]
pub(super) enum SessionTask {
    Act { action: SessionAction, reply: oneshot::Sender<Answer> },
    Fork { name: Option<String>, at: Option<u32>, reply: oneshot::Sender<Made> },
}

impl SessionTask {
    /// True if it takes the cache, wherever it is.
    fn needs_cache(&self) -> bool {
        matches!(self, Self::Fork { .. } | Self::Act { action: SessionAction::Save, .. })
    }

    /// True if nobody waits for the answer.
    pub(super) fn is_abandoned(&self) -> bool {
        match self {
            Self::Act { reply, .. } => reply.is_closed(),
            Self::Fork { reply, .. } => reply.is_closed(),
        }
    }
}

impl Worker {
    pub(super) fn create_session(&mut self, owner: Owner, options: SessionOptions) -> Made {
        let most = self.info.context_tokens;
        let context = options.context_tokens.map_or(most, |wanted| wanted.clamp(1, most));
        let adapters = self.find_adapters(&options.adapters)?;
        let id = self.new_session(
            owner,
            Traits {
                name: options.name,
                context_tokens: context as usize,
                priority: options.priority,
                ttl: options.ttl,
                ephemeral: false,
                adapters,
            },
        )?;
        Ok(self.hand_over(id))
    }

    /// A session as it goes to whoever asked for it: closed if it does not arrive.
    fn hand_over(&self, id: SessionId) -> NewSession {
        let session = self.sessions.get(id);
        self.closer.new_session(session.owner, self.session_info(id), &session.life)
    }

    fn new_session(&mut self, owner: Owner, traits: Traits) -> Result<SessionId, AdmitError> {
        self.check_new_session(owner, traits.name.as_deref())?;
        let id = self.sessions.insert(owner, traits);
        self.note_session(id);
        Ok(id)
    }

    /// Whether the owner may have one more session, of this name.
    pub(super) fn check_new_session(
        &self,
        owner: Owner,
        name: Option<&str>,
    ) -> Result<(), AdmitError> {
        if let Some(name) = name
            && self.sessions.named(owner, name).is_some()
        {
            return Err(AdmitError::SessionExists(name.to_owned()));
        }
        if self.sessions.count() >= self.sessions_max {
            return Err(AdmitError::TooManySessions { limit: self.sessions_max });
        }
        self.check_sessions_of(owner)
    }

    pub(super) fn session_info(&self, id: SessionId) -> SessionInfo {
        let session = self.sessions.get(id);
        SessionInfo {
            id,
            owner: session.owner,
            name: session.traits.name.clone(),
            context_tokens: session.traits.context_tokens as u32,
            tokens: session.tokens.len() as u32,
            cached_tokens: session.cached_tokens() as u32,
            place: session.place(),
            priority: session.traits.priority,
            ttl_seconds: session.traits.ttl.map(|ttl| ttl.as_secs()),
            adapters: session.traits.adapters.clone(),
            busy: session.busy,
            idle_seconds: if session.busy { 0 } else { session.last_used.elapsed().as_secs() },
        }
    }

    /// Does something with a session; the answer stands even where the device failed over it.
    pub(super) fn on_session(&mut self, call: SessionCall) -> Result<(), DeviceError> {
        let SessionCall { owner, session: id, .. } = call;
        if self.sessions.of_owner(owner, id).is_none() {
            let unknown = AdmitError::UnknownSession(id.0);
            // Whoever asked may have gone away; so below.
            match call.task {
                SessionTask::Act { reply, .. } => drop(reply.send(Err(unknown))),
                SessionTask::Fork { reply, .. } => drop(reply.send(Err(unknown))),
            }
            return Ok(());
        }
        if call.task.needs_cache() && self.fetch_parked(id) {
            self.fetches.call_later(call);
            return Ok(());
        }
        match call.task {
            SessionTask::Fork { name, at, reply } => {
                let (made, done) = self.fork_session(owner, id, name, at);
                let _ = reply.send(made);
                done
            }
            SessionTask::Act { action, reply } => self.act(id, action, reply),
        }
    }

    fn act(
        &mut self,
        id: SessionId,
        action: SessionAction,
        reply: oneshot::Sender<Answer>,
    ) -> Result<(), DeviceError> {
        let answer = match action {
            SessionAction::Info => Ok(self.session_info(id)),
            SessionAction::Save if self.fetches.restores(id) => Err(AdmitError::SessionBusy(id.0)),
            SessionAction::Save => {
                return self.save_session(id, |saved| drop(reply.send(saved)));
            }
            SessionAction::Restore => {
                self.restore_session(id, reply);
                return Ok(());
            }
            SessionAction::Truncate { tokens } => self.truncate_session(id, tokens as usize),
        };
        let _ = reply.send(answer);
        Ok(())
    }

    /// A session that begins as another one. Their cache is shared where it is on the device or
    /// can be brought there; else the new session's is computed when it is needed.
    fn fork_session(
        &mut self,
        owner: Owner,
        from: SessionId,
        name: Option<String>,
        at: Option<u32>,
    ) -> (Made, Result<(), DeviceError>) {
        let origin = self.sessions.get(from);
        let tokens = origin.tokens.len();
        let at = at.map_or(tokens, |at| at as usize);
        if at > tokens {
            return (Err(AdmitError::NoSuchPosition { wanted: at, tokens }), Ok(()));
        }
        let beginning = origin.tokens[..at].to_vec();
        let traits = Traits { name, ..origin.traits.clone() };
        let id = match self.new_session(owner, traits) {
            Ok(id) => id,
            Err(error) => return (Err(error), Ok(())),
        };
        self.sessions.get_mut(id).tokens = beginning;
        self.note_session(id);
        let shared = self.share_cache(from, id, at);
        (Ok(self.hand_over(id)), shared)
    }

    fn share_cache(
        &mut self,
        from: SessionId,
        to: SessionId,
        tokens: usize,
    ) -> Result<(), DeviceError> {
        if !self.runner.is_on_device() {
            return Ok(()); // the fork's is computed when it is needed
        }
        let origin = self.sessions.get(from);
        let parked = origin.parked.is_some() && !origin.busy;
        if parked && self.make_room_within_quota(from, origin.tokens.len())? {
            let origin = self.sessions.get(from);
            if origin.parked.is_some() {
                self.bring_back(from, origin.tokens.len(), Asker::Nobody)?;
            }
        }
        let origin = self.sessions.get(from);
        if origin.lease.is_none() || origin.tokens.len() < tokens {
            return Ok(()); // a file may have been damaged
        }
        // A row of the block tables may have to be made free.
        if !self.take_table(to, Asker::Nobody)? {
            return Ok(());
        }
        let empty = self.sessions.get_mut(to).lease.take();
        let (kv, executor) = self.runner.kv_mut();
        empty.into_iter().for_each(|lease| kv.release(lease));
        let Some(lease) = &self.sessions.get(from).lease else { return Ok(()) };
        self.sessions.get_mut(to).lease = kv.fork(executor, lease, tokens)?.ok();
        Ok(())
    }

    fn truncate_session(
        &mut self,
        id: SessionId,
        wanted: usize,
    ) -> Result<SessionInfo, AdmitError> {
        let session = self.sessions.get_mut(id);
        let tokens = session.tokens.len();
        if session.busy {
            return Err(AdmitError::SessionBusy(id.0));
        }
        if wanted > tokens {
            return Err(AdmitError::NoSuchPosition { wanted, tokens });
        }
        session.tokens.truncate(wanted);
        session.last_used = Instant::now();
        if wanted == 0 {
            session.parked = None;
        }
        if let Some(lease) = &mut session.lease {
            self.runner.kv_mut().0.shrink(lease, wanted);
        }
        self.note_session(id);
        Ok(self.session_info(id))
    }

    /// Closes a session, and says so once its file is gone.
    pub(super) fn close_session(
        &mut self,
        owner: Owner,
        id: SessionId,
        reply: oneshot::Sender<Result<(), AdmitError>>,
    ) {
        if self.sessions.of_owner(owner, id).is_none() {
            let _ = reply.send(Err(AdmitError::UnknownSession(id.0))); // as above
            return;
        }
        let running = self.running.iter().position(|g| g.session == id);
        let waiting = self.waiting.iter().position(|g| g.session == id);
        let running = running.map(|at| self.running.remove(at));
        if let Some(generation) = running.or(waiting.and_then(|at| self.waiting.remove(at))) {
            self.totals.activity.note_end(FinishReason::Cancelled);
            generation.finish(FinishReason::Cancelled, None);
        }
        self.forget_session(id, |removed| {
            let stays = |error: io::Error| AdmitError::FileStays(error.to_string());
            let _ = reply.send(removed.map_err(stays)); // as above
        });
    }

    /// Drops a session and what was saved of it, and says when the file is gone.
    fn forget_session(
        &mut self,
        id: SessionId,
        done: impl FnOnce(io::Result<()>) + Send + 'static,
    ) {
        let owner = self.sessions.get(id).owner;
        // First of all: whoever hears that it is done may look whether the session is there.
        self.drop_session(id);
        match &self.files {
            Some(files) => files.forget(owner, id, done),
            None => done(Ok(())),
        }
    }

    pub(super) fn drop_session(&mut self, id: SessionId) {
        if let Some(lease) = self.sessions.remove(id).and_then(|session| session.lease) {
            self.runner.kv_mut().0.release(lease);
        }
    }

    /// Closes sessions whose time is over.
    pub(super) fn close_expired(&mut self) {
        for id in self.sessions.expired(Instant::now()) {
            tracing::info!(session = id.0, "session closed: idle for longer than its ttl");
            self.forget_session(id, drop);
        }
    }
}
