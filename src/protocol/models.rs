//! Parameters and results of the `model.` methods, and their notification.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::fields::{Fields, ParamsError};
use super::message::RequestId;
use super::params::Params;
use super::results::ModelFacts;

/// Expected form of a model's name.
pub(super) const MODEL_WANTED: &str = "a model's name or alias";

/// Parameters of `model.load` and `model.unload`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ModelParams {
    /// Name or alias; without it, the daemon's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

impl Params for ModelParams {
    fn read(params: Option<&RawValue>) -> Result<Self, ParamsError> {
        let fields = Fields::new(params, &["model"])?;
        Ok(Self { model: fields.optional("model", MODEL_WANTED)? })
    }
}

/// Location of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelState {
    /// On the device.
    Loaded,
    /// On its way there.
    Loading,
    /// On disk.
    Unloaded,
}

/// One model of `model.list`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelEntry {
    /// Name.
    pub name: String,
    /// Aliases.
    pub aliases: Vec<String>,
    /// It is taken where no model is named.
    pub default: bool,
    /// It is unloaded only when that is asked for.
    pub pinned: bool,
    /// Where it is.
    pub state: ModelState,
    /// Seconds since a request last used it, where it was ever loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_seconds: Option<u64>,
    /// Facts about it, where it was ever loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub facts: Option<ModelFacts>,
}

/// Result of `model.list`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelListResult {
    /// All models, the default first.
    pub models: Vec<ModelEntry>,
    /// Models that may be on the device at once.
    pub loaded_max: u32,
}

/// Result of `model.load`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelLoadResult {
    /// Name.
    pub name: String,
    /// Facts about it.
    pub facts: ModelFacts,
}

/// Result of `model.unload`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelUnloadResult {
    /// Name.
    pub name: String,
}

/// The notification `model.loading`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelLoading {
    /// Id of the request that waits.
    pub id: RequestId,
    /// Name of the model.
    pub model: String,
}
