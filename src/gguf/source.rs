//! Where the bytes of a model file come from: a regular file, memory, or what makes the tensors.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use super::error::GgufFault;
use super::identity::FileIdentity;

/// Data of tensors that are not in a GGUF file.
pub trait TensorData: std::fmt::Debug + Send + Sync {
    /// Fills `out` with the bytes of tensor `index` from `offset` on; the range is within it.
    ///
    /// # Errors
    /// Reading failed.
    fn read(&self, index: usize, offset: u64, out: &mut [u8]) -> io::Result<()>;

    /// The files that they come from, as they are now.
    ///
    /// # Errors
    /// Reading failed.
    fn identity(&self) -> io::Result<Vec<FileIdentity>>;
}

/// A model file's bytes, read by position.
pub(super) enum Source {
    /// A regular file and its size when it was opened.
    File { file: File, bytes: u64 },
    /// A file in memory.
    Bytes(Vec<u8>),
    /// No file: the tensors are made as they are read. Their size together.
    Made { data: Box<dyn TensorData>, bytes: u64 },
}

impl Source {
    /// Opens a regular file. Anything else is refused before it is opened: opening a pipe would
    /// wait for a writer.
    pub(super) fn open(path: &Path) -> Result<Self, GgufFault> {
        let kind = std::fs::metadata(path).map_err(|error| GgufFault::Open { error })?;
        if !kind.is_file() {
            return Err(GgufFault::NotAFile);
        }
        let file = File::open(path).map_err(|error| GgufFault::Open { error })?;
        let bytes = file.metadata().map_err(|error| GgufFault::Open { error })?.len();
        Ok(Self::File { file, bytes })
    }

    /// Size in bytes.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::File { bytes, .. } | Self::Made { bytes, .. } => *bytes,
            Self::Bytes(bytes) => bytes.len() as u64,
        }
    }

    /// Fills `out` from position `at`.
    pub(super) fn read_exact_at(&self, at: u64, out: &mut [u8]) -> io::Result<()> {
        match self {
            Self::File { file, .. } => file.read_exact_at(out, at),
            Self::Bytes(bytes) => {
                let start = usize::try_from(at).ok().and_then(|at| bytes.get(at..));
                let part = start.and_then(|bytes| bytes.get(..out.len()));
                out.copy_from_slice(part.ok_or(io::ErrorKind::UnexpectedEof)?);
                Ok(())
            }
            // Its tensors are read by number.
            Self::Made { .. } => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self {
            Self::File { .. } => "File",
            Self::Bytes(_) => "Bytes",
            Self::Made { .. } => "Made",
        };
        write!(f, "{kind}({} bytes)", self.bytes())
    }
}
