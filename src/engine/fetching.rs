//! Files of sessions that are read while others go on, by a thread of their own: a slow disk holds
//! up only those who wait for what is on it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};

use tokio::sync::oneshot;

use super::sessions::{Answer, SessionCall};
use super::types::AdmitError;
use super::worker::Worker;
use crate::gpu::DeviceError;
use crate::session::{Parked, Saved, SessionFileError, SessionId};

/// Event from the file threads.
#[derive(Debug)]
enum Told {
    /// Contents of a swapped-out cache's file.
    Parked(Result<Saved, SessionFileError>),
    /// Contents of a saved session's file, and the channel that requested it.
    Saved(Result<Saved, SessionFileError>, oneshot::Sender<Answer>),
    /// Failure to write a swapped-out cache to this path.
    NotWritten(PathBuf),
}

/// The files that are being read.
#[derive(Debug)]
pub(super) struct Fetches {
    sender: Sender<(SessionId, Told)>,
    receiver: Receiver<(SessionId, Told)>,
    /// Sessions whose parked caches are.
    parked: BTreeSet<SessionId>,
    /// Sessions that are being restored.
    restored: BTreeSet<SessionId>,
    /// Calls to serve once a swapped-out cache has been read.
    calls: Vec<SessionCall>,
}

impl Default for Fetches {
    fn default() -> Self {
        let (sender, receiver) = channel();
        Self {
            sender,
            receiver,
            parked: BTreeSet::new(),
            restored: BTreeSet::new(),
            calls: Vec::new(),
        }
    }
}

impl Fetches {
    /// True if any file is.
    pub(super) fn any(&self) -> bool {
        !self.parked.is_empty() || !self.restored.is_empty()
    }

    /// True if the file is that holds a session's parked cache.
    pub(super) fn has(&self, id: SessionId) -> bool {
        self.parked.contains(&id)
    }

    /// True if a session is being restored.
    pub(super) fn restores(&self, id: SessionId) -> bool {
        self.restored.contains(&id)
    }

    /// Keeps a call until the session's parked cache is there.
    pub(super) fn call_later(&mut self, call: SessionCall) {
        self.calls.push(call);
    }

    /// Callback that reports a failed write of a swapped-out cache.
    pub(super) fn not_written(
        &self,
        id: SessionId,
        path: PathBuf,
    ) -> impl FnOnce() + Send + 'static {
        let sender = self.sender.clone();
        // An engine that has ended wants to know nothing any more.
        move || drop(sender.send((id, Told::NotWritten(path))))
    }
}

impl Worker {
    /// Starts reading the file with a session's swapped-out cache, if there is one; returns true if
    /// it must be waited for.
    pub(super) fn fetch_parked(&mut self, id: SessionId) -> bool {
        let Some(Parked::Disk(file)) = &self.sessions.get(id).parked else { return false };
        let Some(files) = &self.files else { return false };
        if self.fetches.parked.insert(id) {
            let done = self.fetches.sender.clone();
            // As above.
            files.fetch(file.path.clone(), move |found| drop(done.send((id, Told::Parked(found)))));
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
                self.fetches.restored.insert(id);
                files.leave_alone(id);
                let done = self.fetches.sender.clone();
                files.fetch(files.saved(session.owner, id), move |found| {
                    drop(done.send((id, Told::Saved(found, reply)))); // as above
                });
                return;
            }
        };
        let _ = reply.send(Err(refusal)); // whoever asked may have gone away
    }

    /// Takes what the threads for files have told since.
    ///
    /// # Errors
    /// The device failed over what waited for a file.
    pub(super) fn take_fetched(&mut self) -> Result<(), DeviceError> {
        while let Ok((id, told)) = self.fetches.receiver.try_recv() {
            match told {
                Told::Saved(found, reply) => {
                    self.fetches.restored.remove(&id);
                    let answer = self.restore_from(id, found);
                    let _ = reply.send(answer); // whoever asked may have gone away
                }
                Told::Parked(found) => {
                    self.fetches.parked.remove(&id);
                    self.take_parked(id, found);
                    let calls = self.fetches.calls.extract_if(.., |call| call.session == id);
                    let calls: Vec<_> = calls.filter(|call| !call.task.is_abandoned()).collect();
                    for call in calls {
                        self.on_session(call)?;
                    }
                    self.trim_host();
                }
                Told::NotWritten(path) => self.forget_parked(id, &path),
            }
        }
        Ok(())
    }

    /// Gives up a cache whose file could not be written.
    fn forget_parked(&mut self, id: SessionId, path: &Path) {
        if self.sessions.contains(id) {
            let parked = &mut self.sessions.get_mut(id).parked;
            if matches!(parked, Some(Parked::Disk(file)) if file.path == *path) {
                *parked = None;
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
