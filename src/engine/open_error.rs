//! Why a model could not be opened.

use std::path::PathBuf;

use thiserror::Error;

use crate::chat::ChatError;
use crate::gguf::GgufError;
use crate::gpu::DeviceError;
use crate::hf::HfError;
use crate::model::ModelLoadError;
use crate::tokenizer::TokenizerError;

/// Reason a model could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The file is at fault.
    #[error(transparent)]
    File(#[from] GgufError),
    /// The folder is.
    #[error(transparent)]
    Folder(HfError),
    /// The tokenizer is unusable.
    #[error("{path}: {error}")]
    Tokenizer {
        /// Path of the file.
        path: String,
        /// Fault found.
        error: TokenizerError,
    },
    /// The chat template is unusable.
    #[error(
        "{path}: tokenizer.chat_template: {error}; another takes its place by --chat-template NAME or FILE"
    )]
    Chat {
        /// Path of the file.
        path: String,
        /// Fault found.
        error: ChatError,
    },
    /// The chat template of the options is.
    #[error("chat_template = {name:?}: {error}")]
    NamedChat {
        /// Name or path of the template.
        name: String,
        /// Fault found.
        error: ChatError,
    },
    /// The chat template's file cannot be read.
    #[error("chat_template: {path}: {error}")]
    ChatFile {
        /// Path of the file.
        path: String,
        /// Error reported by the system.
        error: std::io::Error,
    },
    /// The file was written to while it was read.
    #[error(
        "{}: the file was written to while it was loaded; load it again once it is whole",
        path.display()
    )]
    Changed {
        /// The file or folder.
        path: PathBuf,
    },
    /// Another file has taken its place.
    #[error("{}: another file has taken the place of the one that was loaded", path.display())]
    Replaced {
        /// The file or folder.
        path: PathBuf,
    },
    /// The weights are unusable, or memory is insufficient.
    #[error(transparent)]
    Model(#[from] ModelLoadError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl From<HfError> for OpenError {
    fn from(error: HfError) -> Self {
        match error {
            HfError::Model(error) => Self::File(error),
            error => Self::Folder(error),
        }
    }
}
