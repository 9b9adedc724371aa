//! JSON Schemas, made ready for llguidance.

use serde_json::{Map, Value, json};

use super::GrammarError;

/// Levels of nesting that a schema may have; serde_json reads 128.
const DEPTH_MAX: usize = 96;

const KIND: &str = "JSON Schema";

/// White space between the parts of a JSON text: none, one blank, or a line break with as much
/// indentation as people write. A model could write more of it for ever.
const WHITE_SPACE: &str = r"( |\r?\n[ \t]{0,64})";

/// Reads a schema. Its `x-guidance` may set options of llguidance; where it does not, white space
/// is bounded.
pub(super) fn parse(text: &str) -> Result<Value, GrammarError> {
    let invalid = |message: String| GrammarError::Invalid { kind: KIND, message };
    let schema: Value =
        serde_json::from_str(text).map_err(|error| invalid(format!("it is no JSON: {error}")))?;
    prepare(schema)
}

/// Any JSON object.
pub(super) fn any_object() -> Result<Value, GrammarError> {
    prepare(json!({"type": "object"}))
}

fn prepare(schema: Value) -> Result<Value, GrammarError> {
    let invalid = |message: &str| GrammarError::Invalid { kind: KIND, message: message.into() };
    if depth(&schema, DEPTH_MAX).is_none() {
        return Err(GrammarError::TooDeep { kind: KIND, limit: DEPTH_MAX });
    }
    let mut schema = match schema {
        Value::Object(schema) => schema,
        Value::Bool(true) => Map::new(),
        Value::Bool(false) => return Err(invalid("`false` allows nothing")),
        _ => return Err(invalid("wanted an object or a boolean")),
    };
    let options = schema.entry("x-guidance").or_insert_with(|| json!({}));
    let Value::Object(options) = options else {
        return Err(invalid("x-guidance: wanted an object"));
    };
    let chooses = ["whitespace_flexible", "whitespace_pattern"];
    if !chooses.iter().any(|key| options.contains_key(*key)) {
        options.insert("whitespace_pattern".into(), WHITE_SPACE.into());
    }
    Ok(Value::Object(schema))
}

/// Levels of nesting, `None` if more than `limit`.
fn depth(value: &Value, limit: usize) -> Option<usize> {
    let inner = |values: &mut dyn Iterator<Item = &Value>| {
        let limit = limit.checked_sub(1)?;
        let mut deepest = 0;
        for value in values {
            deepest = deepest.max(depth(value, limit)?);
        }
        Some(deepest + 1)
    };
    match value {
        Value::Array(items) => inner(&mut items.iter()),
        Value::Object(fields) => inner(&mut fields.values()),
        _ => Some(0),
    }
}
