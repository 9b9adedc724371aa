//! Methods of texts, lists and dictionaries. Those that would change a value do not exist, as in
//! the immutable sandbox.

use indexmap::IndexMap;

use super::call::{Args, integer, length, needed, text};
use super::meter::VALUE_BYTES;
use super::value::{Dict, List, Maker, Value};
use super::{Fault, Outcome, format, ops, texts};

/// Methods of texts.
const OF_TEXT: [&str; 40] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "upper",
];

/// More of them.
const OF_TEXT_TOO: [&str; 3] = ["swapcase", "title", "zfill"];

/// Methods of lists and tuples.
const OF_LIST: [&str; 2] = ["count", "index"];

/// Methods of dictionaries.
const OF_DICT: [&str; 5] = ["copy", "get", "items", "keys", "values"];

/// True if a value has a method of that name.
pub(super) fn has(value: &Value<'_>, name: &str) -> bool {
    match value {
        Value::Text(_) => OF_TEXT.contains(&name) || OF_TEXT_TOO.contains(&name),
        Value::List(_) => OF_LIST.contains(&name) || name == "copy",
        Value::Tuple(_) => OF_LIST.contains(&name),
        Value::Dict(_) => OF_DICT.contains(&name),
        _ => false,
    }
}

/// Calls a method that [`has`] knows.
pub(super) fn call<'a>(
    make: &Maker<'a>,
    value: &Value<'a>,
    name: &str,
    args: Args<'a>,
) -> Outcome<Value<'a>> {
    make.0.steps(1)?;
    match value {
        Value::Text(inner) => {
            make.0.look(inner.as_str().len())?;
            make.like(value, of_text(make, value, inner.as_str(), name, args)?)
        }
        Value::List(list) | Value::Tuple(list) => {
            if name == "copy" {
                let [] = args.bind(name, [])?;
                return Ok(value.clone());
            }
            of_list(make, list, name, args)
        }
        Value::Dict(dict) => of_dict(make, value, dict, name, args),
        _ => Err(Fault::new(format_args!("no method `{name}`"))),
    }
}

fn of_list<'a>(
    make: &Maker<'a>,
    list: &List<'a>,
    name: &str,
    args: Args<'a>,
) -> Outcome<Value<'a>> {
    let [wanted] = args.bind(name, ["value"])?;
    let wanted = needed(wanted, "value")?;
    let mut count = 0;
    for (at, item) in list.items().iter().enumerate() {
        if ops::equal(make, item, &wanted)? {
            if name == "index" {
                return Ok(Value::Int(at as i128));
            }
            count += 1;
        }
    }
    if name == "index" {
        return Err(Fault::new("the value is not in the list"));
    }
    Ok(Value::Int(count))
}

fn of_dict<'a>(
    make: &Maker<'a>,
    value: &Value<'a>,
    dict: &Dict<'a>,
    name: &str,
    args: Args<'a>,
) -> Outcome<Value<'a>> {
    if name == "get" {
        let [key, default] = args.bind(name, ["key", "default"])?;
        let key = make.key(&needed(key, "key")?)?;
        let found = dict.map().get(&key).cloned().or(default);
        return Ok(found.unwrap_or(Value::None));
    }
    let [] = args.bind(name, [])?;
    match name {
        "copy" => Ok(value.clone()),
        "items" => make.pairs(dict),
        "keys" => Ok(Value::List(make.items(value)?)),
        _ => {
            let _held = make.0.hold_many(dict.map().len(), VALUE_BYTES)?;
            make.list(dict.map().values().cloned().collect())
        }
    }
}

/// `dict(…)`.
pub(super) fn dict_of<'a>(make: &Maker<'a>, args: Args<'a>) -> Outcome<Value<'a>> {
    let mut map = IndexMap::new();
    if args.positional.len() > 1 {
        return Err(Fault::new("`dict` takes at most one argument without a name"));
    }
    for from in &args.positional {
        if let Value::Dict(dict) = from {
            make.0.steps(dict.map().len() as u64)?;
            map = dict.map().clone();
            continue;
        }
        for pair in make.items(from)?.items() {
            let pair = make.items(pair)?;
            let [key, value] = pair.items() else {
                return Err(Fault::new("`dict` wants pairs"));
            };
            map.insert(make.key(key)?, value.clone());
        }
    }
    for (name, value) in args.named {
        map.insert(make.key(&make.text(&name)?)?, value);
    }
    make.dict(map)
}

impl<'a> Maker<'a> {
    /// What a loop over a value goes over.
    pub(super) fn items(&self, value: &Value<'a>) -> Outcome<List<'a>> {
        match value {
            Value::List(list) | Value::Tuple(list) => Ok(list.clone()),
            Value::Undefined => self.list_of(Vec::new()),
            Value::Dict(dict) => {
                let _held = self.0.hold_many(dict.map().len(), VALUE_BYTES)?;
                self.list_of(dict.map().keys().map(|key| key.value().clone()).collect())
            }
            Value::Text(text) => {
                let _held = self.0.hold_many(text.characters(), VALUE_BYTES)?;
                let characters = text.as_str().chars();
                let each = characters.map(|c| self.text(c.encode_utf8(&mut [0; 4])));
                self.list_of(each.collect::<Outcome<_>>()?)
            }
            _ => Err(Fault::new(format_args!("{} is not iterable", value.type_name()))),
        }
    }

    /// The pairs of a dictionary.
    pub(super) fn pairs(&self, dict: &Dict<'a>) -> Outcome<Value<'a>> {
        let _held = self.0.hold_many(dict.map().len(), VALUE_BYTES)?;
        let pairs = dict.map().iter();
        let each = pairs.map(|(key, value)| self.tuple(vec![key.value().clone(), value.clone()]));
        self.list(each.collect::<Outcome<_>>()?)
    }
}

fn of_text<'a>(
    make: &Maker<'a>,
    value: &Value<'a>,
    whole: &str,
    name: &str,
    args: Args<'a>,
) -> Outcome<Value<'a>> {
    match name {
        "format" => format::format(make, whole, &args),
        "strip" | "lstrip" | "rstrip" => {
            let [chars] = args.bind(name, ["chars"])?;
            let chars = chars.filter(|chars| !matches!(chars, Value::None));
            make.text(texts::stripped(make, whole, name, text(chars.as_ref(), "chars")?)?)
        }
        "split" | "rsplit" => {
            let [separator, most] = args.bind(name, ["sep", "maxsplit"])?;
            let separator = separator.filter(|separator| !matches!(separator, Value::None));
            let most = integer(most.as_ref(), "maxsplit")?.unwrap_or(-1);
            let most = usize::try_from(most).unwrap_or(usize::MAX);
            let separator = text(separator.as_ref(), "sep")?;
            texts::split(make, whole, separator, most, name == "rsplit")
        }
        "splitlines" => {
            let [keep] = args.bind(name, ["keepends"])?;
            let keep = keep.is_some_and(|keep| keep.is_true());
            let lines = texts::lines(whole).into_iter().map(|(line, end)| {
                make.text(if keep { &whole[line.start..end] } else { &whole[line] })
            });
            make.list(lines.collect::<Outcome<_>>()?)
        }
        "partition" | "rpartition" => {
            let [separator] = args.bind(name, ["sep"])?;
            let separator = needed(separator, "sep")?;
            texts::partition(make, whole, text(Some(&separator), "sep")?, name == "rpartition")
        }
        _ => of_text_too(make, value, whole, name, args),
    }
}

/// More of them.
fn of_text_too<'a>(
    make: &Maker<'a>,
    value: &Value<'a>,
    whole: &str,
    name: &str,
    args: Args<'a>,
) -> Outcome<Value<'a>> {
    match name {
        "join" => {
            let [all] = args.bind(name, ["iterable"])?;
            let all = make.items(&needed(all, "iterable")?)?;
            if let Some(other) = all.items().iter().find(|item| item.as_str().is_none()) {
                let found = other.type_name();
                return Err(Fault::new(format_args!("join: wanted texts, found {found}")));
            }
            texts::join(make, all.items(), whole)
        }
        "replace" => {
            let [old, new, count] = args.bind(name, ["old", "new", "count"])?;
            let count = integer(count.as_ref(), "count")?.unwrap_or(-1);
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            let (old, new) = (needed(old, "old")?, needed(new, "new")?);
            let old = text(Some(&old), "old")?.unwrap_or_default();
            texts::replace(make, whole, old, text(Some(&new), "new")?.unwrap_or_default(), count)
        }
        "ljust" | "rjust" | "center" | "zfill" => {
            let [width, fill] = args.bind(name, ["width", "fillchar"])?;
            let width = needed(width, "width")?;
            let width = length(Some(&width), "width")?.unwrap_or(0);
            texts::justified(make, whole, name, width, text(fill.as_ref(), "fillchar")?)
        }
        "count" | "find" | "rfind" | "index" | "rindex" | "startswith" | "endswith" => {
            let [part, start, end] = args.bind(name, ["sub", "start", "end"])?;
            let part = needed(part, "sub")?;
            let limits = [integer(start.as_ref(), "start")?, integer(end.as_ref(), "end")?, None];
            texts::search(make, value, name, &part, limits)
        }
        "removeprefix" | "removesuffix" => {
            let [part] = args.bind(name, ["affix"])?;
            let part = needed(part, "affix")?;
            let part = text(Some(&part), "affix")?.unwrap_or_default();
            let cut = match name {
                "removeprefix" => whole.strip_prefix(part),
                _ => whole.strip_suffix(part),
            };
            make.text(cut.unwrap_or(whole))
        }
        "expandtabs" => {
            let [size] = args.bind(name, ["tabsize"])?;
            let size = length(size.as_ref(), "tabsize")?.unwrap_or(8);
            texts::expand_tabs(make, whole, size)
        }
        _ if name.starts_with("is") => {
            let [] = args.bind(name, [])?;
            Ok(Value::Bool(texts::is(whole, name)))
        }
        _ => {
            let [] = args.bind(name, [])?;
            texts::cased(make, whole, name)
        }
    }
}
