//! What a request says about the form of its text and about single tokens.

use std::collections::BTreeMap;
use std::num::ParseIntError;

use serde::{Deserialize, Serialize};

/// What a `grammar` should be.
pub(super) const GRAMMAR_WANTED: &str =
    "{kind, text?, root?}, kind being json_schema, json_object, regex, lark or gbnf";

/// What a `logit_bias` should be.
pub(super) const BIAS_WANTED: &str =
    "an object of token ids, or an array of [id, bias], a bias being a number or false";

/// What a `seed` should be.
pub(super) const SEED_WANTED: &str = "an integer of 64 bits; -1 takes one from the system";

/// A grammar that the text of a generation follows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrammarParams {
    /// `json_schema`, `json_object`, `regex`, `lark` or `gbnf`.
    pub kind: String,
    /// The grammar; `json_object` needs none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Start rule of a GBNF grammar, `root` where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
}

/// Biases of tokens, `None` forbidding one. Serialised as an array.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "AnyBias", into = "AnyBias")]
pub struct LogitBias(pub Vec<(u32, Option<f32>)>);

/// A number, or `false`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Bias {
    Number(f32),
    Flag(False),
}

/// `false` alone.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(try_from = "bool", into = "bool")]
struct False;

impl TryFrom<bool> for False {
    type Error = &'static str;

    fn try_from(flag: bool) -> Result<Self, Self::Error> {
        if flag { Err("wanted a number or false") } else { Ok(Self) }
    }
}

impl From<False> for bool {
    fn from(_: False) -> Self {
        false
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum AnyBias {
    Pairs(Vec<(u32, Bias)>),
    /// Keys are token ids in decimal.
    Object(BTreeMap<String, Bias>),
}

impl TryFrom<AnyBias> for LogitBias {
    type Error = ParseIntError;

    fn try_from(any: AnyBias) -> Result<Self, Self::Error> {
        let pairs = match any {
            AnyBias::Pairs(pairs) => pairs,
            AnyBias::Object(object) => {
                let pairs = object.into_iter().map(|(token, bias)| Ok((token.parse()?, bias)));
                let mut pairs = pairs.collect::<Result<Vec<(u32, Bias)>, ParseIntError>>()?;
                pairs.sort_by_key(|(token, _)| *token);
                pairs
            }
        };
        let bias = |bias| match bias {
            Bias::Number(number) => Some(number),
            Bias::Flag(False) => None,
        };
        Ok(Self(pairs.into_iter().map(|(token, value)| (token, bias(value))).collect()))
    }
}

impl From<LogitBias> for AnyBias {
    fn from(LogitBias(pairs): LogitBias) -> Self {
        let bias = |bias: Option<f32>| bias.map_or(Bias::Flag(False), Bias::Number);
        Self::Pairs(pairs.into_iter().map(|(token, value)| (token, bias(value))).collect())
    }
}

/// A seed of 64 bits, with a sign or without; -1 is none.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Seed {
    Unsigned(u64),
    Signed(i64),
}

impl Seed {
    pub(super) fn value(self) -> Option<u64> {
        match self {
            Self::Unsigned(seed) => Some(seed),
            Self::Signed(-1) => None,
            Self::Signed(seed) => Some(seed as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn biases_come_as_objects_and_as_pairs_and_false_forbids() {
        let wanted = LogitBias(vec![(5, Some(-1.5)), (17, None)]);
        for text in [r#"{"17": false, "5": -1.5}"#, "[[5, -1.5], [17, false]]"] {
            assert_eq!(serde_json::from_str::<LogitBias>(text).unwrap(), wanted, "{text}");
        }
        for text in [r#"{"17": true}"#, r#"{"x": 1}"#, "[[5]]", "3", r#"[[5, "1"]]"#] {
            assert!(serde_json::from_str::<LogitBias>(text).is_err(), "{text}");
        }
        let text = serde_json::to_string(&wanted).unwrap();
        assert_eq!(serde_json::from_str::<LogitBias>(&text).unwrap(), wanted);
    }

    #[test]
    fn seeds_have_a_sign_or_64_bits() {
        let value = |text: &str| serde_json::from_str::<Seed>(text).unwrap().value();
        assert_eq!(value("-1"), None);
        assert_eq!(value("18446744073709551615"), Some(u64::MAX));
        assert_eq!(value("-9007199254740991"), Some(-9_007_199_254_740_991_i64 as u64));
        assert!(serde_json::from_str::<Seed>("1.5").is_err());
    }
}
