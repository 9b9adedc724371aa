//! The models of this user on disk, and how they come there.
//!
//! Owns a folder: `manifest.json` says which files are models and what they are called; each
//! model's files lie in a folder of its name. What is still on its way lies in `partial/` and comes
//! out of there by one rename, once its size, its checksum and its headers hold: a file that nobody
//! finished is never taken for a model. Changes of the manifest are made under a lock, by replacing
//! the file as a whole.
//!
//! `hob pull` is the only part of hob that opens a network connection; the daemon opens none.
//!
//! Reading order: [`Store`] (names to files), [`Source`] (what can be pulled), `pull` (a pull from
//! end to end), `download` (one file), `hub` and `http` (where it comes from).

mod download;
mod error;
mod http;
mod hub;
mod manifest;
mod names;
mod pull;
mod source;

pub use error::StoreError;
pub use hub::Hub;
pub use manifest::{Entry, Facts, StoredFile};
pub use pull::{PullOptions, PullProgress, Pulled, pull};
pub use source::Source;

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use error::failed;
use manifest::Manifest;

/// Folder of incomplete downloads.
const PARTIAL: &str = "partial";

/// The lock of the manifest. It stays: removing it would let two processes lock different files.
const LOCK: &str = "manifest.lock";

const MANIFEST: &str = "manifest.json";

/// Name of the default model.
const DEFAULT: &str = "default";

/// A folder of models.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
}

impl Store {
    /// The store in `folder`, which need not be there yet.
    #[must_use]
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Where it is.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// All models, by name.
    ///
    /// # Errors
    /// The manifest is there and cannot be read.
    pub fn models(&self) -> Result<Vec<Entry>, StoreError> {
        Ok(Manifest::read(&self.folder.join(MANIFEST))?.models)
    }

    /// The model of this name or alias.
    ///
    /// # Errors
    /// As [`Self::models`].
    pub fn find(&self, name: &str) -> Result<Option<Entry>, StoreError> {
        Ok(self.models()?.into_iter().find(|entry| entry.is_called(name)))
    }

    /// Path of a model's (first) file.
    #[must_use]
    pub fn path(&self, entry: &Entry) -> PathBuf {
        // Absolute where the model was registered in its own place.
        self.folder.join(entry.files.first().map_or(Path::new(""), |file| &file.path))
    }

    /// The file that `model` names: by name or alias if the store has it, else as a path.
    ///
    /// # Errors
    /// As [`Self::models`].
    pub fn locate(&self, model: &Path) -> Result<PathBuf, StoreError> {
        let name = model.to_str().filter(|name| names::is_name(name));
        let Some(name) = name else { return Ok(model.to_owned()) };
        match self.find(name)? {
            Some(entry) => Ok(self.path(&entry)),
            None if model.exists() => Ok(model.to_owned()),
            None => Err(StoreError::UnknownModel { name: name.to_owned(), known: self.names()? }),
        }
    }

    /// The model to take when none is named: the file `default.gguf`, the model called `default`,
    /// or the only one there is.
    ///
    /// # Errors
    /// As [`Self::models`].
    pub fn default_model(&self) -> Result<Option<PathBuf>, StoreError> {
        if let Some(file) = self.default_file() {
            return Ok(Some(file));
        }
        let models = self.models()?;
        let only = (models.len() == 1).then(|| &models[0]);
        let entry = models.iter().find(|entry| entry.is_called(DEFAULT)).or(only);
        Ok(entry.map(|entry| self.path(entry)))
    }

    /// The file `default.gguf`, where somebody has put one.
    #[must_use]
    pub fn default_file(&self) -> Option<PathBuf> {
        let file = self.folder.join(DEFAULT).with_extension("gguf");
        file.exists().then_some(file)
    }

    /// All names, sorted.
    ///
    /// # Errors
    /// As [`Self::models`].
    pub fn names(&self) -> Result<Vec<String>, StoreError> {
        Ok(self.models()?.into_iter().map(|entry| entry.name).collect())
    }

    /// Adds a model whose files are in their place.
    fn add(&self, entry: Entry) -> Result<(), StoreError> {
        self.change(|manifest| {
            let taken = entry.names().find_map(|name| {
                let other = manifest.models.iter().find(|other| other.is_called(name))?;
                Some((name.to_owned(), other.source.clone()))
            });
            if let Some((name, from)) = taken {
                return Err(StoreError::NameTaken { name, from });
            }
            manifest.models.push(entry);
            manifest.models.sort_by(|a, b| a.name.cmp(&b.name));
            Ok(())
        })
    }

    /// Removes the model of this name or alias, and its files where they are the store's own.
    ///
    /// # Errors
    /// There is no such model, or the system refuses.
    pub fn remove(&self, name: &str) -> Result<Entry, StoreError> {
        let known = self.names()?;
        let entry = self.change(|manifest| {
            let at = manifest.models.iter().position(|entry| entry.is_called(name));
            let missing = || StoreError::UnknownModel { name: name.to_owned(), known };
            Ok(manifest.models.remove(at.ok_or_else(missing)?))
        })?;
        // Only after the manifest has forgotten it: it never names what is half gone.
        if !entry.is_linked() {
            let folder = self.folder.join(&entry.name);
            match fs::remove_dir_all(&folder) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {} // by somebody else
                removed => removed.map_err(failed("remove", &folder))?,
            }
        }
        Ok(entry)
    }

    /// Changes the manifest under its lock.
    fn change<T>(
        &self,
        change: impl FnOnce(&mut Manifest) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        make_folder(&self.folder)?;
        let path = self.folder.join(LOCK);
        let lock = open_lock(&path)?;
        flock(&lock, FlockOperation::LockExclusive)
            .map_err(|error| failed("lock", &path)(error.into()))?;
        let path = self.folder.join(MANIFEST);
        let mut manifest = Manifest::read(&path)?;
        let result = change(&mut manifest)?;
        manifest.write(&path)?;
        Ok(result)
    }

    fn partial(&self) -> PathBuf {
        self.folder.join(PARTIAL)
    }
}

fn make_folder(path: &Path) -> Result<(), StoreError> {
    let made: Vec<&Path> = path.ancestors().take_while(|above| !above.exists()).collect();
    DirBuilder::new().recursive(true).create(path).map_err(failed("create the folder", path))?;
    made.iter().filter_map(|made| made.parent()).try_for_each(|parent| match parent {
        parent if parent.as_os_str().is_empty() => sync_folder(Path::new(".")),
        parent => sync_folder(parent),
    })
}

fn open_lock(path: &Path) -> Result<File, StoreError> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(failed("open", path))
}

/// Makes what was created in, or renamed into, a folder last through a power failure.
fn sync_folder(path: &Path) -> Result<(), StoreError> {
    File::open(path).and_then(|folder| folder.sync_all()).map_err(failed("sync", path))
}

#[cfg(test)]
mod tests;
