//! What tells a model's file from whatever else is put in its place.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};

use sha2::{Digest as _, Sha256};

/// Most bytes of a header that are hashed: the largest vocabularies in use take about as much.
const HASHED_BYTES_MAX: u64 = 32 << 20;

/// Bytes that are read at once.
const PIECE_BYTES: u64 = 1 << 20;

/// A file as it is now: two that are equal are one file, which has not been written to between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileIdentity {
    device: u64,
    inode: u64,
    bytes: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
    /// Hash of its first bytes.
    header: [u8; 32],
}

impl FileIdentity {
    /// That of an open file whose header has so many bytes.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn of(file: &File, header_bytes: u64) -> io::Result<Self> {
        let found = file.metadata()?;
        let (mut hash, end) = (Sha256::new(), header_bytes.min(found.len()).min(HASHED_BYTES_MAX));
        let (mut at, mut piece) = (0, vec![0; PIECE_BYTES.min(end) as usize]);
        while at < end {
            let piece = &mut piece[..PIECE_BYTES.min(end - at) as usize];
            file.read_exact_at(piece, at)?;
            hash.update(&*piece);
            at += piece.len() as u64;
        }
        Ok(Self {
            device: found.dev(),
            inode: found.ino(),
            bytes: found.len(),
            modified: (found.mtime(), found.mtime_nsec()),
            header: hash.finalize().into(),
        })
    }
}
