//! A model whose file another one has taken the place of: another engine takes its engine's place,
//! and who asks for one of its sessions is told.

use std::thread;

use serde_json::json;
use tokio::sync::oneshot;
use tracing::{info, warn};

use super::methods::{control, engine_stopped};
use super::models::Models;
use crate::engine::{Control, LoadFailure, Owner, SessionId, SessionInfo};
use crate::protocol::{ErrorCode, ErrorObject, SessionRef};

/// Sessions that are remembered to have ended; the oldest are forgotten first.
const ENDED_MAX: usize = 4096;

/// A session that ended with its model's file.
#[derive(Debug)]
pub(super) struct EndedSession {
    model: String,
    owner: Owner,
    id: SessionId,
    name: Option<String>,
}

impl EndedSession {
    fn is(&self, owner: Owner, session: &SessionRef) -> bool {
        self.owner == owner
            && match session {
                SessionRef::Number(number) => self.id.0 == *number,
                SessionRef::Name(name) => self.name.as_ref() == Some(name),
            }
    }
}

impl Models {
    /// Starts an engine on what now is at a model's place, and ends the one before. Sessions come
    /// back in it where the file is the same by its contents; the others have ended.
    pub(super) async fn replace(&self, name: &str) -> Result<Result<(), LoadFailure>, ErrorObject> {
        let old = self.slots().get(name).map(|slot| (slot.engine.clone(), slot.spec.clone()));
        let (engine, spec) = old.ok_or_else(engine_stopped)?;
        let sessions = control(&engine, |reply| Control::ListSessions { reply }).await?;
        let saver = engine.saver.clone();
        saver.save_tokens();
        run_apart(move || saver.flush()).await;
        let spec =
            self.specs_of_library().await.into_iter().find(|s| s.name == name).unwrap_or(spec);
        let slot = match self.start(&spec).await? {
            Ok(slot) => slot,
            Err(failure) => return Ok(Err(failure)),
        };
        let new = slot.engine.clone();
        let before = self.slots().insert(name.to_owned(), slot);
        // What it would still write is the new engine's now.
        engine.saver.give_up();
        let _ = engine.commands.control(Control::Shutdown); // it may have failed
        if let Some(thread) = before.and_then(|slot| slot.thread) {
            let ended = run_apart(move || thread.join()).await;
            if !matches!(ended, Some(Ok(Ok(())))) {
                warn!(model = name, "the engine of a replaced model ended with an error");
            }
        }
        let back = control(&new, |reply| Control::ListSessions { reply }).await?;
        let gone = sessions.into_iter().filter(|gone| !back.iter().any(|b| b.id == gone.id));
        let gone = gone.map(|SessionInfo { owner, id, name: session, .. }| {
            let model = name.to_owned();
            EndedSession { model, owner, id, name: session }
        });
        let mut ended = self.ended();
        let before = ended.len();
        ended.extend(gone);
        let count = ended.len() - before;
        let surplus = ended.len().saturating_sub(ENDED_MAX);
        ended.drain(..surplus);
        info!(model = name, sessions_ended = count, "another file has taken the model's place");
        Ok(Ok(()))
    }

    /// Why a session is not there, where it ended with its model's file.
    pub(super) fn why_ended(&self, owner: Owner, session: &SessionRef) -> Option<ErrorObject> {
        let ended = self.ended();
        let found = ended.iter().rev().find(|ended| ended.is(owner, session))?;
        let EndedSession { model, id, .. } = found;
        let message = format!(
            "session {} has ended: another file has taken the place of its model {model:?}, and \
             its cache is of the one before",
            id.0
        );
        let error = ErrorObject::new(ErrorCode::UNKNOWN_SESSION, message);
        Some(error.with_data(json!({"session": id.0, "model": model})))
    }

    /// Waits until the default model's engine is gone, and no other has taken its place.
    pub(super) async fn default_gone(&self) {
        loop {
            let engine = self.default_engine();
            engine.commands.closed().await;
            let _changing = self.stay().await; // it may be just being replaced
            if self.default_engine().commands.is_same(&engine.commands) {
                return;
            }
        }
    }
}

/// Runs what may wait for long on a thread of its own; `None` if there can be none.
async fn run_apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (told, done) = oneshot::channel();
    let spawned = thread::Builder::new().spawn(move || drop(told.send(work())));
    spawned.ok()?;
    done.await.ok()
}
