//! Sessions in files: saved for another life of the daemon, or parked where memory is short.
//!
//! ```text
//! "HOBSESS1", u32 bytes of the header, header (JSON), tokens (u32 each), cache, SHA-256 of all
//! ```
//!
//! Numbers are little-endian. A file is written under a temporary name and renamed once it is
//! whole, is readable by the daemon's user alone, and is bound to a model, a form of the cache and
//! a uid: one that does not fit, or is damaged, is refused with the reason, and stays where it is.
//! Its name repeats uid and number, and its header all lengths: they are held against each other
//! before the cache is read.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
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

/// Bytes that are written at once: between two of them, other files may be written.
const PIECE_BYTES: usize = 4 << 20;

/// Header of a session file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Whose it is.
    pub uid: u32,
    /// Number.
    pub session: u64,
    /// Name.
    pub name: Option<String>,
    /// Context limit in tokens.
    pub context_tokens: u64,
    /// Name of its priority.
    pub priority: String,
    /// Idle time to live, in seconds.
    pub ttl_seconds: Option<u64>,
    /// LoRA adapters that its cache was computed with.
    #[serde(default)]
    pub adapters: Vec<UsedAdapter>,
    /// Identifier of the model and form of the cache.
    pub made_by: String,
    /// Number of tokens.
    pub tokens: u64,
    /// Bytes of the cache; none where the tokens alone are kept.
    pub cache_bytes: u64,
}

/// A session as a file holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// Header of the session.
    pub header: Header,
    /// Token ids.
    pub tokens: Vec<u32>,
    /// Their keys and values.
    pub cache: Vec<u8>,
}

/// Reason a session file cannot be written or used.
#[derive(Debug, Error)]
pub enum SessionFileError {
    /// The system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error reported by the system.
        source: io::Error,
    },
    /// Truncated, damaged, or not a session file.
    #[error("{}: {what}; the file is left as it is", path.display())]
    Unusable {
        /// Path of the file.
        path: PathBuf,
        /// Fault found.
        what: String,
    },
}

impl SessionFileError {
    /// Error text for callers, without the daemon's paths.
    #[must_use]
    pub fn reason(&self) -> String {
        match self {
            Self::Io { source, .. } => source.to_string(),
            Self::Unusable { what, .. } => what.clone(),
        }
    }
}

impl Saved {
    /// Writes the file in the place of an older one, all of it or nothing. With `durable`, it is on
    /// the disk when this returns.
    ///
    /// # Errors
    /// [`SessionFileError::Io`]; the older file is then still there.
    pub fn write(&self, path: &Path, durable: bool) -> Result<(), SessionFileError> {
        self.write_watched(path, durable, &mut |_| Ok(()))
    }

    /// As [`Self::write`]; `watch` is told the bytes of each piece before it is written, and may
    /// put an end to it.
    ///
    /// # Errors
    /// As [`Self::write`], and those of `watch`.
    pub fn write_watched(
        &self,
        path: &Path,
        durable: bool,
        watch: &mut dyn FnMut(usize) -> io::Result<()>,
    ) -> Result<(), SessionFileError> {
        let temporary = path.with_extension("tmp");
        let written = self.write_to(&temporary, durable, watch).and_then(|()| {
            fs::rename(&temporary, path)?;
            if durable { sync_folder_of(path) } else { Ok(()) }
        });
        written.map_err(|source| {
            let _ = fs::remove_file(&temporary); // what was written of it is of no use
            SessionFileError::Io { path: path.to_owned(), source }
        })
    }

    fn write_to(
        &self,
        path: &Path,
        durable: bool,
        watch: &mut dyn FnMut(usize) -> io::Result<()>,
    ) -> io::Result<()> {
        if let Some(folder) = path.parent() {
            create_folder(folder)?;
        }
        let mut file = open_temporary(path)?;
        let header = serde_json::to_vec(&self.header)?;
        let length = (header.len() as u32).to_le_bytes();
        let tokens: Vec<u8> = self.tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        let mut checksum = Sha256::new();
        for part in [&MAGIC[..], &length, &header, &tokens, &self.cache] {
            for piece in part.chunks(PIECE_BYTES) {
                watch(piece.len())?;
                checksum.update(piece);
                file.write_all(piece)?;
            }
        }
        file.write_all(&checksum.finalize())?;
        if durable { file.sync_all() } else { Ok(()) }
    }

    /// Reads a file whole.
    ///
    /// # Errors
    /// [`SessionFileError`]; the file stays as it is.
    pub fn read(path: &Path, made_by: &str) -> Result<Self, SessionFileError> {
        let mut reading = Reading { path, file: File::open(path).map_err(io_error(path))?.take(0) };
        let head = reading.bytes(MAGIC.len() + 4)?;
        let (magic, length) = head.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(reading.unusable("no session of this version of hob".into()));
        }
        let length = u32::from_le_bytes([length[0], length[1], length[2], length[3]]);
        if length > HEADER_BYTES_MAX {
            let what = format!("its header has {length} bytes; wanted at most {HEADER_BYTES_MAX}");
            return Err(reading.unusable(what));
        }
        let text = reading.bytes(length as usize)?;
        let header: Header = serde_json::from_slice(&text)
            .map_err(|error| reading.unusable(format!("its header cannot be read: {error}")))?;
        reading.check_header(&header, made_by)?;
        let [token_bytes, cache_bytes] = [header.tokens.checked_mul(4), Some(header.cache_bytes)]
            .map(|bytes| bytes.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(usize::MAX));
        let tokens = reading.bytes(token_bytes)?;
        let cache = reading.bytes(cache_bytes)?;
        let sum = reading.bytes(CHECKSUM_BYTES)?;
        reading.check_end()?;
        let mut checksum = Sha256::new();
        for part in [&head, &text, &tokens, &cache] {
            checksum.update(part);
        }
        if checksum.finalize().as_slice() != sum {
            return Err(reading.unusable("its checksum is wrong: it is damaged".into()));
        }
        let tokens = tokens
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
            .collect();
        Ok(Self { header, tokens, cache })
    }
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> SessionFileError {
    let path = path.to_owned();
    |source| SessionFileError::Io { path, source }
}

/// Puts a folder's list of files on the disk.
pub(super) fn sync_folder_of(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

/// A file that is read from its beginning to its end: memory grows with what is there, not with
/// what the header says.
struct Reading<'a> {
    path: &'a Path,
    file: io::Take<File>,
}

impl Reading<'_> {
    fn unusable(&self, what: String) -> SessionFileError {
        SessionFileError::Unusable { path: self.path.to_owned(), what }
    }

    fn bytes(&mut self, count: usize) -> Result<Vec<u8>, SessionFileError> {
        self.file.set_limit(count as u64);
        let mut bytes = Vec::new();
        self.file.read_to_end(&mut bytes).map_err(io_error(self.path))?;
        if bytes.len() == count {
            return Ok(bytes);
        }
        Err(self.unusable("it ends before its header says: it is cut off".into()))
    }

    fn check_end(&mut self) -> Result<(), SessionFileError> {
        self.file.set_limit(1);
        match self.file.read(&mut [0]).map_err(io_error(self.path))? {
            0 => Ok(()),
            _ => Err(self.unusable("it goes on behind what its header says".into())),
        }
    }

    /// Whether it is of this model, and of the session that the file's name says.
    fn check_header(&self, header: &Header, made_by: &str) -> Result<(), SessionFileError> {
        let what = if header.made_by != made_by {
            format!("it is of {}, wanted {made_by}", header.made_by)
        } else if header.session > NUMBER_MAX {
            format!("its number is {}; wanted at most {NUMBER_MAX}", header.session)
        } else if name_parts(self.path) != Some((header.uid, header.session)) {
            let Header { uid, session, .. } = header;
            format!("it is session {session} of uid {uid}, and its name says otherwise")
        } else {
            return Ok(());
        };
        Err(self.unusable(what))
    }
}

/// The folder of the sessions' files.
#[derive(Clone, Debug)]
pub struct SessionFolder {
    folder: PathBuf,
}

/// Endings of the files: saved, and parked.
pub(super) const SAVED: &str = "session";
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

    /// Path of a saved session.
    #[must_use]
    pub fn saved(&self, uid: u32, session: u64) -> PathBuf {
        self.folder.join(format!("{uid}-{session}.{SAVED}"))
    }

    /// Path of a swapped-out cache.
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

/// The uid and the number of the session that a file was made for, by its name.
fn name_parts(path: &Path) -> Option<(u32, u64)> {
    let (uid, number) = path.file_stem()?.to_str()?.split_once('-')?;
    Some((uid.parse().ok()?, number.parse().ok()?))
}

/// The number of the session that a file was made for, by its name.
fn number_of(path: &Path) -> Option<u64> {
    name_parts(path).map(|(_, number)| number).filter(|number| *number <= NUMBER_MAX)
}

/// Opens a temporary file anew: a file that another run left is removed, and so is a link, which is
/// not followed. A pipe is written to as it stands.
fn open_temporary(path: &Path) -> io::Result<File> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_fifo() => {
            let flags = OFlags::NOFOLLOW.bits().cast_signed();
            return OpenOptions::new().write(true).custom_flags(flags).open(path);
        }
        Ok(_) => fs::remove_file(path)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
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
        let path = folder.path().join("7-3.session");
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
        fs::write(&path, [&whole[..], b"x"].concat()).expect("written");
        assert!(Saved::read(&path, "this").is_err(), "more than its header says");
    }

    #[test]
    fn a_file_under_the_name_of_another_session_or_user_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["8-3.session", "7-4.session", "x.session"] {
            let path = folder.path().join(name);
            saved().write(&path, false).expect("written");
            let error = Saved::read(&path, "this").expect_err("another's").to_string();
            assert!(error.contains("its name says otherwise"), "{error}");
        }
    }

    #[test]
    fn lengths_that_nothing_stands_behind_take_no_memory() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("7-3.session");
        for (tokens, cache_bytes) in [(u64::MAX, 5), (1 << 60, 5), (2, 1 << 60)] {
            let header = Header { tokens, cache_bytes, ..saved().header };
            Saved { header, ..saved() }.write(&path, false).expect("written");
            let error = Saved::read(&path, "this").expect_err("cut off").to_string();
            assert!(error.contains("it ends before"), "{error}");
        }
    }
}
