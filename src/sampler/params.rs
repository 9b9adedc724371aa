//! What a request asks of the sampler.

use super::SamplingError;
use crate::config::{
    FREQUENCY_PENALTY, MIN_P, PRESENCE_PENALTY, REPEAT_PENALTY, SamplingOverrides, TEMPERATURE,
    TOP_K, TOP_P,
};
use crate::kernels::sample::TOP_K_MAX;

/// Sampling settings: the choice of the next token from the logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingParams {
    /// 0 takes the most likely token.
    pub temperature: f32,
    /// Keep the k most likely; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set whose probability reaches this; 1 keeps all.
    pub top_p: f32,
    /// Drop tokens less likely than this share of the best; 0 drops none.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of the last tokens seen; 1 is off.
    pub repeat_penalty: f32,
    /// Lowers the logits of the last tokens seen by so much; 0 is off.
    pub presence_penalty: f32,
    /// Lowers them by so much for each time that they were seen; 0 is off.
    pub frequency_penalty: f32,
    /// Number of the last tokens, prompt included, that `repeat_penalty` looks at.
    pub repeat_last_n: u32,
    /// Keep the tokens closest to the entropy whose probability reaches this; 1 keeps all.
    pub typical_p: f32,
    /// `top_p`, `min_p` and `typical_p` keep this many at least.
    pub min_keep: u32,
    /// Seed; `None` takes one from the system.
    pub seed: Option<u64>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: TEMPERATURE.default,
            top_k: TOP_K.default as u32,
            top_p: TOP_P.default,
            min_p: MIN_P.default,
            repeat_penalty: REPEAT_PENALTY.default,
            presence_penalty: PRESENCE_PENALTY.default,
            frequency_penalty: FREQUENCY_PENALTY.default,
            repeat_last_n: PENALTY_TOKENS,
            typical_p: 1.0,
            min_keep: 0,
            seed: None,
        }
    }
}

/// Default number of last tokens that the repetition penalty looks at.
pub const PENALTY_TOKENS: u32 = 64;

impl SamplingParams {
    /// These settings, but for those that `own` has of its own.
    #[must_use]
    pub fn with(self, own: SamplingOverrides) -> Self {
        Self {
            temperature: own.temperature.unwrap_or(self.temperature),
            top_k: own.top_k.unwrap_or(self.top_k),
            top_p: own.top_p.unwrap_or(self.top_p),
            min_p: own.min_p.unwrap_or(self.min_p),
            repeat_penalty: own.repeat_penalty.unwrap_or(self.repeat_penalty),
            presence_penalty: own.presence_penalty.unwrap_or(self.presence_penalty),
            frequency_penalty: own.frequency_penalty.unwrap_or(self.frequency_penalty),
            ..self
        }
    }

    /// True if any token is made less likely for having been seen.
    #[must_use]
    pub fn penalises(&self) -> bool {
        self.penalises_repeats() || self.penalises_generated()
    }

    /// `common`, but for what only requests say.
    #[must_use]
    pub fn beside(self, common: Self) -> Self {
        let Self { repeat_last_n, typical_p, min_keep, seed, .. } = self;
        Self { repeat_last_n, typical_p, min_keep, seed, ..common }
    }

    /// True if tokens of the window lose for it.
    #[must_use]
    pub(super) fn penalises_repeats(&self) -> bool {
        self.repeat_penalty != 1.0 && self.repeat_last_n > 0
    }

    /// True if tokens lose for having been generated.
    #[must_use]
    pub(super) fn penalises_generated(&self) -> bool {
        self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }

    /// True if the device has room for the tokens that they keep.
    #[must_use]
    pub fn suit_the_device(&self) -> bool {
        let is_known = self.typical_p >= 1.0 && self.min_keep <= 1;
        self.temperature == 0.0 || self.top_k <= TOP_K_MAX && is_known
    }

    /// Checks that every number is in its range.
    ///
    /// # Errors
    /// [`SamplingError::OutOfRange`] with the first field that is not.
    pub fn check(&self) -> Result<(), SamplingError> {
        let fields = [
            (TEMPERATURE, self.temperature),
            (TOP_P, self.top_p),
            (MIN_P, self.min_p),
            (REPEAT_PENALTY, self.repeat_penalty),
            (PRESENCE_PENALTY, self.presence_penalty),
            (FREQUENCY_PENALTY, self.frequency_penalty),
        ];
        for (setting, found) in fields {
            if !setting.contains(found) {
                let (field, least, most) = (setting.name, setting.least, setting.most);
                return Err(SamplingError::OutOfRange { field, least, most, found });
            }
        }
        // A setting of single requests, of which the table of the configuration knows nothing.
        if !(0.0..=1.0).contains(&self.typical_p) {
            let found = self.typical_p;
            return Err(SamplingError::OutOfRange {
                field: "typical_p",
                least: 0.0,
                most: 1.0,
                found,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_and_the_ends_of_the_ranges_are_fine() {
        assert_eq!(SamplingParams::default().check(), Ok(()));
        let ends = SamplingParams {
            temperature: 0.0,
            top_k: u32::MAX,
            top_p: 0.0,
            min_p: 1.0,
            repeat_penalty: 100.0,
            presence_penalty: -100.0,
            frequency_penalty: 100.0,
            seed: Some(u64::MAX),
            ..SamplingParams::default()
        };
        assert_eq!(ends.check(), Ok(()));
    }

    #[test]
    fn a_refusal_names_the_field_the_range_and_the_value() {
        let good = SamplingParams::default;
        let cases = [
            ("temperature", SamplingParams { temperature: f32::NAN, ..good() }),
            ("temperature", SamplingParams { temperature: -0.5, ..good() }),
            ("temperature", SamplingParams { temperature: f32::INFINITY, ..good() }),
            ("top_p", SamplingParams { top_p: 1.5, ..good() }),
            ("min_p", SamplingParams { min_p: -0.1, ..good() }),
            ("repeat_penalty", SamplingParams { repeat_penalty: 0.0, ..good() }),
            ("presence_penalty", SamplingParams { presence_penalty: 101.0, ..good() }),
            ("frequency_penalty", SamplingParams { frequency_penalty: f32::NAN, ..good() }),
        ];
        for (field, params) in cases {
            let message = params.check().expect_err(field).to_string();
            assert!(message.starts_with(field), "{message}");
        }
        let message = SamplingParams { top_p: 1.5, ..good() }.check().expect_err("1.5").to_string();
        assert_eq!(message, "top_p is 1.5; wanted 0 to 1");
    }
}
