//! The numbers that tokens are chosen by: one table of their names, ranges and defaults, which the
//! configuration, the protocol, the command line and the sampler's checks share.

use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize};

/// A number that tokens are chosen by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingSetting {
    /// Name in the configuration and on the wire; the command line has dashes for underscores.
    pub name: &'static str,
    /// Least value.
    pub least: f32,
    /// Greatest value.
    pub most: f32,
    /// Kind of number and range, for messages.
    pub wanted: &'static str,
    /// Default where neither a request, nor the configuration, nor the model's file has one.
    pub default: f32,
    /// Line of help.
    pub help: &'static str,
}

impl SamplingSetting {
    /// True if a number is in the range; NaN is in none.
    #[must_use]
    pub fn contains(&self, number: f32) -> bool {
        (self.least..=self.most).contains(&number)
    }

    /// Reads a number.
    ///
    /// # Errors
    /// Text that is no number of the range: what is wanted.
    pub fn parse(&self, text: &str) -> Result<f32, String> {
        let number = text.parse().ok().filter(|number| self.contains(*number));
        number.ok_or_else(|| format!("wanted {}", self.wanted))
    }
}

macro_rules! settings {
    ($($id:ident: $name:literal, $kind:literal $least:literal to $most:literal,
       default $default:literal, $help:literal;)*) => {
        $(
            #[doc = $help]
            pub const $id: SamplingSetting = SamplingSetting {
                name: $name,
                least: $least as f32,
                most: $most as f32,
                wanted: concat!($kind, " from ", $least, " to ", $most),
                default: $default as f32,
                help: $help,
            };
        )*

        /// All of them, in the order of the documentation.
        pub const SAMPLING_SETTINGS: &[SamplingSetting] = &[$($id),*];

        /// Expected form of a configuration value.
        pub(super) const SAMPLING_WANTED: &str =
            concat!("a table with any of", $(" ", $name, " (", $least, " to ", $most, ")"),*);
    };
}

settings! {
    TEMPERATURE: "temperature", "a number" 0 to 100, default 0.8,
        "Randomness; 0 always takes the most likely token";
    TOP_K: "top_k", "an integer" 0 to 4294967295_u32, default 40,
        "Choose among this many of the most likely tokens; 0 for all";
    TOP_P: "top_p", "a number" 0 to 1, default 0.95,
        "Choose among the fewest tokens whose probabilities sum to this; 1 for all";
    MIN_P: "min_p", "a number" 0 to 1, default 0.05,
        "Drop tokens less likely than this share of the best; 0 for none";
    REPEAT_PENALTY: "repeat_penalty", "a number" 0.01 to 100, default 1,
        "Make tokens seen lately less likely; 1 is off";
    PRESENCE_PENALTY: "presence_penalty", "a number" -100 to 100, default 0,
        "Lower the logits of tokens seen lately by so much; 0 is off";
    FREQUENCY_PENALTY: "frequency_penalty", "a number" -100 to 100, default 0,
        "Lower them by so much for each time that they were seen; 0 is off";
}

/// Settings of the sampler, each of which may be left to somebody else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingOverrides {
    /// [`TEMPERATURE`].
    #[serde(deserialize_with = "temperature")]
    pub temperature: Option<f32>,
    /// [`TOP_K`].
    pub top_k: Option<u32>,
    /// [`TOP_P`].
    #[serde(deserialize_with = "top_p")]
    pub top_p: Option<f32>,
    /// [`MIN_P`].
    #[serde(deserialize_with = "min_p")]
    pub min_p: Option<f32>,
    /// [`REPEAT_PENALTY`].
    #[serde(deserialize_with = "repeat_penalty")]
    pub repeat_penalty: Option<f32>,
    /// [`PRESENCE_PENALTY`].
    #[serde(deserialize_with = "presence_penalty")]
    pub presence_penalty: Option<f32>,
    /// [`FREQUENCY_PENALTY`].
    #[serde(deserialize_with = "frequency_penalty")]
    pub frequency_penalty: Option<f32>,
}

impl SamplingOverrides {
    /// These settings, and those of `other` where they are left to it.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            temperature: self.temperature.or(other.temperature),
            top_k: self.top_k.or(other.top_k),
            top_p: self.top_p.or(other.top_p),
            min_p: self.min_p.or(other.min_p),
            repeat_penalty: self.repeat_penalty.or(other.repeat_penalty),
            presence_penalty: self.presence_penalty.or(other.presence_penalty),
            frequency_penalty: self.frequency_penalty.or(other.frequency_penalty),
        }
    }
}

macro_rules! readers {
    ($($reader:ident: $setting:ident;)*) => {$(
        fn $reader<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f32>, D::Error> {
            within(deserializer, &$setting)
        }
    )*};
}

readers! {
    temperature: TEMPERATURE;
    top_p: TOP_P;
    min_p: MIN_P;
    repeat_penalty: REPEAT_PENALTY;
    presence_penalty: PRESENCE_PENALTY;
    frequency_penalty: FREQUENCY_PENALTY;
}

fn within<'de, D: Deserializer<'de>>(
    deserializer: D,
    setting: &SamplingSetting,
) -> Result<Option<f32>, D::Error> {
    let value = f32::deserialize(deserializer)?;
    match setting.contains(value) {
        true => Ok(Some(value)),
        false => {
            let SamplingSetting { name, wanted, .. } = setting;
            Err(D::Error::custom(format_args!("{name}: wanted {wanted}, found {value}")))
        }
    }
}
