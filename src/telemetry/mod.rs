//! The log: where it goes and in what form.
//!
//! Log calls all over hob name counts, times, uids and codes; never prompts, tokens or completions
//! (`tests/server_privacy.rs` holds them to it).

use std::io::{self, IsTerminal};

use thiserror::Error;
pub use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{Layer, Registry, fmt};

/// Form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The journal where standard error is the journal, else text.
    Auto,
    /// Lines for a person on standard error, in colour on a terminal.
    Text,
    /// One JSON object a line on standard error.
    Json,
    /// Structured entries in systemd's journal.
    Journald,
}

/// The log cannot be set up.
#[derive(Debug, Error)]
pub enum TelemetryError {
    /// The journal was asked for and is not there.
    #[error("log_format = \"journald\": cannot reach the journal: {0}")]
    Journal(#[source] io::Error),
    /// The process has a log already.
    #[error("the log is set up already: {0}")]
    Twice(#[from] TryInitError),
}

/// Sets up the log of this process.
///
/// # Errors
/// The journal is asked for and cannot be reached, or a log is set up already.
pub fn init(level: LevelFilter, form: Form) -> Result<(), TelemetryError> {
    let filter = filter(level);
    let layer: Box<dyn Layer<Registry> + Send + Sync> = match form {
        Form::Auto if stderr_is_journal() => match tracing_journald::layer() {
            Ok(journal) => Box::new(journal.with_syslog_identifier("hobd".to_owned())),
            Err(_) => text(),
        },
        Form::Auto | Form::Text => text(),
        Form::Json => Box::new(fmt::layer().json().with_writer(io::stderr)),
        Form::Journald => {
            let journal = tracing_journald::layer().map_err(TelemetryError::Journal)?;
            Box::new(journal.with_syslog_identifier("hobd".to_owned()))
        }
    };
    tracing_subscriber::registry().with(layer.with_filter(filter)).try_init()?;
    Ok(())
}

/// hob's own messages at `level`; those of its dependencies only from warnings up.
fn filter(level: LevelFilter) -> Targets {
    Targets::new()
        .with_default(level.min(LevelFilter::WARN))
        .with_target("hob", level)
        .with_target("hobd", level)
}

fn text() -> Box<dyn Layer<Registry> + Send + Sync> {
    let colour = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    Box::new(fmt::layer().with_ansi(colour).with_target(false).with_writer(io::stderr))
}

/// True if standard error is the journal's stream: systemd gives its device and inode.
fn stderr_is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else {
        return false;
    };
    rustix::fs::fstat(io::stderr())
        .is_ok_and(|stat| stream == format!("{}:{}", stat.st_dev, stat.st_ino))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_stay_quiet_at_trace() {
        let filter = filter(LevelFilter::TRACE);
        assert!(filter.would_enable("hob::server", &tracing::Level::TRACE));
        assert!(!filter.would_enable("mio::poll", &tracing::Level::INFO));
        let quiet = super::filter(LevelFilter::ERROR);
        assert!(!quiet.would_enable("mio::poll", &tracing::Level::WARN));
    }
}
