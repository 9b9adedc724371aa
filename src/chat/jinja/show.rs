//! Texts of values: Python's `str` and `repr`.

use super::meter::Buffer;
use super::value::{List, Maker, Object, Value};
use super::{Fault, Outcome};

impl<'a> Maker<'a> {
    /// Writes a value as `str` has it; an undefined one writes nothing.
    pub(super) fn write(&self, out: &mut Buffer<'a>, value: &Value<'a>) -> Outcome<()> {
        match value {
            Value::Undefined => Ok(()),
            Value::Text(text) => out.push(text.as_str()),
            _ => self.represent(out, value),
        }
    }

    /// The text of a value.
    pub(super) fn string(&self, value: &Value<'a>) -> Outcome<Value<'a>> {
        if let Value::Text(_) = value {
            return Ok(value.clone());
        }
        let mut out = self.buffer()?;
        self.write(&mut out, value)?;
        self.built(out)
    }

    /// Writes a value as `repr` has it.
    pub(super) fn represent(&self, out: &mut Buffer<'a>, value: &Value<'a>) -> Outcome<()> {
        self.represent_at(out, value, 0)
    }

    fn represent_at(&self, out: &mut Buffer<'a>, value: &Value<'a>, depth: u16) -> Outcome<()> {
        self.0.steps(1)?;
        if depth > super::value::DEPTH_MAX {
            return Err(Fault::new("a value is nested too deep"));
        }
        match value {
            Value::Undefined => out.push("Undefined"),
            Value::None => out.push("None"),
            Value::Bool(true) => out.push("True"),
            Value::Bool(false) => out.push("False"),
            Value::Int(int) => out.push(&int.to_string()),
            Value::Float(float) => out.push(&float_text(*float)),
            Value::Text(text) => quoted(out, text.as_str()),
            Value::List(list) => {
                out.push("[")?;
                self.represent_all(out, list, depth)?;
                out.push("]")
            }
            Value::Tuple(list) => {
                out.push("(")?;
                self.represent_all(out, list, depth)?;
                out.push(if list.items().len() == 1 { ",)" } else { ")" })
            }
            Value::Dict(dict) => {
                out.push("{")?;
                for (at, (key, value)) in dict.map().iter().enumerate() {
                    out.push(if at > 0 { ", " } else { "" })?;
                    self.represent_at(out, key.value(), depth + 1)?;
                    out.push(": ")?;
                    self.represent_at(out, value, depth + 1)?;
                }
                out.push("}")
            }
            Value::Object(object) => match &**object {
                Object::Namespace(members) => {
                    out.push("<Namespace {")?;
                    for (at, (name, value)) in members.borrow().iter().enumerate() {
                        out.push(if at > 0 { ", " } else { "" })?;
                        quoted(out, name)?;
                        out.push(": ")?;
                        self.represent_at(out, value, depth + 1)?;
                    }
                    out.push("}>")
                }
                Object::Loop(state) => {
                    let (index, length) = (state.index.get() + 1, state.items.items().len());
                    out.push(&format!("<LoopContext {index}/{length}>"))
                }
                Object::Macro(inner, _) => {
                    out.push("<Macro ")?;
                    quoted(out, &inner.name)?;
                    out.push(">")
                }
                _ => out.push("<function>"),
            },
        }
    }

    fn represent_all(&self, out: &mut Buffer<'a>, list: &List<'a>, depth: u16) -> Outcome<()> {
        for (at, item) in list.items().iter().enumerate() {
            out.push(if at > 0 { ", " } else { "" })?;
            self.represent_at(out, item, depth + 1)?;
        }
        Ok(())
    }
}

/// Python's `repr` of a float.
pub(super) fn float_text(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let shortest = format!("{value:e}");
    let (digits, exponent) = shortest.split_once('e').unwrap_or((&shortest, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value == 0.0 || (-4..16).contains(&exponent) {
        let plain = value.to_string();
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// Python's `repr` of a text.
fn quoted(out: &mut Buffer<'_>, text: &str) -> Outcome<()> {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut escaped = String::with_capacity(text.len().min(1 << 20) + 2);
    escaped.push(quote);
    for c in text.chars() {
        match c {
            '\\' => escaped.push_str("\\\\"),
            '\n' => escaped.push_str("\\n"),
            '\r' => escaped.push_str("\\r"),
            '\t' => escaped.push_str("\\t"),
            _ if c == quote => escaped.extend(['\\', c]),
            ' '..='~' => escaped.push(c),
            _ if is_printable(c) => escaped.push(c),
            _ => {
                let code = u32::from(c);
                escaped.push_str(&match code {
                    0..=0xff => format!("\\x{code:02x}"),
                    0x100..=0xffff => format!("\\u{code:04x}"),
                    _ => format!("\\U{code:08x}"),
                });
            }
        }
        // Handed over in pieces: what is written is paid for before much of it is.
        if escaped.len() > 4096 {
            out.push(&escaped)?;
            escaped.clear();
        }
    }
    escaped.push(quote);
    out.push(&escaped)
}

/// True if Python shows the character as it is.
pub(super) fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return (' '..='~').contains(&c);
    }
    // Marks that join the character before them are shown as they are behind one.
    let pair: String = ['a', c].iter().collect();
    !pair.escape_debug().any(|escaped| escaped == '\\')
}
