//! Small JSON files, and what their keys hold.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::HfError;

/// Largest configuration file.
const CONFIG_BYTES_MAX: u64 = 4 << 20;

/// A file's object.
#[derive(Clone, Debug)]
pub(super) struct Object {
    path: PathBuf,
    fields: Map<String, Value>,
}

impl Object {
    /// Reads the object of a file.
    pub(super) fn read(path: &Path) -> Result<Self, HfError> {
        let text = super::read_file(path, CONFIG_BYTES_MAX)?;
        let fields = serde_json::from_slice(&text)
            .map_err(|error| HfError::Json { path: path.to_owned(), error })?;
        Ok(Self { path: path.to_owned(), fields })
    }

    /// Reads a file that need not be there; an empty object where it is not.
    pub(super) fn read_if_there(path: &Path) -> Result<Self, HfError> {
        if path.exists() {
            return Self::read(path);
        }
        Ok(Self { path: path.to_owned(), fields: Map::new() })
    }

    /// The object under `key`, where there is one, as if it were the file.
    pub(super) fn opt_object(&self, key: &str) -> Result<Option<Self>, HfError> {
        let fields = self.opt(key, "an object", Value::as_object)?;
        Ok(fields.map(|fields| Self { path: self.path.clone(), fields: fields.clone() }))
    }

    /// An object of the same file without keys.
    pub(super) fn empty_beside(other: &Self) -> Self {
        Self { path: other.path.clone(), fields: Map::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        self.fields.keys().map(String::as_str)
    }

    /// The value of `key`; null is none.
    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.fields.get(key).filter(|value| !value.is_null())
    }

    pub(super) fn refuse(&self, key: &str, wanted: &str, found: impl ToString) -> HfError {
        HfError::Value {
            path: self.path.clone(),
            key: key.to_owned(),
            wanted: wanted.to_owned(),
            found: found.to_string(),
        }
    }

    /// A refusal of a key of another file of the folder.
    pub(super) fn refuse_in(
        &self,
        file: &str,
        key: &str,
        wanted: &str,
        found: impl ToString,
    ) -> HfError {
        Self { path: self.path.with_file_name(file), fields: Map::new() }.refuse(key, wanted, found)
    }

    fn opt<'a, T>(
        &'a self,
        key: &str,
        wanted: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, HfError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match read(value) {
            Some(read) => Ok(Some(read)),
            None => Err(self.refuse(key, wanted, shortened(value))),
        }
    }

    pub(super) fn opt_u32(&self, key: &str) -> Result<Option<u32>, HfError> {
        self.opt(key, "a whole number", |value| u32::try_from(value.as_u64()?).ok())
    }

    /// The number of `key`, or `usual` where there is no such key; null is none.
    pub(super) fn u32_or(&self, key: &str, usual: Option<u32>) -> Result<Option<u32>, HfError> {
        if self.fields.contains_key(key) { self.opt_u32(key) } else { Ok(usual) }
    }

    /// A whole number above 0, or `usual` where there is none.
    pub(super) fn count(&self, key: &str, usual: u32) -> Result<u32, HfError> {
        match self.opt_u32(key)?.unwrap_or(usual) {
            0 => Err(self.refuse(key, "at least 1", 0)),
            count => Ok(count),
        }
    }

    pub(super) fn opt_f32(&self, key: &str) -> Result<Option<f32>, HfError> {
        self.opt(key, "a number", |value| value.as_f64().map(|value| value as f32))
    }

    /// The number of `key`, or `usual` where there is no such key; null is none.
    pub(super) fn f32_or(&self, key: &str, usual: Option<f32>) -> Result<Option<f32>, HfError> {
        if self.fields.contains_key(key) { self.opt_f32(key) } else { Ok(usual) }
    }

    /// A finite number above 0, or nothing.
    pub(super) fn opt_positive(&self, key: &str) -> Result<Option<f32>, HfError> {
        let is_positive = |value: &f32| *value > 0.0 && value.is_finite();
        let read = |value: &Value| Some(value.as_f64()? as f32).filter(is_positive);
        self.opt(key, "a number above 0", read)
    }

    pub(super) fn positive(&self, key: &str) -> Result<f32, HfError> {
        let found = self.opt_positive(key)?;
        found.ok_or_else(|| self.refuse(key, "a number above 0", "no such key"))
    }

    pub(super) fn opt_bool(&self, key: &str) -> Result<Option<bool>, HfError> {
        self.opt(key, "true or false", Value::as_bool)
    }

    pub(super) fn opt_str(&self, key: &str) -> Result<Option<&str>, HfError> {
        self.opt(key, "a text", Value::as_str)
    }

    /// Numbers, as many as `count`.
    pub(super) fn numbers(&self, key: &str, count: usize) -> Result<Vec<f32>, HfError> {
        let wanted = format!("an array of {count} numbers");
        let read = |value: &Value| {
            let all: Option<Vec<f32>> =
                value.as_array()?.iter().map(|value| Some(value.as_f64()? as f32)).collect();
            all.filter(|all| all.len() == count)
        };
        self.opt(key, &wanted, read)?.ok_or_else(|| self.refuse(key, &wanted, "no such key"))
    }
}

/// A value as far as it fits a message.
fn shortened(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}
