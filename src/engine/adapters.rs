//! LoRA adapters by name: which an engine has, and which a session uses.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use thiserror::Error;

use super::fingerprint;
use super::types::AdmitError;
use super::worker::Worker;
use crate::gguf::GgufFile;
use crate::gpu::DeviceError;
use crate::model::{ADAPTERS_MAX, AdapterFile, HyperParams, ModelLoadError};
use crate::session::UsedAdapter;

/// An adapter that an engine is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterSource {
    /// Name used in requests.
    pub name: String,
    /// Path of its file.
    pub path: PathBuf,
}

/// An adapter as a request names it.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedAdapter {
    /// Name.
    pub name: String,
    /// Factor of what it adds.
    pub scale: f32,
}

/// An adapter that was read and fits its model.
#[derive(Debug)]
pub struct OpenAdapter {
    name: String,
    /// Digest of its file, which tells it from a later adapter of the same name.
    digest: String,
    file: AdapterFile,
}

/// Model file and hyperparameters that adapters are validated against. Cheap to clone.
#[derive(Clone, Debug)]
pub struct AdapterBase(pub(super) Arc<GgufFile>, pub(super) Arc<HyperParams>);

impl AdapterBase {
    /// Reads an adapter of the model.
    ///
    /// # Errors
    /// [`ModelLoadError`], naming the file and what in it does not fit the model.
    pub fn open(&self, source: AdapterSource) -> Result<OpenAdapter, ModelLoadError> {
        open(source, &self.0, &self.1)
    }
}

/// Names of an engine's adapters, as they are now. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct AdapterNames(Arc<Mutex<Vec<String>>>);

impl AdapterNames {
    /// In the order in which they were loaded first.
    #[must_use]
    pub fn list(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set(&self, adapters: &Adapters) {
        let names = adapters.values().map(|known| known.name.clone()).collect();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = names;
    }
}

impl PartialEq for AdapterNames {
    fn eq(&self, other: &Self) -> bool {
        self.list() == other.list()
    }
}

/// An adapter, as `lora.list` tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterInfo {
    /// Name.
    pub name: String,
    /// Bytes on the device, while its model is there.
    pub bytes: u64,
    /// Sessions that are computed with it, those of all owners.
    pub sessions: usize,
}

/// Reason an adapter could not be loaded or unloaded.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum AdapterError {
    /// There is one of this name.
    #[error("an adapter named {0:?} is loaded already")]
    Exists(String),
    /// There is none of this name.
    #[error("no adapter {name:?}; the model has {}", super::types::list(known))]
    Unknown {
        /// Name in question.
        name: String,
        /// Known names.
        known: Vec<String>,
    },
    /// Sessions are computed with it.
    #[error("{sessions} sessions use the adapter {name:?}; close them first")]
    InUse {
        /// Name.
        name: String,
        /// How many.
        sessions: usize,
    },
    /// As many are loaded as may be.
    #[error("there are {ADAPTERS_MAX} adapters, the most there may be; unload one")]
    TooMany,
    /// Loading it onto the device failed.
    #[error("{0}")]
    Failed(String),
}

/// An adapter that an engine has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KnownAdapter {
    pub(super) name: String,
    digest: String,
    bytes: u64,
}

/// Adapters of an engine, by their numbers in the model.
pub(super) type Adapters = BTreeMap<usize, KnownAdapter>;

fn open(
    AdapterSource { name, path }: AdapterSource,
    base: &GgufFile,
    hyper: &HyperParams,
) -> Result<OpenAdapter, ModelLoadError> {
    let file = AdapterFile::open(&path, base, hyper)?;
    let digest = fingerprint::of_file(&path).unwrap_or_else(|error| {
        tracing::warn!(name, %error, "the adapter was not read again: no session outlives this");
        format!("process {}", std::process::id())
    });
    Ok(OpenAdapter { name, digest, file })
}

/// Opens the adapters that a model begins with.
///
/// # Errors
/// [`ModelLoadError`]: one that does not fit the model, a name that is given twice, or too many.
pub(super) fn open_all(
    sources: &[AdapterSource],
    base: &GgufFile,
    hyper: &HyperParams,
    lanes: u32,
) -> Result<(BTreeMap<usize, AdapterFile>, Adapters), ModelLoadError> {
    let refuse = |wanted: String, found: String| ModelLoadError::Value {
        path: base.path().to_owned(),
        key: "lora".to_owned(),
        wanted,
        found,
    };
    if sources.len() > ADAPTERS_MAX {
        return Err(refuse(format!("at most {ADAPTERS_MAX} adapters"), sources.len().to_string()));
    }
    let (mut files, mut adapters) = (BTreeMap::new(), Adapters::new());
    for (number, source) in sources.iter().enumerate() {
        if adapters.values().any(|other| other.name == source.name) {
            return Err(refuse("names that differ".to_owned(), format!("{:?} twice", source.name)));
        }
        let OpenAdapter { name, digest, file } = open(source.clone(), base, hyper)?;
        adapters.insert(number, KnownAdapter { name, digest, bytes: file.bytes(lanes.into()) });
        files.insert(number, file);
    }
    Ok((files, adapters))
}

impl Worker {
    /// The adapters that a session is to use, by their numbers.
    pub(super) fn find_adapters(
        &self,
        named: &[NamedAdapter],
    ) -> Result<Vec<UsedAdapter>, AdmitError> {
        let mut used = named
            .iter()
            .map(|NamedAdapter { name, scale }| {
                let found = self.adapters.iter().find(|(_, known)| known.name == *name);
                let (number, known) = found.ok_or_else(|| AdmitError::UnknownAdapter {
                    name: name.clone(),
                    known: self.info.adapters.list(),
                })?;
                let (name, digest) = (name.clone(), known.digest.clone());
                Ok(UsedAdapter { name, digest, number: *number, scale_bits: scale.to_bits() })
            })
            .collect::<Result<Vec<_>, AdmitError>>()?;
        used.sort_by_key(|adapter| adapter.number);
        match used.windows(2).find(|pair| pair[0].number == pair[1].number) {
            Some(pair) => Err(AdmitError::AdapterTwice(pair[0].name.clone())),
            None => Ok(used),
        }
    }

    /// The same of a session that was saved: the file behind a name may be another one by now.
    pub(super) fn find_saved_adapters(
        &self,
        saved: &[UsedAdapter],
    ) -> Result<Vec<UsedAdapter>, AdmitError> {
        let named: Vec<NamedAdapter> = saved
            .iter()
            .map(|used| NamedAdapter { name: used.name.clone(), scale: used.scale() })
            .collect();
        let found = self.find_adapters(&named)?;
        let changed = |used: &&UsedAdapter| !found.iter().any(|other| other.is_same_as(used));
        match saved.iter().find(changed) {
            Some(used) => {
                let name = &used.name;
                Err(AdmitError::NotSaved(format!("the adapter {name:?} is another one by now")))
            }
            None => Ok(found),
        }
    }

    pub(super) fn list_adapters(&self) -> Vec<AdapterInfo> {
        self.adapters.keys().map(|number| self.adapter_info(*number)).collect()
    }

    fn adapter_info(&self, number: usize) -> AdapterInfo {
        let KnownAdapter { name, bytes, .. } = &self.adapters[&number];
        AdapterInfo { name: name.clone(), bytes: *bytes, sessions: self.users_of(number) }
    }

    /// Sessions that are computed with an adapter, those of running requests among them.
    fn users_of(&self, number: usize) -> usize {
        let uses = |used: &UsedAdapter| used.number == number;
        self.sessions.iter().filter(|(_, session)| session.traits.adapters.iter().any(uses)).count()
    }

    /// Puts an adapter beside the model, which is put on the device where it is not. What it is
    /// told, and the device's failure.
    pub(super) fn load_adapter(
        &mut self,
        adapter: OpenAdapter,
    ) -> (Result<AdapterInfo, AdapterError>, Result<(), DeviceError>) {
        let OpenAdapter { name, digest, file } = adapter;
        if self.adapters.values().any(|known| known.name == name) {
            return (Err(AdapterError::Exists(name)), Ok(()));
        }
        let free = (0..ADAPTERS_MAX).find(|number| !self.adapters.contains_key(number));
        let Some(number) = free else { return (Err(AdapterError::TooMany), Ok(())) };
        if let Err(failure) = self.load() {
            return (Err(AdapterError::Failed(failure.message)), Ok(()));
        }
        let bytes = file.bytes(self.runner.executor().capabilities().lanes.into());
        match self.runner.add_adapter_to_source(number, file) {
            Ok(()) => {
                tracing::info!(model = self.info.name, name, bytes, "adapter loaded");
                self.adapters.insert(number, KnownAdapter { name, digest, bytes });
                self.info.adapters.set(&self.adapters);
                (Ok(self.adapter_info(number)), Ok(()))
            }
            Err(error) => {
                let told = Err(AdapterError::Failed(error.to_string()));
                let failed = match error {
                    ModelLoadError::Device(DeviceError::OutOfMemory { .. }) => Ok(()),
                    ModelLoadError::Device(DeviceError::WrongKernel { .. }) => Ok(()),
                    ModelLoadError::Device(error) => Err(error),
                    _ => Ok(()),
                };
                (told, failed)
            }
        }
    }

    /// Takes an adapter away that no session uses.
    pub(super) fn unload_adapter(&mut self, name: &str) -> Result<(), AdapterError> {
        let found = self.adapters.iter().find(|(_, known)| known.name == name);
        let Some(number) = found.map(|(number, _)| *number) else {
            let (name, known) = (name.to_owned(), self.info.adapters.list());
            return Err(AdapterError::Unknown { name, known });
        };
        match self.users_of(number) {
            0 => {}
            sessions => return Err(AdapterError::InUse { name: name.to_owned(), sessions }),
        }
        self.runner.remove_adapter_from_source(number);
        self.adapters.remove(&number);
        self.info.adapters.set(&self.adapters);
        tracing::info!(model = self.info.name, name, "adapter unloaded");
        Ok(())
    }
}
