//! Work on texts, with Python's meaning. Callers have paid for one look at the text.

use std::ops::Range;

use super::meter::{Buffer, VALUE_BYTES};
use super::show::is_printable;
use super::value::{Maker, Value};
use super::{Fault, Outcome, ops};

/// True for what Python's `str.split` and `strip` take for white space.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// A text without the characters at its ends.
pub(super) fn stripped<'t>(
    make: &Maker<'_>,
    text: &'t str,
    name: &str,
    chars: Option<&str>,
) -> Outcome<&'t str> {
    if let Some(chars) = chars {
        make.0.steps((text.len() as u64).saturating_mul(chars.len() as u64) / 64)?;
    }
    let strips = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    Ok(match name {
        "lstrip" => text.trim_start_matches(strips),
        "rstrip" => text.trim_end_matches(strips),
        _ => text.trim_matches(strips),
    })
}

/// The parts of a text; at most `most` cuts, from the end if `from_end`.
pub(super) fn split<'a>(
    make: &Maker<'a>,
    text: &str,
    separator: Option<&str>,
    most: usize,
    from_end: bool,
) -> Outcome<Value<'a>> {
    if separator == Some("") {
        return Err(Fault::new("empty separator"));
    }
    let mut parts: Vec<Value<'a>> = Vec::new();
    let mut held = make.0.hold(0)?;
    let mut rest = if separator.is_none() { trimmed(text, from_end) } else { text };
    loop {
        let cut = if separator.is_none() && rest.is_empty() {
            break;
        } else if parts.len() == most {
            None
        } else {
            cut_of(rest, separator, from_end)
        };
        held.grow(VALUE_BYTES)?;
        let Some(cut) = cut else {
            parts.push(make.text(rest)?);
            break;
        };
        let (part, next) = if from_end {
            (&rest[cut.end..], &rest[..cut.start])
        } else {
            (&rest[..cut.start], &rest[cut.end..])
        };
        parts.push(make.text(part)?);
        rest = if separator.is_none() { trimmed(next, from_end) } else { next };
    }
    if from_end {
        parts.reverse();
    }
    make.list(parts)
}

fn trimmed(text: &str, from_end: bool) -> &str {
    if from_end { text.trim_end_matches(is_space) } else { text.trim_start_matches(is_space) }
}

fn cut_of(text: &str, separator: Option<&str>, from_end: bool) -> Option<Range<usize>> {
    match separator {
        Some(separator) => {
            let at = if from_end { text.rfind(separator) } else { text.find(separator) }?;
            Some(at..at + separator.len())
        }
        None if from_end => {
            let end = text.rfind(is_space)?;
            let end = end + text[end..].chars().next().map_or(0, char::len_utf8);
            Some(text[..end].trim_end_matches(is_space).len()..end)
        }
        None => {
            let start = text.find(is_space)?;
            let behind = text[start..].trim_start_matches(is_space);
            Some(start..text.len() - behind.len())
        }
    }
}

/// The lines of a text: where each is, and where the line behind it begins.
pub(super) fn lines(text: &str) -> Vec<(Range<usize>, usize)> {
    let mut all = Vec::new();
    let mut start = 0;
    let mut characters = text.char_indices().peekable();
    while let Some((at, c)) = characters.next() {
        let breaks = matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'
                ..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        );
        if !breaks {
            continue;
        }
        let mut end = at + c.len_utf8();
        if c == '\r' && characters.next_if(|(_, next)| *next == '\n').is_some() {
            end += 1;
        }
        all.push((start..at, end));
        start = end;
    }
    if start < text.len() {
        all.push((start..text.len(), text.len()));
    }
    all
}

/// `partition` and `rpartition`.
pub(super) fn partition<'a>(
    make: &Maker<'a>,
    text: &str,
    separator: Option<&str>,
    from_end: bool,
) -> Outcome<Value<'a>> {
    let separator = separator.unwrap_or_default();
    if separator.is_empty() {
        return Err(Fault::new("empty separator"));
    }
    let parts = match cut_of(text, Some(separator), from_end) {
        Some(cut) => [&text[..cut.start], separator, &text[cut.end..]],
        None if from_end => ["", "", text],
        None => [text, "", ""],
    };
    let parts: Outcome<Vec<_>> = parts.iter().map(|part| make.text(part)).collect();
    make.tuple(parts?)
}

/// Writes a text with the characters of HTML escaped.
pub(super) fn escape(out: &mut Buffer<'_>, text: &str) -> Outcome<()> {
    for c in text.chars() {
        match c {
            '&' => out.push("&amp;")?,
            '<' => out.push("&lt;")?,
            '>' => out.push("&gt;")?,
            '\'' => out.push("&#39;")?,
            '"' => out.push("&#34;")?,
            _ => out.fill(c, 1)?,
        }
    }
    Ok(())
}

/// Values as one text, with a separator between them.
pub(super) fn join<'a>(
    make: &Maker<'a>,
    items: &[Value<'a>],
    separator: &str,
) -> Outcome<Value<'a>> {
    let mut out = make.buffer()?;
    for (at, item) in items.iter().enumerate() {
        make.0.steps(1)?;
        if at > 0 {
            out.push(separator)?;
        }
        make.write(&mut out, item)?;
    }
    make.built(out)
}

/// A text with a part of it replaced.
pub(super) fn replace<'a>(
    make: &Maker<'a>,
    text: &str,
    old: &str,
    new: &str,
    count: usize,
) -> Outcome<Value<'a>> {
    let mut out = make.buffer()?;
    let mut from = 0;
    for (at, found) in text.match_indices(old).take(count) {
        make.0.steps(1)?;
        out.push(&text[from..at])?;
        out.push(new)?;
        from = at + found.len();
    }
    out.push(&text[from..])?;
    make.built(out)
}

/// `ljust`, `rjust`, `center` and `zfill`.
pub(super) fn justified<'a>(
    make: &Maker<'a>,
    text: &str,
    name: &str,
    width: usize,
    fill: Option<&str>,
) -> Outcome<Value<'a>> {
    let fill = fill.unwrap_or(if name == "zfill" { "0" } else { " " });
    let mut characters = fill.chars();
    let (Some(fill), None) = (characters.next(), characters.next()) else {
        return Err(Fault::new("the fill character must be exactly one character long"));
    };
    let missing = width.saturating_sub(text.chars().count());
    let before = match name {
        "ljust" => 0,
        // As Python does: the odd one goes to the left where the width is odd.
        "center" => missing / 2 + (missing & width & 1),
        _ => missing,
    };
    let mut out = make.buffer()?;
    let signed = name == "zfill" && text.starts_with(['+', '-']);
    let (sign, rest) = text.split_at(usize::from(signed));
    out.push(sign)?;
    out.fill(fill, before)?;
    out.push(rest)?;
    out.fill(fill, missing - before)?;
    make.built(out)
}

/// `count`, `find`, `index`, `startswith` and their like, within the slice of `limits`.
pub(super) fn search<'a>(
    make: &Maker<'a>,
    value: &Value<'a>,
    name: &str,
    part: &Value<'a>,
    limits: [Option<i128>; 3],
) -> Outcome<Value<'a>> {
    if let (Value::Tuple(parts), "startswith" | "endswith") = (part, name) {
        for part in parts.items() {
            if search(make, value, name, part, limits)?.is_true() {
                return Ok(Value::Bool(true));
            }
        }
        return Ok(Value::Bool(false));
    }
    let whole = ops::slice(make, value, limits)?;
    let whole = whole.as_str().unwrap_or_default();
    make.0.look(whole.len())?;
    let Some(part) = part.as_str() else {
        return Err(Fault::new(format_args!("{name}: wanted a text, found {}", part.type_name())));
    };
    let found = match name {
        "startswith" => return Ok(Value::Bool(whole.starts_with(part))),
        "endswith" => return Ok(Value::Bool(whole.ends_with(part))),
        "count" => return Ok(Value::Int(whole.matches(part).count() as i128)),
        "find" | "index" => whole.find(part),
        _ => whole.rfind(part),
    };
    let Some(at) = found else {
        return if name.ends_with("index") {
            Err(Fault::new("substring not found"))
        } else {
            Ok(Value::Int(-1))
        };
    };
    let length = match value {
        Value::Text(text) => text.characters(),
        _ => 0,
    };
    let start = match limits[0].unwrap_or(0) {
        start if start < 0 => start.saturating_add(length as i128).max(0),
        start => start,
    };
    Ok(Value::Int(whole[..at].chars().count() as i128 + start))
}

/// A text with its tabs as spaces.
pub(super) fn expand_tabs<'a>(make: &Maker<'a>, text: &str, size: usize) -> Outcome<Value<'a>> {
    let mut out = make.buffer()?;
    let mut column = 0usize;
    for c in text.chars() {
        match c {
            '\t' => {
                let spaces = column.checked_rem(size).map_or(0, |over| size - over);
                out.fill(' ', spaces)?;
                column = column.saturating_add(spaces);
            }
            _ => {
                out.fill(c, 1)?;
                column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
            }
        }
    }
    make.built(out)
}

/// `isalpha` and its like.
pub(super) fn is(text: &str, name: &str) -> bool {
    let all = |holds: fn(char) -> bool| !text.is_empty() && text.chars().all(holds);
    let cased = |wanted: fn(char) -> bool, other: fn(char) -> bool| {
        text.chars().any(wanted) && !text.chars().any(other)
    };
    match name {
        "isascii" => text.is_ascii(),
        "isprintable" => text.chars().all(is_printable),
        "isalnum" => all(char::is_alphanumeric),
        "isalpha" => all(char::is_alphabetic),
        "isspace" => all(is_space),
        "isdigit" | "isdecimal" => all(|c| c.is_ascii_digit() || (!c.is_ascii() && is_decimal(c))),
        "isnumeric" => all(char::is_numeric),
        "islower" => cased(char::is_lowercase, char::is_uppercase),
        "isupper" => cased(char::is_uppercase, char::is_lowercase),
        "isidentifier" => {
            let mut chars = text.chars();
            let first = chars.next().is_some_and(|c| c == '_' || c.is_alphabetic());
            first && chars.all(|c| c == '_' || c.is_alphanumeric())
        }
        _ => is_title(text),
    }
}

/// True for the decimal digits of other scripts, which come in runs of ten.
fn is_decimal(c: char) -> bool {
    const ZEROS: [u32; 14] = [
        0x660, 0x6f0, 0x7c0, 0x966, 0x9e6, 0xa66, 0xae6, 0xb66, 0xbe6, 0xc66, 0xce6, 0xd66, 0xe50,
        0xff10,
    ];
    ZEROS.iter().any(|zero| (*zero..zero + 10).contains(&u32::from(c)))
}

fn is_title(text: &str) -> bool {
    let (mut within, mut any) = (false, false);
    for c in text.chars() {
        let (upper, lower) = (c.is_uppercase(), c.is_lowercase());
        if (upper && within) || (lower && !within) {
            return false;
        }
        within = upper || lower;
        any |= within;
    }
    any
}

/// `upper`, `title` and their like.
pub(super) fn cased<'a>(make: &Maker<'a>, text: &str, name: &str) -> Outcome<Value<'a>> {
    // Some letters grow threefold when their case changes.
    let _held = make.0.hold(text.len().saturating_mul(3))?;
    let changed = match name {
        "upper" => text.to_uppercase(),
        "lower" | "casefold" => text.to_lowercase(),
        "capitalize" => {
            let mut characters = text.chars();
            let first: String = characters.by_ref().take(1).flat_map(char::to_uppercase).collect();
            first + &characters.as_str().to_lowercase()
        }
        "swapcase" => text
            .chars()
            .map(|c| {
                let other: String = if c.is_uppercase() {
                    c.to_lowercase().collect()
                } else {
                    c.to_uppercase().collect()
                };
                other
            })
            .collect(),
        _ => {
            let mut within = false;
            let mut out = String::with_capacity(text.len());
            for c in text.chars() {
                if within {
                    out.extend(c.to_lowercase())
                } else {
                    out.extend(c.to_uppercase())
                }
                within = c.is_uppercase() || c.is_lowercase();
            }
            out
        }
    };
    make.text(&changed)
}
