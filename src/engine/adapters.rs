//! LoRA adapters by name: which an engine has, and which a session uses.

use std::path::PathBuf;

use super::fingerprint;
use super::types::AdmitError;
use super::worker::Worker;
use crate::gguf::GgufFile;
use crate::model::{ADAPTERS_MAX, AdapterFile, HyperParams, ModelLoadError};
use crate::session::UsedAdapter;

/// An adapter that an engine is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterSource {
    /// What requests call it.
    pub name: String,
    /// Its file.
    pub path: PathBuf,
}

/// An adapter as a request names it.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedAdapter {
    /// Its name.
    pub name: String,
    /// Factor of what it adds.
    pub scale: f32,
}

/// An adapter that an engine has; its place among them is its number in the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KnownAdapter {
    pub(super) name: String,
    /// What tells it from another one that is given the same name later.
    digest: String,
}

/// Opens the adapters of a model.
///
/// # Errors
/// [`ModelLoadError`]: one that does not fit the model, a name that is given twice, or too many.
pub(super) fn open(
    sources: &[AdapterSource],
    base: &GgufFile,
    hyper: &HyperParams,
) -> Result<(Vec<AdapterFile>, Vec<KnownAdapter>), ModelLoadError> {
    let refuse = |wanted: String, found: String| ModelLoadError::Value {
        path: base.path().to_owned(),
        key: "lora".to_owned(),
        wanted,
        found,
    };
    if sources.len() > ADAPTERS_MAX {
        return Err(refuse(format!("at most {ADAPTERS_MAX} adapters"), sources.len().to_string()));
    }
    let (mut files, mut known) = (Vec::new(), Vec::<KnownAdapter>::new());
    for AdapterSource { name, path } in sources {
        if known.iter().any(|other| other.name == *name) {
            return Err(refuse("names that differ".to_owned(), format!("{name:?} twice")));
        }
        files.push(AdapterFile::open(path, base, hyper)?);
        let digest = fingerprint::of_file(path).unwrap_or_else(|error| {
            tracing::warn!(name, %error, "the adapter was not read again: no session outlives this");
            format!("process {}", std::process::id())
        });
        known.push(KnownAdapter { name: name.clone(), digest });
    }
    Ok((files, known))
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
                let number = self.adapters.iter().position(|known| known.name == *name);
                let number = number.ok_or_else(|| AdmitError::UnknownAdapter {
                    name: name.clone(),
                    known: self.adapters.iter().map(|known| known.name.clone()).collect(),
                })?;
                let digest = self.adapters[number].digest.clone();
                Ok(UsedAdapter { name: name.clone(), digest, number, scale_bits: scale.to_bits() })
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
}
