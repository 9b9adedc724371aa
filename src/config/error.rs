//! What can be wrong with a configuration.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// A configuration that cannot be used. The message names the file, the place and the way out.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Reason.
        source: io::Error,
    },
    /// The file is not TOML.
    #[error("{}:{line}: not TOML: {reason}", path.display())]
    Syntax {
        /// Path of the file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Message of the parser.
        reason: String,
    },
    /// A key that hobd does not know.
    #[error(
        "{}:{line}: unknown key {key:?}{}; config/hobd.toml shows every key",
        path.display(),
        nearest.as_ref().map_or_else(String::new, |name| format!("; did you mean {name:?}?")),
    )]
    UnknownKey {
        /// Path of the file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Key in question.
        key: String,
        /// The most similar key there is.
        nearest: Option<&'static str>,
    },
    /// A value of the wrong type, or out of its range.
    #[error("{}:{line}: {key}: wanted {wanted}, found {found}", path.display())]
    Value {
        /// Path of the file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Key in question.
        key: &'static str,
        /// Expected form.
        wanted: &'static str,
        /// What it is.
        found: String,
    },
    /// No model is configured and none is there to take.
    #[error(
        "no model: none is configured and {}. Fetch one with `hob pull hf:OWNER/REPO`, or name one \
         with `hob run --model MODEL` or `hobd --model MODEL` (a name of `hob models`, or a GGUF \
         file), or set `model = \"MODEL\"` in {}, or put a GGUF file (or a link to one) at {}",
        known_text(known, folder),
        config_file.display(),
        folder.join("default.gguf").display(),
    )]
    NoModel {
        /// Places searched.
        folder: PathBuf,
        /// Models that are there, and none of them the default.
        known: Vec<String>,
        /// The file to set it in.
        config_file: PathBuf,
    },
    /// A setting of the command line that is out of its range.
    #[error("{key}: wanted {wanted}, found {found}")]
    Setting {
        /// Key in question.
        key: &'static str,
        /// Expected form.
        wanted: &'static str,
        /// What it is.
        found: String,
    },
    /// Neither `HOME` nor the XDG variable that a default place needs is set.
    #[error("cannot tell where {what} is: neither {variable} nor HOME is an absolute path")]
    NoHome {
        /// Name that was looked up.
        what: &'static str,
        /// The variable that would say so.
        variable: &'static str,
    },
}

fn known_text(known: &[String], folder: &Path) -> String {
    match known {
        [] => format!("there is none in {}", folder.display()),
        names => format!("none of {} in {} is called default", names.join(", "), folder.display()),
    }
}
