//! `tojson`: Python's `json.dumps`, with `ensure_ascii` off unless asked for.

use super::call::{Args, length};
use super::meter::Buffer;
use super::show::float_text;
use super::value::{DEPTH_MAX, Key, Maker, Value};
use super::{Fault, Outcome};

/// Widest indentation of a level.
const INDENT_MAX: usize = 64;

struct Writer<'m, 'a> {
    make: &'m Maker<'a>,
    indent: Option<String>,
    between_items: String,
    behind_key: String,
    ascii: bool,
    sorted: bool,
    out: Buffer<'a>,
}

/// `value | tojson(…)`.
pub(super) fn tojson<'a>(
    make: &Maker<'a>,
    value: &Value<'a>,
    args: Args<'a>,
) -> Outcome<Value<'a>> {
    // The order of transformers' own function.
    let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
    let is_indent_first = args.positional.first().is_some_and(|first| {
        // As Jinja2's own filter has it, which templates were written for as well.
        matches!(first, Value::Int(_)) && args.positional.len() == 1
    });
    let [ascii, indent, separators, sorted] = if is_indent_first {
        let [indent] = args.bind("tojson", ["indent"])?;
        [None, indent, None, None]
    } else {
        args.bind("tojson", names)?
    };
    let indent = match &indent {
        None | Some(Value::None) => None,
        Some(Value::Text(text)) if text.as_str().len() <= INDENT_MAX => {
            Some(text.as_str().to_owned())
        }
        other => match length(other.as_ref(), "indent")? {
            Some(spaces) if spaces <= INDENT_MAX => Some(" ".repeat(spaces)),
            _ => return Err(Fault::new(format_args!("tojson: an indent above {INDENT_MAX}"))),
        },
    };
    let (mut between_items, mut behind_key) =
        (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned());
    if let Some(separators) = separators.filter(|separators| !matches!(separators, Value::None)) {
        let pair = make.items(&separators)?;
        match pair.items() {
            [Value::Text(item), Value::Text(key)]
                if item.as_str().len() + key.as_str().len() <= INDENT_MAX =>
            {
                (between_items, behind_key) = (item.as_str().into(), key.as_str().into());
            }
            _ => return Err(Fault::new("tojson: separators are two short texts")),
        }
    }
    let is_set = |value: Option<Value<'a>>| value.is_some_and(|value| value.is_true());
    let (ascii, sorted) = (is_set(ascii), is_set(sorted));
    let out = make.buffer()?;
    let mut writer = Writer { make, indent, between_items, behind_key, ascii, sorted, out };
    writer.value(value, 0)?;
    make.built(writer.out)
}

impl<'a> Writer<'_, 'a> {
    fn value(&mut self, value: &Value<'a>, depth: usize) -> Outcome<()> {
        self.make.0.steps(1)?;
        if depth > usize::from(DEPTH_MAX) {
            return Err(Fault::new("a value is nested too deep"));
        }
        match value {
            Value::None => self.out.push("null"),
            Value::Bool(true) => self.out.push("true"),
            Value::Bool(false) => self.out.push("false"),
            Value::Int(int) => self.out.push(&int.to_string()),
            Value::Float(float) => self.float(*float),
            Value::Text(text) => self.text(text.as_str()),
            Value::List(list) | Value::Tuple(list) => {
                self.out.push("[")?;
                for (at, item) in list.items().iter().enumerate() {
                    self.separate(at == 0, depth + 1)?;
                    self.value(item, depth + 1)?;
                }
                self.close("]", list.items().is_empty(), depth)
            }
            Value::Dict(dict) => {
                let mut pairs: Vec<(&Key<'a>, &Value<'a>)> = dict.map().iter().collect();
                if self.sorted {
                    self.make.0.steps(pairs.len() as u64 * 8)?;
                    let texts = pairs.iter().all(|(key, _)| key.value().as_str().is_some());
                    if !texts {
                        return Err(Fault::new("tojson: only texts can be sorted as keys"));
                    }
                    pairs.sort_by(|(a, _), (b, _)| a.value().as_str().cmp(&b.value().as_str()));
                }
                self.out.push("{")?;
                let empty = pairs.is_empty();
                for (at, (key, value)) in pairs.into_iter().enumerate() {
                    self.separate(at == 0, depth + 1)?;
                    self.key(key)?;
                    let behind_key = std::mem::take(&mut self.behind_key);
                    self.out.push(&behind_key)?;
                    self.behind_key = behind_key;
                    self.value(value, depth + 1)?;
                }
                self.close("}", empty, depth)
            }
            Value::Undefined | Value::Object(_) => {
                let found = value.type_name();
                Err(Fault::new(format_args!("tojson: a value of the type {found} is no JSON")))
            }
        }
    }

    fn float(&mut self, float: f64) -> Outcome<()> {
        self.out.push(&match float {
            _ if float.is_nan() => "NaN".to_owned(),
            f64::INFINITY => "Infinity".to_owned(),
            f64::NEG_INFINITY => "-Infinity".to_owned(),
            _ => float_text(float),
        })
    }

    fn key(&mut self, key: &Key<'a>) -> Outcome<()> {
        match key.value() {
            Value::Text(text) => self.text(text.as_str()),
            Value::None => self.text("null"),
            Value::Bool(value) => self.text(if *value { "true" } else { "false" }),
            Value::Int(int) => self.text(&int.to_string()),
            Value::Float(float) => self.text(&float_text(*float)),
            _ => Err(Fault::new("tojson: a key that JSON does not have")),
        }
    }

    fn text(&mut self, text: &str) -> Outcome<()> {
        self.out.push("\"")?;
        let mut from = 0;
        for (at, c) in text.char_indices() {
            let escaped = match c {
                '"' => "\\\"".to_owned(),
                '\\' => "\\\\".to_owned(),
                '\n' => "\\n".to_owned(),
                '\r' => "\\r".to_owned(),
                '\t' => "\\t".to_owned(),
                '\u{8}' => "\\b".to_owned(),
                '\u{c}' => "\\f".to_owned(),
                '\0'..='\u{1f}' => format!("\\u{:04x}", u32::from(c)),
                '\u{7f}'.. if self.ascii && !c.is_ascii() => {
                    let mut units = [0; 2];
                    c.encode_utf16(&mut units).iter().map(|u| format!("\\u{u:04x}")).collect()
                }
                _ => continue,
            };
            self.out.push(&text[from..at])?;
            self.out.push(&escaped)?;
            from = at + c.len_utf8();
        }
        self.make.0.look(text.len())?;
        self.out.push(&text[from..])?;
        self.out.push("\"")
    }

    fn separate(&mut self, first: bool, depth: usize) -> Outcome<()> {
        if !first {
            let between = std::mem::take(&mut self.between_items);
            self.out.push(&between)?;
            self.between_items = between;
        }
        self.new_line(depth)
    }

    fn close(&mut self, bracket: &str, empty: bool, depth: usize) -> Outcome<()> {
        if !empty {
            self.new_line(depth)?;
        }
        self.out.push(bracket)
    }

    fn new_line(&mut self, depth: usize) -> Outcome<()> {
        let Some(indent) = self.indent.take() else { return Ok(()) };
        self.out.push("\n")?;
        for _ in 0..depth {
            self.out.push(&indent)?;
        }
        self.indent = Some(indent);
        Ok(())
    }
}
