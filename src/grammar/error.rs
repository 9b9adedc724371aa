//! What can be wrong with a grammar.

use thiserror::Error;

/// A grammar that cannot be used, or that leads nowhere.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum GrammarError {
    /// The text is too long.
    #[error("the {kind} has {found} bytes; at most {limit} are taken")]
    TooLong {
        /// Kind of the grammar.
        kind: &'static str,
        /// Bytes.
        found: usize,
        /// Most that are taken.
        limit: usize,
    },
    /// Too many levels of nesting.
    #[error("the {kind} is nested more than {limit} levels deep")]
    TooDeep {
        /// Kind of the grammar.
        kind: &'static str,
        /// Most levels.
        limit: usize,
    },
    /// It does not say what may be written, or asks for what cannot be held to.
    #[error("the {kind} cannot be used: {message}")]
    Invalid {
        /// Kind of the grammar.
        kind: &'static str,
        /// What was wanted and found.
        message: String,
    },
    /// Compiling takes too long.
    #[error("the {kind} takes longer than {limit_ms} ms to compile")]
    TooSlow {
        /// Kind of the grammar.
        kind: &'static str,
        /// The limit.
        limit_ms: u128,
    },
    /// The user has as many grammars in compilation as may wait.
    #[error("{limit} grammars of yours wait to be compiled, the most that may")]
    QueueFull {
        /// The limit.
        limit: usize,
    },
    /// The system gives no thread to compile on.
    #[error("no thread to compile a grammar on: {0}")]
    NoThread(String),
    /// The grammar allows no token, or its parser gave up.
    #[error("the grammar cannot be followed further: {0}")]
    Stuck(String),
}
