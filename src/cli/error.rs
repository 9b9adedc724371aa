//! What can go wrong in a command, and the exit status that tells it.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::client::ClientError;
use super::local::LocalError;
use crate::gguf::GgufError;
use crate::gpu::DeviceError;
use crate::hf::HfError;
use crate::store::StoreError;
use crate::tokenizer::TokenizerError;

/// Exit statuses, as `hob --help` lists them.
pub mod exit {
    /// Done.
    pub const DONE: u8 = 0;
    /// The request failed.
    pub const FAILED: u8 = 1;
    /// The command line was wrong; clap's own status.
    pub const USAGE: u8 = 2;
    /// The daemon could not be reached or started, or the connection broke.
    pub const NO_DAEMON: u8 = 3;
    /// The input was not usable (EX_DATAERR).
    pub const BAD_INPUT: u8 = 65;
    /// There is no device, or it failed (EX_UNAVAILABLE).
    pub const NO_DEVICE: u8 = 69;
    /// A model file or a setting was not usable (EX_CONFIG).
    pub const BAD_MODEL: u8 = crate::config::EXIT_CONFIG;
    /// Cancelled by Ctrl-C (128 + SIGINT).
    pub const CANCELLED: u8 = 130;
}

/// A command that could not do what was asked.
#[derive(Debug, Error)]
pub enum CliError {
    /// The daemon could not be asked, or refused.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The generation ended with an error.
    #[error("the generation failed: {reason}")]
    Generation {
        /// The daemon's words.
        reason: String,
    },

    /// Stored measurements cannot be removed.
    #[error("cannot remove a file in {}: {source}", folder.display())]
    Forget {
        /// Where it is.
        folder: PathBuf,
        /// Error reported by the system.
        source: io::Error,
    },

    /// Standard output cannot be written.
    #[error("cannot write to stdout: {source}")]
    Stdout {
        /// Reason.
        source: io::Error,
    },
    /// Standard input cannot be read.
    #[error("cannot read stdin: {source}")]
    Stdin {
        /// Reason.
        source: io::Error,
    },
    /// More comes than a command takes.
    #[error("stdin has more than {bytes_max} bytes, the most that is read")]
    StdinTooLong {
        /// Largest allowed value.
        bytes_max: usize,
    },
    /// A file cannot be read.
    #[error("cannot read {}: {source}", .path.display())]
    ReadFile {
        /// Path of the file.
        path: PathBuf,
        /// Reason.
        source: io::Error,
    },
    /// A file cannot be written.
    #[error("cannot write {}: {source}", .path.display())]
    WriteFile {
        /// Path of the file.
        path: PathBuf,
        /// Reason.
        source: io::Error,
    },
    /// A file to write is there.
    #[error("{} exists; --force replaces it", .path.display())]
    Exists {
        /// Path of the file.
        path: PathBuf,
    },
    /// The daemon could not be stopped.
    #[error("cannot stop hobd (process {pid}): {source}")]
    Stop {
        /// Its process.
        pid: u32,
        /// Reason.
        source: io::Error,
    },
    /// Sessions are lost with a daemon that was stopped.
    #[error("{count} of the daemon's sessions could not be saved")]
    NotSaved {
        /// That many.
        count: usize,
    },
    /// A daemon uses the saved sessions, and does not listen where it is looked for.
    #[error("{}", lost_daemon(*pid, socket, *is_gone))]
    LostDaemon {
        /// Its process; 0 where that is not known.
        pid: i32,
        /// Its socket.
        socket: PathBuf,
        /// True if nobody answers there either.
        is_gone: bool,
    },
    /// A file is named that the running daemon does not have.
    #[error(
        "hobd runs already, and not with {0}; `hob pull {0} --link` makes it a model that it can \
         load by its name, and `hob stop` ends hobd",
        .model.display()
    )]
    NotItsModel {
        /// The file or folder.
        model: PathBuf,
    },
    /// The output path is a folder, a device or another special file.
    #[error("{} is no regular file, and stays as it is", .path.display())]
    NotAFile {
        /// Path in question.
        path: PathBuf,
    },
    /// A tensor cannot be quantised.
    #[error("{}: tensor {tensor}: wanted finite values, found {found}", .path.display())]
    NotFinite {
        /// Path of the file.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// The first value that is not.
        found: f32,
    },
    /// A result does not serialise.
    #[error("cannot write the result as JSON: {source}")]
    Encode {
        /// Reason.
        source: serde_json::Error,
    },
    /// Ctrl-C cannot be caught.
    #[error("cannot catch Ctrl-C: {source}")]
    Signals {
        /// Reason.
        source: io::Error,
    },
    /// The line editor failed.
    #[error("cannot read from the terminal: {source}")]
    Terminal {
        /// Reason.
        source: rustyline::error::ReadlineError,
    },

    /// Text that is not UTF-8.
    #[error("{what} is not UTF-8: byte 0x{byte:02x} at offset {offset} begins no valid character")]
    NotUtf8 {
        /// Source of the text.
        what: String,
        /// Position of the first fault.
        offset: usize,
        /// The byte there.
        byte: u8,
    },
    /// Nothing to answer.
    #[error("no prompt: give it as words, or pipe it in (see `hob run --help`)")]
    NoPrompt,
    /// Nothing to embed.
    #[error("no text: name some, or pipe one a line (see `hob embed --help`)")]
    NoTexts,
    /// stdin is asked for twice.
    #[error("the prompt names stdin (`-`) {times} times; it can be read once")]
    StdinTwice {
        /// Number of times.
        times: usize,
    },
    /// Something of a conversation where there is no conversation.
    #[error("{model} has no chat template, so {option} has no place in the prompt")]
    NoPlaceInPrompt {
        /// The daemon's model.
        model: String,
        /// Value given.
        option: &'static str,
    },
    /// A file of tools that is none.
    #[error("{}: wanted a JSON array of tools, each an object: {source}", .path.display())]
    NotTools {
        /// Path of the file.
        path: PathBuf,
        /// Value found.
        source: serde_json::Error,
    },
    /// A file of a JSON Schema that is no JSON.
    #[error("{}: wanted a JSON Schema: {source}", .path.display())]
    NotSchema {
        /// Path of the file.
        path: PathBuf,
        /// Value found.
        source: serde_json::Error,
    },
    /// `hob chat` with a model that cannot chat.
    #[error("{model} has no chat template; `hob run` continues texts with it")]
    CannotChat {
        /// The daemon's model.
        model: String,
    },
    /// stdin is not what `detokenize` takes.
    #[error("wanted a JSON array of token ids on stdin: {source}")]
    NotTokenIds {
        /// Fault found.
        source: serde_json::Error,
    },
    /// A text too short to score.
    #[error(
        "the text has {tokens} tokens; perplexity with a context of {context} wants at least \
         {wanted}"
    )]
    TextTooShort {
        /// Its tokens.
        tokens: usize,
        /// Tokens of a chunk.
        context: usize,
        /// Smallest allowed value.
        wanted: usize,
    },
    /// Nothing to measure.
    #[error("nothing to measure: both -p and -n are 0")]
    NothingToMeasure,
    /// Pipelines that want more registers than the device has.
    #[error("{spilling} of {pipelines} pipelines spill registers")]
    Spills {
        /// That many.
        spilling: usize,
        /// Total.
        pipelines: usize,
    },
    /// Other programs would disturb a measurement.
    #[error(
        "other programs use {percent:.0} % of the processors: figures would mean nothing. Wait \
         until the machine is quiet, or use --force"
    )]
    MachineBusy {
        /// Busy time of all processors.
        percent: f64,
    },

    /// A GGUF file cannot be read.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The store of models, or what was to come into it, is not usable.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Nobody said yes.
    #[error("{name} is kept: nobody can be asked here; --yes removes it without asking")]
    NotConfirmed {
        /// Name of the model.
        name: String,
    },
    /// A folder that is not a model.
    #[error(transparent)]
    Folder(#[from] HfError),
    /// The model is in use.
    #[error(
        "hobd has {name} loaded, so it is kept; `hob models unload {name}` takes it off the device"
    )]
    ModelLoaded {
        /// Name of the model.
        name: String,
    },
    /// A vocabulary cannot be used, or cannot express the input.
    #[error("{}: {source}", .path.display())]
    Vocabulary {
        /// Path of the file.
        path: PathBuf,
        /// Reason.
        source: Box<TokenizerError>,
    },
    /// Text or tokens that the vocabulary cannot express.
    #[error(transparent)]
    Tokenizer(Box<TokenizerError>),
    /// A model in this process failed.
    #[error(transparent)]
    Local(#[from] LocalError),
    /// The devices cannot be listed.
    #[error(transparent)]
    Device(#[from] DeviceError),

    /// No place for models.
    #[error("neither XDG_DATA_HOME nor HOME names a folder for models")]
    NoStore,
    /// No place for logs and history.
    #[error("neither XDG_STATE_HOME nor HOME names a folder for logs and history")]
    NoHome,
    /// No place for what is found out about devices.
    #[error("neither XDG_CACHE_HOME nor HOME names a folder; name one with --cache-dir")]
    NoCache,
    /// The daemon's program is not there.
    #[error(
        "hobd is neither beside hob nor in PATH; start it yourself, or name a running one's socket \
         with --socket"
    )]
    NoDaemonProgram,
    /// The daemon's program does not start.
    #[error("cannot start {}: {source}", .program.display())]
    Spawn {
        /// Compiled program.
        program: PathBuf,
        /// Reason.
        source: io::Error,
    },
    /// The daemon ended before it answered.
    #[error("hobd ended ({status}) before it was ready; the end of {}:\n{tail}", .log.display())]
    DaemonEnded {
        /// Manner.
        status: std::process::ExitStatus,
        /// Its log.
        log: PathBuf,
        /// The log's last lines.
        tail: String,
    },
}

fn lost_daemon(pid: i32, socket: &Path, is_gone: bool) -> String {
    let (hobd, socket) = (format!("hobd (process {pid})"), socket.display());
    match is_gone {
        true => format!(
            "{hobd} runs, but its socket {socket} is gone, as after a logout; `hob stop` ends it and \
             saves its sessions, the next `hob run` then starts another"
        ),
        false => format!(
            "{hobd} runs already on {socket}: name that with --socket. A second one needs a folder of \
             its own for sessions (state_dir in its configuration)"
        ),
    }
}

/// As hobd: that a device is not there which somebody named is a matter of settings.
fn device_status(error: &DeviceError) -> u8 {
    match error {
        DeviceError::DeviceNotFound { .. } => exit::BAD_MODEL,
        _ => exit::NO_DEVICE,
    }
}

impl From<TokenizerError> for CliError {
    fn from(error: TokenizerError) -> Self {
        Self::Tokenizer(Box::new(error))
    }
}

impl CliError {
    /// The exit status of a command that ends with this error.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Client(ClientError::Refused { .. }) => exit::FAILED,
            Self::Client(_)
            | Self::NoDaemonProgram
            | Self::Spawn { .. }
            | Self::LostDaemon { .. }
            | Self::DaemonEnded { .. } => exit::NO_DAEMON,
            Self::NoPrompt
            | Self::NoTexts
            | Self::StdinTwice { .. }
            | Self::StdinTooLong { .. }
            | Self::NothingToMeasure
            | Self::Exists { .. }
            | Self::NotAFile { .. }
            | Self::NotItsModel { .. }
            | Self::NotConfirmed { .. } => exit::USAGE,
            Self::Store(
                StoreError::BadName { .. }
                | StoreError::BadSource { .. }
                | StoreError::BadChecksum { .. }
                | StoreError::IsAdapter { .. }
                | StoreError::UnknownModel { .. },
            ) => exit::USAGE,
            Self::Store(StoreError::NotAModel { .. } | StoreError::Manifest { .. }) => {
                exit::BAD_MODEL
            }
            Self::NotUtf8 { .. }
            | Self::NotTokenIds { .. }
            | Self::NotTools { .. }
            | Self::NotSchema { .. }
            | Self::TextTooShort { .. }
            | Self::Tokenizer(_) => exit::BAD_INPUT,
            Self::Gguf(_) | Self::Folder(_) | Self::NotFinite { .. } | Self::Vocabulary { .. } => {
                exit::BAD_MODEL
            }
            Self::Device(error) => device_status(error),
            Self::Local(error) => match error.device() {
                Some(error) => device_status(error),
                None if error.is_model() => exit::BAD_MODEL,
                None => exit::FAILED,
            },
            _ => exit::FAILED,
        }
    }

    /// True if the reader of stdout went away, as `head` does: no fault of anyone's.
    #[must_use]
    pub fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Stdout { source } if source.kind() == io::ErrorKind::BrokenPipe)
    }
}
