//! Lenient reading of JSON bodies: unknown fields are passed over and null is absent, but a known
//! field of a wrong type is an error that names it.
//!
//! Members stay raw text until a field of a known type asks for them, so that a body, however it is
//! nested, becomes no tree of values.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::error::Failure;

/// Characters of a wrong value that an error repeats.
const FOUND_CHARS_MAX: usize = 40;

/// The members of an object.
#[derive(Debug)]
pub(super) struct Fields<'a> {
    /// Where it stands in the body, for errors: empty, or as in `messages[2].`.
    at: String,
    members: HashMap<Cow<'a, str>, &'a RawValue>,
}

impl<'a> Fields<'a> {
    /// The object that is the body.
    pub(super) fn of_body(body: &'a [u8]) -> Result<Self, Failure> {
        let failed = |detail: &dyn fmt::Display| {
            Failure::invalid("", format!("the body is no JSON object: {detail}"))
        };
        let text = std::str::from_utf8(body).map_err(|error| failed(&error))?;
        if text.trim_ascii().is_empty() {
            return Err(Failure::invalid("", "the body is empty: wanted a JSON object"));
        }
        let Members(members) = serde_json::from_str(text).map_err(|error| failed(&error))?;
        Ok(Self { at: String::new(), members })
    }

    fn of_raw(raw: &'a RawValue, at: &str) -> Result<Self, Failure> {
        let Members(members) =
            serde_json::from_str(raw.get()).map_err(|_| wrong(at, "an object", &describe(raw)))?;
        Ok(Self { at: format!("{at}."), members })
    }

    /// The name of a member, for errors.
    pub(super) fn path(&self, field: &str) -> String {
        format!("{}{field}", self.at)
    }

    /// The text of a member; `None` where it is absent or null.
    pub(super) fn raw(&self, field: &str) -> Option<&'a RawValue> {
        self.members.get(field).copied().filter(|raw| raw.get() != "null")
    }

    /// A member that is a `wanted`; `None` where it is absent or null.
    pub(super) fn optional<T: Deserialize<'a>>(
        &self,
        field: &str,
        wanted: &str,
    ) -> Result<Option<T>, Failure> {
        let Some(raw) = self.raw(field) else { return Ok(None) };
        let read = serde_json::from_str(raw.get());
        read.map(Some).map_err(|_| wrong(&self.path(field), wanted, &describe(raw)))
    }

    /// A member that is a `wanted` and must be there.
    pub(super) fn required<T: Deserialize<'a>>(
        &self,
        field: &str,
        wanted: &str,
    ) -> Result<T, Failure> {
        self.optional(field, wanted)?.ok_or_else(|| self.missing(field, wanted))
    }

    pub(super) fn missing(&self, field: &str, wanted: &str) -> Failure {
        let path = self.path(field);
        let message = format!("field \"{path}\" is missing: wanted {wanted}");
        Failure::invalid(path, message)
    }

    /// A member that has the right type and a wrong value.
    pub(super) fn refuse(&self, field: &str, wanted: &str, found: impl fmt::Display) -> Failure {
        wrong(&self.path(field), wanted, &shorten(&found.to_string()))
    }

    pub(super) fn text(&self, field: &str) -> Result<Option<String>, Failure> {
        self.optional(field, "a string")
    }

    pub(super) fn flag(&self, field: &str) -> Result<Option<bool>, Failure> {
        self.optional(field, "true or false")
    }

    pub(super) fn object(&self, field: &str) -> Result<Option<Fields<'a>>, Failure> {
        self.raw(field).map(|raw| Fields::of_raw(raw, &self.path(field))).transpose()
    }

    pub(super) fn list(&self, field: &str) -> Result<Option<Vec<Item<'a>>>, Failure> {
        let raw: Option<Vec<&'a RawValue>> = self.optional(field, "an array")?;
        let path = self.path(field);
        let item = |(n, raw)| Item { at: format!("{path}[{n}]"), raw };
        Ok(raw.map(|all| all.into_iter().enumerate().map(item).collect()))
    }

    /// A member that is an array of objects.
    pub(super) fn objects(&self, field: &str) -> Result<Option<Vec<Fields<'a>>>, Failure> {
        let list = self.list(field)?;
        list.map(|all| all.iter().map(Item::object).collect()).transpose()
    }
}

/// A value of an array.
#[derive(Clone, Debug)]
pub(super) struct Item<'a> {
    pub(super) at: String,
    pub(super) raw: &'a RawValue,
}

impl<'a> Item<'a> {
    pub(super) fn object(&self) -> Result<Fields<'a>, Failure> {
        Fields::of_raw(self.raw, &self.at)
    }

    pub(super) fn is_text(&self) -> bool {
        is_text(self.raw)
    }

    pub(super) fn is_number(&self) -> bool {
        self.raw.get().starts_with(|first: char| first == '-' || first.is_ascii_digit())
    }

    pub(super) fn read<T: Deserialize<'a>>(&self, wanted: &str) -> Result<T, Failure> {
        let read = serde_json::from_str(self.raw.get());
        read.map_err(|_| wrong(&self.at, wanted, &describe(self.raw)))
    }
}

/// True if a value's text is a string's.
pub(super) fn is_text(raw: &RawValue) -> bool {
    raw.get().starts_with('"')
}

/// True if a value's text is an array's.
pub(super) fn is_array(raw: &RawValue) -> bool {
    raw.get().starts_with('[')
}

/// A value for a chat template or a schema, whose size is limited by its caller.
pub(super) fn value(raw: &RawValue, at: &str) -> Result<Value, Failure> {
    let read = serde_json::from_str(raw.get());
    read.map_err(|_| wrong(at, "JSON that is not nested deeper than 128", &describe(raw)))
}

fn wrong(path: &str, wanted: &str, found: &str) -> Failure {
    Failure::invalid(path, format!("field \"{path}\": wanted {wanted}, found {found}"))
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

fn shorten(text: &str) -> String {
    match text.char_indices().nth(FOUND_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// An object's members, not parsed yet. Of two of one name the last counts, as in JavaScript.
struct Members<'a>(HashMap<Cow<'a, str>, &'a RawValue>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MembersVisitor;

        impl<'de> Visitor<'de> for MembersVisitor {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = HashMap::new();
                while let Some(Key(key)) = map.next_key()? {
                    members.insert(key, map.next_value::<&RawValue>()?);
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(MembersVisitor)
    }
}

/// A key, borrowed where it has no escapes.
#[derive(Deserialize, PartialEq, Eq, Hash)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(test)]
mod tests {
    use super::*;

    fn error(result: Result<impl Sized, Failure>) -> String {
        result.err().expect("it is refused").message.into_string()
    }

    #[test]
    fn wrong_types_are_named_with_their_place_and_nulls_are_absent() {
        let body = br#"{"a": null, "b": [{"c": 1}], "u": {}, "d": "x"}"#;
        let fields = Fields::of_body(body).expect("an object");
        assert_eq!(fields.optional::<u32>("a", "a number").expect("absent"), None);
        let b = fields.objects("b").expect("objects").expect("there");
        assert_eq!(error(b[0].text("c")), "field \"b[0].c\": wanted a string, found the number 1");
        assert_eq!(
            error(fields.object("d")),
            "field \"d\": wanted an object, found the string \"x\""
        );
        assert!(error(fields.required::<u32>("z", "a number")).contains("missing"));
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for body in ["", " ", "[]", "{", "null", "{} x", "{\"a\": }"] {
            assert!(Fields::of_body(body.as_bytes()).is_err(), "{body}");
        }
        assert!(Fields::of_body(b"\xff").is_err());
    }

    #[test]
    fn deep_nesting_is_passed_over_and_refused_where_it_is_wanted() {
        let deep = format!("{{\"x\": {}{}, \"y\": 1}}", "[".repeat(100_000), "]".repeat(100_000));
        let fields = Fields::of_body(deep.as_bytes()).expect("an object");
        assert_eq!(fields.optional("y", "a number").expect("a number"), Some(1));
        assert!(value(fields.raw("x").expect("there"), "x").is_err());
    }
}
