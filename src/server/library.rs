//! Where models come from: what a daemon has of them, and how it starts them.

use std::fmt::Debug;
use std::path::PathBuf;

use crate::engine::{EngineHandle, EngineThread, LoadFailure};
use crate::protocol::{ErrorCode, ErrorObject};

/// A model that there is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelSpec {
    /// Name.
    pub name: String,
    /// Aliases.
    pub aliases: Vec<String>,
    /// It makes room for nobody.
    pub pinned: bool,
    /// Size of its files; 0 where that is not known.
    pub bytes: u64,
    /// Its file or folder; empty where that is not known.
    pub path: PathBuf,
}

impl ModelSpec {
    pub(super) fn is_called(&self, name: &str) -> bool {
        self.name == name || self.aliases.iter().any(|alias| alias == name)
    }
}

/// Source of models. Calls may block.
pub trait Library: Debug + Send + Sync + 'static {
    /// The models there are now.
    fn models(&self) -> Vec<ModelSpec>;

    /// Looks whether a model can be loaded, before others make way for it.
    ///
    /// # Errors
    /// The file is at fault.
    fn look_at(&self, model: &ModelSpec) -> Result<(), LoadFailure>;

    /// Where a model is now; empty where that is not known.
    ///
    /// # Errors
    /// It is gone.
    fn locate(&self, model: &ModelSpec) -> Result<PathBuf, LoadFailure> {
        Ok(model.path.clone())
    }

    /// Loads a model and starts its engine.
    ///
    /// # Errors
    /// The file or the device is at fault.
    fn start(&self, model: &ModelSpec) -> Result<(EngineHandle, EngineThread), LoadFailure>;
}

pub(super) fn failed() -> ErrorObject {
    ErrorObject::new(ErrorCode::INTERNAL, "the daemon failed; its log says more")
}

pub(super) fn cannot_be_loaded(name: &str, failure: &LoadFailure) -> ErrorObject {
    let message = format!("the model {name:?} cannot be loaded: {failure}");
    ErrorObject::new(ErrorCode::MODEL_UNAVAILABLE, message)
}
