//! Where things are: the daemon's socket, this user's state, the daemon's program.

use std::env;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, IsTerminal, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::args::GlobalOptions;
use super::{CliError, output};
use crate::config::Places;
use crate::store::Store;

/// Longest prompt, and texts to embed, from stdin: far more than any context holds.
pub(crate) const PROMPT_BYTES_MAX: usize = 64 << 20;

/// Longest text that the tokenizer takes at once.
pub(crate) const TEXT_BYTES_MAX: usize = 1 << 30;

/// A user whose stdin stays open this long without a byte may not know that it is waited for.
const SILENCE: Duration = Duration::from_secs(1);

/// The sockets to try, in order: the one named, or the user's daemon's and the system service's.
pub(crate) fn sockets(global: &GlobalOptions) -> Vec<PathBuf> {
    match &global.socket {
        Some(socket) if !socket.as_os_str().is_empty() => vec![socket.clone()],
        _ => Places::of_this_process().client_sockets(),
    }
}

/// This user's models.
pub(crate) fn store() -> Result<Store, CliError> {
    Places::of_this_process().models_dir().map(Store::new).ok_or(CliError::NoStore)
}

/// The file of a model that is named, or given by its path.
pub(crate) fn model(model: &Path) -> Result<PathBuf, CliError> {
    match store() {
        Ok(store) => Ok(store.locate(model)?),
        Err(_) => Ok(model.to_owned()),
    }
}

/// True if the store has a model of this name.
pub(crate) fn is_name_of_store(model: &Path) -> bool {
    let found = store().ok().zip(model.to_str()).map(|(store, name)| store.find(name));
    matches!(found, Some(Ok(Some(_))))
}

/// Opens a file in this user's state folder for appending, readable by this user alone; creates
/// both where they are missing.
pub(crate) fn open_state_file(name: &str) -> Result<(PathBuf, File), CliError> {
    let folder = state_folder()?;
    let path = folder.join(name);
    let file = create_folder(&folder)
        .and_then(|()| OpenOptions::new().append(true).create(true).mode(0o600).open(&path))
        .map_err(|source| CliError::WriteFile { path: path.clone(), source })?;
    Ok((path, file))
}

/// `$XDG_STATE_HOME/hob`, else `~/.local/state/hob`.
fn state_folder() -> Result<PathBuf, CliError> {
    let state = absolute_from_env("XDG_STATE_HOME")
        .or_else(|| env::home_dir().map(|home| home.join(".local/state")));
    state.map(|state| state.join("hob")).ok_or(CliError::NoHome)
}

/// `hobd` beside this program, else in PATH.
pub(crate) fn find_hobd() -> Result<PathBuf, CliError> {
    let beside = env::current_exe().ok().and_then(|own| Some(own.parent()?.join("hobd")));
    let in_path = env::var_os("PATH").unwrap_or_default();
    let candidates = env::split_paths(&in_path).map(|folder| folder.join("hobd"));
    beside
        .into_iter()
        .chain(candidates)
        .find(|path| path.is_file())
        .ok_or(CliError::NoDaemonProgram)
}

/// Makes a folder of this user's alone, with those above it.
fn create_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// By the XDG base directory specification a relative path is to be ignored.
fn absolute_from_env(name: &str) -> Option<PathBuf> {
    env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
}

/// Reads a file whose text must be UTF-8.
pub(crate) fn read_text(path: &Path) -> Result<String, CliError> {
    let bytes =
        fs::read(path).map_err(|source| CliError::ReadFile { path: path.to_owned(), source })?;
    utf8(bytes, &path.display().to_string())
}

/// Reads all of stdin, which must be UTF-8, if it ends within so many bytes.
pub(crate) fn read_stdin(bytes_max: usize) -> Result<String, CliError> {
    if io::stderr().is_terminal() && is_silent(io::stdin(), SILENCE) {
        output::note(&"waiting for stdin to end (on a terminal Ctrl-D ends it)");
    }
    utf8(read_up_to(io::stdin().lock(), bytes_max)?, "stdin")
}

/// All of an input, as far as it ends within so many bytes.
fn read_up_to(input: impl Read, bytes_max: usize) -> Result<Vec<u8>, CliError> {
    let mut bytes = Vec::new();
    input
        .take(bytes_max as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|source| CliError::Stdin { source })?;
    if bytes.len() > bytes_max { Err(CliError::StdinTooLong { bytes_max }) } else { Ok(bytes) }
}

/// True if nothing comes of an input, not even its end, for so long.
fn is_silent(input: impl AsFd, patience: Duration) -> bool {
    let mut input = [PollFd::new(&input, PollFlags::IN)];
    let patience = Timespec::try_from(patience).ok();
    matches!(poll(&mut input, patience.as_ref()), Ok(0))
}

fn utf8(bytes: Vec<u8>, what: &str) -> Result<String, CliError> {
    String::from_utf8(bytes).map_err(|error| CliError::NotUtf8 {
        what: what.to_owned(),
        offset: error.utf8_error().valid_up_to(),
        byte: error.as_bytes()[error.utf8_error().valid_up_to()],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_without_end_is_refused_at_the_limit() {
        let error = read_up_to(io::repeat(b'y'), 1000).expect_err("endless");
        assert!(matches!(error, CliError::StdinTooLong { bytes_max: 1000 }));
        assert_eq!(read_up_to(&[b'y'; 1000][..], 1000).expect("it fits").len(), 1000);
    }

    #[test]
    fn an_input_is_silent_until_it_says_something_or_ends() {
        let (reader, mut writer) = io::pipe().unwrap();
        let patience = Duration::from_millis(1);
        assert!(is_silent(&reader, patience));
        io::Write::write_all(&mut writer, b"x").unwrap();
        assert!(!is_silent(&reader, patience));
        let (reader, writer) = io::pipe().unwrap();
        drop(writer);
        assert!(!is_silent(&reader, patience));
    }

    #[test]
    fn invalid_utf8_is_located() {
        let error = utf8(b"caf\xe9 au lait".to_vec(), "stdin").unwrap_err();
        assert_eq!(
            error.to_string(),
            "stdin is not UTF-8: byte 0xe9 at offset 3 begins no valid character"
        );
    }
}
