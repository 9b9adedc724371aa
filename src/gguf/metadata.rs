//! The metadata of a file: an ordered map with typed getters that say what they missed.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use super::error::{GgufError, GgufFault, plain};
use super::value::{Array, StrArray, Value};

/// Keys and values in the order of the file; keys are unique.
///
/// Getters of numbers take any integer type of the file whose value fits. The `opt_` form of each
/// gives None if the key is absent; a value of the wrong kind is an error in both.
#[derive(Clone, Debug)]
pub struct Metadata {
    path: Arc<Path>,
    entries: Vec<(String, Value)>,
    by_key: HashMap<String, usize>,
}

impl Metadata {
    pub(super) fn new(path: Arc<Path>) -> Self {
        Self { path, entries: Vec::new(), by_key: HashMap::new() }
    }

    /// Appends an entry; false if the key is already there.
    pub(super) fn insert(&mut self, key: String, value: Value) -> bool {
        if self.by_key.contains_key(&key) {
            return false;
        }
        self.by_key.insert(key.clone(), self.entries.len());
        self.entries.push((key, value));
        true
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Keys and values in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.by_key.get(key).map(|&index| &self.entries[index].1)
    }

    /// Removes `key` and gives its value.
    pub fn take(&mut self, key: &str) -> Option<Value> {
        let index = self.by_key.remove(key)?;
        let (_, value) = self.entries.remove(index);
        self.index_again();
        Some(value)
    }

    /// Removes the arrays under `tokenizer.` (tokens, merges, scores, types), which take megabytes
    /// and are not needed once the tokenizer is built.
    pub fn drop_tokenizer_arrays(&mut self) {
        self.entries.retain(|(key, value)| {
            !(key.starts_with("tokenizer.") && matches!(value, Value::Array(_)))
        });
        self.index_again();
    }

    fn index_again(&mut self) {
        let keys = self.entries.iter().enumerate();
        self.by_key = keys.map(|(index, (key, _))| (key.clone(), index)).collect();
    }

    /// The value of `key` through `read`, which gives None where the value is not what is wanted.
    fn opt<'a, T>(
        &'a self,
        key: &str,
        wanted: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match read(value) {
            Some(value) => Ok(Some(value)),
            None => Err(self.wrong(key, wanted, value.describe())),
        }
    }

    fn required<T>(
        &self,
        key: &str,
        wanted: &str,
        value: Result<Option<T>, GgufError>,
    ) -> Result<T, GgufError> {
        value?.ok_or_else(|| {
            let fault = GgufFault::KeyMissing { key: plain(key), wanted: wanted.to_owned() };
            GgufError::new(&self.path, fault)
        })
    }

    fn wrong(&self, key: &str, wanted: &str, found: String) -> GgufError {
        let fault = GgufFault::KeyType { key: plain(key), wanted: wanted.to_owned(), found };
        GgufError::new(&self.path, fault)
    }

    /// One number for each of `count` layers: the file has an array of them, or one for all.
    ///
    /// # Errors
    /// If the value is neither an integer nor `count` integers that fit in u32.
    pub fn opt_u32_each(&self, key: &str, count: usize) -> Result<Option<Vec<u32>>, GgufError> {
        let wanted = format!("a u32, or an array of {count}");
        self.opt(key, &wanted, |value| match value {
            Value::Array(array) => narrow(array).filter(|all| all.len() == count),
            one => Some(vec![u32::try_from(one.integer()?).ok()?; count]),
        })
    }
}

fn narrow<T: TryFrom<i128>>(array: &Array) -> Option<Vec<T>> {
    array.integers()?.into_iter().map(|value| T::try_from(value).ok()).collect()
}

fn float(value: &Value) -> Option<f32> {
    match *value {
        Value::F32(value) => Some(value),
        Value::F64(value) => Some(value as f32),
        _ => None,
    }
}

fn array<'a, T>(value: &'a Value, read: impl FnOnce(&'a Array) -> Option<T>) -> Option<T> {
    match value {
        Value::Array(array) => read(array),
        _ => None,
    }
}

/// The required and the optional getter of one type, from the reading of a value.
macro_rules! getters {
    ($($name:ident, $opt_name:ident, $type:ty, $wanted:literal, $read:expr;)*) => {
        impl Metadata {
            $(
                #[doc = concat!("The value of `key`, ", $wanted, ".")]
                ///
                /// # Errors
                /// If the key is absent or its value is of another kind or does not fit.
                pub fn $name(&self, key: &str) -> Result<$type, GgufError> {
                    self.required(key, $wanted, self.$opt_name(key))
                }

                #[doc = concat!("The value of `key`, ", $wanted, ", if the key is there.")]
                ///
                /// # Errors
                /// If the value is of another kind or does not fit.
                pub fn $opt_name(&self, key: &str) -> Result<Option<$type>, GgufError> {
                    self.opt(key, $wanted, $read)
                }
            )*
        }
    };
}

getters! {
    u32, opt_u32, u32, "a u32", |value| u32::try_from(value.integer()?).ok();
    u64, opt_u64, u64, "a u64", |value| u64::try_from(value.integer()?).ok();
    i32, opt_i32, i32, "an i32", |value| i32::try_from(value.integer()?).ok();
    f32, opt_f32, f32, "an f32", float;
    bool, opt_bool, bool, "a bool", |value| match value {
        Value::Bool(value) => Some(*value),
        _ => None,
    };
    str, opt_str, &str, "a string", |value| match value {
        Value::Str(value) => Some(value.as_str()),
        _ => None,
    };
    str_array, opt_str_array, &StrArray, "an array of strings", |value| {
        array(value, |array| match array {
            Array::Str(values) => Some(values),
            _ => None,
        })
    };
    f32_array, opt_f32_array, Cow<'_, [f32]>, "an array of f32", |value| {
        array(value, |array| match array {
            Array::F32(values) => Some(Cow::Borrowed(values.as_slice())),
            Array::F64(values) => Some(values.iter().map(|&value| value as f32).collect()),
            _ => None,
        })
    };
    i32_array, opt_i32_array, Cow<'_, [i32]>, "an array of i32", |value| {
        array(value, |array| match array {
            Array::I32(values) => Some(Cow::Borrowed(values.as_slice())),
            other => narrow(other).map(Cow::Owned),
        })
    };
    u32_array, opt_u32_array, Cow<'_, [u32]>, "an array of u32", |value| {
        array(value, |array| match array {
            Array::U32(values) => Some(Cow::Borrowed(values.as_slice())),
            other => narrow(other).map(Cow::Owned),
        })
    };
    bytes, opt_bytes, Vec<u8>, "an array of bytes", |value| {
        array(value, |array| match array {
            Array::U8(values) => Some(values.clone()),
            Array::I8(values) => Some(values.iter().map(|value| value.cast_unsigned()).collect()),
            _ => None,
        })
    };
    bool_array, opt_bool_array, &[bool], "an array of bools", |value| {
        array(value, |array| match array {
            Array::Bool(values) => Some(values.as_slice()),
            _ => None,
        })
    };
}
