//! How tokens are chosen where a request does not say.

use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize};

/// Settings of the sampler, each of which may be left to somebody else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sampling {
    /// 0 takes the most likely token.
    #[serde(deserialize_with = "temperature")]
    pub temperature: Option<f32>,
    /// Keep the k most likely; 0 keeps all.
    pub top_k: Option<u32>,
    /// Keep the smallest set whose probability reaches this; 1 keeps all.
    #[serde(deserialize_with = "share")]
    pub top_p: Option<f32>,
    /// Drop tokens less likely than this share of the best; 0 drops none.
    #[serde(deserialize_with = "share")]
    pub min_p: Option<f32>,
    /// Above 1, makes tokens seen lately less likely; 1 is off.
    #[serde(deserialize_with = "penalty")]
    pub repeat_penalty: Option<f32>,
    /// Lowers the logits of tokens seen lately by so much; 0 is off.
    #[serde(deserialize_with = "loss")]
    pub presence_penalty: Option<f32>,
    /// Lowers them by so much for each time that they were seen; 0 is off.
    #[serde(deserialize_with = "loss")]
    pub frequency_penalty: Option<f32>,
}

impl Sampling {
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

/// What a value of the configuration should be.
pub(super) const SAMPLING_WANTED: &str = "a table of temperature (0 to 100), top_k (from 0), top_p \
                                          and min_p (0 to 1), repeat_penalty (0.01 to 100), \
                                          presence_penalty and frequency_penalty (-100 to 100)";

fn temperature<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f32>, D::Error> {
    within(deserializer, 0.0, 100.0)
}

fn share<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f32>, D::Error> {
    within(deserializer, 0.0, 1.0)
}

fn penalty<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f32>, D::Error> {
    within(deserializer, 0.01, 100.0)
}

fn loss<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f32>, D::Error> {
    within(deserializer, -100.0, 100.0)
}

fn within<'de, D: Deserializer<'de>>(
    deserializer: D,
    least: f32,
    most: f32,
) -> Result<Option<f32>, D::Error> {
    let value = f32::deserialize(deserializer)?;
    match (least..=most).contains(&value) {
        true => Ok(Some(value)),
        false => Err(D::Error::custom(format_args!("wanted {least} to {most}, found {value}"))),
    }
}
