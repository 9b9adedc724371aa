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
    pub(super) fn object(&self, key: &str) -> Option<Self> {
        match self.fields.get(key) {
            Some(Value::Object(fields)) => {
                Some(Self { path: self.path.clone(), fields: fields.clone() })
            }
            _ => None,
        }
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

    pub(super) fn u32(&self, key: &str) -> Result<u32, HfError> {
        self.opt_u32(key)?.ok_or_else(|| self.refuse(key, "a whole number", "no such key"))
    }

    pub(super) fn opt_f32(&self, key: &str) -> Result<Option<f32>, HfError> {
        self.opt(key, "a number", |value| value.as_f64().map(|value| value as f32))
    }

    pub(super) fn f32(&self, key: &str) -> Result<f32, HfError> {
        self.opt_f32(key)?.ok_or_else(|| self.refuse(key, "a number", "no such key"))
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
