//! An engine's files as seen by whoever ends it: tokens are saved from here while the engine waits
//! for its device, and what is not saved is told.

use crate::session::{FileThreads, Ledger, Saved, SessionFolder, SessionId, Unsaved};

/// Saves what an engine has noted of its sessions; cheap to clone, for any thread. Without a folder
/// it saves nothing.
#[derive(Clone, Debug, Default)]
pub struct Saver {
    ledger: Ledger,
    files: Option<(FileThreads, SessionFolder)>,
}

impl Saver {
    pub(super) fn new(ledger: Ledger, threads: FileThreads, folder: SessionFolder) -> Self {
        Self { ledger, files: Some((threads, folder)) }
    }

    /// Parks caches no more: the daemon ends.
    pub fn end(&self) {
        if let Some((threads, _)) = &self.files {
            threads.end();
        }
    }

    /// Has tokens and settings of all changed sessions written before anything else.
    pub fn save_tokens(&self) {
        let Some((threads, folder)) = &self.files else { return };
        for (version, saved) in self.ledger.changed() {
            self.save_first(threads, folder, version, saved);
        }
    }

    fn save_first(
        &self,
        threads: &FileThreads,
        folder: &SessionFolder,
        version: u64,
        saved: Saved,
    ) {
        let (uid, id) = (saved.header.uid, SessionId(saved.header.session));
        let (asked, told) = (self.ledger.clone(), self.ledger.clone());
        let is_wanted = move || asked.wants(id, version);
        threads.write_first(
            saved,
            folder.saved(uid, id.0),
            is_wanted,
            move |written| match written {
                Ok(()) => told.note_saved(id, version, false),
                Err(error) => {
                    tracing::warn!(session = id.0, %error, "tokens of a session were not saved");
                    told.note_failure(id, version, &error.reason());
                }
            },
        );
    }

    /// Waits until all is written that was handed over before.
    pub fn flush(&self) {
        if let Some((threads, _)) = &self.files {
            threads.flush();
        }
    }

    /// The time is over: what is being written is given up, and nothing more is begun.
    pub fn give_up(&self) {
        if let Some((threads, _)) = &self.files {
            threads.give_up();
        }
    }

    /// Bytes written so far.
    #[must_use]
    pub fn bytes_written(&self) -> u64 {
        self.files.as_ref().map_or(0, |(threads, _)| threads.bytes_written())
    }

    /// Sessions that are not in a file as they are.
    #[must_use]
    pub fn unsaved(&self) -> Vec<Unsaved> {
        if self.files.is_some() { self.ledger.unsaved() } else { Vec::new() }
    }
}
