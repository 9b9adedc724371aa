//! Python's `%` and `str.format`.

use super::call::Args;
use super::meter::Buffer;
use super::show::float_text;
use super::value::{Maker, Value};
use super::{Fault, Outcome};

/// Most digits behind the point.
const PRECISION_MAX: usize = 300;

/// How one value is written.
#[derive(Clone, Debug, Default)]
struct Spec {
    fill: Option<char>,
    /// `<`, `>`, `^` or `=`.
    align: Option<char>,
    /// `+` or a space: what stands before a number that is not negative.
    sign: Option<char>,
    alternate: bool,
    grouping: Option<char>,
    width: usize,
    precision: Option<usize>,
    kind: Option<char>,
}

fn number_at(text: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Outcome<Option<usize>> {
    let mut number = None;
    while let Some(digit) = text.peek().and_then(|c| c.to_digit(10)) {
        let so_far = number.unwrap_or(0usize).checked_mul(10);
        let longer = so_far.and_then(|number| number.checked_add(digit as usize));
        number = Some(longer.ok_or_else(|| Fault::new("a width that is too large"))?);
        text.next();
    }
    Ok(number)
}

/// `text % values`.
pub(super) fn percent<'a>(make: &Maker<'a>, text: &str, values: &Value<'a>) -> Outcome<Value<'a>> {
    make.0.look(text.len())?;
    let list = match values {
        Value::Tuple(list) => list.items().to_vec(),
        other => vec![other.clone()],
    };
    let mut values_left = list.iter();
    let by_name = matches!(values, Value::Dict(_));
    let mut named = false;
    let mut out = make.buffer()?;
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        if c != '%' {
            out.fill(c, 1)?;
            continue;
        }
        if rest.next_if_eq(&'%').is_some() {
            out.push("%")?;
            continue;
        }
        let mut named_value = None;
        if rest.next_if_eq(&'(').is_some() {
            let name: String = rest.by_ref().take_while(|c| *c != ')').collect();
            let Value::Dict(dict) = values else {
                return Err(Fault::new("format requires a mapping"));
            };
            let value = dict.get(&name);
            named_value = Some(value.ok_or_else(|| Fault::new(format_args!("no key `{name}`")))?);
            named = true;
        }
        let (spec, kind) = percent_spec(&mut rest, &mut values_left)?;
        let value = match named_value {
            Some(value) => value,
            None => values_left.next().ok_or_else(|| Fault::new("not enough arguments for `%`"))?,
        };
        percent_one(make, &mut out, &spec, kind, value)?;
    }
    if !named && !by_name && values_left.next().is_some() {
        return Err(Fault::new("not all arguments converted by `%`"));
    }
    make.built(out)
}

fn percent_spec<'v, 'a: 'v>(
    rest: &mut std::iter::Peekable<std::str::Chars<'_>>,
    values: &mut impl Iterator<Item = &'v Value<'a>>,
) -> Outcome<(Spec, char)> {
    let mut spec = Spec::default();
    let mut left = false;
    while let Some(flag) = rest.next_if(|c| "#0- +".contains(*c)) {
        match flag {
            '#' => spec.alternate = true,
            '0' => (spec.fill, spec.align) = (Some('0'), Some('=')),
            '-' => left = true,
            ' ' if spec.sign.is_some() => {}
            sign => spec.sign = Some(sign),
        }
    }
    let star = |values: &mut dyn Iterator<Item = &'v Value<'a>>| {
        let width = values.next().and_then(Value::as_index);
        width.ok_or_else(|| Fault::new("`*` wants an integer"))
    };
    if rest.next_if_eq(&'*').is_some() {
        let width = star(values)?;
        left |= width < 0;
        spec.width = usize::try_from(width.unsigned_abs()).map_err(|_| Fault::Memory)?;
    } else {
        spec.width = number_at(rest)?.unwrap_or(0);
    }
    if rest.next_if_eq(&'.').is_some() {
        spec.precision = Some(if rest.next_if_eq(&'*').is_some() {
            usize::try_from(star(values)?.max(0)).map_err(|_| Fault::Memory)?
        } else {
            number_at(rest)?.unwrap_or(0)
        });
    }
    while rest.next_if(|c| "hlL".contains(*c)).is_some() {}
    if left {
        (spec.fill, spec.align) = (None, Some('<'));
    }
    let kind = rest.next().ok_or_else(|| Fault::new("incomplete format"))?;
    Ok((spec, kind))
}

fn percent_one<'a>(
    make: &Maker<'a>,
    out: &mut Buffer<'a>,
    spec: &Spec,
    kind: char,
    value: &Value<'a>,
) -> Outcome<()> {
    let mut spec = spec.clone();
    match kind {
        's' | 'r' | 'a' => {
            let mut text = make.buffer()?;
            if kind == 's' {
                make.write(&mut text, value)?
            } else {
                make.represent(&mut text, value)?
            }
            spec.fill = None;
            spec.align = Some(spec.align.filter(|align| *align == '<').unwrap_or('>'));
            let text = make.built(text)?;
            aligned_text(out, &spec, text.as_str().unwrap_or_default())
        }
        'c' => {
            let character = match (value.as_str(), value.as_index()) {
                (Some(text), _) if text.chars().count() == 1 => text.chars().next(),
                (None, Some(code)) => u32::try_from(code).ok().and_then(char::from_u32),
                _ => None,
            };
            let character = character.ok_or_else(|| Fault::new("%c requires a character"))?;
            spec.align = Some(spec.align.filter(|align| *align == '<').unwrap_or('>'));
            spec.fill = None;
            aligned_text(out, &spec, character.encode_utf8(&mut [0; 4]))
        }
        'd' | 'i' | 'u' => {
            let Some(number) = value.as_float() else {
                return Err(Fault::new("%d: a number is required"));
            };
            let number = value.as_index().unwrap_or(number.trunc() as i128);
            spec.kind = Some('d');
            write_number(out, &spec, &Value::Int(number))
        }
        'x' | 'X' | 'o' | 'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
            spec.kind = Some(kind);
            write_number(out, &spec, value)
        }
        _ => Err(Fault::new(format_args!("unsupported format character {kind:?}"))),
    }
}

/// `text.format(…)`.
pub(super) fn format<'a>(make: &Maker<'a>, text: &str, args: &Args<'a>) -> Outcome<Value<'a>> {
    make.0.look(text.len())?;
    let mut out = make.buffer()?;
    let mut automatic = 0;
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        out.push(&rest[..at])?;
        let brace = &rest[at..=at];
        rest = &rest[at + 1..];
        if let Some(behind) = rest.strip_prefix(brace) {
            out.push(brace)?;
            rest = behind;
        } else if brace == "}" {
            return Err(Fault::new("single `}` in a format"));
        } else {
            let end = field_end(rest)?;
            field(make, &mut out, &rest[..end], args, &mut automatic)?;
            rest = &rest[end + 1..];
        }
    }
    out.push(rest)?;
    make.built(out)
}

fn field_end(rest: &str) -> Outcome<usize> {
    let mut open = 0;
    for (at, byte) in rest.bytes().enumerate() {
        match byte {
            b'{' => open += 1,
            b'}' if open == 0 => return Ok(at),
            b'}' => open -= 1,
            _ => {}
        }
    }
    Err(Fault::new("`{` without `}` in a format"))
}

fn field<'a>(
    make: &Maker<'a>,
    out: &mut Buffer<'a>,
    field: &str,
    args: &Args<'a>,
    automatic: &mut usize,
) -> Outcome<()> {
    let (name, spec) = field.split_once(':').unwrap_or((field, ""));
    let (name, conversion) = match name.split_once('!') {
        Some((name, conversion)) => (name, Some(conversion)),
        None => (name, None),
    };
    let mut value = argument(make, name, args, automatic)?;
    match conversion {
        None => {}
        Some("s") => value = make.string(&value)?,
        Some("r" | "a") => {
            let mut text = make.buffer()?;
            make.represent(&mut text, &value)?;
            value = make.built(text)?;
        }
        Some(_) => return Err(Fault::new("unknown conversion in a format")),
    }
    // A width may come from an argument.
    let mut written = String::new();
    let mut left = spec;
    while let Some(at) = left.find('{') {
        written.push_str(&left[..at]);
        let end = field_end(&left[at + 1..])?;
        let inner = argument(make, &left[at + 1..][..end], args, automatic)?;
        let text = make.string(&inner)?;
        let text = text.as_str().unwrap_or_default();
        if text.len() > 64 {
            return Err(Fault::new("a width that is too long"));
        }
        written.push_str(text);
        left = &left[at + 1 + end + 1..];
    }
    written.push_str(left);
    let spec = parsed_spec(&written)?;
    let is_number = value.as_float().is_some() && !matches!(value, Value::Bool(_));
    if is_number || (matches!(value, Value::Bool(_)) && spec.kind.is_some()) {
        return write_number(out, &spec, &value);
    }
    if !matches!(spec.kind, None | Some('s')) || spec.align == Some('=') || spec.sign.is_some() {
        return Err(Fault::new(format_args!("a format that is none of {}", value.type_name())));
    }
    if !written.is_empty() && !matches!(value, Value::Text(_) | Value::Bool(_)) {
        return Err(Fault::new(format_args!("unsupported format for {}", value.type_name())));
    }
    let text = make.string(&value)?;
    aligned_text(out, &spec, text.as_str().unwrap_or_default())
}

/// The argument that a field names: `0`, `name`, `name[key]`, or nothing for the next.
fn argument<'a>(
    make: &Maker<'a>,
    name: &str,
    args: &Args<'a>,
    automatic: &mut usize,
) -> Outcome<Value<'a>> {
    let head = name.find(['.', '[']).unwrap_or(name.len());
    let (first, mut rest) = name.split_at(head);
    let missing = || Fault::new(format_args!("no argument `{first}` for a format"));
    let found = if first.is_empty() {
        *automatic += 1;
        args.positional.get(*automatic - 1)
    } else if let Ok(index) = first.parse::<usize>() {
        args.positional.get(index)
    } else {
        args.named.iter().find(|(known, _)| known == first).map(|(_, value)| value)
    };
    let mut value = found.cloned().ok_or_else(missing)?;
    while !rest.is_empty() {
        let inner = rest.strip_prefix('[').and_then(|inner| inner.split_once(']'));
        let Some((key, behind)) = inner else {
            return Err(Fault::new("attributes in a format are not supported"));
        };
        let next = match (&value, key.parse::<i128>()) {
            (Value::Dict(dict), Err(_)) => dict.get(key).cloned(),
            (Value::Dict(dict), Ok(int)) => dict.map().get(&make.key(&Value::Int(int))?).cloned(),
            (Value::List(list) | Value::Tuple(list), Ok(int)) => {
                usize::try_from(int).ok().and_then(|at| list.items().get(at)).cloned()
            }
            _ => None,
        };
        value = next.ok_or_else(missing)?;
        rest = behind;
    }
    Ok(value)
}

fn parsed_spec(text: &str) -> Outcome<Spec> {
    let mut spec = Spec::default();
    let mut rest = text.chars().peekable();
    let is_align = |c: &char| "<>^=".contains(*c);
    if text.chars().nth(1).as_ref().is_some_and(is_align) {
        spec.fill = rest.next();
        spec.align = rest.next();
    } else {
        spec.align = rest.next_if(is_align);
    }
    spec.sign = rest.next_if(|c| "+- ".contains(*c));
    spec.alternate = rest.next_if_eq(&'#').is_some();
    if rest.next_if_eq(&'0').is_some() && spec.align.is_none() {
        (spec.fill, spec.align) = (Some('0'), Some('='));
    }
    spec.width = number_at(&mut rest)?.unwrap_or(0);
    spec.grouping = rest.next_if(|c| ",_".contains(*c));
    if rest.next_if_eq(&'.').is_some() {
        let precision = number_at(&mut rest)?;
        spec.precision = Some(precision.ok_or_else(|| Fault::new("format without a precision"))?);
    }
    spec.kind = rest.next();
    if rest.next().is_some() || spec.kind.is_some_and(|kind| !"bcdeEfFgGnosxX%".contains(kind)) {
        return Err(Fault::new(format_args!("invalid format specifier")));
    }
    Ok(spec)
}

/// Writes a text, cut at the precision and filled up to the width.
fn aligned_text(out: &mut Buffer<'_>, spec: &Spec, text: &str) -> Outcome<()> {
    let cut = spec.precision.and_then(|most| text.char_indices().nth(most));
    let text = cut.map_or(text, |(at, _)| &text[..at]);
    aligned(out, spec, "", text, '<')
}

fn aligned(
    out: &mut Buffer<'_>,
    spec: &Spec,
    sign: &str,
    text: &str,
    default: char,
) -> Outcome<()> {
    let missing = spec.width.saturating_sub(sign.len() + text.chars().count());
    let fill = spec.fill.unwrap_or(' ');
    let (before, inside, behind) = match spec.align.unwrap_or(default) {
        '<' => (0, 0, missing),
        '^' => (missing / 2, 0, missing - missing / 2),
        '=' => (0, missing, 0),
        _ => (missing, 0, 0),
    };
    out.fill(fill, before)?;
    out.push(sign)?;
    out.fill(fill, inside)?;
    out.push(text)?;
    out.fill(fill, behind)
}

/// Writes a number.
fn write_number(out: &mut Buffer<'_>, spec: &Spec, value: &Value<'_>) -> Outcome<()> {
    let precision = spec.precision.unwrap_or(6);
    if precision > PRECISION_MAX {
        return Err(Fault::new(format_args!("a precision above {PRECISION_MAX}")));
    }
    let wrong = || Fault::new(format_args!("a number is required, not {}", value.type_name()));
    let whole = |value: &Value<'_>| value.as_index().ok_or_else(wrong);
    let (negative, mut digits) = match spec.kind {
        Some('d' | 'n') | None if value.as_index().is_some() => {
            let number = whole(value)?;
            (number < 0, number.unsigned_abs().to_string())
        }
        Some(kind @ ('x' | 'X' | 'o' | 'b')) => {
            let number = whole(value)?;
            let (size, prefix) = (number.unsigned_abs(), if spec.alternate { "0" } else { "" });
            let mark = if spec.alternate { kind.to_string() } else { String::new() };
            let text = match kind {
                'x' => format!("{size:x}"),
                'X' => format!("{size:X}"),
                'o' => format!("{size:o}"),
                _ => format!("{size:b}"),
            };
            (number < 0, format!("{prefix}{mark}{text}"))
        }
        Some('c') => {
            let character = u32::try_from(whole(value)?).ok().and_then(char::from_u32);
            (false, character.ok_or_else(wrong)?.to_string())
        }
        kind => {
            let number = value.as_float().ok_or_else(wrong)?;
            let negative = number.is_sign_negative() && !number.is_nan();
            (negative, float_digits(kind, number.abs(), spec)?)
        }
    };
    if let Some(separator) = spec.grouping {
        digits = grouped(&digits, separator);
    }
    let sign = match (negative, spec.sign) {
        (true, _) => "-",
        (false, Some('+')) => "+",
        (false, Some(' ')) => " ",
        _ => "",
    };
    aligned(out, spec, sign, &digits, '>')
}

fn float_digits(kind: Option<char>, number: f64, spec: &Spec) -> Outcome<String> {
    let precision = spec.precision.unwrap_or(6);
    if !number.is_finite() {
        return Ok(if number.is_nan() { "nan" } else { "inf" }.to_owned());
    }
    Ok(match kind {
        Some('f' | 'F') => format!("{number:.precision$}"),
        Some('%') => format!("{:.precision$}%", number * 100.0),
        Some('e') => exponential(number, precision),
        Some('E') => exponential(number, precision).to_uppercase(),
        Some('g' | 'G' | 'n') => general(number, precision, spec.alternate, kind == Some('G')),
        None if spec.precision.is_none() => float_text(number),
        None => {
            let text = general(number, precision, spec.alternate, false);
            if text.contains(['.', 'e']) { text } else { text + ".0" }
        }
        _ => return Err(Fault::new("a format that is none of float")),
    })
}

fn exponential(number: f64, precision: usize) -> String {
    let text = format!("{number:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

fn general(number: f64, precision: usize, keep_zeros: bool, upper: bool) -> String {
    let precision = precision.max(1);
    let scientific = exponential(number, precision - 1);
    let exponent = scientific.split_once('e').and_then(|(_, e)| e.parse::<i32>().ok());
    let exponent = exponent.unwrap_or(0);
    let trimmed = |text: &str| {
        if keep_zeros || !text.contains('.') {
            return text.to_owned();
        }
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    let text = if exponent < -4 || exponent >= precision as i32 {
        let (digits, e) = scientific.split_once('e').unwrap_or((&scientific, "+00"));
        format!("{}e{e}", trimmed(digits))
    } else {
        let behind = (precision as i32 - 1 - exponent).max(0) as usize;
        trimmed(&format!("{number:.behind$}"))
    };
    if upper { text.to_uppercase() } else { text }
}

/// Digits before the point in groups of three.
fn grouped(digits: &str, separator: char) -> String {
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let (whole, rest) = digits.split_at(end);
    let mut out = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at) % 3 == 0 {
            out.push(separator);
        }
        out.push(digit);
    }
    out + rest
}
