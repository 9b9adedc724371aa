//! What can go wrong with the store, and with what is pulled into it.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::gguf::GgufError;

/// The store, a source or a transfer is not usable. No message holds a token or a query string.
#[derive(Debug, Error)]
pub enum StoreError {
    /// A call failed.
    #[error("cannot {attempt} {}: {source}", path.display())]
    Io {
        /// Operation attempted.
        attempt: &'static str,
        /// Object of the operation.
        path: PathBuf,
        /// Reason for the failure.
        source: io::Error,
    },
    /// The manifest is not what this version writes.
    #[error("{}: {reason}; the models' files are beside it", path.display())]
    Manifest {
        /// Manifest of the store.
        path: PathBuf,
        /// Fault found in it.
        reason: String,
    },
    /// No such model.
    #[error("no model {name:?} in the store; {}", known_text(known))]
    UnknownModel {
        /// Value requested.
        name: String,
        /// Existing names.
        known: Vec<String>,
    },
    /// A model of this name is there.
    #[error(
        "there is a model {name:?} already, from {from}; choose another name with --name, or \
         remove that one with `hob rm {name}`"
    )]
    NameTaken {
        /// Name in question.
        name: String,
        /// Source of that model.
        from: String,
    },
    /// A text that cannot be a name.
    #[error(
        "{name:?} cannot be a model's name: wanted 1 to 96 letters, digits, `.`, `_` and `-`, the \
         first a letter or digit, and no ending .gguf"
    )]
    BadName {
        /// Text to process.
        name: String,
    },
    /// A text that is no source.
    #[error(
        "{text:?} is no source: wanted hf:OWNER/REPO[/FILE.gguf][:QUANT], a URL, or a path; {reason}"
    )]
    BadSource {
        /// Text to process.
        text: String,
        /// Fault found in it.
        reason: &'static str,
    },
    /// A checksum that is none, or is of no use.
    #[error("--sha256 {text:?}: {reason}")]
    BadChecksum {
        /// Text to process.
        text: String,
        /// Fault found in it.
        reason: &'static str,
    },
    /// A LoRA adapter in the place of a model.
    #[error("{from} is a LoRA adapter, and no model: `hob lora load NAME=PATH` takes it")]
    IsAdapter {
        /// Source of the value.
        from: String,
    },
    /// The hub's repository has nothing to pull.
    #[error("{repo} {reason}")]
    NothingToPull {
        /// Repository on the hub.
        repo: String,
        /// Name that was looked up, and the names that exist.
        reason: String,
    },
    /// A server's answer.
    #[error("{0}")]
    Answer(String),
    /// The connection failed, and trying again did not help.
    #[error(
        "the connection to {host} failed {attempts} times in a row, last: {reason}{}",
        progress_text(*bytes)
    )]
    Connection {
        /// Destination.
        host: String,
        /// Number of times.
        attempts: u32,
        /// Last event.
        reason: String,
        /// Parts of the file that are kept.
        bytes: u64,
    },
    /// The server said something else about the file than is known of it.
    #[error("{file}: wanted {wanted}, found {found}; nothing was kept")]
    Mismatch {
        /// Path of the file.
        file: String,
        /// Expected value.
        wanted: String,
        /// Event received.
        found: String,
    },
    /// The download is not a model.
    #[error("what came from {from} is not a usable model, nothing was kept: {source}")]
    NotAModel {
        /// Source of the model.
        from: String,
        /// Fault found in it.
        source: Box<GgufError>,
    },
    /// The disk is too full.
    #[error("{}: {wanted_bytes} bytes are needed and {free_bytes} are free", folder.display())]
    DiskFull {
        /// Folder in question.
        folder: PathBuf,
        /// Bytes that are still to come.
        wanted_bytes: u64,
        /// Bytes that are free.
        free_bytes: u64,
    },
    /// Another process pulls the same.
    #[error("{file} is being pulled by another process")]
    Busy {
        /// Path of the file.
        file: String,
    },
}

fn known_text(known: &[String]) -> String {
    match known {
        [] => "it is empty: `hob pull` fetches models into it".to_owned(),
        names => format!("it has {}", names.join(", ")),
    }
}

fn progress_text(bytes: u64) -> String {
    match bytes {
        0 => String::new(),
        bytes => format!("; {bytes} bytes are kept, and pulling again goes on from there"),
    }
}

/// Makes an error of a failed call.
pub(super) fn failed(attempt: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Io { attempt, path, source }
}
