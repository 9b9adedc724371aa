//! Filters of texts and numbers. Those of lists are in [`super::lists`].

use super::call::{Args, integer, length, needed, text};
use super::eval::Interpreter;
use super::value::{Maker, Value};
use super::{Fault, Outcome, format, json, lists, methods, texts};

/// Names of the filters.
const NAMES: [&str; 45] = [
    "abs",
    "attr",
    "batch",
    "capitalize",
    "center",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "filesizeformat",
    "first",
    "float",
    "forceescape",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "pprint",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "string",
    "striptags",
    "sum",
    "title",
    "tojson",
    "trim",
];

/// More of them.
const MORE_NAMES: [&str; 7] =
    ["truncate", "unique", "upper", "urlencode", "wordcount", "wordwrap", "xmlattr"];

/// True if there is a filter of that name.
pub(super) fn is_known(name: &str) -> bool {
    NAMES.contains(&name) || MORE_NAMES.contains(&name)
}

/// Applies a filter.
pub(super) fn call<'a>(
    i: &mut Interpreter<'a>,
    name: &str,
    value: Value<'a>,
    args: Args<'a>,
) -> Outcome<Value<'a>> {
    let make = i.make.clone();
    match name {
        "tojson" => json::tojson(&make, &value, args),
        "default" | "d" => {
            let [default, also_false] = args.bind(name, ["default_value", "boolean"])?;
            let also_false = also_false.is_some_and(|also| also.is_true());
            if matches!(value, Value::Undefined) || (also_false && !value.is_true()) {
                return default.map_or_else(|| make.text(""), Ok);
            }
            Ok(value)
        }
        "string" => {
            let [] = args.bind(name, [])?;
            make.string(&value)
        }
        "safe" => {
            let [] = args.bind(name, [])?;
            make.markup(make.string(&value)?.as_str().unwrap_or_default())
        }
        "attr" => {
            let [name] = args.bind(name, ["name"])?;
            let name = needed(name, "name")?;
            match &value {
                // The attribute of a dictionary is never one of its items.
                Value::Dict(_) if !methods::has(&value, name.as_str().unwrap_or_default()) => {
                    Ok(Value::Undefined)
                }
                _ => i.attribute(&value, text(Some(&name), "name")?.unwrap_or_default()),
            }
        }
        "abs" | "round" | "int" | "float" | "filesizeformat" => number(&make, name, &value, args),
        "escape" | "e" | "forceescape" | "striptags" | "urlencode" | "wordwrap" | "truncate"
        | "wordcount" | "indent" | "trim" | "upper" | "lower" | "title" | "capitalize"
        | "center" | "replace" | "format" => of_text(&make, name, &value, args),
        "pprint" => {
            let [] = args.bind(name, [])?;
            let mut out = make.buffer()?;
            make.represent(&mut out, &value)?;
            make.built(out)
        }
        _ => lists::call(i, name, value, args),
    }
}

fn number<'a>(
    make: &Maker<'a>,
    name: &str,
    value: &Value<'a>,
    args: Args<'a>,
) -> Outcome<Value<'a>> {
    let wanted = || Fault::new(format_args!("{name}: a number is required"));
    match name {
        "abs" => {
            let [] = args.bind(name, [])?;
            match (value, value.as_index()) {
                (_, Some(int)) => int.checked_abs().map(Value::Int).ok_or_else(wanted),
                (Value::Float(float), _) => Ok(Value::Float(float.abs())),
                _ => Err(wanted()),
            }
        }
        "int" => {
            let [default, base] = args.bind(name, ["default", "base"])?;
            let base = integer(base.as_ref(), "base")?.unwrap_or(10);
            let base = u32::try_from(base).ok().filter(|base| (2..=36).contains(base));
            let base = base.ok_or_else(|| Fault::new("int: a base that is none"))?;
            if matches!(value, Value::Undefined) {
                return Err(Fault::new("int: the value is undefined"));
            }
            Ok(to_int(value, base).map(Value::Int).or(default).unwrap_or(Value::Int(0)))
        }
        "float" => {
            let [default] = args.bind(name, ["default"])?;
            if matches!(value, Value::Undefined) {
                return Err(Fault::new("float: the value is undefined"));
            }
            let found = value.as_float().or_else(|| to_float(value.as_str()?));
            Ok(found.map(Value::Float).or(default).unwrap_or(Value::Float(0.0)))
        }
        "round" => {
            let [precision, method] = args.bind(name, ["precision", "method"])?;
            let precision = integer(precision.as_ref(), "precision")?.unwrap_or(0);
            let method = text(method.as_ref(), "method")?.unwrap_or("common").to_owned();
            round(value, precision, &method)
        }
        _ => {
            let [binary] = args.bind(name, ["binary"])?;
            let bytes = value.as_float().or_else(|| to_float(value.as_str()?));
            let bytes = bytes.ok_or_else(wanted)?;
            make.text(&file_size(bytes, binary.is_some_and(|binary| binary.is_true())))
        }
    }
}

fn to_int(value: &Value<'_>, base: u32) -> Option<i128> {
    let of_float = |float: f64| (float.is_finite() && float.abs() < 1e30).then_some(float as i128);
    match (value, value.as_index()) {
        (_, Some(int)) => Some(int),
        (Value::Float(float), _) => of_float(*float),
        (Value::Text(text), _) => {
            let text = text.as_str().trim_matches(texts::is_space).replace('_', "");
            let (sign, digits) = match text.strip_prefix('-') {
                Some(digits) => ("-", digits),
                None => ("", text.strip_prefix('+').unwrap_or(&text)),
            };
            let digits = match base {
                16 => digits.trim_start_matches("0x").trim_start_matches("0X"),
                8 => digits.trim_start_matches("0o"),
                2 => digits.trim_start_matches("0b"),
                _ => digits,
            };
            let whole = i128::from_str_radix(&format!("{sign}{digits}"), base).ok();
            whole.or_else(|| of_float(to_float(&text)?))
        }
        _ => None,
    }
}

fn to_float(text: &str) -> Option<f64> {
    text.trim_matches(texts::is_space).replace('_', "").parse().ok()
}

fn round<'a>(value: &Value<'a>, precision: i128, method: &str) -> Outcome<Value<'a>> {
    if !(-300..=300).contains(&precision) {
        return Err(Fault::new("round: a precision that is too large"));
    }
    let wanted = || Fault::new("round: a number is required");
    let digits = precision as i32;
    let number = value.as_float().ok_or_else(wanted)?;
    match method {
        "common" => {
            if let Some(int) = value.as_index() {
                if digits >= 0 {
                    return Ok(Value::Int(int));
                }
                let unit = 10i128.checked_pow(digits.unsigned_abs()).ok_or_else(wanted)?;
                let (below, rest) = (int.div_euclid(unit), int.rem_euclid(unit));
                let up = rest * 2 > unit || (rest * 2 == unit && below % 2 != 0);
                let rounded = (below + i128::from(up)).checked_mul(unit);
                return rounded.map(Value::Int).ok_or_else(wanted);
            }
            if digits < 0 {
                let unit = 10f64.powi(-digits);
                return Ok(Value::Float((number / unit).round_ties_even() * unit));
            }
            let digits = digits as usize;
            let rounded = format!("{number:.digits$}").parse();
            Ok(Value::Float(rounded.unwrap_or(number)))
        }
        "ceil" | "floor" => {
            let unit = 10f64.powi(digits);
            let scaled = number * unit;
            let whole = if method == "ceil" { scaled.ceil() } else { scaled.floor() };
            Ok(Value::Float(whole / unit))
        }
        _ => Err(Fault::new("round: method must be common, ceil or floor")),
    }
}

fn file_size(bytes: f64, binary: bool) -> String {
    let base: f64 = if binary { 1024.0 } else { 1000.0 };
    if bytes == 1.0 {
        return "1 Byte".to_owned();
    }
    if bytes < base {
        return format!("{} Bytes", bytes as i64);
    }
    let mut unit = base;
    for (at, letter) in "KMGTPEZY".chars().enumerate() {
        unit = base.powi(at as i32 + 2);
        if bytes < unit || letter == 'Y' {
            let prefix = if binary { format!("{}i", letter) } else { letter.to_string() };
            let prefix = if !binary && letter == 'K' { "k".to_owned() } else { prefix };
            return format!("{:.1} {prefix}B", base * bytes / unit);
        }
    }
    format!("{:.1}", bytes / unit)
}

fn of_text<'a>(
    make: &Maker<'a>,
    name: &str,
    value: &Value<'a>,
    args: Args<'a>,
) -> Outcome<Value<'a>> {
    let value = make.string(value)?;
    let whole = value.as_str().unwrap_or_default();
    make.0.look(whole.len())?;
    match name {
        "trim" => {
            let [chars] = args.bind(name, ["chars"])?;
            let chars = chars.filter(|chars| !matches!(chars, Value::None));
            let chars = text(chars.as_ref(), "chars")?;
            make.like(&value, make.text(texts::stripped(make, whole, "strip", chars)?)?)
        }
        "upper" | "lower" | "capitalize" => {
            let [] = args.bind(name, [])?;
            make.like(&value, texts::cased(make, whole, name)?)
        }
        "title" => {
            let [] = args.bind(name, [])?;
            make.like(&value, titled(make, whole)?)
        }
        "center" => {
            let [width] = args.bind(name, ["width"])?;
            let width = length(width.as_ref(), "width")?.unwrap_or(80);
            texts::justified(make, whole, name, width, None)
        }
        "replace" => {
            let [old, new, count] = args.bind(name, ["old", "new", "count"])?;
            let old = make.string(&needed(old, "old")?)?;
            let new = make.string(&needed(new, "new")?)?;
            let count = count.filter(|count| !matches!(count, Value::None));
            let count = integer(count.as_ref(), "count")?.unwrap_or(-1);
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            let [old, new] = [&old, &new].map(|text| text.as_str().unwrap_or_default());
            texts::replace(make, whole, old, new, count)
        }
        _ => of_text_too(make, name, &value, args),
    }
}

/// More of them, whose value is a text.
fn of_text_too<'a>(
    make: &Maker<'a>,
    name: &str,
    value: &Value<'a>,
    args: Args<'a>,
) -> Outcome<Value<'a>> {
    let whole = value.as_str().unwrap_or_default();
    match name {
        "format" => {
            if args.named.is_empty() {
                return format::percent(make, whole, &make.tuple(args.positional)?);
            }
            let named = methods::dict_of(make, Args { positional: Vec::new(), named: args.named })?;
            format::percent(make, whole, &named)
        }
        "indent" => indent(make, whole, args),
        "wordcount" => {
            let [] = args.bind(name, [])?;
            let is_word = |c: char| c == '_' || c.is_alphanumeric();
            let words = whole.split(|c| !is_word(c)).filter(|word| !word.is_empty());
            Ok(Value::Int(words.count() as i128))
        }
        "truncate" => truncate(make, whole, args),
        "escape" | "e" | "forceescape" => {
            let [] = args.bind(name, [])?;
            if value.is_markup() && name != "forceescape" {
                return Ok(value.clone());
            }
            let mut out = make.buffer()?;
            texts::escape(&mut out, whole)?;
            let (text, _held) = out.into_parts();
            make.markup(&text)
        }
        "urlencode" => {
            let [] = args.bind(name, [])?;
            let mut out = make.buffer()?;
            for byte in whole.bytes() {
                match byte {
                    b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' | b'/' => {
                        out.fill(char::from(byte), 1)?;
                    }
                    _ => out.push(&format!("%{byte:02X}"))?,
                }
            }
            make.built(out)
        }
        _ => Err(Fault::new(format_args!("the filter `{name}` is not supported"))),
    }
}

/// As Jinja2's own: a word begins behind white space, a hyphen or an opening bracket.
fn titled<'a>(make: &Maker<'a>, text: &str) -> Outcome<Value<'a>> {
    let _held = make.0.hold(text.len().saturating_mul(3))?;
    let mut out = String::with_capacity(text.len());
    let mut begins = true;
    for c in text.chars() {
        if begins {
            out.extend(c.to_uppercase())
        } else {
            out.extend(c.to_lowercase())
        }
        begins = texts::is_space(c) || "-({[<".contains(c);
    }
    make.text(&out)
}

fn indent<'a>(make: &Maker<'a>, text: &str, args: Args<'a>) -> Outcome<Value<'a>> {
    let [width, first, blank] = args.bind("indent", ["width", "first", "blank"])?;
    let mut prefix = make.buffer()?;
    match &width {
        Some(Value::Text(text)) => prefix.push(text.as_str())?,
        width => prefix.fill(' ', length(width.as_ref(), "width")?.unwrap_or(4))?,
    }
    let (prefix, _held) = prefix.into_parts();
    let is_set = |value: Option<Value<'a>>| value.is_some_and(|value| value.is_true());
    let (first, blank) = (is_set(first), is_set(blank));
    let mut out = make.buffer()?;
    let mut lines = texts::lines(text);
    // The line that the last line break begins counts as one.
    if lines.last().is_none_or(|(line, next)| line.end != *next) {
        lines.push((text.len()..text.len(), text.len()));
    }
    for (at, (line, _)) in lines.into_iter().enumerate() {
        let line = &text[line];
        if at > 0 {
            out.push("\n")?;
        }
        if (at == 0 && first) || (at > 0 && (blank || !line.is_empty())) {
            out.push(&prefix)?;
        }
        out.push(line)?;
    }
    make.built(out)
}

fn truncate<'a>(make: &Maker<'a>, whole: &str, args: Args<'a>) -> Outcome<Value<'a>> {
    let names = ["length", "killwords", "end", "leeway"];
    let [most, kills, end, leeway] = args.bind("truncate", names)?;
    let most = length(most.as_ref(), "length")?.unwrap_or(255);
    let leeway = length(leeway.as_ref(), "leeway")?.unwrap_or(5);
    let end = text(end.as_ref(), "end")?.unwrap_or("...");
    if whole.chars().count() <= most.saturating_add(leeway) {
        return make.text(whole);
    }
    let kept = most.checked_sub(end.chars().count());
    let kept = kept.ok_or_else(|| Fault::new("truncate: the length is below that of the end"))?;
    let cut = whole.char_indices().nth(kept).map_or(whole.len(), |(at, _)| at);
    let mut head = &whole[..cut];
    if !kills.is_some_and(|kills| kills.is_true()) {
        head = head.rsplit_once(' ').map_or(head, |(words, _)| words);
    }
    let mut out = make.buffer()?;
    out.push(head)?;
    out.push(end)?;
    make.built(out)
}
