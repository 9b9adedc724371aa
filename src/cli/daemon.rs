//! Finds the daemon, or starts one apart from this terminal and waits until it answers.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Error, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use indicatif::ProgressBar;

use super::args::GlobalOptions;
use super::client::{Client, ClientError};
use super::{CliError, lost_daemon, output, paths};
use crate::protocol::{InitializeResult, ModelLoadResult, ModelParams, method};

const START_DETACHED: [&str; 2] = ["start-detached", "--"];
const POLL: Duration = Duration::from_millis(50);
const LOG_NAME: &str = "hobd.log";
/// As much of the log as is looked at for its end.
const TAIL_BYTES_MAX: u64 = 16 << 10;
const TAIL_LINES: usize = 12;
const SPINNER_CHARS_MAX: usize = 70;

/// A connection to the daemon, and who answered.
pub(crate) struct Connection {
    pub(crate) client: Client,
    pub(crate) daemon: InitializeResult,
    pub(crate) socket: PathBuf,
    /// The model that requests are to name; `None` takes the daemon's default.
    pub(crate) model: Option<String>,
}

impl Connection {
    /// Asks the daemon to load a named model. A local file is refused unless the daemon has it
    /// already: clients must not choose which files the daemon reads.
    fn choose(&mut self, model: &Path) -> Result<(), CliError> {
        let name = model.to_str().filter(|name| !name.contains('/') && !name.ends_with(".gguf"));
        let Some(name) = name else {
            let is_its_own = fs::canonicalize(model)
                .ok()
                .is_some_and(|path| self.daemon.file.as_ref().is_some_and(|file| *file == path));
            return match is_its_own {
                true => Ok(()),
                false => Err(CliError::NotItsModel { model: model.to_owned() }),
            };
        };
        let params = ModelParams { model: Some(name.to_owned()) };
        let loaded: ModelLoadResult = self.client.call(method::MODEL_LOAD, &params)?;
        self.daemon.model = loaded.facts;
        self.model = Some(loaded.name);
        Ok(())
    }
}

/// A connection to the daemon, which must be running.
pub(crate) fn connect(global: &GlobalOptions) -> Result<Connection, CliError> {
    let (client, socket) = connect_to_any(&paths::sockets(global))?;
    introduce(client, socket)
}

/// A connection to the daemon, if one runs.
pub(crate) fn connect_if_running(global: &GlobalOptions) -> Option<Client> {
    connect_to_any(&paths::sockets(global)).ok().map(|(client, _)| client)
}

/// A connection to the daemon; starts one with `model` where none runs.
pub(crate) fn connect_or_start(
    global: &GlobalOptions,
    model: Option<&Path>,
) -> Result<Connection, CliError> {
    let mut sockets = paths::sockets(global);
    match connect_to_any(&sockets) {
        Ok((client, socket)) => {
            let mut connection = introduce(client, socket)?;
            if let Some(model) = model {
                connection.choose(model)?;
            }
            Ok(connection)
        }
        Err(ClientError::Unreachable { source, .. })
            if source.kind() != ErrorKind::PermissionDenied =>
        {
            lost_daemon::check_none(&sockets)?;
            start(sockets.swap_remove(0), model)
        }
        Err(error) => Err(error.into()),
    }
}

/// The first socket on which a daemon listens. Where none does, the error is the first socket's,
/// unless only another one exists.
fn connect_to_any(sockets: &[PathBuf]) -> Result<(Client, PathBuf), ClientError> {
    let mut errors = Vec::new();
    for socket in sockets {
        match Client::connect(socket) {
            Ok(client) => return Ok((client, socket.clone())),
            Err(error) => errors.push(error),
        }
    }
    let exists = |error: &ClientError| {
        !matches!(error, ClientError::Unreachable { source, .. }
            if source.kind() == ErrorKind::NotFound)
    };
    let told = errors.iter().position(exists).unwrap_or(0);
    Err(errors.swap_remove(told))
}

fn introduce(mut client: Client, socket: PathBuf) -> Result<Connection, CliError> {
    let daemon = client.initialize()?;
    Ok(Connection { client, daemon, socket, model: None })
}

fn start(socket: PathBuf, model: Option<&Path>) -> Result<Connection, CliError> {
    let program = paths::find_hobd()?;
    let (log_path, log) = paths::open_state_file(LOG_NAME)?;
    let log_start = log.metadata().map(|metadata| metadata.len()).unwrap_or(0);
    output::note(&format_args!(
        "no daemon answers on {}: starting {} (its log: {})",
        socket.display(),
        program.display(),
        log_path.display()
    ));
    let child = spawn(&program, &socket, model, log)
        .map_err(|source| CliError::Spawn { program, source })?;
    let log = Log { path: log_path, start: log_start };
    wait_until_ready(socket, child, &log)
}

/// Starts the daemon by way of `hob start-detached`, which leaves the terminal's session first:
/// closing the terminal, or Ctrl-C in it, then does not reach the daemon.
fn spawn(program: &Path, socket: &Path, model: Option<&Path>, log: File) -> std::io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(START_DETACHED).arg(program).arg("--socket").arg(socket);
    if let Some(model) = model {
        // The daemon looks names up itself: they stay what they are.
        let model = if paths::is_name_of_store(model) {
            model.to_owned()
        } else {
            std::path::absolute(model)?
        };
        command.arg("--model").arg(model);
    }
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()
}

/// The program of `hob start-detached -- PROGRAM …`, with its arguments. This command is for hob
/// itself, so it is not a part of the grammar that help and completions show.
pub(crate) fn program_to_detach(
    arguments: impl Iterator<Item = OsString>,
) -> Option<Vec<OsString>> {
    let mut arguments = arguments.skip(1);
    let marks = [arguments.next()?, arguments.next()?];
    let program: Vec<OsString> = arguments.collect();
    (marks == START_DETACHED && !program.is_empty()).then_some(program)
}

/// Begins a session of its own and becomes the program; returns only where that fails.
pub(crate) fn become_detached(program: &[OsString]) -> CliError {
    let (name, arguments) = program.split_first().expect("`program_to_detach` gives a program");
    let detached = rustix::process::setsid().map_err(Error::from);
    let source = match detached {
        Ok(_) => Command::new(name).args(arguments).exec(),
        Err(source) => source,
    };
    CliError::Spawn { program: name.into(), source }
}

/// Waits until the daemon has answered: it may listen before it has loaded its model.
fn wait_until_ready(socket: PathBuf, mut child: Child, log: &Log) -> Result<Connection, CliError> {
    let spinner = Spinner::start();
    loop {
        match Client::connect(&socket) {
            Ok(client) => match introduce(client, socket.clone()) {
                Err(CliError::Client(ClientError::Lost { .. })) => {}
                answered => return answered,
            },
            Err(_) => {
                let ended = child.try_wait();
                let ended =
                    ended.map_err(|source| CliError::Spawn { program: "hobd".into(), source })?;
                if let Some(status) = ended {
                    return daemon_ended(socket, status, log);
                }
            }
        }
        spinner.show(&log.tail(1));
        thread::sleep(POLL);
    }
}

/// The daemon we started is gone: it failed, or another was started at the same moment and won.
fn daemon_ended(socket: PathBuf, status: ExitStatus, log: &Log) -> Result<Connection, CliError> {
    match Client::connect(&socket) {
        Ok(client) => introduce(client, socket),
        Err(_) => {
            Err(CliError::DaemonEnded { status, log: log.path.clone(), tail: log.tail(TAIL_LINES) })
        }
    }
}

/// Shows what the daemon is doing, on a terminal; gone when dropped.
struct Spinner(ProgressBar);

impl Spinner {
    fn start() -> Self {
        Self(output::spinner("{spinner} starting hobd ({elapsed}): {msg}"))
    }

    fn show(&self, log_line: &str) {
        let doing = if log_line.is_empty() { "loading the model" } else { log_line.trim() };
        self.0.set_message(output::shortened(doing, SPINNER_CHARS_MAX).into_owned());
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// The daemon's log, from where this start's part begins.
struct Log {
    path: PathBuf,
    start: u64,
}

impl Log {
    /// Its last lines, safe to show; empty if it cannot be read.
    fn tail(&self, lines: usize) -> String {
        let bytes = self.last_bytes().unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let all: Vec<&str> = text.lines().collect();
        let last: Vec<String> = all[all.len().saturating_sub(lines)..]
            .iter()
            .map(|line| output::on_one_line(&without_colours(line)))
            .collect();
        last.join("\n")
    }

    fn last_bytes(&self) -> std::io::Result<Vec<u8>> {
        let mut file = File::open(&self.path)?;
        let end = file.metadata()?.len();
        file.seek(SeekFrom::Start(self.start.max(end.saturating_sub(TAIL_BYTES_MAX))))?;
        let mut bytes = Vec::new();
        file.take(TAIL_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// A line without the colour sequences (`ESC [ … m`) that a logger may put there.
fn without_colours(line: &str) -> String {
    let mut parts = line.split("\u{1b}[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        let rest = part.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';');
        text + rest.strip_prefix('m').unwrap_or(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_begins_at_this_start() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hobd.log");
        fs::write(&path, "old\n\u{1b}[31merror:\u{1b}[0m one\ntwo\nthree\n").unwrap();
        let log = Log { path, start: 4 };
        assert_eq!(log.tail(9), "error: one\ntwo\nthree");
        assert_eq!(log.tail(1), "three");
    }
}
