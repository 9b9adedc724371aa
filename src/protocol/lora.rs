//! Parameters and results of the `lora.` methods.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::fields::{Fields, ParamsError};
use super::models::MODEL_WANTED;
use super::params::Params;
use crate::engine::AdapterInfo;

/// Expected form of an adapter's name.
const NAME_WANTED: &str = "an adapter's name";

/// Parameters of `lora.load`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LoraLoadParams {
    /// The model that it is for; without it, the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Name to be used in requests.
    pub name: String,
    /// Its file, as the daemon finds it.
    pub path: String,
}

impl Params for LoraLoadParams {
    fn read(params: Option<&RawValue>) -> Result<Self, ParamsError> {
        let fields = Fields::new(params, &["model", "name", "path"])?;
        Ok(Self {
            model: fields.optional("model", MODEL_WANTED)?,
            name: fields.required("name", NAME_WANTED)?,
            path: fields.required("path", "the path of a GGUF file")?,
        })
    }
}

/// Parameters of `lora.unload`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LoraUnloadParams {
    /// The model that it is for; without it, the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Name.
    pub name: String,
}

impl Params for LoraUnloadParams {
    fn read(params: Option<&RawValue>) -> Result<Self, ParamsError> {
        let fields = Fields::new(params, &["model", "name"])?;
        Ok(Self {
            model: fields.optional("model", MODEL_WANTED)?,
            name: fields.required("name", NAME_WANTED)?,
        })
    }
}

/// A LoRA adapter of a model: result of `lora.load`, entry of `lora.list`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoraEntry {
    /// Name.
    pub name: String,
    /// Bytes on the device, while its model is there.
    pub bytes: u64,
    /// Sessions that are computed with it, those of all users.
    pub sessions: usize,
}

impl From<AdapterInfo> for LoraEntry {
    fn from(info: AdapterInfo) -> Self {
        let AdapterInfo { name, bytes, sessions } = info;
        Self { name, bytes, sessions }
    }
}

/// Result of `lora.list`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoraListResult {
    /// Name of the model.
    pub model: String,
    /// Its adapters.
    pub adapters: Vec<LoraEntry>,
}

/// Result of `lora.unload`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoraUnloadResult {
    /// Name.
    pub name: String,
}
