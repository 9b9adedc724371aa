//! Sessions in files: saved for another life of the daemon, or parked where memory is short.
//!
//! ```text
//! "HOBSESS1", u32 bytes of the header, header (JSON), tokens (u32 each), cache, SHA-256 of all
//! ```
//!
//! Numbers are little-endian. A file is written under a temporary name and renamed once it is
//! whole, is readable by the daemon's user alone, and is bound to a model, a form of the cache and
//! a uid: one that does not fit, or is damaged, is refused with the reason, and stays where it is.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;

use super::UsedAdapter;

const MAGIC: &[u8; 8] = b"HOBSESS1";

/// Longest header; a name has 128 bytes at most.
const HEADER_BYTES_MAX: u32 = 16 * 1024;

/// Highest number of a session that is taken from a file: what JSON's numbers hold.
pub(super) const NUMBER_MAX: u64 = 1 << 53;

/// Length of the checksum.
const CHECKSUM_BYTES: usize = 32;

/// What a file says about its session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Whose it is.
    pub uid: u32,
    /// Its number.
    pub session: u64,
    /// Its name.
    pub name: Option<String>,
    /// Its context.
    pub context_tokens: u64,
    /// Name of its priority.
    pub priority: String,
    /// Its time to live.
    pub ttl_seconds: Option<u64>,
    /// LoRA adapters that its cache was computed with.
    #[serde(default)]
    pub adapters: Vec<UsedAdapter>,
    /// What the cache was computed by, and its form.
    pub made_by: String,
    /// Tokens.
    pub tokens: u64,
    /// Bytes of the cache; none where the tokens alone are kept.
    pub cache_bytes: u64,
}

/// A session as a file holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// What it is.
    pub header: Header,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Their keys and values.
    pub cache: Vec<u8>,
}

/// Why a session's file cannot be written or used.
#[derive(Debug, Error)]
pub enum SessionFileError {
    /// The system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// It is cut off, damaged, or something else.
    #[error("{}: {what}; the file is left as it is", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
}

impl SessionFileError {
    /// Whether the disk is full, or its share of it.
    #[must_use]
    pub fn is_for_want_of_room(&self) -> bool {
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        let Self::Io { source, .. } = self else { return false };
        matches!(source.kind(), StorageFull | QuotaExceeded | FileTooLarge)
    }
}

impl Saved {
    /// Leaves the tokens alone: their cache can be computed again.
    pub fn drop_cache(&mut self) {
        self.cache = Vec::new();
        self.header.cache_bytes = 0;
    }

    /// Writes the file in the place of an older one, all of it or nothing. With `durable`, it is on
    /// the disk when this returns.
    ///
    /// # Errors
    /// [`SessionFileError::Io`]; the older file is then still there.
    pub fn write(&self, path: &Path, durable: bool) -> Result<(), SessionFileError> {
        let temporary = path.with_extension("tmp");
        let written = self.write_to(&temporary, durable).and_then(|()| {
            fs::rename(&temporary, path)?;
            match path.parent() {
                Some(folder) if durable => File::open(folder)?.sync_all(),
                _ => Ok(()),
            }
        });
        written.map_err(|source| {
            let _ = fs::remove_file(&temporary); // what was written of it is of no use
            SessionFileError::Io { path: path.to_owned(), source }
        })
    }

    /// `path` must be nobody's: what is there goes, and a link is not followed.
    fn write_to(&self, path: &Path, durable: bool) -> io::Result<()> {
        if let Some(folder) = path.parent() {
            create_folder(folder)?;
        }
        match fs::remove_file(path) {
            // A file that another run left, or that somebody put there for this one to follow.
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        let header = serde_json::to_vec(&self.header)?;
        let length = (header.len() as u32).to_le_bytes();
        let tokens: Vec<u8> = self.tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        let mut checksum = Sha256::new();
        for part in [&MAGIC[..], &length, &header, &tokens, &self.cache] {
            checksum.update(part);
            file.write_all(part)?;
        }
        file.write_all(&checksum.finalize())?;
        if durable { file.sync_all() } else { Ok(()) }
    }

    /// Reads a file whole.
    ///
    /// # Errors
    /// [`SessionFileError`]; the file stays as it is.
    pub fn read(path: &Path, made_by: &str) -> Result<Self, SessionFileError> {
        let io = |source| SessionFileError::Io { path: path.to_owned(), source };
        let unusable = |what: String| SessionFileError::Unusable { path: path.to_owned(), what };
        let mut bytes = Vec::new();
        File::open(path).and_then(|mut file| file.read_to_end(&mut bytes)).map_err(io)?;
        let (body, sum) = bytes
            .split_at_checked(bytes.len().saturating_sub(CHECKSUM_BYTES))
            .filter(|(body, _)| body.starts_with(MAGIC) && body.len() >= MAGIC.len() + 4)
            .ok_or_else(|| unusable("no session of this version of hob".into()))?;
        if Sha256::digest(body).as_slice() != sum {
            return Err(unusable("its checksum is wrong: it is damaged or cut off".into()));
        }
        let (length, rest) = body[MAGIC.len()..].split_at(4);
        let length = u32::from_le_bytes([length[0], length[1], length[2], length[3]]);
        let (header, rest) = rest
            .split_at_checked(length.min(HEADER_BYTES_MAX) as usize)
            .ok_or_else(|| unusable("its header is cut off".into()))?;
        let header: Header = serde_json::from_slice(header)
            .map_err(|error| unusable(format!("its header cannot be read: {error}")))?;
        if header.made_by != made_by {
            let found = &header.made_by;
            return Err(unusable(format!("it is of {found}, wanted {made_by}")));
        }
        if header.session > NUMBER_MAX {
            let found = header.session;
            return Err(unusable(format!("its number is {found}; wanted at most {NUMBER_MAX}")));
        }
        let (tokens, cache) = usize::try_from(header.tokens)
            .ok()
            .and_then(|tokens| rest.split_at_checked(tokens.checked_mul(4)?))
            .filter(|(_, cache)| cache.len() as u64 == header.cache_bytes)
            .ok_or_else(|| unusable("its parts are not as long as its header says".into()))?;
        let tokens = tokens
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
            .collect();
        Ok(Self { header, tokens, cache: cache.to_vec() })
    }
}

/// The folder of the sessions' files.
#[derive(Clone, Debug)]
pub struct SessionFolder {
    folder: PathBuf,
}

/// Endings of the files: saved, and parked.
const SAVED: &str = "session";
const PARKED: &str = "parked";

impl SessionFolder {
    /// The sessions' files below a folder of the daemon: those of each model by themselves, so that
    /// none takes another's place. One file may be served under two names, by two engines.
    #[must_use]
    pub fn new(state: &Path, model: &str, made_by: &str) -> Self {
        let mut hash = Sha256::new();
        for part in [model, made_by] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let hash = hash.finalize();
        let name: String = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        Self { folder: state.join("sessions").join(name) }
    }

    /// The highest number that a saved session of any model of the daemon has; 0 without one.
    #[must_use]
    pub fn highest_number(&self) -> u64 {
        let entries = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten();
        let models = self.folder.parent().into_iter().flat_map(entries);
        let files = models.flat_map(|model| entries(&model.path())).map(|file| file.path());
        let saved = files.filter(|path| path.extension().is_some_and(|ending| ending == SAVED));
        saved.filter_map(|path| number_of(&path)).max().unwrap_or(0)
    }

    /// Where a session is saved.
    #[must_use]
    pub fn saved(&self, uid: u32, session: u64) -> PathBuf {
        self.folder.join(format!("{uid}-{session}.{SAVED}"))
    }

    /// Where a session is parked.
    #[must_use]
    pub fn parked(&self, uid: u32, session: u64) -> PathBuf {
        self.folder.join(format!("{uid}-{session}.{PARKED}"))
    }

    /// The saved sessions' files, by name; what an interrupted daemon left half written, or parked,
    /// is removed.
    #[must_use]
    pub fn list(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(&self.folder) else { return Vec::new() };
        let mut saved = Vec::new();
        // What is no file was put there by somebody else.
        let files = entries.filter_map(Result::ok);
        let files = files.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
        for path in files.map(|entry| entry.path()) {
            match path.extension().and_then(|ending| ending.to_str()) {
                Some(SAVED) => saved.push(path),
                Some("tmp" | PARKED) => {
                    let _ = fs::remove_file(&path); // tried again at the next start
                }
                _ => {}
            }
        }
        saved.sort();
        saved
    }
}

/// The number of the session that a file was made for, by its name.
fn number_of(path: &Path) -> Option<u64> {
    let number = path.file_stem()?.to_str()?.split_once('-')?.1.parse().ok()?;
    (number <= NUMBER_MAX).then_some(number)
}

/// Makes a folder of this user's alone, with those above it; what is made lasts through a power
/// failure.
fn create_folder(folder: &Path) -> io::Result<()> {
    let made: Vec<&Path> = folder.ancestors().take_while(|above| !above.exists()).collect();
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    for parent in made.iter().filter_map(|made| made.parent()) {
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        File::open(parent)?.sync_all()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn saved() -> Saved {
        let header = Header {
            uid: 7,
            session: 3,
            name: Some("notes".into()),
            context_tokens: 96,
            priority: "normal".into(),
            ttl_seconds: None,
            adapters: Vec::new(),
            made_by: "this".into(),
            tokens: 2,
            cache_bytes: 5,
        };
        Saved { header, tokens: vec![1, 70_000], cache: vec![9, 8, 7, 6, 5] }
    }

    #[test]
    fn a_session_survives_its_file_which_is_its_owners_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = SessionFolder::new(folder.path(), "first", "this");
        let path = files.saved(7, 3);
        saved().write(&path, true).expect("written");
        assert_eq!(Saved::read(&path, "this").expect("whole"), saved());
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::write(path.with_extension("tmp"), b"half").expect("written");
        assert_eq!(files.list(), std::slice::from_ref(&path));
        assert!(!path.with_extension("tmp").exists());
    }

    #[test]
    fn models_have_folders_of_their_own_and_numbers_together() {
        let folder = tempfile::tempdir().expect("a folder");
        let open = |model, made_by| SessionFolder::new(folder.path(), model, made_by);
        let first = open("first", "this");
        assert_eq!(first.highest_number(), 0);
        saved().write(&first.saved(7, 3), false).expect("written");
        for other in [open("second", "this"), open("first", "that")] {
            assert_eq!(other.list(), [] as [PathBuf; 0]);
            assert_eq!(other.highest_number(), 3);
        }
    }

    #[test]
    fn a_damaged_or_foreign_file_is_refused_and_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.session");
        saved().write(&path, false).expect("written");
        let whole = fs::read(&path).expect("there");
        let error = Saved::read(&path, "that").expect_err("another model's").to_string();
        assert!(error.contains("it is of this, wanted that"), "{error}");
        for cut in 0..whole.len() {
            fs::write(&path, &whole[..cut]).expect("written");
            assert!(Saved::read(&path, "this").is_err(), "{cut} bytes of it");
            let mut bent = whole.clone();
            bent[cut] ^= 1;
            fs::write(&path, &bent).expect("written");
            assert!(Saved::read(&path, "this").is_err(), "byte {cut} is another");
        }
        assert!(path.exists());
    }
}
