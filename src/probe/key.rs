//! What was found out about a device, kept on disk for the next start.
//!
//! A file is of one device, driver and build, and says so inside: any other's is as if it were not
//! there. One that is damaged is ignored with a warning, and replaced.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::gpu::Capabilities;
use crate::kernels::spirv;

/// Largest file that is read.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Revision of the probing method; raise it when earlier findings may have been wrong.
const REVISION: u32 = 3;

/// Whom a finding is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// The device's name, for people.
    device: String,
    /// The device's UUID.
    uuid: String,
    /// The driver's name and version.
    driver: String,
    /// Invocations of a workgroup, and what shaders may use.
    lanes: u32,
    features: u32,
    /// This program's version, and the hash of its shaders.
    version: String,
    shaders: u64,
    /// Revision of the probing method.
    #[serde(default)]
    revision: u32,
}

impl Key {
    /// Key of an open device.
    #[must_use]
    pub fn of(caps: &Capabilities) -> Self {
        let features =
            [caps.subgroup_ops, caps.buffer_pointers, caps.uniform_loads, caps.storage_16bit];
        Self {
            device: caps.device_name.clone(),
            uuid: caps.uuid.iter().map(|byte| format!("{byte:02x}")).collect(),
            driver: caps.driver.clone(),
            lanes: caps.lanes,
            features: features.iter().fold(0, |sum, bit| 2 * sum + u32::from(*bit)),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            shaders: spirv::HASH,
            revision: REVISION,
        }
    }

    /// `KIND-HASH.json` in the folder: of this device and driver; builds replace one another's.
    fn file(&self, folder: &Path, kind: &str) -> PathBuf {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64; // FNV-1a
        let lanes = self.lanes.to_string();
        let features = self.features.to_string();
        for part in [&self.uuid, &self.driver, &lanes, &features] {
            for byte in part.bytes().chain([0]) {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
        folder.join(format!("{kind}-{hash:016x}.json"))
    }
}

#[derive(Serialize, Deserialize)]
struct Kept<T> {
    key: Key,
    found: T,
}

/// Reads what was kept for this very key; `None` where there is nothing.
#[must_use]
pub fn read<T: DeserializeOwned>(folder: &Path, kind: &str, key: &Key) -> Option<T> {
    let file = key.file(folder, kind);
    let size = fs::metadata(&file).ok()?.len();
    let text = match fs::read(&file) {
        Ok(text) if size <= FILE_BYTES_MAX => text,
        Ok(_) => {
            tracing::warn!(file = %file.display(), size, "the file is too large; it is ignored");
            return None;
        }
        Err(error) => {
            tracing::warn!(file = %file.display(), %error, "cannot read the file; it is ignored");
            return None;
        }
    };
    match serde_json::from_slice::<Kept<T>>(&text) {
        Ok(kept) => (kept.key == *key).then_some(kept.found),
        Err(error) => {
            tracing::warn!(file = %file.display(), %error, "the file is damaged; it is ignored");
            None
        }
    }
}

/// Keeps what was found for the key. A folder that cannot be written costs a warning and nothing
/// else.
pub fn write<T: Serialize>(folder: &Path, kind: &str, key: &Key, found: &T) {
    let file = key.file(folder, kind);
    let kept = Kept { key: key.clone(), found };
    let text = serde_json::to_vec_pretty(&kept).expect("plain data is JSON");
    if let Err(error) = replace(&file, &text) {
        tracing::warn!(file = %file.display(), %error, "cannot keep what was found of the device");
    }
}

/// Forgets what was kept for the device and driver of the key, by whatever build.
///
/// # Errors
/// The file is there and cannot be removed.
pub fn forget(folder: &Path, kind: &str, key: &Key) -> std::io::Result<()> {
    match fs::remove_file(key.file(folder, kind)) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Writes beside the file and renames: a reader sees the old file or the new one.
fn replace(file: &Path, text: &[u8]) -> std::io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let temporary = file.with_extension(format!("tmp{}", std::process::id()));
    let _ = fs::remove_file(&temporary); // one of another process of this number
    // Nothing that somebody put there is followed or written to.
    let result = fs::File::create_new(&temporary)
        .and_then(|mut out| {
            out.write_all(text)?;
            out.sync_all()
        })
        .and_then(|()| fs::rename(&temporary, file));
    if result.is_err() {
        let _ = fs::remove_file(&temporary); // whatever was left of it
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        Key {
            device: "a card".into(),
            uuid: "00ff".into(),
            driver: "a driver 1".into(),
            lanes: 8,
            features: 3,
            version: "1".into(),
            shaders: 5,
            revision: REVISION,
        }
    }

    #[test]
    fn what_is_kept_comes_back_for_the_same_key_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path().join("new");
        assert_eq!(read::<Vec<u32>>(&folder, "checks", &key()), None);
        write(&folder, "checks", &key(), &[1, 2]);
        assert_eq!(read(&folder, "checks", &key()), Some(vec![1, 2]));
        for other in [
            Key { driver: "a driver 2".into(), ..key() },
            Key { uuid: "00fe".into(), ..key() },
            Key { shaders: 6, ..key() },
            Key { version: "2".into(), ..key() },
        ] {
            assert_eq!(read::<Vec<u32>>(&folder, "checks", &other), None, "{other:?}");
        }
        let files = fs::read_dir(&folder).expect("a folder").count();
        assert_eq!(files, 1, "nothing is left beside it");
    }

    #[test]
    fn a_damaged_file_is_ignored_and_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        write(folder.path(), "checks", &key(), &[1]);
        let file = key().file(folder.path(), "checks");
        let text = fs::read(&file).expect("it was written");
        fs::write(&file, &text[..text.len() / 2]).expect("cut");
        assert_eq!(read::<Vec<u32>>(folder.path(), "checks", &key()), None);
        write(folder.path(), "checks", &key(), &[2]);
        assert_eq!(read(folder.path(), "checks", &key()), Some(vec![2]));
    }
}
