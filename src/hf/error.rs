//! Why a model's folder cannot be used.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::gguf::GgufError;

/// A folder that hob will not run.
#[derive(Debug, Error)]
pub enum HfError {
    /// A file that is missing or cannot be read.
    #[error("{path}: {error}", path = .path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error reported by the system.
        error: io::Error,
    },
    /// A file that is larger than any real one.
    #[error("{path}: {bytes} bytes; at most {limit} are taken", path = .path.display())]
    TooLarge {
        /// Path of the file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// Largest allowed value.
        limit: u64,
    },
    /// Not the JSON that it should be.
    #[error("{path}: {error}", path = .path.display())]
    Json {
        /// Path of the file.
        path: PathBuf,
        /// Fault found, and its place.
        error: serde_json::Error,
    },
    /// A safetensors file that is not well formed.
    #[error("{path}: not a safetensors file: {detail}", path = .path.display())]
    Safetensors {
        /// Path of the file.
        path: PathBuf,
        /// Fault found.
        detail: String,
    },
    /// A value that is missing, or that hob cannot do.
    #[error("{path}: {key}: wanted {wanted}, found {found}", path = .path.display())]
    Value {
        /// Path of the file.
        path: PathBuf,
        /// Key in question.
        key: String,
        /// Acceptable value.
        wanted: String,
        /// Value found.
        found: String,
    },
    /// A tensor that is not known, or not as it should be.
    #[error("{path}: tensor {tensor}: wanted {wanted}, found {found}", path = .path.display())]
    Tensor {
        /// Path of the file.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// Acceptable value.
        wanted: String,
        /// Value found.
        found: String,
    },
    /// The folder's files do not form a model.
    #[error(transparent)]
    Model(#[from] GgufError),
}
