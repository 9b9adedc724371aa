//! Metadata values.

use super::error::plain;

/// A metadata value, in the type the file gives it.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // the names are the format's own
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    Str(String),
    Array(Array),
}

/// An array of one type. Arrays of arrays are refused: nothing in use has them.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // the names are the format's own
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bool(Vec<bool>),
    Str(StrArray),
}

/// Strings in one allocation: a vocabulary has hundreds of thousands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StrArray {
    text: String,
    /// End of each string in `text`.
    ends: Vec<usize>,
}

impl StrArray {
    pub(super) fn with_capacity(count: usize) -> Self {
        Self { text: String::new(), ends: Vec::with_capacity(count) }
    }

    /// Appends a string.
    pub fn push(&mut self, text: &str) {
        self.text.push_str(text);
        self.ends.push(self.text.len());
    }

    /// Number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The string at `index`.
    pub fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(&self.text[start..end])
    }

    /// The strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.len()).map(|index| self.get(index).expect("index is below len"))
    }
}

impl<S: AsRef<str>> FromIterator<S> for StrArray {
    fn from_iter<I: IntoIterator<Item = S>>(strings: I) -> Self {
        let mut array = Self::default();
        for text in strings {
            array.push(text.as_ref());
        }
        array
    }
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::U8(values) => values.len(),
            Self::I8(values) => values.len(),
            Self::U16(values) => values.len(),
            Self::I16(values) => values.len(),
            Self::U32(values) => values.len(),
            Self::I32(values) => values.len(),
            Self::U64(values) => values.len(),
            Self::I64(values) => values.len(),
            Self::F32(values) => values.len(),
            Self::F64(values) => values.len(),
            Self::Bool(values) => values.len(),
            Self::Str(values) => values.len(),
        }
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Name of the elements' type, such as `u32`.
    pub fn element_name(&self) -> &'static str {
        match self {
            Self::U8(_) => "u8",
            Self::I8(_) => "i8",
            Self::U16(_) => "u16",
            Self::I16(_) => "i16",
            Self::U32(_) => "u32",
            Self::I32(_) => "i32",
            Self::U64(_) => "u64",
            Self::I64(_) => "i64",
            Self::F32(_) => "f32",
            Self::F64(_) => "f64",
            Self::Bool(_) => "bool",
            Self::Str(_) => "string",
        }
    }

    /// Elements `range` as values of their own, as far as they are there.
    pub fn values(&self, range: std::ops::Range<usize>) -> Vec<Value> {
        fn part<T: Copy>(
            all: &[T],
            range: std::ops::Range<usize>,
            f: fn(T) -> Value,
        ) -> Vec<Value> {
            all.iter().skip(range.start).take(range.len()).map(|&value| f(value)).collect()
        }
        match self {
            Self::U8(all) => part(all, range, Value::U8),
            Self::I8(all) => part(all, range, Value::I8),
            Self::U16(all) => part(all, range, Value::U16),
            Self::I16(all) => part(all, range, Value::I16),
            Self::U32(all) => part(all, range, Value::U32),
            Self::I32(all) => part(all, range, Value::I32),
            Self::U64(all) => part(all, range, Value::U64),
            Self::I64(all) => part(all, range, Value::I64),
            Self::F32(all) => part(all, range, Value::F32),
            Self::F64(all) => part(all, range, Value::F64),
            Self::Bool(all) => part(all, range, Value::Bool),
            Self::Str(all) => range.map_while(|i| all.get(i)).map(Value::from).collect(),
        }
    }

    /// All elements as integers; None if they are of another kind.
    pub fn integers(&self) -> Option<Vec<i128>> {
        fn widen<T: Copy + Into<i128>>(values: &[T]) -> Option<Vec<i128>> {
            Some(values.iter().map(|&value| value.into()).collect())
        }
        match self {
            Self::U8(values) => widen(values),
            Self::I8(values) => widen(values),
            Self::U16(values) => widen(values),
            Self::I16(values) => widen(values),
            Self::U32(values) => widen(values),
            Self::I32(values) => widen(values),
            Self::U64(values) => widen(values),
            Self::I64(values) => widen(values),
            Self::F32(_) | Self::F64(_) | Self::Bool(_) | Self::Str(_) => None,
        }
    }
}

impl Value {
    /// The value as an integer of any width; None if it is of another kind.
    pub(super) fn integer(&self) -> Option<i128> {
        match *self {
            Self::U8(value) => Some(value.into()),
            Self::I8(value) => Some(value.into()),
            Self::U16(value) => Some(value.into()),
            Self::I16(value) => Some(value.into()),
            Self::U32(value) => Some(value.into()),
            Self::I32(value) => Some(value.into()),
            Self::U64(value) => Some(value.into()),
            Self::I64(value) => Some(value.into()),
            Self::F32(_) | Self::F64(_) | Self::Bool(_) | Self::Str(_) | Self::Array(_) => None,
        }
    }

    /// Name of the value's type, such as `u32` or `array of string`.
    pub fn type_name(&self) -> String {
        match self {
            Self::U8(_) => "u8".into(),
            Self::I8(_) => "i8".into(),
            Self::U16(_) => "u16".into(),
            Self::I16(_) => "i16".into(),
            Self::U32(_) => "u32".into(),
            Self::I32(_) => "i32".into(),
            Self::U64(_) => "u64".into(),
            Self::I64(_) => "i64".into(),
            Self::F32(_) => "f32".into(),
            Self::F64(_) => "f64".into(),
            Self::Bool(_) => "bool".into(),
            Self::Str(_) => "string".into(),
            Self::Array(array) => format!("array of {}", array.element_name()),
        }
    }

    /// Type and, shortened, value: for messages.
    pub fn describe(&self) -> String {
        let kind = self.type_name();
        match self {
            Self::U8(value) => format!("{kind} {value}"),
            Self::I8(value) => format!("{kind} {value}"),
            Self::U16(value) => format!("{kind} {value}"),
            Self::I16(value) => format!("{kind} {value}"),
            Self::U32(value) => format!("{kind} {value}"),
            Self::I32(value) => format!("{kind} {value}"),
            Self::U64(value) => format!("{kind} {value}"),
            Self::I64(value) => format!("{kind} {value}"),
            Self::F32(value) => format!("{kind} {value}"),
            Self::F64(value) => format!("{kind} {value}"),
            Self::Bool(value) => format!("{kind} {value}"),
            Self::Str(value) => format!("{kind} \"{}\"", plain(value)),
            Self::Array(array) => format!("{kind} of length {}", array.len()),
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Str(text.to_owned())
    }
}

impl From<u32> for Value {
    fn from(value: u32) -> Self {
        Self::U32(value)
    }
}

impl From<f32> for Value {
    fn from(value: f32) -> Self {
        Self::F32(value)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<StrArray> for Value {
    fn from(strings: StrArray) -> Self {
        Self::Array(Array::Str(strings))
    }
}

impl From<Vec<f32>> for Value {
    fn from(values: Vec<f32>) -> Self {
        Self::Array(Array::F32(values))
    }
}

impl From<Vec<i32>> for Value {
    fn from(values: Vec<i32>) -> Self {
        Self::Array(Array::I32(values))
    }
}
