//! Values of a template. None can be changed but the members of a namespace.

use std::cell::{Cell, RefCell};
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use indexmap::{Equivalent, IndexMap};
use serde_json::Value as Json;

use super::ast;
use super::eval::Scope;
use super::meter::{Buffer, Held, Meter, VALUE_BYTES};
use super::{Fault, Outcome};

/// Deepest nesting of a value.
pub(super) const DEPTH_MAX: u16 = 200;

/// Bytes of an object; they are not given back before the rendering ends.
const OBJECT_BYTES: usize = 256;

/// A value.
#[derive(Clone, Debug)]
pub(super) enum Value<'a> {
    Undefined,
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(Text<'a>),
    List(List<'a>),
    Tuple(List<'a>),
    Dict(Dict<'a>),
    Object(Rc<Object<'a>>),
}

/// A text that is shared.
#[derive(Clone, Debug)]
pub(super) struct Text<'a>(Rc<TextInner<'a>>);

#[derive(Debug)]
struct TextInner<'a> {
    text: Box<str>,
    characters: usize,
    /// True if it counts as HTML: what is added to it is escaped.
    markup: bool,
    _held: Held<'a>,
}

impl Text<'_> {
    pub(super) fn as_str(&self) -> &str {
        &self.0.text
    }

    /// Number of characters.
    pub(super) fn characters(&self) -> usize {
        self.0.characters
    }

    /// True if each character is a byte.
    pub(super) fn is_ascii(&self) -> bool {
        self.0.characters == self.0.text.len()
    }
}

/// A list that is shared.
#[derive(Clone, Debug)]
pub(super) struct List<'a>(Rc<ListInner<'a>>);

#[derive(Debug)]
struct ListInner<'a> {
    items: Vec<Value<'a>>,
    depth: u16,
    _held: Held<'a>,
}

impl<'a> List<'a> {
    pub(super) fn items(&self) -> &[Value<'a>] {
        &self.0.items
    }
}

/// A dictionary that is shared.
#[derive(Clone, Debug)]
pub(super) struct Dict<'a>(Rc<DictInner<'a>>);

#[derive(Debug)]
struct DictInner<'a> {
    map: IndexMap<Key<'a>, Value<'a>>,
    depth: u16,
    _held: Held<'a>,
}

impl<'a> Dict<'a> {
    pub(super) fn map(&self) -> &IndexMap<Key<'a>, Value<'a>> {
        &self.0.map
    }

    pub(super) fn get(&self, name: &str) -> Option<&Value<'a>> {
        self.0.map.get(&ByText(name))
    }
}

/// A value that can be a key: hashed and compared as in Python, where 1, 1.0 and true are one.
#[derive(Clone, Debug)]
pub(super) struct Key<'a>(Value<'a>);

impl<'a> Key<'a> {
    pub(super) fn new(meter: &Meter<'a>, value: &Value<'a>) -> Outcome<Self> {
        match value {
            Value::List(_) | Value::Tuple(_) | Value::Dict(_) | Value::Object(_) => {
                Err(Fault::new(format_args!("unhashable type: {}", value.type_name())))
            }
            Value::Undefined => Err(Fault::new("an undefined value as a key")),
            Value::Text(text) => {
                meter.look(text.as_str().len())?;
                Ok(Self(value.clone()))
            }
            _ => Ok(Self(value.clone())),
        }
    }

    pub(super) fn value(&self) -> &Value<'a> {
        &self.0
    }
}

impl PartialEq for Key<'_> {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Value::Text(a), Value::Text(b)) => a.as_str() == b.as_str(),
            (Value::None, Value::None) => true,
            (a, b) => match (a.as_int(), b.as_int()) {
                (Some(a), Some(b)) => a == b,
                _ => matches!((a, b), (Value::Float(a), Value::Float(b)) if a == b),
            },
        }
    }
}

impl Eq for Key<'_> {}

impl Hash for Key<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match &self.0 {
            Value::Text(text) => text.as_str().hash(state),
            Value::None => 1u8.hash(state),
            other => match other.as_int() {
                Some(int) => int.hash(state),
                None => other.as_float().unwrap_or_default().to_bits().hash(state),
            },
        }
    }
}

/// A text to look up.
#[derive(Hash)]
struct ByText<'t>(&'t str);

impl<'a> Equivalent<Key<'a>> for ByText<'_> {
    fn equivalent(&self, key: &Key<'a>) -> bool {
        matches!(&key.0, Value::Text(text) if text.as_str() == self.0)
    }
}

/// A value with behaviour.
#[derive(Debug)]
pub(super) enum Object<'a> {
    Namespace(RefCell<IndexMap<String, Value<'a>>>),
    Loop(Loop<'a>),
    Macro(&'a ast::Macro, Rc<Scope<'a>>),
    /// A method and the value it belongs to.
    Method(Value<'a>, String),
    Function(Function),
    Cycler(List<'a>, Cell<usize>),
    Joiner(Text<'a>, Cell<bool>),
    /// The `cycle` or `changed` of a loop.
    LoopMethod(Rc<Object<'a>>, &'static str),
}

/// A function that every template has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    Range,
    Dict,
    Namespace,
    Cycler,
    Joiner,
    RaiseException,
    StrftimeNow,
}

/// A loop as its body sees it.
#[derive(Debug)]
pub(super) struct Loop<'a> {
    pub(super) items: List<'a>,
    pub(super) index: Cell<usize>,
    pub(super) depth: usize,
    /// The loop that `loop(…)` runs again, and the scope around it.
    pub(super) again: Option<(&'a ast::For, Rc<Scope<'a>>)>,
    /// The text of what `changed` was last given.
    pub(super) changed: RefCell<Option<String>>,
}

impl<'a> Value<'a> {
    /// True or false as Python has it.
    pub(super) fn is_true(&self) -> bool {
        match self {
            Self::Undefined | Self::None => false,
            Self::Bool(value) => *value,
            Self::Int(value) => *value != 0,
            Self::Float(value) => *value != 0.0,
            Self::Text(text) => !text.as_str().is_empty(),
            Self::List(list) | Self::Tuple(list) => !list.items().is_empty(),
            Self::Dict(dict) => !dict.map().is_empty(),
            Self::Object(_) => true,
        }
    }

    pub(super) fn is_markup(&self) -> bool {
        matches!(self, Self::Text(text) if text.0.markup)
    }

    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Undefined => "undefined",
            Self::None => "NoneType",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Float(_) => "float",
            Self::Text(_) => "str",
            Self::List(_) => "list",
            Self::Tuple(_) => "tuple",
            Self::Dict(_) => "dict",
            Self::Object(object) => match **object {
                Object::Namespace(_) => "namespace",
                Object::Loop(_) => "loop",
                Object::Macro(..) => "macro",
                _ => "function",
            },
        }
    }

    pub(super) fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text.as_str()),
            _ => None,
        }
    }

    /// The value of an int or a bool, or of a float that is whole.
    pub(super) fn as_int(&self) -> Option<i128> {
        match self {
            Self::Bool(value) => Some(i128::from(*value)),
            Self::Int(value) => Some(*value),
            Self::Float(value) if value.fract() == 0.0 && value.abs() < 1e15 => {
                Some(*value as i128)
            }
            _ => None,
        }
    }

    /// The value of an int or a bool.
    pub(super) fn as_index(&self) -> Option<i128> {
        match self {
            Self::Bool(_) | Self::Int(_) => self.as_int(),
            _ => None,
        }
    }

    pub(super) fn as_float(&self) -> Option<f64> {
        match self {
            Self::Bool(value) => Some(f64::from(u8::from(*value))),
            Self::Int(value) => Some(*value as f64),
            Self::Float(value) => Some(*value),
            _ => None,
        }
    }

    fn depth(&self) -> u16 {
        match self {
            Self::List(list) | Self::Tuple(list) => list.0.depth,
            Self::Dict(dict) => dict.0.depth,
            Self::Object(object) => match &**object {
                Object::Method(value, _) => value.depth() + 1,
                Object::Loop(inner) => inner.items.0.depth + 1,
                Object::LoopMethod(..) => DEPTH_MAX / 2,
                Object::Cycler(list, _) => list.0.depth + 1,
                _ => 1,
            },
            _ => 0,
        }
    }

    fn deeper(&self) -> Outcome<u16> {
        let depth = self.depth() + 1;
        if depth > DEPTH_MAX { Err(Fault::new("a value is nested too deep")) } else { Ok(depth) }
    }
}

/// Makes values, and pays for them.
#[derive(Clone, Debug)]
pub(super) struct Maker<'a>(pub(super) Rc<Meter<'a>>);

impl<'a> Maker<'a> {
    pub(super) fn text(&self, text: &str) -> Outcome<Value<'a>> {
        let held = self.0.hold(text.len() + VALUE_BYTES)?;
        Ok(text_of(text.into(), false, held))
    }

    /// The same text as HTML.
    pub(super) fn markup(&self, text: &str) -> Outcome<Value<'a>> {
        let held = self.0.hold(text.len() + VALUE_BYTES)?;
        Ok(text_of(text.into(), true, held))
    }

    /// A text made from `from`: HTML if that is.
    pub(super) fn like(&self, from: &Value<'a>, value: Value<'a>) -> Outcome<Value<'a>> {
        match value.as_str() {
            Some(text) if from.is_markup() => self.markup(text),
            _ => Ok(value),
        }
    }

    pub(super) fn buffer(&self) -> Outcome<Buffer<'a>> {
        Buffer::new(&self.0)
    }

    /// The text of a buffer.
    pub(super) fn built(&self, buffer: Buffer<'a>) -> Outcome<Value<'a>> {
        let (text, mut held) = buffer.into_parts();
        held.grow(VALUE_BYTES)?;
        Ok(text_of(text.into_boxed_str(), false, held))
    }

    pub(super) fn list(&self, items: Vec<Value<'a>>) -> Outcome<Value<'a>> {
        self.list_of(items).map(Value::List)
    }

    pub(super) fn tuple(&self, items: Vec<Value<'a>>) -> Outcome<Value<'a>> {
        self.list_of(items).map(Value::Tuple)
    }

    pub(super) fn list_of(&self, items: Vec<Value<'a>>) -> Outcome<List<'a>> {
        self.0.steps(items.len() as u64)?;
        let mut depth = 1;
        for item in &items {
            depth = depth.max(item.deeper()?);
        }
        let held = self.0.hold_many(items.len() + 1, VALUE_BYTES)?;
        Ok(List(Rc::new(ListInner { items, depth, _held: held })))
    }

    pub(super) fn dict(&self, map: IndexMap<Key<'a>, Value<'a>>) -> Outcome<Value<'a>> {
        self.0.steps(map.len() as u64)?;
        let mut depth = 1;
        for item in map.values() {
            depth = depth.max(item.deeper()?);
        }
        let held = self.0.hold_many(map.len() + 1, 2 * VALUE_BYTES)?;
        Ok(Value::Dict(Dict(Rc::new(DictInner { map, depth, _held: held }))))
    }

    pub(super) fn object(&self, object: Object<'a>) -> Outcome<Value<'a>> {
        self.0.steps(1)?;
        self.0.keep(OBJECT_BYTES)?;
        let value = Value::Object(Rc::new(object));
        value.deeper()?;
        Ok(value)
    }

    pub(super) fn key(&self, value: &Value<'a>) -> Outcome<Key<'a>> {
        Key::new(&self.0, value)
    }

    /// A value of JSON.
    pub(super) fn json(&self, json: &Json) -> Outcome<Value<'a>> {
        Ok(match json {
            Json::Null => Value::None,
            Json::Bool(value) => Value::Bool(*value),
            Json::Number(number) => number_of(number),
            Json::String(text) => self.text(text)?,
            Json::Array(items) => {
                let items: Outcome<Vec<_>> = items.iter().map(|item| self.json(item)).collect();
                self.list(items?)?
            }
            Json::Object(fields) => {
                let mut map = IndexMap::new();
                for (name, value) in fields {
                    map.insert(Key(self.text(name)?), self.json(value)?);
                }
                self.dict(map)?
            }
        })
    }
}

fn text_of<'a>(text: Box<str>, markup: bool, held: Held<'a>) -> Value<'a> {
    let characters = text.chars().count();
    Value::Text(Text(Rc::new(TextInner { text, characters, markup, _held: held })))
}

fn number_of<'a>(number: &serde_json::Number) -> Value<'a> {
    match (number.as_i128(), number.as_f64()) {
        (Some(int), _) => Value::Int(int),
        (None, float) => Value::Float(float.unwrap_or_default()),
    }
}
