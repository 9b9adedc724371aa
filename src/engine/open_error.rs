//! Why a model could not be opened.

use std::path::PathBuf;

use thiserror::Error;

use crate::chat::ChatError;
use crate::gguf::GgufError;
use crate::gpu::DeviceError;
use crate::hf::HfError;
use crate::model::ModelLoadError;
use crate::tokenizer::TokenizerError;

/// Why a model could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The file is at fault.
    #[error(transparent)]
    File(#[from] GgufError),
    /// The folder is.
    #[error(transparent)]
    Folder(HfError),
    /// Its tokenizer is.
    #[error("{path}: {error}")]
    Tokenizer {
        /// The file.
        path: String,
        /// What is wrong.
        error: TokenizerError,
    },
    /// Its chat template is.
    #[error(
        "{path}: tokenizer.chat_template: {error}; another takes its place by --chat-template NAME or FILE"
    )]
    Chat {
        /// The file.
        path: String,
        /// What is wrong.
        error: ChatError,
    },
    /// The chat template of the options is.
    #[error("chat_template = {name:?}: {error}")]
    NamedChat {
        /// Its name or path.
        name: String,
        /// What is wrong.
        error: ChatError,
    },
    /// The chat template's file cannot be read.
    #[error("chat_template: {path}: {error}")]
    ChatFile {
        /// The file.
        path: String,
        /// What the system says.
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
    /// Its network, or the room for it.
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
