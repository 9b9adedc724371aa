//! What can be wrong with a configuration.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// A configuration that cannot be used. The message names the file, the place and the way out.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is not TOML.
    #[error("{}:{line}: not TOML: {reason}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// What the parser says.
        reason: String,
    },
    /// A key that hobd does not know.
    #[error(
        "{}:{line}: unknown key {key:?}{}; config/hobd.toml shows every key",
        path.display(),
        nearest.as_ref().map_or_else(String::new, |name| format!("; did you mean {name:?}?")),
    )]
    UnknownKey {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The key.
        key: String,
        /// The most similar key there is.
        nearest: Option<&'static str>,
    },
    /// A value of the wrong type, or out of its range.
    #[error("{}:{line}: {key}: wanted {wanted}, found {found}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The key.
        key: &'static str,
        /// What it should be.
        wanted: &'static str,
        /// What it is.
        found: String,
    },
    /// No model is configured and none lies at the default place.
    #[error(
        "no model: none is configured and {} does not exist. Name one with `hobd --model FILE`, \
         or set `model = \"FILE\"` in {}, or put a GGUF file (or a link to one) at that path",
        looked_at.display(),
        config_file.display(),
    )]
    NoModel {
        /// Where one was looked for.
        looked_at: PathBuf,
        /// The file to set it in.
        config_file: PathBuf,
    },
    /// A setting of the command line that is out of its range.
    #[error("{key}: wanted {wanted}, found {found}")]
    Setting {
        /// The key.
        key: &'static str,
        /// What it should be.
        wanted: &'static str,
        /// What it is.
        found: String,
    },
    /// Neither `HOME` nor the XDG variable that a default place needs is set.
    #[error("cannot tell where {what} is: neither {variable} nor HOME is an absolute path")]
    NoHome {
        /// What was looked for.
        what: &'static str,
        /// The variable that would say so.
        variable: &'static str,
    },
}
