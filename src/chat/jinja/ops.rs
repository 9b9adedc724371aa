//! Operators, with Python's meaning.

use std::cmp::Ordering;

use super::ast::{Comparison, Operator};
use super::meter::VALUE_BYTES;
use super::value::{List, Maker, Value};
use super::{Fault, Outcome, format, texts};

fn unsupported<T>(operator: &str, left: &Value<'_>, right: &Value<'_>) -> Outcome<T> {
    let (left, right) = (left.type_name(), right.type_name());
    Err(Fault::new(format_args!("`{operator}` of {left} and {right}")))
}

fn too_large() -> Fault {
    Fault::new("the number is too large")
}

/// `-value`.
pub(super) fn negative<'a>(value: &Value<'a>) -> Outcome<Value<'a>> {
    match (value, value.as_index()) {
        (_, Some(int)) => Ok(Value::Int(int.checked_neg().ok_or_else(too_large)?)),
        (Value::Float(float), _) => Ok(Value::Float(-float)),
        _ => Err(Fault::new(format_args!("`-` of {}", value.type_name()))),
    }
}

/// An operator of two values.
pub(super) fn arithmetic<'a>(
    make: &Maker<'a>,
    operator: Operator,
    left: &Value<'a>,
    right: &Value<'a>,
) -> Outcome<Value<'a>> {
    let name = match operator {
        Operator::Add => "+",
        Operator::Sub => "-",
        Operator::Mul => "*",
        Operator::Div => "/",
        Operator::FloorDiv => "//",
        Operator::Mod => "%",
        Operator::Pow => "**",
    };
    match (operator, left, right) {
        (Operator::Add, Value::Text(a), Value::Text(b)) => {
            let mut out = make.buffer()?;
            let markup = left.is_markup() || right.is_markup();
            for (side, text) in [(left, a), (right, b)] {
                if markup && !side.is_markup() {
                    texts::escape(&mut out, text.as_str())?;
                } else {
                    out.push(text.as_str())?;
                }
            }
            if !markup {
                return make.built(out);
            }
            let (text, _held) = out.into_parts();
            make.markup(&text)
        }
        (Operator::Add, Value::List(a), Value::List(b)) => make.list(joined(make, a, b)?),
        (Operator::Add, Value::Tuple(a), Value::Tuple(b)) => make.tuple(joined(make, a, b)?),
        (Operator::Mod, Value::Text(text), _) => format::percent(make, text.as_str(), right),
        (Operator::Mul, Value::Text(_) | Value::List(_) | Value::Tuple(_), _)
            if right.as_index().is_some() =>
        {
            repeat(make, left, right.as_index().unwrap_or_default())
        }
        (Operator::Mul, _, Value::Text(_) | Value::List(_) | Value::Tuple(_))
            if left.as_index().is_some() =>
        {
            repeat(make, right, left.as_index().unwrap_or_default())
        }
        _ => match (left.as_index(), right.as_index(), left.as_float(), right.as_float()) {
            (Some(a), Some(b), ..) => integers(operator, a, b),
            (_, _, Some(a), Some(b)) => floats(operator, a, b),
            _ => unsupported(name, left, right),
        },
    }
}

fn joined<'a>(make: &Maker<'a>, a: &List<'a>, b: &List<'a>) -> Outcome<Vec<Value<'a>>> {
    let count = a.items().len() + b.items().len();
    let _held = make.0.hold_many(count, VALUE_BYTES)?;
    Ok(a.items().iter().chain(b.items()).cloned().collect())
}

fn repeat<'a>(make: &Maker<'a>, value: &Value<'a>, times: i128) -> Outcome<Value<'a>> {
    let times = usize::try_from(times.max(0)).map_err(|_| Fault::Memory)?;
    match value {
        Value::Text(text) => {
            let bytes = text.as_str().len().checked_mul(times).ok_or(Fault::Memory)?;
            let _held = make.0.hold(bytes)?;
            make.like(value, make.text(&text.as_str().repeat(times))?)
        }
        Value::List(list) | Value::Tuple(list) => {
            let count = list.items().len().checked_mul(times).ok_or(Fault::Memory)?;
            let _held = make.0.hold_many(count, VALUE_BYTES)?;
            make.0.steps(count as u64)?;
            let items = list.items().iter().cycle().take(count).cloned().collect();
            if matches!(value, Value::List(_)) { make.list(items) } else { make.tuple(items) }
        }
        _ => unsupported("*", value, &Value::Int(times as i128)),
    }
}

fn integers<'a>(operator: Operator, a: i128, b: i128) -> Outcome<Value<'a>> {
    let by_zero = || Fault::new("division by zero");
    let result = match operator {
        Operator::Add => a.checked_add(b),
        Operator::Sub => a.checked_sub(b),
        Operator::Mul => a.checked_mul(b),
        Operator::Div | Operator::FloorDiv | Operator::Mod if b == 0 => return Err(by_zero()),
        Operator::Div => return Ok(Value::Float(a as f64 / b as f64)),
        Operator::FloorDiv => a.checked_div(b).and_then(|whole| {
            let below = a.checked_rem(b)? != 0 && (a < 0) != (b < 0);
            whole.checked_sub(i128::from(below))
        }),
        Operator::Mod => a.checked_rem(b).and_then(|rest| {
            if rest != 0 && (rest < 0) != (b < 0) { rest.checked_add(b) } else { Some(rest) }
        }),
        Operator::Pow if b < 0 => return floats(operator, a as f64, b as f64),
        Operator::Pow => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
    };
    result.map(Value::Int).ok_or_else(too_large)
}

fn floats<'a>(operator: Operator, a: f64, b: f64) -> Outcome<Value<'a>> {
    if b == 0.0 && matches!(operator, Operator::Div | Operator::FloorDiv | Operator::Mod) {
        return Err(Fault::new("division by zero"));
    }
    Ok(Value::Float(match operator {
        Operator::Add => a + b,
        Operator::Sub => a - b,
        Operator::Mul => a * b,
        Operator::Div => a / b,
        Operator::FloorDiv => (a / b).floor(),
        Operator::Mod => {
            let rest = a % b;
            if rest != 0.0 && (rest < 0.0) != (b < 0.0) { rest + b } else { rest }
        }
        Operator::Pow => a.powf(b),
    }))
}

/// A comparison of two values.
pub(super) fn compare<'a>(
    make: &Maker<'a>,
    comparison: Comparison,
    left: &Value<'a>,
    right: &Value<'a>,
) -> Outcome<bool> {
    let ordered = |wanted: fn(Ordering) -> bool| Ok(order(make, left, right)?.is_some_and(wanted));
    match comparison {
        Comparison::Eq => equal(make, left, right),
        Comparison::Ne => Ok(!equal(make, left, right)?),
        Comparison::Lt => ordered(Ordering::is_lt),
        Comparison::Le => ordered(Ordering::is_le),
        Comparison::Gt => ordered(Ordering::is_gt),
        Comparison::Ge => ordered(Ordering::is_ge),
        Comparison::In => contains(make, left, right),
        Comparison::NotIn => Ok(!contains(make, left, right)?),
    }
}

/// `left == right`.
pub(super) fn equal<'a>(make: &Maker<'a>, left: &Value<'a>, right: &Value<'a>) -> Outcome<bool> {
    make.0.steps(1)?;
    Ok(match (left, right) {
        (Value::Undefined, Value::Undefined) | (Value::None, Value::None) => true,
        (Value::Text(a), Value::Text(b)) => {
            if a.as_str().len() != b.as_str().len() {
                return Ok(false);
            }
            make.0.look(a.as_str().len())?;
            a.as_str() == b.as_str()
        }
        (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
            if a.items().len() != b.items().len() {
                return Ok(false);
            }
            for (a, b) in a.items().iter().zip(b.items()) {
                if !equal(make, a, b)? {
                    return Ok(false);
                }
            }
            true
        }
        (Value::Dict(a), Value::Dict(b)) => {
            if a.map().len() != b.map().len() {
                return Ok(false);
            }
            for (key, a) in a.map() {
                make.0.look(key.value().as_str().map_or(0, str::len))?;
                let Some(b) = b.map().get(key) else { return Ok(false) };
                if !equal(make, a, b)? {
                    return Ok(false);
                }
            }
            true
        }
        (Value::Object(a), Value::Object(b)) => std::rc::Rc::ptr_eq(a, b),
        _ => match (left.as_index(), right.as_index(), left.as_float(), right.as_float()) {
            (Some(a), Some(b), ..) => a == b,
            (_, _, Some(a), Some(b)) => a == b,
            _ => false,
        },
    })
}

/// The order of two values; none where a NaN has none.
pub(super) fn order<'a>(
    make: &Maker<'a>,
    left: &Value<'a>,
    right: &Value<'a>,
) -> Outcome<Option<Ordering>> {
    make.0.steps(1)?;
    match (left, right) {
        (Value::Text(a), Value::Text(b)) => {
            make.0.look(a.as_str().len().min(b.as_str().len()))?;
            Ok(Some(a.as_str().cmp(b.as_str())))
        }
        (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
            for (a, b) in a.items().iter().zip(b.items()) {
                if !equal(make, a, b)? {
                    return order(make, a, b);
                }
            }
            Ok(Some(a.items().len().cmp(&b.items().len())))
        }
        _ => match (left.as_index(), right.as_index(), left.as_float(), right.as_float()) {
            (Some(a), Some(b), ..) => Ok(Some(a.cmp(&b))),
            (_, _, Some(a), Some(b)) => Ok(a.partial_cmp(&b)),
            _ => unsupported("<", left, right),
        },
    }
}

/// `item in all`.
pub(super) fn contains<'a>(make: &Maker<'a>, item: &Value<'a>, all: &Value<'a>) -> Outcome<bool> {
    match all {
        Value::Undefined => Ok(false),
        Value::Text(text) => {
            let Some(part) = item.as_str() else { return unsupported("in", item, all) };
            make.0.look(text.as_str().len())?;
            Ok(text.as_str().contains(part))
        }
        Value::Dict(dict) => Ok(dict.map().contains_key(&make.key(item)?)),
        Value::List(list) | Value::Tuple(list) => {
            for other in list.items() {
                if equal(make, item, other)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        _ => unsupported("in", item, all),
    }
}

/// The position that an index names; negative ones count from the end.
pub(super) fn position(index: i128, length: usize) -> Option<usize> {
    let index = if index < 0 { index.checked_add(length as i128)? } else { index };
    usize::try_from(index).ok().filter(|index| *index < length)
}

/// Where a slice begins and ends, for a step of `step`, as Python's `slice.indices`.
fn bounds(limits: [Option<i128>; 3], length: usize, step: i128) -> (i128, i128) {
    let length = length as i128;
    let (lowest, highest) = if step < 0 { (-1, length - 1) } else { (0, length) };
    let limit = |limit: Option<i128>, default: i128| match limit {
        None => default,
        Some(limit) if limit < 0 => limit.saturating_add(length).max(lowest),
        Some(limit) => limit.min(highest),
    };
    if step < 0 {
        (limit(limits[0], highest), limit(limits[1], lowest))
    } else {
        (limit(limits[0], lowest), limit(limits[1], highest))
    }
}

/// `value[start:stop:step]`.
pub(super) fn slice<'a>(
    make: &Maker<'a>,
    value: &Value<'a>,
    limits: [Option<i128>; 3],
) -> Outcome<Value<'a>> {
    let step = limits[2].unwrap_or(1);
    if step == 0 {
        return Err(Fault::new("slice step cannot be zero"));
    }
    match value {
        Value::List(list) | Value::Tuple(list) => {
            let items = list.items();
            let indices = indices(bounds(limits, items.len(), step), step);
            let _held = make.0.hold_many(indices.len(), VALUE_BYTES)?;
            make.0.steps(indices.len() as u64)?;
            let picked = indices.iter().map(|index| items[*index].clone()).collect();
            if matches!(value, Value::List(_)) { make.list(picked) } else { make.tuple(picked) }
        }
        Value::Text(text) => {
            let (start, stop) = bounds(limits, text.characters(), step);
            let whole = text.as_str();
            make.0.look(if text.is_ascii() { 0 } else { whole.len() })?;
            if step == 1 {
                let (start, stop) = (start.max(0) as usize, stop.max(start).max(0) as usize);
                if text.is_ascii() {
                    return make
                        .like(value, make.text(whole.get(start..stop).unwrap_or_default())?);
                }
                let mut places = whole.char_indices().map(|(at, _)| at);
                let from = places.nth(start).unwrap_or(whole.len());
                let count = stop - start;
                let part = &whole[from..];
                let end = part.char_indices().nth(count).map_or(part.len(), |(at, _)| at);
                return make.like(value, make.text(&part[..end])?);
            }
            let _held = make.0.hold_many(text.characters(), 4 + size_of::<usize>())?;
            let characters: Vec<char> = whole.chars().collect();
            let indices = indices((start, stop), step);
            make.text(&indices.iter().map(|index| characters[*index]).collect::<String>())
        }
        Value::Undefined => Err(Fault::new("a slice of an undefined value")),
        _ => Ok(Value::Undefined),
    }
}

/// The indices of a slice; all lie inside of the sequence.
fn indices((start, stop): (i128, i128), step: i128) -> Vec<usize> {
    let mut all = Vec::new();
    let mut at = start;
    while (step > 0 && at < stop) || (step < 0 && at > stop) {
        all.push(at as usize);
        at = match at.checked_add(step) {
            Some(at) => at,
            None => break,
        };
    }
    all
}
