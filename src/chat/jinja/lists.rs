//! Filters of lists and dictionaries.

use std::cell::RefCell;
use std::cmp::Ordering;
use std::collections::HashSet;

use super::call::{Args, length, needed, text};
use super::eval::Interpreter;
use super::meter::VALUE_BYTES;
use super::value::{List, Maker, Value};
use super::{Fault, Outcome, checks, filters, ops, texts};

/// Applies a filter.
pub(super) fn call<'a>(
    i: &mut Interpreter<'a>,
    name: &str,
    value: Value<'a>,
    args: Args<'a>,
) -> Outcome<Value<'a>> {
    let make = i.make.clone();
    match name {
        "length" | "count" => {
            let [] = args.bind(name, [])?;
            count(&value)
        }
        "items" => {
            let [] = args.bind(name, [])?;
            match &value {
                Value::Dict(dict) => make.pairs(dict),
                Value::Undefined => make.list(Vec::new()),
                _ => Err(Fault::new("Can only get item pairs from a mapping.")),
            }
        }
        "list" => {
            let [] = args.bind(name, [])?;
            Ok(Value::List(make.items(&value)?))
        }
        "first" | "last" => {
            let [] = args.bind(name, [])?;
            if let Value::Text(_) = value {
                return i.item(&value, &Value::Int(if name == "first" { 0 } else { -1 }));
            }
            let all = make.items(&value)?;
            let found = if name == "first" { all.items().first() } else { all.items().last() };
            Ok(found.cloned().unwrap_or(Value::Undefined))
        }
        "join" => joined(i, &value, args),
        "reverse" => {
            let [] = args.bind(name, [])?;
            match &value {
                Value::Text(_) => ops::slice(&make, &value, [None, None, Some(-1)]),
                _ => {
                    let all = make.items(&value)?;
                    let _held = make.0.hold_many(all.items().len(), VALUE_BYTES)?;
                    make.list(all.items().iter().rev().cloned().collect())
                }
            }
        }
        "sum" => {
            let [attribute, start] = args.bind(name, ["attribute", "start"])?;
            let mut sum = start.unwrap_or(Value::Int(0));
            for item in make.items(&value)?.items() {
                let item = by_attribute(i, item, attribute.as_ref())?;
                sum = ops::arithmetic(&make, super::ast::Operator::Add, &sum, &item)?;
            }
            Ok(sum)
        }
        "sort" | "dictsort" | "min" | "max" | "unique" | "groupby" => {
            ordered(i, name, &value, args)
        }
        "batch" | "slice" => parted(&make, name, &value, args),
        "map" => mapped(i, &value, args),
        "select" | "reject" | "selectattr" | "rejectattr" => selected(i, name, &value, args),
        _ => Err(Fault::new(format_args!("no filter named `{name}`"))),
    }
}

/// `join`.
fn joined<'a>(i: &mut Interpreter<'a>, value: &Value<'a>, args: Args<'a>) -> Outcome<Value<'a>> {
    let make = i.make.clone();
    let [separator, attribute] = args.bind("join", ["d", "attribute"])?;
    let separator = match separator {
        Some(separator) => make.string(&separator)?,
        None => make.text("")?,
    };
    let mut items = make.items(value)?.items().to_vec();
    if let Some(attribute) = attribute.filter(|attribute| !matches!(attribute, Value::None)) {
        for item in &mut items {
            *item = by_path(i, item, &attribute, None)?;
        }
    }
    texts::join(&make, &items, separator.as_str().unwrap_or_default())
}

/// `map`.
fn mapped<'a>(
    i: &mut Interpreter<'a>,
    value: &Value<'a>,
    mut args: Args<'a>,
) -> Outcome<Value<'a>> {
    let make = i.make.clone();
    let all = items_or_none(&make, value)?;
    let path = args.named.iter().position(|(name, _)| name == "attribute");
    let path = path.map(|at| args.named.swap_remove(at).1);
    let default = args.named.iter().position(|(name, _)| name == "default");
    let default = default.map(|at| args.named.swap_remove(at).1);
    let mut out = Vec::new();
    let mut held = make.0.hold(0)?;
    let filter = if path.is_some() { None } else { Some(first_name(&mut args)?) };
    for item in all.items() {
        held.grow(VALUE_BYTES)?;
        out.push(match (&path, &filter) {
            (Some(path), _) => by_path(i, item, path, default.as_ref())?,
            (None, filter) => {
                let name = filter.as_deref().unwrap_or_default();
                i.nested(|i| filters::call(i, name, item.clone(), copied(&args)))?
            }
        });
    }
    make.list(out)
}

/// `select`, `reject`, and those of attributes.
fn selected<'a>(
    i: &mut Interpreter<'a>,
    name: &str,
    value: &Value<'a>,
    mut args: Args<'a>,
) -> Outcome<Value<'a>> {
    let make = i.make.clone();
    let all = items_or_none(&make, value)?;
    let path = if name.ends_with("attr") {
        if args.positional.is_empty() {
            return Err(Fault::new(format_args!("{name}: an attribute is missing")));
        }
        Some(args.positional.remove(0))
    } else {
        None
    };
    let test = if args.positional.is_empty() { None } else { Some(first_name(&mut args)?) };
    let wanted = name.starts_with("select");
    let mut out = Vec::new();
    for item in all.items() {
        let looked_at = match &path {
            Some(path) => by_path(i, item, path, None)?,
            None => item.clone(),
        };
        let holds = match &test {
            Some(test) => checks::call(&make, test, &looked_at, &args.positional)?,
            None => looked_at.is_true(),
        };
        if holds == wanted {
            out.push(item.clone());
        }
    }
    make.list(out)
}

/// What a filter of items goes over: of none, as of all that is false, nothing.
fn items_or_none<'a>(make: &Maker<'a>, value: &Value<'a>) -> Outcome<List<'a>> {
    if value.is_true() { make.items(value) } else { make.list_of(Vec::new()) }
}

fn count<'a>(value: &Value<'a>) -> Outcome<Value<'a>> {
    let count = match value {
        Value::Undefined => 0,
        Value::Text(text) => text.characters(),
        Value::List(list) | Value::Tuple(list) => list.items().len(),
        Value::Dict(dict) => dict.map().len(),
        _ => {
            return Err(Fault::new(format_args!(
                "object of type {} has no len()",
                value.type_name()
            )));
        }
    };
    Ok(Value::Int(count as i128))
}

fn copied<'a>(args: &Args<'a>) -> Args<'a> {
    Args { positional: args.positional.clone(), named: args.named.clone() }
}

/// The first argument, which names a filter or a test.
fn first_name(args: &mut Args<'_>) -> Outcome<String> {
    if args.positional.is_empty() {
        return Err(Fault::new("the name of a filter or a test is missing"));
    }
    let name = args.positional.remove(0);
    Ok(text(Some(&name), "name")?.unwrap_or_default().to_owned())
}

fn by_attribute<'a>(
    i: &mut Interpreter<'a>,
    item: &Value<'a>,
    attribute: Option<&Value<'a>>,
) -> Outcome<Value<'a>> {
    match attribute {
        None | Some(Value::None) => Ok(item.clone()),
        Some(attribute) => by_path(i, item, attribute, None),
    }
}

/// What a path such as `function.name` or `0.x` leads to.
fn by_path<'a>(
    i: &mut Interpreter<'a>,
    item: &Value<'a>,
    path: &Value<'a>,
    default: Option<&Value<'a>>,
) -> Outcome<Value<'a>> {
    let mut value = item.clone();
    if path.as_index().is_some() {
        value = i.item(&value, path)?;
    } else {
        let path = text(Some(path), "attribute")?.unwrap_or_default();
        for part in path.split('.') {
            let key = match part.parse::<i128>() {
                Ok(index) if part.bytes().all(|b| b.is_ascii_digit()) => Value::Int(index),
                _ => i.make.text(part)?,
            };
            value = i.item(&value, &key)?;
            if let (Value::Undefined, Some(default)) = (&value, default) {
                value = default.clone();
            }
        }
    }
    Ok(value)
}

/// A value as it is compared where case does not count.
fn folded<'a>(make: &Maker<'a>, value: Value<'a>, cased: bool) -> Outcome<Value<'a>> {
    match &value {
        Value::Text(text) if !cased => texts::cased(make, text.as_str(), "lower"),
        _ => Ok(value),
    }
}

/// Sorts by keys; the first fault of a comparison ends it.
fn sort<'a>(make: &Maker<'a>, items: &mut [(Value<'a>, Value<'a>)], reverse: bool) -> Outcome<()> {
    let fault = RefCell::new(None);
    items.sort_by(|(a, _), (b, _)| {
        if fault.borrow().is_some() {
            return Ordering::Equal;
        }
        let (a, b) = if reverse { (b, a) } else { (a, b) };
        match ops::order(make, a, b) {
            Ok(order) => order.unwrap_or(Ordering::Equal),
            Err(found) => {
                *fault.borrow_mut() = Some(found);
                Ordering::Equal
            }
        }
    });
    fault.into_inner().map_or(Ok(()), Err)
}

/// Items with what they are compared by.
fn keyed<'a>(
    i: &mut Interpreter<'a>,
    value: &Value<'a>,
    attribute: Option<&Value<'a>>,
    cased: bool,
) -> Outcome<Vec<(Value<'a>, Value<'a>)>> {
    let make = i.make.clone();
    let mut held = make.0.hold(0)?;
    let mut out = Vec::new();
    for item in make.items(value)?.items() {
        held.grow(2 * VALUE_BYTES)?;
        let key = match attribute {
            // Several attributes, one after the other.
            Some(Value::Text(all)) if all.as_str().contains(',') => {
                let mut keys = Vec::new();
                for part in all.as_str().split(',') {
                    let part = make.text(part.trim())?;
                    keys.push(folded(&make, by_path(i, item, &part, None)?, cased)?);
                }
                make.list(keys)?
            }
            attribute => folded(&make, by_attribute(i, item, attribute)?, cased)?,
        };
        out.push((key, item.clone()));
    }
    Ok(out)
}

fn ordered<'a>(
    i: &mut Interpreter<'a>,
    name: &str,
    value: &Value<'a>,
    args: Args<'a>,
) -> Outcome<Value<'a>> {
    let make = i.make.clone();
    let is_set = |value: &Option<Value<'a>>| value.as_ref().is_some_and(Value::is_true);
    match name {
        "sort" => {
            let names = ["reverse", "case_sensitive", "attribute"];
            let [reverse, cased, attribute] = args.bind(name, names)?;
            let mut items = keyed(i, value, attribute.as_ref(), is_set(&cased))?;
            sort(&make, &mut items, is_set(&reverse))?;
            make.list(items.into_iter().map(|(_, item)| item).collect())
        }
        "dictsort" => {
            let [cased, by, reverse] = args.bind(name, ["case_sensitive", "by", "reverse"])?;
            let by_value = match text(by.as_ref(), "by")? {
                None | Some("key") => false,
                Some("value") => true,
                Some(_) => return Err(Fault::new("dictsort: by must be key or value")),
            };
            let Value::Dict(dict) = value else {
                return Err(Fault::new("dictsort: a dictionary is wanted"));
            };
            let mut items = Vec::new();
            let _held = make.0.hold_many(dict.map().len(), 2 * VALUE_BYTES)?;
            for (key, value) in dict.map() {
                let by = if by_value { value } else { key.value() };
                let by = folded(&make, by.clone(), is_set(&cased))?;
                items.push((by, make.tuple(vec![key.value().clone(), value.clone()])?));
            }
            sort(&make, &mut items, is_set(&reverse))?;
            make.list(items.into_iter().map(|(_, item)| item).collect())
        }
        "min" | "max" => {
            let [cased, attribute] = args.bind(name, ["case_sensitive", "attribute"])?;
            let mut best: Option<(Value<'a>, Value<'a>)> = None;
            for (key, item) in keyed(i, value, attribute.as_ref(), is_set(&cased))? {
                let wanted = if name == "min" { Ordering::Less } else { Ordering::Greater };
                let better = match &best {
                    None => true,
                    Some((found, _)) => ops::order(&make, &key, found)? == Some(wanted),
                };
                if better {
                    best = Some((key, item));
                }
            }
            Ok(best.map_or(Value::Undefined, |(_, item)| item))
        }
        "unique" => {
            let [cased, attribute] = args.bind(name, ["case_sensitive", "attribute"])?;
            #[allow(clippy::mutable_key_type)] // no value changes while the filter runs
            let mut seen = HashSet::new();
            let mut out = Vec::new();
            for (key, item) in keyed(i, value, attribute.as_ref(), is_set(&cased))? {
                if seen.insert(make.key(&key)?) {
                    out.push(item);
                }
            }
            make.list(out)
        }
        _ => grouped(i, value, args),
    }
}

fn grouped<'a>(i: &mut Interpreter<'a>, value: &Value<'a>, args: Args<'a>) -> Outcome<Value<'a>> {
    let make = i.make.clone();
    let [attribute, default, cased] =
        args.bind("groupby", ["attribute", "default", "case_sensitive"])?;
    let attribute = needed(attribute, "attribute")?;
    let cased = cased.is_some_and(|cased| cased.is_true());
    let mut items = Vec::new();
    for item in make.items(value)?.items() {
        let key = by_path(i, item, &attribute, default.as_ref())?;
        items.push((folded(&make, key, cased)?, item.clone()));
    }
    sort(&make, &mut items, false)?;
    let mut groups: Vec<(Value<'a>, Vec<Value<'a>>)> = Vec::new();
    for (key, item) in items {
        match groups.last_mut() {
            Some((last, group)) if ops::equal(&make, last, &key)? => group.push(item),
            _ => groups.push((key, vec![item])),
        }
    }
    let mut out = Vec::new();
    for (key, group) in groups {
        // A group is named by its first item as it is written.
        let named = match group.first() {
            Some(first) => by_path(i, first, &attribute, default.as_ref())?,
            None => key,
        };
        out.push(make.tuple(vec![named, make.list(group)?])?);
    }
    make.list(out)
}

/// `batch` and `slice`.
fn parted<'a>(
    make: &Maker<'a>,
    name: &str,
    value: &Value<'a>,
    args: Args<'a>,
) -> Outcome<Value<'a>> {
    let [count, fill] = args.bind(name, ["count", "fill_with"])?;
    let count = needed(count, "count")?;
    let count = length(Some(&count), "count")?.unwrap_or(0);
    let fill = fill.filter(|fill| !matches!(fill, Value::None));
    let all = make.items(value)?;
    let items = all.items();
    if count == 0 {
        return Err(Fault::new(format_args!("{name}: the count is 0")));
    }
    let mut out = Vec::new();
    if name == "batch" {
        for part in items.chunks(count) {
            let missing = if fill.is_some() { count - part.len() } else { 0 };
            let _held = make.0.hold_many(part.len().saturating_add(missing), VALUE_BYTES)?;
            let filled = std::iter::repeat_n(fill.clone().unwrap_or(Value::None), missing);
            out.push(make.list(part.iter().cloned().chain(filled).collect())?);
        }
        return make.list(out);
    }
    let (each, longer) = (items.len() / count, items.len() % count);
    let _held = make.0.hold_many(count, 2 * VALUE_BYTES)?;
    make.0.steps(count as u64)?;
    let mut from = 0;
    for at in 0..count {
        let size = each + usize::from(at < longer);
        let mut part = items[from..from + size].to_vec();
        from += size;
        if let (Some(fill), true) = (&fill, at >= longer) {
            part.push(fill.clone());
        }
        out.push(make.list(part)?);
    }
    make.list(out)
}
