//! Calls that come whole before they are converted to JSON: Gemma's and Python's.

use serde_json::{Map, Value};

/// Deepest nesting of a value.
const DEPTH_MAX: usize = 64;

/// Reads values of a text.
struct Reader<'t> {
    rest: &'t str,
    /// The mark on both sides of a text, beside Python's quotes.
    quote: Option<&'t str>,
}

/// `name{key:value,…}` as a name and its arguments.
pub(super) fn gemma(text: &str, quote: &str) -> Option<(String, String)> {
    let text = text.trim().strip_prefix("call:").unwrap_or(text.trim());
    let open = text.find('{')?;
    let mut reader = Reader { rest: &text[open..], quote: Some(quote) };
    let value = reader.value(0)?;
    Some((text[..open].trim().to_owned(), value.to_string()))
}

/// `[name(key=value, …), …]` as names and their arguments.
pub(super) fn pythonic(text: &str) -> Option<Vec<(String, String)>> {
    let text = text.trim();
    let text = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    let mut reader = Reader { rest: text, quote: None };
    let mut calls = Vec::new();
    loop {
        reader.skip(&[',']);
        if reader.rest.is_empty() {
            return Some(calls);
        }
        let open = reader.rest.find('(')?;
        let name = reader.rest[..open].trim().to_owned();
        reader.rest = &reader.rest[open + 1..];
        let mut arguments = Map::new();
        loop {
            reader.skip(&[',']);
            if let Some(rest) = reader.rest.strip_prefix(')') {
                reader.rest = rest;
                break;
            }
            let equals = reader.rest.find('=')?;
            let key = reader.rest[..equals].trim().to_owned();
            reader.rest = &reader.rest[equals + 1..];
            arguments.insert(key, reader.value(0)?);
        }
        calls.push((name, Value::Object(arguments).to_string()));
    }
}

impl Reader<'_> {
    fn skip(&mut self, also: &[char]) {
        self.rest = self.rest.trim_start_matches(|c: char| c.is_whitespace() || also.contains(&c));
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        self.skip(&[]);
        if depth > DEPTH_MAX {
            return None;
        }
        if let Some(text) = self.text() {
            return Some(Value::String(text));
        }
        match self.rest.chars().next()? {
            '[' => self.list(depth),
            '{' => self.object(depth),
            _ => {
                let end = self.rest.find([',', '}', ']', ')']).unwrap_or(self.rest.len());
                let (word, rest) = self.rest.split_at(end);
                self.rest = rest;
                let word = word.trim();
                Some(match word {
                    "True" => Value::Bool(true),
                    "False" => Value::Bool(false),
                    "None" => Value::Null,
                    _ => serde_json::from_str(word).unwrap_or_else(|_| Value::from(word)),
                })
            }
        }
    }

    fn list(&mut self, depth: usize) -> Option<Value> {
        self.rest = &self.rest[1..];
        let mut items = Vec::new();
        loop {
            self.skip(&[',']);
            if let Some(rest) = self.rest.strip_prefix(']') {
                self.rest = rest;
                return Some(Value::Array(items));
            }
            items.push(self.value(depth + 1)?);
        }
    }

    fn object(&mut self, depth: usize) -> Option<Value> {
        self.rest = &self.rest[1..];
        let mut members = Map::new();
        loop {
            self.skip(&[',']);
            if let Some(rest) = self.rest.strip_prefix('}') {
                self.rest = rest;
                return Some(Value::Object(members));
            }
            let key = match self.text() {
                Some(key) => key,
                None => {
                    let end = self.rest.find(':')?;
                    let (key, rest) = self.rest.split_at(end);
                    self.rest = rest;
                    key.trim().to_owned()
                }
            };
            self.skip(&[]);
            self.rest = self.rest.strip_prefix(':')?;
            members.insert(key, self.value(depth + 1)?);
        }
    }

    /// A text between marks, or in the quotes of Python.
    fn text(&mut self) -> Option<String> {
        if let Some(quote) = self.quote
            && let Some(inner) = self.rest.strip_prefix(quote)
        {
            let (text, rest) = inner.split_once(quote)?;
            self.rest = rest;
            return Some(text.to_owned());
        }
        let quote = self.rest.chars().next().filter(|c| matches!(c, '"' | '\''))?;
        let mut out = String::new();
        let mut characters = self.rest[1..].char_indices();
        while let Some((at, c)) = characters.next() {
            match c {
                c if c == quote => {
                    self.rest = &self.rest[1 + at + 1..];
                    return Some(out);
                }
                '\\' => match characters.next()?.1 {
                    'n' => out.push('\n'),
                    't' => out.push('\t'),
                    'r' => out.push('\r'),
                    'u' => {
                        let digits: String = characters.by_ref().take(4).map(|(_, c)| c).collect();
                        out.extend(u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32));
                    }
                    other => out.push(other),
                },
                other => out.push(other),
            }
        }
        None
    }
}
