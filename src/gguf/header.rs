//! Parses the header: counts, metadata entries, tensor descriptions.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use super::cursor::{Cursor, Place};
use super::error::{GgufFault, plain};
use super::metadata::Metadata;
use super::source::Source;
use super::tensors::{self, TensorInfo};
use super::value::{Array, StrArray, Value};

/// Most bytes of metadata and tensor descriptions that are read; the largest vocabularies in use
/// take a tenth of it.
pub(super) const HEADER_BYTES_MAX: u64 = 256 << 20;
/// Most metadata entries.
const KEYS_MAX: u64 = 1 << 16;
/// Most tensors; the largest mixtures of experts have a few tens of thousands.
const TENSORS_MAX: u64 = 1 << 17;
/// Longest key, by the format's description.
const KEY_BYTES_MAX: u64 = 65_535;
/// Longest tensor name: ggml keeps 64 bytes and ends them with a zero.
const TENSOR_NAME_BYTES_MAX: u64 = 63;
/// Most dimensions of a tensor, as in ggml.
pub(super) const DIMS_MAX: u32 = 4;
/// Largest alignment; the default is 32 and pages are the largest thing anyone aligns to.
pub(super) const ALIGNMENT_MAX: u32 = 1 << 20;
/// The alignment of a file that names none.
pub(super) const ALIGNMENT_DEFAULT: u32 = 32;
/// The key that names another.
pub(super) const ALIGNMENT_KEY: &str = "general.alignment";
/// Least bytes of a metadata entry: length of the key, type, a one-byte value.
const ENTRY_BYTES_MIN: u64 = 8 + 4 + 1;
/// Least bytes of a tensor description: length of the name, dimensions, type, offset.
const TENSOR_BYTES_MIN: u64 = 8 + 4 + 4 + 8;

/// Counts and version from a file's header.
pub(super) struct Header {
    pub(super) version: u32,
    pub(super) alignment: u32,
    pub(super) metadata: Metadata,
    pub(super) tensors: Vec<TensorInfo>,
}

/// Reads the header of `source`; `path` is for the messages of what comes out.
pub(super) fn read(source: &Source, path: &Arc<Path>) -> Result<Header, GgufFault> {
    let mut cursor = Cursor::new(source);
    let version = version(&mut cursor)?;
    let tensor_count = cursor.u64(Place::Header)?;
    let key_count = cursor.u64(Place::Header)?;
    let room = |bytes_min, most: u64| most.min(cursor.left() / bytes_min);
    limit("metadata entries", key_count, room(ENTRY_BYTES_MIN, KEYS_MAX))?;
    limit("tensors", tensor_count, room(TENSOR_BYTES_MIN, TENSORS_MAX))?;

    let mut metadata = Metadata::new(Arc::clone(path));
    for index in 0..key_count {
        let (key, value) = entry(&mut cursor, index)?;
        let shown = plain(&key);
        if !metadata.insert(key, value) {
            return Err(GgufFault::DuplicateKey { key: shown });
        }
    }
    let alignment = alignment(&metadata)?;

    let mut tensors = Vec::new();
    let mut names = HashSet::new();
    for index in 0..tensor_count {
        let tensor = tensor(&mut cursor, index, path)?;
        if !names.insert(tensor.name.clone()) {
            return Err(GgufFault::DuplicateTensor { tensor: plain(&tensor.name) });
        }
        tensors.push(tensor);
    }
    let data_start = cursor.at().next_multiple_of(u64::from(alignment));
    tensors::place(&mut tensors, data_start, alignment, source.bytes())?;
    Ok(Header { version, alignment, metadata, tensors })
}

fn version(cursor: &mut Cursor) -> Result<u32, GgufFault> {
    let magic: [u8; 4] = cursor.array(Place::Header)?;
    if &magic != b"GGUF" {
        return Err(GgufFault::Magic { found: magic.escape_ascii().to_string() });
    }
    let version = cursor.u32(Place::Header)?;
    match version {
        2 | 3 => Ok(version),
        swapped if (1..=3).contains(&swapped.swap_bytes()) => {
            Err(GgufFault::BigEndian { version: swapped.swap_bytes() })
        }
        found => Err(GgufFault::Version { found }),
    }
}

fn limit(what: &'static str, found: u64, limit: u64) -> Result<(), GgufFault> {
    if found > limit { Err(GgufFault::Count { what, found, limit }) } else { Ok(()) }
}

fn entry(cursor: &mut Cursor, index: u64) -> Result<(String, Value), GgufFault> {
    let mut scratch = Vec::new();
    let key = cursor.string(&mut scratch, KEY_BYTES_MAX, Place::Key(index))?.to_owned();
    let place = Place::Value(&key);
    let value = match cursor.u32(place)? {
        0 => Value::U8(u8::from_le_bytes(cursor.array(place)?)),
        1 => Value::I8(i8::from_le_bytes(cursor.array(place)?)),
        2 => Value::U16(u16::from_le_bytes(cursor.array(place)?)),
        3 => Value::I16(i16::from_le_bytes(cursor.array(place)?)),
        4 => Value::U32(u32::from_le_bytes(cursor.array(place)?)),
        5 => Value::I32(i32::from_le_bytes(cursor.array(place)?)),
        6 => Value::F32(f32::from_le_bytes(cursor.array(place)?)),
        7 => Value::Bool(boolean(cursor, place)?),
        8 => Value::Str(cursor.string(&mut scratch, HEADER_BYTES_MAX, place)?.to_owned()),
        ARRAY => Value::Array(array(cursor, &key)?),
        10 => Value::U64(u64::from_le_bytes(cursor.array(place)?)),
        11 => Value::I64(i64::from_le_bytes(cursor.array(place)?)),
        12 => Value::F64(f64::from_le_bytes(cursor.array(place)?)),
        found => return Err(GgufFault::ValueType { place: place.to_string(), found }),
    };
    Ok((key, value))
}

/// The value type of arrays.
const ARRAY: u32 = 9;

fn boolean(cursor: &mut Cursor, place: Place) -> Result<bool, GgufFault> {
    match cursor.array::<1>(place)? {
        [0] => Ok(false),
        [1] => Ok(true),
        [found] => Err(GgufFault::Bool { place: place.to_string(), found }),
    }
}

fn array(cursor: &mut Cursor, key: &str) -> Result<Array, GgufFault> {
    let place = Place::Value(key);
    let element_type = cursor.u32(place)?;
    let count = cursor.u64(place)?;
    Ok(match element_type {
        0 => Array::U8(numbers(cursor, count, key, u8::from_le_bytes)?),
        1 => Array::I8(numbers(cursor, count, key, i8::from_le_bytes)?),
        2 => Array::U16(numbers(cursor, count, key, u16::from_le_bytes)?),
        3 => Array::I16(numbers(cursor, count, key, i16::from_le_bytes)?),
        4 => Array::U32(numbers(cursor, count, key, u32::from_le_bytes)?),
        5 => Array::I32(numbers(cursor, count, key, i32::from_le_bytes)?),
        6 => Array::F32(numbers(cursor, count, key, f32::from_le_bytes)?),
        7 => {
            cursor.need(count, 1, place)?;
            let each = (0..count).map(|index| boolean(cursor, Place::Element(key, index)));
            Array::Bool(each.collect::<Result<_, _>>()?)
        }
        8 => Array::Str(strings(cursor, count, key)?),
        ARRAY => return Err(GgufFault::NestedArray { place: place.to_string() }),
        10 => Array::U64(numbers(cursor, count, key, u64::from_le_bytes)?),
        11 => Array::I64(numbers(cursor, count, key, i64::from_le_bytes)?),
        12 => Array::F64(numbers(cursor, count, key, f64::from_le_bytes)?),
        found => {
            let place = format!("{place}, array elements");
            return Err(GgufFault::ValueType { place, found });
        }
    })
}

fn numbers<T, const N: usize>(
    cursor: &mut Cursor,
    count: u64,
    key: &str,
    from_bytes: impl Fn([u8; N]) -> T,
) -> Result<Vec<T>, GgufFault> {
    cursor.need(count, N as u64, Place::Value(key))?;
    let mut values = Vec::with_capacity(count as usize);
    for index in 0..count {
        values.push(from_bytes(cursor.array(Place::Element(key, index))?));
    }
    Ok(values)
}

fn strings(cursor: &mut Cursor, count: u64, key: &str) -> Result<StrArray, GgufFault> {
    const LENGTH_BYTES: u64 = 8;
    cursor.need(count, LENGTH_BYTES, Place::Value(key))?;
    let mut values = StrArray::with_capacity(count as usize);
    let mut scratch = Vec::new();
    for index in 0..count {
        let place = Place::Element(key, index);
        values.push(cursor.string(&mut scratch, HEADER_BYTES_MAX, place)?);
    }
    Ok(values)
}

/// The spec's type for it is u32; readers that take another would disagree with ggml on where data
/// start.
fn alignment(metadata: &Metadata) -> Result<u32, GgufFault> {
    match metadata.get(ALIGNMENT_KEY) {
        None => Ok(ALIGNMENT_DEFAULT),
        Some(&Value::U32(found)) if found.is_power_of_two() && found <= ALIGNMENT_MAX => Ok(found),
        Some(other) => Err(GgufFault::Alignment { found: other.describe() }),
    }
}

fn tensor(cursor: &mut Cursor, index: u64, path: &Arc<Path>) -> Result<TensorInfo, GgufFault> {
    let mut scratch = Vec::new();
    let name_place = Place::TensorName(index);
    let name = cursor.string(&mut scratch, TENSOR_NAME_BYTES_MAX, name_place)?.to_owned();
    let place = Place::Tensor(&name);
    let dim_count = cursor.u32(place)?;
    if dim_count > DIMS_MAX {
        return Err(GgufFault::Dimensions { tensor: plain(&name), found: dim_count });
    }
    let mut dims = Vec::new();
    for _ in 0..dim_count {
        dims.push(cursor.u64(place)?);
    }
    let type_id = cursor.u32(place)?;
    let offset = cursor.u64(place)?;
    TensorInfo::new(name, type_id, dims, offset, Arc::clone(path))
}
