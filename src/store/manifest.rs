//! The list of the models: one JSON file, replaced as a whole.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::{StoreError, failed};
use super::{names, sync_folder};
use crate::gguf::{GgufError, GgufFile};

/// The manifest's format.
const VERSION: u32 = 1;

/// All models.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    version: u32,
    /// By name.
    pub(super) models: Vec<Entry>,
}

/// One model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its name, and that of its folder.
    pub name: String,
    /// Aliases.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// Its files, the first first.
    pub files: Vec<StoredFile>,
    /// Source it was pulled from, without secrets.
    pub source: String,
    /// When, in seconds since 1970.
    pub added: u64,
    /// Facts from its header.
    pub facts: Facts,
}

/// One file of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredFile {
    /// Relative to the store; absolute where the file was registered in its own place.
    pub path: PathBuf,
    /// Size.
    pub bytes: u64,
    /// Checksum, in hexadecimal.
    pub sha256: String,
}

/// Facts from a model's header.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// `general.architecture`.
    pub architecture: String,
    /// The most common tensor type, by bytes.
    pub quantization: String,
    /// Number of weights.
    pub parameters: u64,
    /// Context it was trained for, where it says.
    pub context_tokens: u64,
    /// It is no model but an adapter of one; none such is kept.
    #[serde(skip)]
    pub is_adapter: bool,
}

impl Entry {
    /// True if `name` is its name or an alias.
    #[must_use]
    pub fn is_called(&self, name: &str) -> bool {
        self.names().any(|own| own == name)
    }

    /// Its name and its aliases.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        [&self.name].into_iter().chain(&self.aliases).map(String::as_str)
    }

    /// Size of all its files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// True if its files are where somebody else put them.
    #[must_use]
    pub fn is_linked(&self) -> bool {
        self.files.iter().any(|file| file.path.is_absolute())
    }
}

impl Facts {
    /// Reads the headers of a model whose (first) file is at `path`, the other parts beside it;
    /// this checks that they are well formed and that all tensor data are there.
    pub(super) fn read(path: &Path) -> Result<Self, GgufError> {
        let file = GgufFile::open(path)?;
        let metadata = file.metadata();
        let architecture = metadata.opt_str("general.architecture")?.unwrap_or_default();
        let key = format!("{architecture}.context_length");
        let mut facts = Self {
            architecture: architecture.to_owned(),
            context_tokens: metadata.opt_u32(&key)?.unwrap_or(0).into(),
            is_adapter: metadata.opt_str("general.type")? == Some("adapter"),
            ..Self::default()
        };
        let mut by_type: Vec<(&str, u64)> = Vec::new();
        for tensor in file.tensors() {
            facts.parameters += tensor.dims.iter().product::<u64>();
            let name = tensor.dtype.name();
            match by_type.iter_mut().find(|(known, _)| *known == name) {
                Some((_, bytes)) => *bytes += tensor.bytes,
                None => by_type.push((name, tensor.bytes)),
            }
        }
        let most = by_type.iter().max_by_key(|(_, bytes)| *bytes);
        facts.quantization = most.map_or("", |(name, _)| name).to_owned();
        Ok(facts)
    }
}

impl Manifest {
    /// The manifest at `path`; an empty one where there is none.
    pub(super) fn read(path: &Path) -> Result<Self, StoreError> {
        let wrong = |reason| StoreError::Manifest { path: path.to_owned(), reason };
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Self { version: VERSION, models: Vec::new() });
            }
            Err(error) => return Err(failed("read", path)(error)),
        };
        let manifest: Self = serde_json::from_slice(&text)
            .map_err(|error| wrong(format!("not a manifest of models: {error}")))?;
        if manifest.version != VERSION {
            let found = manifest.version;
            return Err(wrong(format!("version: wanted {VERSION}, found {found}")));
        }
        // Folders are called so, and removed by these names.
        if let Some(bad) = manifest.models.iter().find(|entry| !names::is_name(&entry.name)) {
            return Err(wrong(format!("{:?} cannot be a model's name", bad.name)));
        }
        Ok(manifest)
    }

    /// Replaces the file at `path`: whoever reads it finds the old one or the new one, whole.
    pub(super) fn write(&self, path: &Path) -> Result<(), StoreError> {
        let new = path.with_extension("json.new");
        let text = serde_json::to_string_pretty(self).expect("text keys and finite numbers");
        let _ = fs::remove_file(&new); // a write that was cut off left it
        // Nothing that somebody put there is followed or written to.
        File::create_new(&new)
            .and_then(|mut file| {
                writeln!(file, "{text}")?;
                file.sync_all()
            })
            .map_err(failed("write", &new))?;
        fs::rename(&new, path).map_err(failed("replace", path))?;
        sync_folder(path.parent().unwrap_or(Path::new(".")))
    }
}
