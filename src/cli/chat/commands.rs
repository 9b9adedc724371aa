//! The `/commands` of a conversation.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

use super::super::args::SamplingOptions;
use crate::config::{
    FREQUENCY_PENALTY, MIN_P, PRESENCE_PENALTY, REPEAT_PENALTY, SamplingSetting, TEMPERATURE, TOP_P,
};

/// Text of `/help`.
pub(crate) const COMMANDS_HELP: &str = "\
/help             this list
/clear            forget the conversation
/system TEXT      set the system message; alone, show it
/set NAME VALUE   temperature, top-k, top-p, min-p, repeat-penalty, presence-penalty,
                  frequency-penalty, seed, max-tokens
/stats            token counts and rates of the last answer
/save FILE        write the conversation as JSON
/quit             leave (also Ctrl-D)

A trailing backslash continues on the next line; a line that begins with // begins with one slash.
Ctrl-C stops an answer, or clears the line.";

/// A line that begins with a slash.
#[derive(Debug, PartialEq)]
pub(crate) enum Command {
    Help,
    Clear,
    System(Option<String>),
    Set(Setting),
    Stats,
    Save(PathBuf),
    Quit,
}

/// A line that is no command, though it begins as one.
#[derive(Debug, Error, PartialEq)]
pub(crate) enum CommandError {
    #[error("no command {0:?}; /help lists them")]
    Unknown(String),
    #[error("usage: {0}")]
    Usage(&'static str),
    #[error(
        "no setting {0:?}; there are temperature, top-k, top-p, min-p, repeat-penalty, \
         presence-penalty, frequency-penalty, seed, max-tokens"
    )]
    UnknownSetting(String),
    #[error("{name}: wanted {wanted}, found {found:?}")]
    BadValue { name: &'static str, wanted: &'static str, found: String },
}

impl Command {
    /// Reads a line; `None` if it does not begin with a single slash.
    pub(crate) fn parse(line: &str) -> Result<Option<Self>, CommandError> {
        let Some(line) = line.trim().strip_prefix('/').filter(|line| !line.starts_with('/')) else {
            return Ok(None);
        };
        let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        let command = match name {
            "help" | "?" => Self::Help,
            "clear" => Self::Clear,
            "system" => Self::System((!rest.is_empty()).then(|| rest.to_owned())),
            "set" => Self::Set(Setting::parse(rest)?),
            "stats" => Self::Stats,
            "save" if rest.is_empty() => return Err(CommandError::Usage("/save FILE")),
            "save" => Self::Save(rest.into()),
            "quit" | "exit" | "bye" => Self::Quit,
            other => return Err(CommandError::Unknown(format!("/{other}"))),
        };
        Ok(Some(command))
    }
}

/// A changed sampling setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Setting {
    Temperature(f32),
    TopK(u32),
    TopP(f32),
    MinP(f32),
    RepeatPenalty(f32),
    PresencePenalty(f32),
    FrequencyPenalty(f32),
    Seed(u64),
    MaxTokens(u32),
}

impl Setting {
    fn parse(text: &str) -> Result<Self, CommandError> {
        let usage = CommandError::Usage("/set NAME VALUE");
        let (name, value) = text.split_once([' ', '\t', '=']).ok_or(usage)?;
        let value = value.trim();
        Ok(match name.trim_start_matches("--").replace('_', "-").as_str() {
            "temperature" => Self::Temperature(read("temperature", value, &TEMPERATURE)?),
            "top-k" => Self::TopK(integer("top-k", value)?),
            "top-p" => Self::TopP(read("top-p", value, &TOP_P)?),
            "min-p" => Self::MinP(read("min-p", value, &MIN_P)?),
            "repeat-penalty" => {
                Self::RepeatPenalty(read("repeat-penalty", value, &REPEAT_PENALTY)?)
            }
            "presence-penalty" => {
                Self::PresencePenalty(read("presence-penalty", value, &PRESENCE_PENALTY)?)
            }
            "frequency-penalty" => {
                Self::FrequencyPenalty(read("frequency-penalty", value, &FREQUENCY_PENALTY)?)
            }
            "seed" => Self::Seed(integer("seed", value)?),
            "max-tokens" => Self::MaxTokens(integer("max-tokens", value)?),
            other => return Err(CommandError::UnknownSetting(other.to_owned())),
        })
    }

    /// Puts the value in its place.
    pub(crate) fn apply(self, sampling: &mut SamplingOptions) {
        match self {
            Self::Temperature(value) => sampling.temperature = Some(value),
            Self::TopK(value) => sampling.top_k = Some(value),
            Self::TopP(value) => sampling.top_p = Some(value),
            Self::MinP(value) => sampling.min_p = Some(value),
            Self::RepeatPenalty(value) => sampling.repeat_penalty = Some(value),
            Self::PresencePenalty(value) => sampling.presence_penalty = Some(value),
            Self::FrequencyPenalty(value) => sampling.frequency_penalty = Some(value),
            Self::Seed(value) => sampling.seed = Some(value),
            Self::MaxTokens(value) => sampling.max_tokens = Some(value),
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Temperature(value) => write!(f, "temperature is {value}"),
            Self::TopK(value) => write!(f, "top-k is {value}"),
            Self::TopP(value) => write!(f, "top-p is {value}"),
            Self::MinP(value) => write!(f, "min-p is {value}"),
            Self::RepeatPenalty(value) => write!(f, "repeat-penalty is {value}"),
            Self::PresencePenalty(value) => write!(f, "presence-penalty is {value}"),
            Self::FrequencyPenalty(value) => write!(f, "frequency-penalty is {value}"),
            Self::Seed(value) => write!(f, "seed is {value}"),
            Self::MaxTokens(value) => write!(f, "max-tokens is {value}"),
        }
    }
}

fn read(name: &'static str, value: &str, of: &SamplingSetting) -> Result<f32, CommandError> {
    let wanted = of.wanted;
    of.parse(value).map_err(|_| CommandError::BadValue { name, wanted, found: value.to_owned() })
}

fn integer<T: FromStr>(name: &'static str, value: &str) -> Result<T, CommandError> {
    let wanted = "an integer from 0";
    value.parse().map_err(|_| CommandError::BadValue { name, wanted, found: value.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SAMPLING_SETTINGS;

    #[test]
    fn lines_without_a_single_slash_are_no_commands() {
        assert_eq!(Command::parse("what is 1/2?"), Ok(None));
        assert_eq!(Command::parse("//help"), Ok(None));
    }

    #[test]
    fn commands_and_their_arguments() {
        assert_eq!(Command::parse(" /quit "), Ok(Some(Command::Quit)));
        assert_eq!(Command::parse("/system"), Ok(Some(Command::System(None))));
        let system = Command::System(Some("Be brief. Be kind.".into()));
        assert_eq!(Command::parse("/system  Be brief. Be kind."), Ok(Some(system)));
        let set = |setting| Ok(Some(Command::Set(setting)));
        assert_eq!(Command::parse("/set temperature 0.5"), set(Setting::Temperature(0.5)));
        assert_eq!(Command::parse("/set top_k=7"), set(Setting::TopK(7)));
        let less = Setting::FrequencyPenalty(-0.5);
        assert_eq!(Command::parse("/set frequency_penalty -0.5"), set(less));
        assert_eq!(Command::parse("/save a file"), Ok(Some(Command::Save("a file".into()))));
    }

    #[test]
    fn every_setting_of_the_sampler_can_be_set_within_its_range() {
        for setting in SAMPLING_SETTINGS {
            let set = |value: f32| Command::parse(&format!("/set {} {value}", setting.name));
            assert!(matches!(set(setting.default), Ok(Some(Command::Set(_)))), "{setting:?}");
            assert!(COMMANDS_HELP.contains(&setting.name.replace('_', "-")), "{setting:?}");
            let outside = set(setting.least - 1.0).expect_err(setting.name).to_string();
            assert!(outside.contains("wanted a"), "{outside}");
        }
        let error = Command::parse("/set temperature 200").unwrap_err().to_string();
        assert_eq!(error, "temperature: wanted a number from 0 to 100, found \"200\"");
    }

    #[test]
    fn mistakes_are_named() {
        assert_eq!(Command::parse("/clean"), Err(CommandError::Unknown("/clean".into())));
        assert_eq!(Command::parse("/save"), Err(CommandError::Usage("/save FILE")));
        let error = Command::parse("/set top-p 1.5").unwrap_err();
        assert_eq!(error.to_string(), "top-p: wanted a number from 0 to 1, found \"1.5\"");
        assert!(matches!(Command::parse("/set heat 3"), Err(CommandError::UnknownSetting(_))));
    }
}
