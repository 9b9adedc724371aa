//! Tests: what stands behind `is`.

use super::ast::Comparison;
use super::value::{Maker, Object, Value};
use super::{Fault, Outcome, filters, ops, texts};

/// Names of the tests.
const NAMES: [&str; 38] = [
    "defined",
    "undefined",
    "none",
    "boolean",
    "true",
    "false",
    "integer",
    "float",
    "number",
    "string",
    "mapping",
    "iterable",
    "sequence",
    "callable",
    "sameas",
    "escaped",
    "in",
    "divisibleby",
    "even",
    "odd",
    "lower",
    "upper",
    "eq",
    "equalto",
    "==",
    "ne",
    "!=",
    "lt",
    "lessthan",
    "<",
    "le",
    "<=",
    "gt",
    "greaterthan",
    ">",
    "ge",
    ">=",
    "filter",
];

/// Holds a test against a value.
pub(super) fn call<'a>(
    make: &Maker<'a>,
    name: &str,
    value: &Value<'a>,
    args: &[Value<'a>],
) -> Outcome<bool> {
    make.0.steps(1)?;
    let comparison = match name {
        "eq" | "equalto" | "==" => Some(Comparison::Eq),
        "ne" | "!=" => Some(Comparison::Ne),
        "lt" | "lessthan" | "<" => Some(Comparison::Lt),
        "le" | "<=" => Some(Comparison::Le),
        "gt" | "greaterthan" | ">" => Some(Comparison::Gt),
        "ge" | ">=" => Some(Comparison::Ge),
        "in" => Some(Comparison::In),
        _ => None,
    };
    let takes = comparison.is_some() || matches!(name, "sameas" | "divisibleby");
    let argument = match args {
        [argument] if takes => argument,
        [] if !takes => &Value::Undefined,
        _ if !NAMES.contains(&name) && name != "test" => {
            return Err(Fault::new(format_args!("no test named `{name}`")));
        }
        _ => return Err(Fault::new(format_args!("wrong number of arguments of `is {name}`"))),
    };
    if let Some(comparison) = comparison {
        return ops::compare(make, comparison, value, argument);
    }
    plain(make, name, value, argument)
}

/// A test that is no comparison.
fn plain<'a>(
    make: &Maker<'a>,
    name: &str,
    value: &Value<'a>,
    argument: &Value<'a>,
) -> Outcome<bool> {
    let integer = |value: &Value<'a>| {
        let found = value.as_index();
        found.ok_or_else(|| Fault::new(format_args!("`is {name}` wants an integer")))
    };
    Ok(match name {
        "defined" => !matches!(value, Value::Undefined),
        "undefined" => matches!(value, Value::Undefined),
        "none" => matches!(value, Value::None),
        "boolean" => matches!(value, Value::Bool(_)),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "integer" => matches!(value, Value::Int(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => matches!(value, Value::Bool(_) | Value::Int(_) | Value::Float(_)),
        "string" => matches!(value, Value::Text(_)),
        "mapping" => matches!(value, Value::Dict(_)),
        "iterable" | "sequence" => matches!(
            value,
            Value::Undefined | Value::Text(_) | Value::List(_) | Value::Tuple(_) | Value::Dict(_)
        ),
        "callable" => match value {
            Value::Undefined => true,
            Value::Object(object) => {
                !matches!(&**object, Object::Namespace(_) | Object::Cycler(..))
            }
            _ => false,
        },
        "escaped" => value.is_markup(),
        "sameas" => same(value, argument),
        "divisibleby" => {
            let rest = integer(value)?.checked_rem(integer(argument)?);
            rest.ok_or_else(|| Fault::new("division by zero"))? == 0
        }
        "even" => integer(value)? % 2 == 0,
        "odd" => integer(value)? % 2 != 0,
        "lower" | "upper" => {
            let text = make.string(value)?;
            texts::is(text.as_str().unwrap_or_default(), &format!("is{name}"))
        }
        "filter" => value.as_str().is_some_and(filters::is_known),
        "test" => value.as_str().is_some_and(|name| NAMES.contains(&name) || name == "test"),
        _ => return Err(Fault::new(format_args!("no test named `{name}`"))),
    })
}

/// Python's `is`, as far as it can be said.
fn same<'a>(a: &Value<'a>, b: &Value<'a>) -> bool {
    match (a, b) {
        (Value::None, Value::None) => true,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::Int(a), Value::Int(b)) => a == b,
        (Value::Text(a), Value::Text(b)) => a.as_str() == b.as_str(),
        (Value::Object(a), Value::Object(b)) => std::rc::Rc::ptr_eq(a, b),
        (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
            std::ptr::eq(a.items(), b.items())
        }
        (Value::Dict(a), Value::Dict(b)) => std::ptr::eq(a.map(), b.map()),
        _ => false,
    }
}
