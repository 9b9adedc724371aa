//! Reads the header of a safetensors file: names, types, shapes and places of tensors.
//!
//! A file is 8 bytes of length, that many bytes of JSON, and the data. Files are foreign input: the
//! lengths are held against the bytes that are there, and memory grows with the header read.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::HfError;
use crate::gguf::FileIdentity;
use crate::tensor::DType;

/// Longest header, as the format's own reader has it.
const HEADER_BYTES_MAX: u64 = 100_000_000;

/// Most dimensions of a tensor; what a model's weights have is at most 4.
const DIMS_MAX: usize = 8;

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: Box<str>,
    /// Its type, or the name of one that weights do not have.
    pub(super) dtype: Result<DType, Box<str>>,
    /// Outermost first.
    pub(super) dims: Box<[u64]>,
    /// Offset of the data, in bytes from the start of the file.
    pub(super) offset: u64,
    /// Size of its data in bytes.
    pub(super) bytes: u64,
}

/// An open file.
#[derive(Debug)]
pub(super) struct Safetensors {
    path: PathBuf,
    file: File,
    header_bytes: u64,
    pub(super) entries: Vec<Entry>,
}

impl Safetensors {
    /// Opens a regular file and reads its header.
    pub(super) fn open(path: &Path) -> Result<Self, HfError> {
        let file = super::open_file(path)?;
        let read = |error| HfError::Read { path: path.to_owned(), error };
        let file_bytes = file.metadata().map_err(read)?.len();
        let wrong = |detail: String| HfError::Safetensors { path: path.to_owned(), detail };
        let mut length = [0; 8];
        if file_bytes < 8 {
            return Err(wrong(format!("{file_bytes} bytes, wanted 8 of length at least")));
        }
        file.read_exact_at(&mut length, 0).map_err(read)?;
        let header_bytes = u64::from_le_bytes(length);
        check_length(header_bytes, file_bytes).map_err(wrong)?;
        let mut header = vec![0; header_bytes as usize];
        file.read_exact_at(&mut header, 8).map_err(read)?;
        let entries = parse(&header, file_bytes).map_err(wrong)?;
        let header_bytes = header_bytes + 8;
        Ok(Self { path: path.to_owned(), file, header_bytes, entries })
    }

    /// The file as it is now.
    pub(super) fn identity(&self) -> std::io::Result<FileIdentity> {
        FileIdentity::of(&self.file, self.header_bytes)
    }

    /// Fills `out` from position `at` of the file.
    pub(super) fn read(&self, at: u64, out: &mut [u8]) -> std::io::Result<()> {
        self.file.read_exact_at(out, at)
    }

    /// Path of the file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

fn check_length(header_bytes: u64, file_bytes: u64) -> Result<(), String> {
    let most = HEADER_BYTES_MAX.min(file_bytes - 8);
    if header_bytes > most {
        return Err(format!("a header of {header_bytes} bytes, at most {most} can be"));
    }
    Ok(())
}

/// Parses the JSON of a header; `file_bytes` is the size of the whole file.
fn parse(header: &[u8], file_bytes: u64) -> Result<Vec<Entry>, String> {
    let Header(mut entries) = serde_json::from_slice(header).map_err(|e| e.to_string())?;
    let data_start = 8 + header.len() as u64;
    let data_bytes = file_bytes.saturating_sub(data_start);
    for entry in &mut entries {
        place(entry, data_start, data_bytes)
            .map_err(|detail| format!("tensor {}: {detail}", shown(&entry.name)))?;
    }
    entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    if let Some(pair) = entries.windows(2).find(|pair| pair[0].name == pair[1].name) {
        return Err(format!("tensor {} is there twice", shown(&pair[0].name)));
    }
    Ok(entries)
}

/// Holds a tensor's place against its shape and the file, and counts it from the file's start.
fn place(entry: &mut Entry, data_start: u64, data_bytes: u64) -> Result<(), String> {
    let (begin, end) = (entry.offset, entry.bytes);
    if begin > end || end > data_bytes {
        return Err(format!("data from {begin} to {end} of {data_bytes} bytes"));
    }
    if let Ok(dtype) = entry.dtype {
        let bytes = entry.dims.iter().try_fold(dtype.block_bytes() as u64, |n, dim| {
            n.checked_mul(*dim).filter(|n| i64::try_from(*n).is_ok())
        });
        if bytes != Some(end - begin) {
            let (dims, found) = (&entry.dims, end - begin);
            return Err(format!("shape {dims:?} of {} in {found} bytes", dtype.name()));
        }
    }
    (entry.offset, entry.bytes) = (data_start + begin, end - begin);
    Ok(())
}

/// A name from a file, short enough for a message.
fn shown(name: &str) -> String {
    let short: String = name.chars().take(60).collect();
    format!("{short:?}")
}

/// The tensors of a header; a place is still the pair of the file, in `offset` and `bytes`.
struct Header(Vec<Entry>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Tensors;
        impl<'de> Visitor<'de> for Tensors {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut entries = Vec::new();
                while let Some(name) = map.next_key::<Box<str>>()? {
                    if &*name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    let Fields { dtype, shape: Dims(dims), data_offsets: (offset, bytes) } =
                        map.next_value()?;
                    let dtype = match &*dtype {
                        "F32" => Ok(DType::F32),
                        "F16" => Ok(DType::F16),
                        "BF16" => Ok(DType::BF16),
                        _ => Err(dtype),
                    };
                    entries.push(Entry { name, dtype, dims, offset, bytes });
                }
                Ok(Header(entries))
            }
        }
        deserializer.deserialize_map(Tensors)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    dtype: Box<str>,
    shape: Dims,
    data_offsets: (u64, u64),
}

/// A shape of at most [`DIMS_MAX`] dimensions.
struct Dims(Box<[u64]>);

impl<'de> Deserialize<'de> for Dims {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Shape;
        impl<'de> Visitor<'de> for Shape {
            type Value = Dims;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "an array of at most {DIMS_MAX} dimensions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Dims, A::Error> {
                let (mut dims, mut count) = ([0; DIMS_MAX], 0);
                while let Some(dim) = seq.next_element()? {
                    let place = dims.get_mut(count);
                    *place.ok_or_else(|| A::Error::invalid_length(count + 1, &self))? = dim;
                    count += 1;
                }
                Ok(Dims(dims[..count].into()))
            }
        }
        deserializer.deserialize_seq(Shape)
    }
}

/// Parses `data` as a whole file in memory: must return, whatever the data.
pub fn fuzz_safetensors(data: &[u8]) {
    let file_bytes = data.len() as u64;
    let Some((length, rest)) = data.split_first_chunk() else { return };
    let header_bytes = u64::from_le_bytes(*length);
    if check_length(header_bytes, file_bytes).is_err() {
        return;
    }
    let Ok(entries) = parse(&rest[..header_bytes as usize], file_bytes) else { return };
    for entry in entries {
        let end = entry.offset.checked_add(entry.bytes);
        assert!(end.is_some_and(|end| end <= file_bytes), "{entry:?} is outside the file");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parsed(header: &str, data_bytes: u64) -> Result<Vec<Entry>, String> {
        parse(header.as_bytes(), 8 + header.len() as u64 + data_bytes)
    }

    #[test]
    fn tensors_are_found_by_name_type_shape_and_place() {
        let header = r#"{"__metadata__":{"format":"pt"},
            "b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},
            "a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},
            "c":{"dtype":"I64","shape":[1],"data_offsets":[16,24]}}"#;
        let entries = parsed(header, 24).unwrap();
        let start = 8 + header.len() as u64;
        assert_eq!((&*entries[0].name, entries[0].offset, entries[0].bytes), ("a", start, 4));
        assert_eq!((entries[1].dtype.clone(), &*entries[1].dims), (Ok(DType::BF16), &[2, 3][..]));
        assert_eq!(entries[2].dtype, Err("I64".into()));
    }

    #[test]
    fn hostile_headers_are_refused() {
        let one = |fields: &str| format!(r#"{{"a":{{{fields}}}}}"#);
        for (header, wanted) in [
            (
                one(r#""dtype":"F32","shape":[2],"data_offsets":[0,4]"#),
                "shape [2] of F32 in 4 bytes",
            ),
            (one(r#""dtype":"F32","shape":[2],"data_offsets":[8,0]"#), "from 8 to 0"),
            (one(r#""dtype":"F32","shape":[4],"data_offsets":[0,16]"#), "0 to 16 of 8 bytes"),
            (
                one(r#""dtype":"F32","shape":[9223372036854775808,2],"data_offsets":[0,8]"#),
                "in 8 bytes",
            ),
            (one(r#""dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]"#), "length 9"),
            (one(r#""dtype":"F32","shape":[-1],"data_offsets":[0,4]"#), "-1"),
            (one(r#""dtype":"F32","shape":[1]"#), "data_offsets"),
            (
                r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
                    "a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#
                    .to_owned(),
                "twice",
            ),
            ("[]".to_owned(), "object of tensors"),
            ("{".to_owned(), "EOF"),
        ] {
            let message = parsed(&header, 8).unwrap_err();
            assert!(message.contains(wanted), "{header}: {message}");
        }
        assert!(check_length(u64::MAX, 100).is_err());
        fuzz_safetensors(&[]);
        fuzz_safetensors(&u64::MAX.to_le_bytes());
    }
}
