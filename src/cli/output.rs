//! What is written to the terminal: safe text, colours where they are wanted, and a closed pipe
//! told apart from other failures.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use indicatif::{ProgressBar, ProgressStyle};

use super::CliError;

/// Names and headings.
pub(crate) const BOLD: Style = Style::new().bold();
/// Acceptable differences.
pub(crate) const DIM: Style = Style::new().dimmed();
const RED: Style = AnsiColor::Red.on_default().bold();
const YELLOW: Style = AnsiColor::Yellow.on_default();

/// Standard output: every text passes [`printable`] when it goes to a terminal.
#[derive(Debug)]
pub(crate) struct Output {
    stdout: io::Stdout,
    terminal: bool,
    colours: bool,
    ends_line: bool,
}

impl Output {
    /// This process's standard output.
    pub(crate) fn stdout() -> Self {
        let stdout = io::stdout();
        let terminal = stdout.is_terminal();
        Self { stdout, terminal, colours: terminal && colours_wanted(), ends_line: true }
    }

    /// True if what was written so far ends with a newline, or nothing was.
    pub(crate) fn ends_line(&self) -> bool {
        self.ends_line
    }

    /// Writes `text` and sends it on its way.
    pub(crate) fn text(&mut self, text: &str) -> Result<(), CliError> {
        if let Some(last) = text.chars().next_back() {
            self.ends_line = last == '\n';
        }
        let text = if self.terminal { printable(text) } else { Cow::Borrowed(text) };
        let mut stdout = self.stdout.lock();
        stdout
            .write_all(text.as_bytes())
            .and_then(|()| stdout.flush())
            .map_err(|source| CliError::Stdout { source })
    }

    /// Writes one line.
    pub(crate) fn line(&mut self, text: &str) -> Result<(), CliError> {
        self.text(&format!("{text}\n"))
    }

    /// Writes one line in a style, where colours are wanted.
    pub(crate) fn styled_line(&mut self, style: Style, text: &str) -> Result<(), CliError> {
        if !self.colours {
            return self.line(text);
        }
        writeln!(self.stdout.lock(), "{style}{}{style:#}", printable(text))
            .map_err(|source| CliError::Stdout { source })
    }

    /// Writes a value as JSON, on one line for programs and indented for a terminal.
    pub(crate) fn json(&mut self, value: &impl serde::Serialize) -> Result<(), CliError> {
        let text = if self.terminal {
            serde_json::to_string_pretty(value)
        } else {
            serde_json::to_string(value)
        };
        self.line(&text.map_err(|source| CliError::Encode { source })?)
    }
}

/// Tells what failed, on stderr.
pub(crate) fn error(message: &dyn Display) {
    to_stderr(RED, "error", message);
}

/// Tells something worth knowing, on stderr.
pub(crate) fn note(message: &dyn Display) {
    to_stderr(YELLOW, "hob", message);
}

fn to_stderr(style: Style, label: &str, message: &dyn Display) {
    let stderr = io::stderr();
    let text = message.to_string();
    // Nothing is left to be told where stderr is closed, so its failures are not reported.
    let _ = if !stderr.is_terminal() {
        writeln!(stderr.lock(), "{label}: {text}")
    } else if colours_wanted() {
        writeln!(stderr.lock(), "{style}{label}:{style:#} {}", printable(&text))
    } else {
        writeln!(stderr.lock(), "{label}: {}", printable(&text))
    };
}

/// True if the user's environment allows colours (<https://no-color.org>).
pub(crate) fn colours_wanted() -> bool {
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    !no_color && !dumb
}

/// `text` with what a terminal would obey made visible instead: escape sequences in a model's
/// answer or in a file must not move the cursor, change the title or write the clipboard, nor marks
/// of direction show words in another order. Newlines and tabs stay; carriage returns are dropped.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    let obeyed = |c: char| is_obeyed(c) && c != '\n' && c != '\t';
    if !text.contains(obeyed) {
        return Cow::Borrowed(text);
    }
    text.chars()
        .filter(|&c| c != '\r')
        .map(|c| if obeyed(c) { control_picture(c) } else { c })
        .collect::<String>()
        .into()
}

/// `text` on one line: as [`printable`], with newlines and tabs made visible too.
pub(crate) fn on_one_line(text: &str) -> String {
    text.chars().map(|c| if is_obeyed(c) { control_picture(c) } else { c }).collect()
}

/// True if a terminal acts on a character instead of showing it: controls, and the marks that
/// change the direction of text, with which a line can show other words than it has.
fn is_obeyed(c: char) -> bool {
    let turns = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2066}'..='\u{2069}');
    turns || c.is_control() || matches!(c, '\u{2028}' | '\u{2029}')
}

/// The picture Unicode has of a C0 control or DEL; U+FFFD for all else, which have none.
fn control_picture(control: char) -> char {
    match control {
        '\u{0}'..='\u{1f}' => {
            char::from_u32(0x2400 + u32::from(control)).unwrap_or(char::REPLACEMENT_CHARACTER)
        }
        '\u{7f}' => '\u{2421}',
        _ => char::REPLACEMENT_CHARACTER,
    }
}

/// `text` cut to `chars_max` characters, with an ellipsis where something was cut.
pub(crate) fn shortened(text: &str, chars_max: usize) -> Cow<'_, str> {
    match text.char_indices().nth(chars_max) {
        None => Cow::Borrowed(text),
        Some((end, _)) => format!("{}…", &text[..end]).into(),
    }
}

/// A byte count for people, in binary units.
pub(crate) fn bytes(count: u64) -> String {
    indicatif::BinaryBytes(count).to_string()
}

/// A count with thousands separated.
pub(crate) fn count(number: u64) -> String {
    indicatif::HumanCount(number).to_string()
}

/// A bar for loading weights, with bytes and bytes/s; on standard error, and only on a terminal.
pub(crate) fn load_bar() -> ProgressBar {
    let style = "loading {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}";
    ProgressBar::new(0)
        .with_style(ProgressStyle::with_template(style).expect("the template is a constant"))
}

/// Spinner shown while waiting; on standard error, and only on a terminal.
pub(crate) fn spinner(template: &str) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(template).expect("the template is a constant");
    let spinner = ProgressBar::new_spinner().with_style(style);
    spinner.enable_steady_tick(Duration::from_millis(100));
    spinner
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_are_made_visible() {
        assert_eq!(printable("a\x1b[2Jb\u{9b}31m\x07\x7f"), "a␛[2Jb\u{fffd}31m␇␡");
        assert_eq!(printable("tab\tline\r\nend"), "tab\tline\nend");
    }

    #[test]
    fn marks_that_turn_text_around_are_made_visible() {
        assert_eq!(printable("a\u{202e}b\u{2069}"), "a\u{fffd}b\u{fffd}");
        assert_eq!(on_one_line("\u{200f}\u{61c}x\u{2028}"), "\u{fffd}\u{fffd}x\u{fffd}");
        assert_eq!(printable("שלום"), "שלום", "letters have their own direction");
    }

    #[test]
    fn ordinary_text_is_not_copied() {
        assert!(matches!(printable("苹果 🍎\n"), Cow::Borrowed(_)));
    }

    #[test]
    fn one_line_shows_newlines() {
        assert_eq!(on_one_line("a\nb\tc"), "a␊b␉c");
    }

    #[test]
    fn shortening_counts_characters() {
        assert_eq!(shortened("好吃的苹果", 3), "好吃的…");
        assert_eq!(shortened("abc", 3), "abc");
    }
}
