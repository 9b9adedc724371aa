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
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// A file that is larger than any real one.
    #[error("{path}: {bytes} bytes; at most {limit} are taken", path = .path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The most.
        limit: u64,
    },
    /// Not the JSON that it should be.
    #[error("{path}: {error}", path = .path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        error: serde_json::Error,
    },
    /// A safetensors file that is not well formed.
    #[error("{path}: not a safetensors file: {detail}", path = .path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// A value that is missing, or that hob cannot do.
    #[error("{path}: {key}: wanted {wanted}, found {found}", path = .path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// What would be right.
        wanted: String,
        /// What stands there.
        found: String,
    },
    /// A tensor that is not known, or not as it should be.
    #[error("{path}: tensor {tensor}: wanted {wanted}, found {found}", path = .path.display())]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// What would be right.
        wanted: String,
        /// What stands there.
        found: String,
    },
    /// What the folder says does not make a model.
    #[error(transparent)]
    Model(#[from] GgufError),
}
