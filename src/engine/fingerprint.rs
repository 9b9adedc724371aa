//! What tells the caches of one model, in one form, from those of all others.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::kernels::PageLayout;
use crate::kv_cache::KvConfig;
use crate::tensor::DType;

/// A model of many gigabytes is not read whole: its length, its beginning with all metadata, and
/// pieces in even distances.
const PIECE_BYTES: u64 = 64 * 1024;
const PIECES: u64 = 64;
const BEGINNING_BYTES: u64 = 1 << 20;

/// The fingerprint of a small file, which is read whole.
///
/// # Errors
/// The file cannot be read.
pub(super) fn of_file(path: &Path) -> io::Result<String> {
    let (file, mut hash) = (File::open(path)?, Sha256::new());
    let mut piece = vec![0; PIECE_BYTES as usize];
    let mut at = 0;
    loop {
        match file.read_at(&mut piece, at)? {
            0 => return Ok(hex(&hash.finalize())),
            count => {
                hash.update(&piece[..count]);
                at += count as u64;
            }
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        write!(text, "{byte:02x}").expect("a string takes all");
    }
    text
}

/// The fingerprint of a model's file or folder, of the type that it is quantised to as it is
/// loaded, and of the form of its caches.
///
/// # Errors
/// A file cannot be read.
pub(super) fn of(path: &Path, quantize: Option<DType>, config: &KvConfig) -> io::Result<String> {
    let mut hash = Sha256::new();
    if path.is_dir() {
        let mut files = Vec::new();
        for entry in fs::read_dir(path)? {
            let path = entry?.path();
            let ending = path.extension().and_then(|ending| ending.to_str());
            if path.is_file() && matches!(ending, Some("json" | "safetensors" | "model")) {
                files.push(path);
            }
        }
        files.sort();
        for file in files {
            hash.update(file.file_name().unwrap_or_default().as_encoded_bytes());
            add_file(&mut hash, &file)?;
        }
    } else {
        add_file(&mut hash, path)?;
    }
    if let Some(dtype) = quantize {
        hash.update(dtype.name());
    }
    let mut text = format!("model {}", hex(&hash.finalize()));
    // Not by the whole layout: the order of words is the device's alone.
    let PageLayout { kv_heads, head_dim, format, .. } = config.layout;
    let heads = format!("{kv_heads} heads of {head_dim} dimensions");
    let form = format!("{heads}, keys beside values, in {}", format.name());
    write!(text, ", caches of {form} in {} layers", config.layers).expect("as above");
    Ok(text)
}

/// Adds a file: its length, its beginning, and pieces of the rest.
fn add_file(hash: &mut Sha256, path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
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
    Ok(())
}
