//! `[[model]]` tables: several models, each with what it overrides of the settings of all.

use std::path::PathBuf;

use serde::de::IntoDeserializer;
use serde::{Deserialize, Serialize};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::load::{File, describe, nearest};
use super::sampling::SAMPLING_WANTED;
use super::{ConfigError, KvDtype, Lora, SamplingOverrides};

/// Most tables.
const MODELS_MAX: usize = 256;

/// One `[[model]]` table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelTable {
    /// Name.
    pub name: String,
    /// A name of the store, or a GGUF file; empty: the store's model of this table's name.
    pub path: PathBuf,
    /// Aliases.
    pub aliases: Vec<String>,
    /// Loaded at the start, and unloaded only when that is asked for.
    pub pinned: bool,
    /// Its LoRA adapters.
    pub lora: Vec<Lora>,
    /// As the setting of all.
    pub context_tokens: Option<u32>,
    /// As the setting of all.
    pub kv_tokens: Option<u32>,
    /// As the setting of all.
    pub kv_dtype: Option<KvDtype>,
    /// Override of the daemon-wide setting.
    pub sampling: SamplingOverrides,
}

/// A key of a table: its name, that in messages, what its value should be, and its range.
type Key = (&'static str, &'static str, &'static str, fn(&ModelTable) -> bool);

const KEYS: [Key; 9] = [
    ("name", "model.name", "a text without spaces, in quotes", |table| is_name(&table.name)),
    ("path", "model.path", "a name or a path in quotes", |_| true),
    ("aliases", "model.aliases", "an array of texts without spaces, in quotes", |table| {
        table.aliases.iter().all(|alias| is_name(alias))
    }),
    ("lora", "model.lora", "a list of \"NAME=PATH\" in quotes", |_| true),
    ("pinned", "model.pinned", "true or false", |_| true),
    ("context_tokens", "model.context_tokens", "an integer from 0 to 1048576", |table| {
        table.context_tokens.is_none_or(|tokens| tokens <= 1 << 20)
    }),
    ("kv_tokens", "model.kv_tokens", "an integer from 0 to 16777216", |table| {
        table.kv_tokens.is_none_or(|tokens| tokens <= 1 << 24)
    }),
    ("kv_dtype", "model.kv_dtype", "\"auto\", \"f32\", \"f16\" or \"q8_0\"", |_| true),
    ("sampling", "model.sampling", SAMPLING_WANTED, |_| true),
];

fn is_name(text: &str) -> bool {
    !text.is_empty() && !text.contains(char::is_whitespace) && !text.contains(char::is_control)
}

/// Takes the tables out of a file's; `model = "…"` stays there.
pub(super) fn take(
    file: &File<'_>,
    root: &mut DeTable<'_>,
) -> Result<Vec<ModelTable>, ConfigError> {
    let is_array = root.get("model").is_some_and(|value| value.get_ref().is_array());
    if !is_array {
        return Ok(Vec::new());
    }
    let Some(value) = root.remove("model") else { return Ok(Vec::new()) };
    let span = value.span();
    let DeValue::Array(values) = value.into_inner() else { return Ok(Vec::new()) };
    let wrong = |span, key, wanted, found| ConfigError::Value {
        path: file.path.to_owned(),
        line: file.line(span),
        key,
        wanted,
        found,
    };
    if values.len() > MODELS_MAX {
        let found = format!("{} of them", values.len());
        return Err(wrong(span, "model", "at most 256 tables", found));
    }
    let mut models: Vec<ModelTable> = Vec::new();
    for value in values.iter() {
        let span = value.span();
        let model = read(file, value)?;
        if model.name.is_empty() {
            return Err(wrong(span, "model.name", KEYS[0].2, "none".to_owned()));
        }
        let names = || [&model.name].into_iter().chain(&model.aliases);
        let taken = names().enumerate().find_map(|(at, name)| {
            let before = models.iter().flat_map(|m| [&m.name].into_iter().chain(&m.aliases));
            before.chain(names().take(at)).any(|other| other == name).then_some(name)
        });
        if let Some(name) = taken {
            let found = format!("{name:?} a second time");
            return Err(wrong(span, "model.name", "names and aliases that differ", found));
        }
        models.push(model);
    }
    Ok(models)
}

fn read(file: &File<'_>, value: &Spanned<DeValue<'_>>) -> Result<ModelTable, ConfigError> {
    let wrong = |line, key, wanted, found| {
        let path = file.path.to_owned();
        ConfigError::Value { path, line, key, wanted, found }
    };
    let DeValue::Table(table) = value.get_ref() else {
        let found = describe(value.get_ref());
        return Err(wrong(file.line(value.span()), "model", "[[model]] tables", found));
    };
    for key in table.keys() {
        let name: &str = key.get_ref();
        if !KEYS.iter().any(|known| known.0 == name) {
            return Err(ConfigError::UnknownKey {
                path: file.path.to_owned(),
                line: file.line(key.span()),
                key: format!("model.{name}"),
                nearest: nearest(name, KEYS.iter().map(|key| key.0)),
            });
        }
    }
    let model = ModelTable::deserialize(value.clone().into_deserializer()).map_err(|error| {
        let at = error.span().unwrap_or_default();
        let of_key = KEYS.iter().find_map(|key| {
            let value = table.get(key.0)?;
            let span = value.span();
            (span.start <= at.start && at.end <= span.end).then_some((key, value))
        });
        match of_key {
            Some((key, value)) => {
                wrong(file.line(value.span()), key.1, key.2, describe(value.get_ref()))
            }
            None => file.syntax(&error),
        }
    })?;
    match KEYS.iter().find(|key| table.contains_key(key.0) && !(key.3)(&model)) {
        None => Ok(model),
        Some(key) => {
            let value = table.get(key.0).expect("looked for it");
            Err(wrong(file.line(value.span()), key.1, key.2, describe(value.get_ref())))
        }
    }
}
