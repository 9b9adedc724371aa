//! Why a chat template did not give a prompt.

use thiserror::Error;

/// A template that does not compile, or that refused or failed to render the messages.
///
/// None of the texts holds message contents, unless the template itself puts them there.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ChatError {
    /// The source is longer than any real one.
    #[error("the chat template has {bytes} bytes; at most {limit} are taken")]
    TooLarge {
        /// Length.
        bytes: usize,
        /// Largest allowed value.
        limit: usize,
    },
    /// No template has this name.
    #[error("there is no chat template named {name:?}, and no such file; there are: {known}")]
    UnknownName {
        /// Name in question.
        name: String,
        /// The names there are.
        known: String,
    },
    /// It is not a template.
    #[error("the chat template does not compile: line {line}: {detail}")]
    Syntax {
        /// Line of the fault, from 1.
        line: usize,
        /// Fault found.
        detail: String,
    },
    /// The template called `raise_exception`: it refuses these messages.
    #[error("the chat template refused: {message}")]
    Refused {
        /// The template's own words.
        message: String,
    },
    /// It makes the same prompt without what it was given.
    #[error("the model's chat template makes no use of {what}: the model would not know of them")]
    Unused {
        /// `tools` or `documents`.
        what: &'static str,
    },
    /// It ran too long.
    #[error("the chat template took more than {limit} steps")]
    TooLong {
        /// Steps allowed.
        limit: u64,
    },
    /// Its values took too much memory.
    #[error("the chat template wanted more than {limit} bytes of memory")]
    TooMuchMemory {
        /// Bytes allowed, for what it was given.
        limit: u64,
    },
    /// It took too much time.
    #[error("the chat template took more than {seconds} seconds")]
    TimedOut {
        /// Seconds allowed.
        seconds: u64,
    },
    /// The caller gave up.
    #[error("the rendering of the chat template was cancelled")]
    Cancelled,
    /// Failed.
    #[error("the chat template failed: line {line}: {detail}")]
    Failed {
        /// Line, from 1; 0 where none is known.
        line: usize,
        /// Failure.
        detail: String,
    },
    /// No thread to render on.
    #[error("the chat template cannot be rendered: no thread: {detail}")]
    NoThread {
        /// Error reported by the system.
        detail: String,
    },
}
