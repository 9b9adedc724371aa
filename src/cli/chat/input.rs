//! Lines from the user: edited at a terminal, with a history file; plain from a pipe.

use std::path::PathBuf;

use rustyline::config::Configurer as _;
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{Config, Editor};

use super::super::{CliError, output, paths};

const HISTORY_NAME: &str = "chat_history";
const HISTORY_LINES_MAX: usize = 1000;
const PROMPT: &str = "> ";
const CONTINUED: &str = "… ";

/// Action of the user.
pub(crate) enum Line {
    /// Entered a text, of several lines where they ended with a backslash.
    Text(String),
    /// Pressed Ctrl-C.
    Cleared,
    /// Pressed Ctrl-D, or the pipe ended.
    End,
}

/// Source of lines.
pub(crate) struct Input {
    editor: Editor<(), FileHistory>,
    /// `None` where no history can be kept.
    history: Option<PathBuf>,
}

impl Input {
    /// Prepares the terminal and loads the history.
    pub(crate) fn open() -> Result<Self, CliError> {
        let config = Config::builder().auto_add_history(false).build();
        let mut editor =
            Editor::with_config(config).map_err(|source| CliError::Terminal { source })?;
        editor
            .set_max_history_size(HISTORY_LINES_MAX)
            .map_err(|source| CliError::Terminal { source })?;
        let history = load_history(&mut editor);
        Ok(Self { editor, history })
    }

    /// Reads one text.
    pub(crate) fn read(&mut self) -> Result<Line, CliError> {
        let mut text = String::new();
        loop {
            let prompt = if text.is_empty() { PROMPT } else { CONTINUED };
            match self.editor.readline(prompt) {
                Ok(line) => match line.strip_suffix('\\') {
                    Some(part) => text.extend([part, "\n"]),
                    None => {
                        text.push_str(&line);
                        self.remember(&text);
                        return Ok(Line::Text(text));
                    }
                },
                Err(ReadlineError::Interrupted) => return Ok(Line::Cleared),
                Err(ReadlineError::Eof) if text.is_empty() => return Ok(Line::End),
                Err(ReadlineError::Eof) => return Ok(Line::Text(text)),
                Err(source) => return Err(CliError::Terminal { source }),
            }
        }
    }

    /// Adds to the history; a conversation goes on where that fails.
    fn remember(&mut self, text: &str) {
        if text.trim().is_empty() {
            return;
        }
        let added = self.editor.add_history_entry(text);
        let Some(path) = &self.history else { return };
        if let Err(error) = added.and_then(|_| self.editor.append_history(path)) {
            output::note(&format_args!("cannot write {}: {error}", path.display()));
            self.history = None;
        }
    }
}

fn load_history(editor: &mut Editor<(), FileHistory>) -> Option<PathBuf> {
    // Made here, so that it is readable by its owner alone from the start.
    let path = match paths::open_state_file(HISTORY_NAME) {
        Ok((path, _)) => path,
        Err(error) => {
            output::note(&format_args!("no history is kept: {error}"));
            return None;
        }
    };
    if let Err(error) = editor.load_history(&path) {
        output::note(&format_args!("cannot read {}: {error}", path.display()));
    }
    Some(path)
}
