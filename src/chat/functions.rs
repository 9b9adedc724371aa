//! What transformers gives its templates beyond Jinja: `raise_exception`, `strftime_now`, `tojson`.

use minijinja::value::Kwargs;
use minijinja::{Environment, Error, ErrorKind, State, Value};
use minijinja_contrib::filters::datetimeformat;
use minijinja_contrib::globals::now;

/// Source of an error that the template raised itself.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Raised(pub(super) String);

/// Adds the functions and filters to an environment.
pub(super) fn add_to(env: &mut Environment<'static>) {
    env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    env.add_function("raise_exception", raise_exception);
    env.add_function("strftime_now", strftime_now);
    env.add_filter("tojson", tojson);
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "raised").with_source(Raised(message)))
}

/// The time now, UTC, in a format of strftime.
fn strftime_now(state: &State, format: String) -> Result<String, Error> {
    datetimeformat(state, now(), Kwargs::from_iter([("format", Value::from(format))]))
}

/// As Python's `json.dumps(ensure_ascii=False)`: the engine's own filter escapes for HTML as well.
fn tojson(
    state: &State,
    value: &Value,
    indent: Option<Value>,
    args: Kwargs,
) -> Result<Value, Error> {
    let ensure_ascii: Option<bool> = args.get("ensure_ascii")?;
    if ensure_ascii == Some(true) {
        return Err(Error::new(ErrorKind::InvalidOperation, "tojson: no ensure_ascii here"));
    }
    let escaped = minijinja::filters::tojson(value, indent, args)?;
    let escaped = escaped.as_str().unwrap_or_default();
    state.consume_fuel(escaped.len() as u64 / 4)?;
    Ok(Value::from(without_html_escapes(escaped)))
}

/// Undoes the escapes of `<`, `>`, `&` and `'` in JSON text.
fn without_html_escapes(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let escape = &rest[at..];
        let plain = match escape.get(..6) {
            Some("\\u003c") => "<",
            Some("\\u003e") => ">",
            Some("\\u0026") => "&",
            Some("\\u0027") => "'",
            // Both characters of another escape, so that an escaped backslash is not looked into.
            _ => {
                let len = 2.min(escape.len());
                out.push_str(&escape[..len]);
                rest = &escape[len..];
                continue;
            }
        };
        out.push_str(plain);
        rest = &escape[6..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn html_escapes_are_undone_and_others_kept() {
        assert_eq!(without_html_escapes(r#""\u003cb\u003e \u0026 \u0027""#), r#""<b> & '""#);
        assert_eq!(without_html_escapes(r#""\\u003c \n \u00e9 \"""#), r#""\\u003c \n \u00e9 \"""#);
        assert_eq!(without_html_escapes(r"\"), r"\");
    }
}
