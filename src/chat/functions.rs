//! What transformers gives its templates beyond Jinja: `raise_exception`, `strftime_now`, `tojson`.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use minijinja_contrib::filters::datetimeformat;
use minijinja_contrib::globals::now;

use super::operators::{DEPTH_MAX, charge};

/// Source of an error that the template raised itself.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Raised(pub(super) String);

/// Adds the functions and filters to an environment.
pub(super) fn add_to(env: &mut Environment<'_>) {
    env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    env.add_function("raise_exception", raise_exception);
    env.add_function("strftime_now", strftime_now);
    env.add_filter("tojson", tojson);
    env.set_formatter(|out, state, value| {
        // The engine counts a list's text only when it is written, however often it is repeated.
        charge(state, value, 0)?;
        minijinja::escape_formatter(out, state, value)
    });
}

fn raise_exception(state: &State, message: Value) -> Result<Value, Error> {
    charge(state, &message, 0)?;
    let raised = Raised(message.to_string());
    Err(Error::new(ErrorKind::InvalidOperation, "raised").with_source(raised))
}

/// The time now, UTC, in a format of strftime.
fn strftime_now(state: &State, format: String) -> Result<String, Error> {
    datetimeformat(state, now(), Kwargs::from_iter([("format", Value::from(format))]))
}

/// Widest indentation of JSON.
const JSON_INDENT_MAX: usize = 16;

/// As Python's `json.dumps(ensure_ascii=False)`: the engine's own filter escapes for HTML as well.
fn tojson(
    state: &State,
    value: &Value,
    indent: Option<usize>,
    args: Kwargs,
) -> Result<String, Error> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => args.get::<Option<usize>>("indent")?,
    };
    let ascii: Option<bool> = args.get("ensure_ascii")?;
    args.assert_all_used()?;
    if ascii == Some(true) || indent.is_some_and(|indent| indent > JSON_INDENT_MAX) {
        return Err(invalid("tojson: ensure_ascii, and an indent above 16, are not supported"));
    }
    let mut json = Json { state, indent, out: String::new() };
    json.value(value, 0)?;
    Ok(json.out)
}

fn invalid(detail: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, detail)
}

/// Writes JSON; every value is a step, so that one shared a thousand times ends too.
struct Json<'a, 'vm, 'env> {
    state: &'a State<'vm, 'env>,
    indent: Option<usize>,
    out: String,
}

impl Json<'_, '_, '_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            return Err(invalid("the value is nested too deep"));
        }
        let written = self.out.len();
        match value.kind() {
            ValueKind::Undefined | ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&value.to_string()),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.list(value, depth)?,
            ValueKind::Map => self.map(value, depth)?,
            _ => return Err(invalid("tojson: a value that JSON does not have")),
        }
        let bytes = self.out.len().saturating_sub(written) as u64;
        self.state.consume_fuel(1 + bytes / 64)
    }

    fn list(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('[');
        let mut empty = true;
        for item in value.try_iter()? {
            self.separate(empty, depth + 1);
            empty = false;
            self.value(&item, depth + 1)?;
        }
        self.close(']', empty, depth);
        Ok(())
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('{');
        let mut empty = true;
        for key in value.try_iter()? {
            self.separate(empty, depth + 1);
            empty = false;
            match key.as_str() {
                Some(text) => self.string(text),
                None => self.string(&key.to_string()),
            }
            self.out.push_str(": ");
            self.value(&value.get_item(&key)?, depth + 1)?;
        }
        self.close('}', empty, depth);
        Ok(())
    }

    fn string(&mut self, text: &str) {
        self.out.push_str(&serde_json::Value::from(text).to_string());
    }

    fn separate(&mut self, first: bool, depth: usize) {
        match (first, self.indent) {
            (true, None) => {}
            (false, None) => self.out.push_str(", "),
            (_, Some(_)) => {
                self.out.push_str(if first { "" } else { "," });
                self.new_line(depth);
            }
        }
    }

    fn close(&mut self, bracket: char, empty: bool, depth: usize) {
        if !empty && self.indent.is_some() {
            self.new_line(depth);
        }
        self.out.push(bracket);
    }

    fn new_line(&mut self, depth: usize) {
        self.out.push('\n');
        let spaces = self.indent.unwrap_or(0) * depth;
        self.out.extend(std::iter::repeat_n(' ', spaces));
    }
}
