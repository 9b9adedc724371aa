//! The operators that [`super::toll`] puts in place of the engine's, and the toll itself.

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value, context};

use super::toll;

/// Deepest nesting of a value that is looked through.
pub(super) const DEPTH_MAX: usize = 100;

/// Bytes that a step pays for, as the engine has it.
const STEP_BYTES: u64 = 64;

/// Bytes of an element of a list.
const ELEMENT_BYTES: u64 = 32;

/// Adds the functions.
pub(super) fn add_to(env: &mut Environment<'_>) {
    env.add_function(toll::ADD, add);
    env.add_function(toll::CONCAT, concat);
    env.add_function(toll::TOLL, |state: &State, value: Value| {
        charge(state, &value, 0)?;
        Ok::<_, Error>(value)
    });
}

fn add(state: &State, left: Value, right: Value) -> Result<Value, Error> {
    if let (Some(left), Some(right)) = (left.as_str(), right.as_str()) {
        return join_texts(state, left, right);
    }
    if is_list(&left) && is_list(&right) {
        return join_lists(state, &left, &right);
    }
    if left.is_integer()
        && right.is_integer()
        && let (Some(left), Some(right)) = (left.as_i64(), right.as_i64())
        && let Some(sum) = left.checked_add(right)
    {
        return Ok(Value::from(sum));
    }
    by_engine(state, "left + right", left, right)
}

fn concat(state: &State, left: Value, right: Value) -> Result<Value, Error> {
    if let (Some(left), Some(right)) = (left.as_str(), right.as_str()) {
        return join_texts(state, left, right);
    }
    charge(state, &left, 0)?;
    charge(state, &right, 0)?;
    by_engine(state, "left ~ right", left, right)
}

fn join_texts(state: &State, left: &str, right: &str) -> Result<Value, Error> {
    state.consume_fuel((left.len() + right.len()) as u64 / STEP_BYTES)?;
    Ok(Value::from([left, right].concat()))
}

fn is_list(value: &Value) -> bool {
    let is_tuple = value.downcast_object_ref::<Tuple>().is_some();
    !is_tuple && matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

/// The engine would join them lazily, and copy all at once when it has done so often.
fn join_lists(state: &State, left: &Value, right: &Value) -> Result<Value, Error> {
    let mut items = Vec::new();
    for list in [left, right] {
        // Said before the copy, where it is known, for the list may be long.
        let known = list.len().unwrap_or(0) as u64;
        state.consume_fuel(known.saturating_mul(ELEMENT_BYTES) / STEP_BYTES)?;
        for item in list.try_iter()? {
            if items.len() as u64 >= known {
                state.consume_fuel(1)?;
            }
            items.push(item);
        }
    }
    Ok(Value::from(items))
}

/// What the engine makes of the operator, of values that it does not copy for free.
fn by_engine(state: &State, operator: &str, left: Value, right: Value) -> Result<Value, Error> {
    let result = state.env().compile_expression(operator)?.eval(context! { left, right });
    // The expression has lines of its own; the template's is found when this error is.
    result.map_err(|error| match error.detail() {
        Some(detail) => Error::new(error.kind(), detail.to_owned()),
        None => Error::from(error.kind()),
    })
}

/// A step for each value inside `value`, and more for long texts; a plain value is free.
pub(super) fn charge(state: &State, value: &Value, depth: usize) -> Result<(), Error> {
    let is_map = value.kind() == ValueKind::Map;
    if !is_map && !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
        return Ok(());
    }
    if depth > DEPTH_MAX {
        return Err(Error::new(ErrorKind::InvalidOperation, "the value is nested too deep"));
    }
    for item in value.try_iter()? {
        let item = if is_map { value.get_item(&item)? } else { item };
        let text_bytes = item.as_str().map_or(0, str::len) as u64;
        state.consume_fuel(1 + text_bytes / STEP_BYTES)?;
        charge(state, &item, depth + 1)?;
    }
    Ok(())
}
