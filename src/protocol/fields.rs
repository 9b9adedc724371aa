//! Strict reading of JSON objects: every error names the field, what was wanted and what was found.
//!
//! Members stay raw text until a field of a known type asks for them, so that no frame, however
//! it is nested, is ever turned into a tree of values.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde_json::value::RawValue;
use thiserror::Error;

use super::error::brief;

/// Most members an object of the protocol may have; the largest known has 21.
const MEMBERS_MAX: usize = 64;

/// Characters of a wrong value that an error repeats.
const FOUND_CHARS_MAX: usize = 40;

/// Parameters that cannot be accepted.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ParamsError {
    /// A field that the method does not know.
    #[error("unknown field {field:?}{}", did_you_mean(.nearest.as_deref()))]
    Unknown {
        /// Name of the field.
        field: String,
        /// The most similar field there is.
        nearest: Option<String>,
    },
    /// A required field is not there.
    #[error("field {field:?} is missing: wanted {wanted}")]
    Missing {
        /// Name of the field.
        field: &'static str,
        /// Expected form.
        wanted: String,
    },
    /// A field of the wrong type, or out of its range.
    #[error("field {field:?}: wanted {wanted}, found {found}")]
    Invalid {
        /// Name of the field.
        field: &'static str,
        /// Expected form.
        wanted: String,
        /// What it is.
        found: String,
    },
    /// A field given twice.
    #[error("field {field:?} is given twice")]
    Duplicate {
        /// Name of the field.
        field: String,
    },
    /// `params` is not an object.
    #[error("wanted params to be an object, found {found}")]
    NotAnObject {
        /// What it is.
        found: String,
    },
    /// More fields than any method has.
    #[error("more than {limit} fields")]
    TooMany {
        /// Limit that was reached.
        limit: usize,
    },
}

fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |name| format!("; did you mean {name:?}?"))
}

/// The most similar of `known`, where one is similar enough to be meant.
#[must_use]
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    const SIMILARITY_MIN: f64 = 0.6;
    // The comparison takes the product of the lengths, and no name there is comes near.
    const NAME_BYTES_MAX: usize = 64;
    if name.len() > NAME_BYTES_MAX {
        return None;
    }
    known
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(name, candidate), candidate))
        .filter(|(similarity, _)| *similarity >= SIMILARITY_MIN)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

/// The members of one JSON object, in order, their values not parsed yet.
#[derive(Debug)]
pub(super) struct Members<'a>(pub(super) Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> Members<'a> {
    pub(super) fn get(&self, name: &str) -> Option<&'a RawValue> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| *value)
    }

    /// The first key that stands twice.
    pub(super) fn duplicate(&self) -> Option<&str> {
        self.0.iter().enumerate().find_map(|(n, (key, _))| {
            self.0[..n].iter().any(|(earlier, _)| earlier == key).then_some(key.as_ref())
        })
    }
}

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MembersVisitor;

        impl<'de> Visitor<'de> for MembersVisitor {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(Key(key)) = map.next_key()? {
                    if members.len() == MEMBERS_MAX {
                        return Err(A::Error::custom(format!("more than {MEMBERS_MAX} fields")));
                    }
                    members.push((key, map.next_value::<&RawValue>()?));
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(MembersVisitor)
    }
}

/// A key, borrowed where it has no escapes.
#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

/// The parameters of one call.
#[derive(Debug)]
pub struct Fields<'a> {
    members: Members<'a>,
    known: &'static [&'static str],
}

impl<'a> Fields<'a> {
    /// Takes the raw `params` apart; absent ones are an empty object.
    ///
    /// # Errors
    /// Anything but an object, and any field that is not in `known`.
    pub fn new(
        params: Option<&'a RawValue>,
        known: &'static [&'static str],
    ) -> Result<Self, ParamsError> {
        let Some(raw) = params.filter(|raw| raw.get() != "null") else {
            return Ok(Self { members: Members(Vec::new()), known });
        };
        if !raw.get().starts_with('{') {
            return Err(ParamsError::NotAnObject { found: describe(raw) });
        }
        // The text was scanned as JSON before, so only the number of members can be wrong.
        let members: Members<'a> = serde_json::from_str(raw.get())
            .map_err(|_| ParamsError::TooMany { limit: MEMBERS_MAX })?;
        if let Some(field) = members.duplicate() {
            return Err(ParamsError::Duplicate { field: shorten(field) });
        }
        if let Some((key, _)) = members.0.iter().find(|(key, _)| !known.contains(&key.as_ref())) {
            let nearest = nearest(key, known.iter().copied()).map(str::to_owned);
            return Err(ParamsError::Unknown { field: shorten(key), nearest });
        }
        Ok(Self { members, known })
    }

    /// The value of `field`, which is a `wanted`; `None` where it is absent or null.
    ///
    /// # Errors
    /// The value is no `T`.
    pub fn optional<T: Deserialize<'a>>(
        &self,
        field: &'static str,
        wanted: &str,
    ) -> Result<Option<T>, ParamsError> {
        debug_assert!(self.known.contains(&field), "{field} is not among the known fields");
        let Some(raw) = self.members.get(field).filter(|raw| raw.get() != "null") else {
            return Ok(None);
        };
        serde_json::from_str(raw.get()).map(Some).map_err(|error| ParamsError::Invalid {
            field,
            wanted: wanted.to_owned(),
            found: explain(raw, &error),
        })
    }

    /// The same of a value that is an object, or an array of them: an array in an object's place,
    /// of its values in their order, is none.
    ///
    /// # Errors
    /// The value is no `T`.
    pub fn objects<T: Deserialize<'a>>(
        &self,
        field: &'static str,
        wanted: &str,
    ) -> Result<Option<T>, ParamsError> {
        let is_array = self.members.get(field).is_some_and(|raw| raw.get().starts_with('['));
        if is_array {
            self.optional::<Vec<Members<'_>>>(field, wanted)?;
        } else {
            self.optional::<Members<'_>>(field, wanted)?;
        }
        self.optional(field, wanted)
    }

    /// The value of `field`, which is a `wanted` and must be there.
    ///
    /// # Errors
    /// The value is absent or no `T`.
    pub fn required<T: Deserialize<'a>>(
        &self,
        field: &'static str,
        wanted: &str,
    ) -> Result<T, ParamsError> {
        self.optional(field, wanted)?
            .ok_or_else(|| ParamsError::Missing { field, wanted: wanted.to_owned() })
    }
}

/// Description of a value, with the path of the faulty part inside it.
fn explain(raw: &RawValue, error: &serde_json::Error) -> String {
    let text = raw.get();
    if text.starts_with(['[', '{']) || error.is_syntax() {
        // serde_json's message ends with a line and column inside the value.
        format!("{}: {}", describe(raw), brief(error))
    } else {
        describe(raw)
    }
}

/// Says what a value is, short enough for a message.
pub(super) fn describe(raw: &RawValue) -> String {
    let text = raw.get();
    match text.as_bytes().first() {
        Some(b'{') => "an object".to_owned(),
        Some(b'[') => "an array".to_owned(),
        Some(b'"') => format!("the string {}", shorten(text)),
        Some(b't' | b'f') => text.to_owned(),
        Some(b'n') => "null".to_owned(),
        _ => format!("the number {}", shorten(text)),
    }
}

pub(super) fn shorten(text: &str) -> String {
    match text.char_indices().nth(FOUND_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &[&str] = &["text", "max_tokens", "tokens"];

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).expect("test data is JSON")
    }

    #[test]
    fn unknown_field_names_the_nearest() {
        let raw = raw(r#"{"max_token": 3}"#);
        let error = Fields::new(Some(&raw), KNOWN).expect_err("max_token is unknown");
        assert_eq!(error.to_string(), r#"unknown field "max_token"; did you mean "max_tokens"?"#);
    }

    #[test]
    fn wrong_type_names_field_wanted_and_found() {
        let raw = raw(r#"{"max_tokens": "many", "tokens": [1, -2], "text": 7}"#);
        let fields = Fields::new(Some(&raw), KNOWN).expect("all fields are known");
        let error = fields.optional::<u32>("max_tokens", "an integer from 0").expect_err("text");
        let expected = r#"field "max_tokens": wanted an integer from 0, found the string "many""#;
        assert_eq!(error.to_string(), expected);
        let error = fields.optional::<Vec<u32>>("tokens", "token ids").expect_err("negative");
        assert!(error.to_string().contains("column 6"), "{error}");
        let error = fields.required::<String>("text", "a string").expect_err("number");
        assert!(error.to_string().ends_with("wanted a string, found the number 7"), "{error}");
    }

    #[test]
    fn params_must_be_an_object_without_duplicates() {
        let array = raw("[1]");
        assert!(matches!(Fields::new(Some(&array), KNOWN), Err(ParamsError::NotAnObject { .. })));
        let twice = raw(r#"{"text": "a", "text": "b"}"#);
        assert!(matches!(Fields::new(Some(&twice), KNOWN), Err(ParamsError::Duplicate { .. })));
        let fields = Fields::new(None, KNOWN).expect("absent params are an empty object");
        assert!(matches!(
            fields.required::<String>("text", "a string"),
            Err(ParamsError::Missing { field: "text", .. })
        ));
    }

    #[test]
    fn a_name_of_megabytes_is_compared_with_nothing() {
        let name = "max_token".repeat(1 << 20);
        assert_eq!(nearest(&name, ["max_tokens"]), None);
        let raw = raw(&format!("{{\"{name}\": 3}}"));
        let error = Fields::new(Some(&raw), KNOWN).expect_err("unknown");
        assert!(error.to_string().len() < 100, "{error}");
        assert_eq!(nearest("max_token", ["max_tokens"]), Some("max_tokens"));
    }

    #[test]
    fn a_message_of_serdes_is_cut() {
        let long = "y".repeat(1 << 20);
        let raw = raw(&format!(r#"{{"tokens": [1, "{long}"]}}"#));
        let fields = Fields::new(Some(&raw), KNOWN).expect("all fields are known");
        let error = fields.optional::<Vec<u32>>("tokens", "token ids").expect_err("a string");
        assert!(error.to_string().len() < 400, "{}", error.to_string().len());
    }

    #[test]
    fn many_members_are_refused() {
        let many: Vec<String> = (0..100).map(|n| format!("\"k{n}\":0")).collect();
        let raw = raw(&format!("{{{}}}", many.join(",")));
        assert!(matches!(Fields::new(Some(&raw), KNOWN), Err(ParamsError::TooMany { .. })));
    }
}
