//! Reading the file.

use std::fs;
use std::io;
use std::ops::Range;
use std::path::Path;

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::keys::{KEYS, Key};
use super::{Config, ConfigError, Places, models};

/// Longest path of a socket: `sun_path` of `sockaddr_un` holds 108 bytes with its closing zero.
pub const SOCKET_BYTES_MAX: usize = 107;

/// Loads `explicit`, else the first configuration file there is, else the defaults.
///
/// # Errors
/// `explicit` is not there; a file cannot be read; anything wrong in it.
pub fn load(explicit: Option<&Path>, places: &Places) -> Result<Config, ConfigError> {
    if let Some(path) = explicit {
        return read(path);
    }
    for path in places.config_files() {
        match read(&path) {
            Err(ConfigError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            result => return result,
        }
    }
    Ok(Config::default())
}

fn read(path: &Path) -> Result<Config, ConfigError> {
    let text = fs::read_to_string(path)
        .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    parse(&text, path)
}

/// Parses the text of a configuration file; `path` is for messages.
///
/// # Errors
/// Not TOML, an unknown key, a value of the wrong type or out of range.
pub fn parse(text: &str, path: &Path) -> Result<Config, ConfigError> {
    let file = File { text, path };
    let mut table = DeTable::parse(text).map_err(|error| file.syntax(&error))?;
    let models = models::take(&file, table.get_mut())?;
    for key in table.get_ref().keys() {
        let name: &str = key.get_ref();
        if !KEYS.iter().any(|known| known.name == name) {
            return Err(ConfigError::UnknownKey {
                path: path.to_owned(),
                line: file.line(key.span()),
                key: name.to_owned(),
                nearest: nearest(name, KEYS.iter().map(|key| key.name)),
            });
        }
    }
    let mut config = Config::deserialize(toml::Deserializer::from(table.clone()))
        .map_err(|error| file.wrong_type(&error, table.get_ref()))?;
    if let Some((key, value)) = config.out_of_range() {
        let line = table.get_ref().get(key.name).map_or(0, |found| file.line(found.span()));
        return Err(ConfigError::Value {
            path: path.to_owned(),
            line,
            key: key.name,
            wanted: key.wanted,
            found: value.to_string(),
        });
    }
    config.models = models;
    Ok(config)
}

impl Config {
    fn out_of_range(&self) -> Option<(&'static Key, u32)> {
        KEYS.iter().find_map(|key| (key.out_of_range)(self).map(|value| (key, value)))
    }

    /// Checks the ranges once more, after flags of the command line overrode the file.
    ///
    /// # Errors
    /// Names the key that is out of range.
    pub fn check(&self) -> Result<(), ConfigError> {
        if let Some((key, value)) = self.out_of_range() {
            let (key, wanted, found) = (key.name, key.wanted, value.to_string());
            return Err(ConfigError::Setting { key, wanted, found });
        }
        let names = || self.lora.iter().map(|lora| &lora.name);
        let twice = names().enumerate().find(|(at, name)| names().take(*at).any(|n| n == *name));
        if let Some((_, name)) = twice {
            let (wanted, found) = ("names that differ", format!("{name:?} twice"));
            return Err(ConfigError::Setting { key: "lora", wanted, found });
        }
        let bytes = self.socket.as_os_str().len();
        if bytes > SOCKET_BYTES_MAX {
            let (wanted, found) = ("a path of at most 107 bytes", format!("one of {bytes}"));
            return Err(ConfigError::Setting { key: "socket", wanted, found });
        }
        Ok(())
    }
}

pub(super) struct File<'a> {
    text: &'a str,
    pub(super) path: &'a Path,
}

impl File<'_> {
    /// Line of a place in the text, from 1.
    pub(super) fn line(&self, span: Range<usize>) -> usize {
        let end = span.start.min(self.text.len());
        self.text.as_bytes()[..end].iter().filter(|byte| **byte == b'\n').count() + 1
    }

    pub(super) fn syntax(&self, error: &toml::de::Error) -> ConfigError {
        ConfigError::Syntax {
            path: self.path.to_owned(),
            line: self.line(error.span().unwrap_or_default()),
            reason: error.message().replace('\n', ", "),
        }
    }

    fn wrong_type(&self, error: &toml::de::Error, table: &DeTable<'_>) -> ConfigError {
        let at = error.span().unwrap_or_default();
        let wrong = KEYS.iter().find_map(|key| {
            let value = table.get(key.name)?;
            let span = value.span();
            (span.start <= at.start && at.end <= span.end).then_some((key, value))
        });
        let Some((key, value)) = wrong else {
            return self.syntax(error);
        };
        ConfigError::Value {
            path: self.path.to_owned(),
            line: self.line(value.span()),
            key: key.name,
            wanted: key.wanted,
            found: describe_part(value, error),
        }
    }
}

/// The innermost part of a value that an error is of, and the keys that lead to it; where that is
/// more than one value, also what the error says.
fn describe_part(value: &Spanned<DeValue<'_>>, error: &toml::de::Error) -> String {
    let at = error.span().unwrap_or_default();
    let holds = |part: &Spanned<DeValue<'_>>| {
        let span = part.span();
        !at.is_empty() && span.start <= at.start && at.end <= span.end
    };
    let mut value = value;
    let mut keys = Vec::new();
    loop {
        let part = match value.get_ref() {
            DeValue::Table(table) => {
                let part = table.iter().find(|(_, part)| holds(part));
                part.map(|(key, part)| (key.get_ref().to_string(), part))
            }
            DeValue::Array(parts) => {
                let part = parts.iter().zip(1..).find(|(part, _)| holds(part));
                part.map(|(part, number)| (format!("entry {number}"), part))
            }
            _ => None,
        };
        let Some((key, part)) = part else { break };
        keys.push(key);
        value = part;
    }
    let mut found = describe(value.get_ref());
    if !keys.is_empty() {
        found = format!("{found} ({})", keys.join(", "));
    }
    if matches!(value.get_ref(), DeValue::Table(_) | DeValue::Array(_)) {
        found = format!("{found}: {}", error.message().replace('\n', ", "));
    }
    found
}

pub(super) fn describe(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("the string {text:?}"),
        DeValue::Integer(number) => format!("the integer {}", number.as_str()),
        DeValue::Float(number) => format!("the number {}", number.as_str()),
        DeValue::Boolean(value) => value.to_string(),
        DeValue::Datetime(_) => "a date".to_owned(),
        DeValue::Array(_) => "an array".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

/// The key most like `name`, where one is similar enough to be meant.
pub(super) fn nearest(
    name: &str,
    keys: impl Iterator<Item = &'static str>,
) -> Option<&'static str> {
    const SIMILARITY_MIN: f64 = 0.6;
    keys.map(|key| (strsim::jaro_winkler(name, key), key))
        .filter(|(similarity, _)| *similarity >= SIMILARITY_MIN)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, key)| key)
}
