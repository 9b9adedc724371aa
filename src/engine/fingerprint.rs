//! What tells the caches of one model, in one form, from those of all others.

use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::kv_cache::KvConfig;

/// A model of many gigabytes is not read whole: its length, its beginning with all metadata, and
/// pieces in even distances.
const PIECE_BYTES: u64 = 64 * 1024;
const PIECES: u64 = 64;
const BEGINNING_BYTES: u64 = 1 << 20;

/// The fingerprint of a model's file and of the form of its caches.
///
/// # Errors
/// The file cannot be read.
pub(super) fn of(path: &Path, config: &KvConfig) -> io::Result<String> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut hash = Sha256::new();
    hash.update(length.to_le_bytes());
    let mut take = |from: u64, bytes: u64| -> io::Result<()> {
        let mut piece = vec![0; bytes.min(length.saturating_sub(from)) as usize];
        file.read_exact_at(&mut piece, from)?;
        hash.update(&piece);
        Ok(())
    };
    take(0, BEGINNING_BYTES)?;
    for piece in 0..PIECES {
        take(length.saturating_sub(PIECE_BYTES) / PIECES * (piece + 1), PIECE_BYTES)?;
    }
    let mut text = String::from("model ");
    for byte in hash.finalize() {
        write!(text, "{byte:02x}").expect("a string takes all");
    }
    let layout = config.layout;
    write!(text, ", caches of {layout:?} in {} layers", config.layers).expect("as above");
    Ok(text)
}
