//! Sessions on their way to whoever asked for them: one that reaches nobody is closed.

use std::sync::{Arc, Weak};

use super::Control;
use super::queue::{CommandReceiver, Shared};
use super::types::{Owner, SessionId, SessionInfo};

/// A session that was just made. Unless it is [kept](SessionGuard::keep), it is closed when this is
/// dropped: by the engine whose answer finds nobody, or by whoever hangs up afterwards.
#[derive(Debug)]
pub struct NewSession {
    /// As it is now.
    pub info: SessionInfo,
    /// Closes it.
    pub guard: SessionGuard,
}

/// Closes its session when it is dropped.
#[derive(Debug)]
pub struct SessionGuard {
    owner: Owner,
    session: SessionId,
    /// Gone once the session is.
    life: Weak<()>,
    engine: Option<Arc<Shared>>,
}

impl SessionGuard {
    /// The session's number.
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// True if the session was closed meanwhile.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.life.strong_count() == 0
    }

    /// Leaves the session open, for its owner to close.
    pub fn keep(mut self) {
        self.engine = None;
    }
}

impl Drop for SessionGuard {
    fn drop(&mut self) {
        let Some(engine) = self.engine.take().filter(|_| !self.is_over()) else { return };
        let (owner, session) = (self.owner, self.session);
        // An engine that has ended has no sessions.
        let _ = engine.control(Control::CloseSession { owner, session });
    }
}

/// Makes the guards of an engine's sessions.
#[derive(Clone, Debug)]
pub struct Closer(Arc<Shared>);

impl Closer {
    /// For the sessions of the engine that has this receiver.
    #[must_use]
    pub fn of(engine: &CommandReceiver) -> Self {
        Self(engine.shared())
    }

    /// A session that is closed unless somebody takes it; it is over when `life` is dropped.
    #[must_use]
    pub fn new_session(&self, owner: Owner, info: SessionInfo, life: &Arc<()>) -> NewSession {
        let guard = SessionGuard {
            owner,
            session: info.id,
            life: Arc::downgrade(life),
            engine: Some(Arc::clone(&self.0)),
        };
        NewSession { info, guard }
    }
}
