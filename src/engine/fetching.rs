//! Files of sessions that are read while others go on: the thread that writes them reads them too,
//! so that a slow disk holds up only those who wait for what is on it.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, Sender, channel};

use tokio::sync::oneshot;

use super::sessions::Answer;
use super::types::AdmitError;
use super::worker::Worker;
use crate::session::{Parked, Saved, SessionFileError, SessionId};

/// A file that was read.
#[derive(Debug)]
struct Fetched {
    session: SessionId,
    /// Who wants the session to be as it was saved; else its parked cache is wanted.
    restore: Option<oneshot::Sender<Answer>>,
    found: Result<Saved, SessionFileError>,
}

/// The files that are being read.
#[derive(Debug)]
pub(super) struct Fetches {
    sender: Sender<Fetched>,
    receiver: Receiver<Fetched>,
    /// Sessions whose parked caches are.
    parked: BTreeSet<SessionId>,
    /// All of them.
    open: usize,
}

impl Default for Fetches {
    fn default() -> Self {
        let (sender, receiver) = channel();
        Self { sender, receiver, parked: BTreeSet::new(), open: 0 }
    }
}

impl Fetches {
    /// Whether any file is.
    pub(super) fn any(&self) -> bool {
        self.open > 0
    }

    /// Whether the file is that holds a session's parked cache.
    pub(super) fn has(&self, id: SessionId) -> bool {
        self.parked.contains(&id)
    }
}

impl Worker {
    /// Has the file read that holds a session's parked cache, if one does; whether it is to be
    /// waited for.
    pub(super) fn fetch_parked(&mut self, id: SessionId) -> bool {
        let Some(Parked::Disk(file)) = &self.sessions.get(id).parked else { return false };
        let Some(files) = &self.files else { return false };
        if self.fetches.parked.insert(id) {
            self.fetches.open += 1;
            let done = self.fetches.sender.clone();
            files.fetch(file.path.clone(), move |found| {
                // An engine that has ended wants nothing any more.
                let _ = done.send(Fetched { session: id, restore: None, found });
            });
        }
        true
    }

    /// Takes a session back to where it was saved, and says so when it is done; until then the
    /// session is busy.
    pub(super) fn restore_session(&mut self, id: SessionId, reply: oneshot::Sender<Answer>) {
        let session = self.sessions.get_mut(id);
        let refusal = match &self.files {
            None => AdmitError::NoStateFolder,
            Some(_) if session.busy => AdmitError::SessionBusy(id.0),
            Some(files) => {
                session.busy = true;
                self.fetches.open += 1;
                let done = self.fetches.sender.clone();
                files.fetch(files.saved(session.owner, id), move |found| {
                    let _ = done.send(Fetched { session: id, restore: Some(reply), found });
                });
                return;
            }
        };
        let _ = reply.send(Err(refusal)); // whoever asked may have gone away
    }

    /// Takes the files that were read since.
    pub(super) fn take_fetched(&mut self) {
        while let Ok(Fetched { session, restore, found }) = self.fetches.receiver.try_recv() {
            self.fetches.open -= 1;
            match restore {
                Some(reply) => {
                    let answer = self.restore_from(session, found);
                    let _ = reply.send(answer); // as above
                }
                None => {
                    self.fetches.parked.remove(&session);
                    self.take_parked(session, found);
                }
            }
        }
    }

    /// Puts a cache that was read where it is brought back from; one that cannot be used is
    /// computed again.
    fn take_parked(&mut self, id: SessionId, found: Result<Saved, SessionFileError>) {
        if !self.sessions.contains(id) {
            return; // closed meanwhile
        }
        let config = *self.runner.kv_config();
        let session = self.sessions.get_mut(id);
        if !matches!(session.parked, Some(Parked::Disk(_))) {
            return; // restored meanwhile
        }
        session.parked = match found {
            // Another file may have taken this one's place by now.
            Ok(saved) => {
                let fits = saved.tokens.starts_with(&session.tokens)
                    && saved.cache.len() == config.bytes_of(saved.tokens.len());
                fits.then_some(Parked::Host(saved.cache))
            }
            Err(error) => {
                tracing::warn!(%error, "a parked cache is lost and computed again");
                None
            }
        };
    }
}
