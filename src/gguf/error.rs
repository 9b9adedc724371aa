//! Why a GGUF file, or a value or tensor in it, was refused.

use std::io;
use std::path::Path;
use std::sync::Arc;

use thiserror::Error;

use super::header::{ALIGNMENT_MAX, DIMS_MAX, HEADER_BYTES_MAX};
use crate::tensor::DType;

/// A fault in a GGUF file, and the file.
#[derive(Debug, Error)]
#[error("{}: {fault}", .path.display())]
pub struct GgufError {
    /// Path of the file.
    pub path: Arc<Path>,
    /// Fault found in the file.
    pub fault: GgufFault,
}

impl GgufError {
    pub(super) fn new(path: &Arc<Path>, fault: GgufFault) -> Self {
        Self { path: Arc::clone(path), fault }
    }
}

/// Fault in a GGUF file. Names from the file are shortened and escaped.
#[derive(Debug, Error)]
#[allow(missing_docs)] // the message says what each field is
pub enum GgufFault {
    /// The file cannot be opened.
    #[error("cannot open: {error}")]
    Open { error: io::Error },
    /// The path names a directory, pipe or device.
    #[error("cannot open: not a regular file")]
    NotAFile,
    /// Reading the header failed.
    #[error("cannot read {wanted} bytes at {offset}: {error}")]
    Read { offset: u64, wanted: u64, error: io::Error },
    /// Reading tensor data failed.
    #[error("tensor {tensor}: cannot read {wanted} bytes: {error}")]
    ReadTensor { tensor: String, wanted: u64, error: io::Error },
    /// The file cannot be told from others.
    #[error("cannot read its header again: {error}")]
    Identity { error: io::Error },
    /// A range outside a tensor was asked for.
    #[error("tensor {tensor} has {bytes} bytes; wanted {wanted} from {offset}")]
    Range { tensor: String, offset: u64, wanted: u64, bytes: u64 },

    /// The file is of another kind.
    #[error("not a GGUF file: wanted the first bytes \"GGUF\", found \"{found}\"")]
    Magic { found: String },
    /// The file was written for big-endian machines.
    #[error("a big-endian GGUF file (version {version}); wanted little-endian: convert it first")]
    BigEndian { version: u32 },
    /// The container version is not known.
    #[error("GGUF version {found}; wanted version 2 or 3")]
    Version { found: u32 },
    /// The header claims more than the file has.
    #[error("{place}: wanted {wanted} bytes at {offset}, found {left} to the end of the file")]
    Truncated { place: String, offset: u64, wanted: u128, left: u64 },
    /// The header would be larger than any real one.
    #[error("{place}: the header passes {HEADER_BYTES_MAX} bytes, the most that is read")]
    HeaderTooLarge { place: String },
    /// The header claims more entries than the file could hold, or than are read.
    #[error("the header claims {found} {what}; at most {limit} fit in this file")]
    Count { what: &'static str, found: u64, limit: u64 },

    /// A key or tensor name is too long.
    #[error("{place}: a name of {found} bytes; wanted at most {limit}")]
    NameTooLong { place: String, found: u64, limit: u64 },
    /// A string is not UTF-8.
    #[error("{place}: wanted UTF-8, found \"{found}\"")]
    NotUtf8 { place: String, found: String },
    /// Two metadata entries have one key.
    #[error("metadata key {key} stands twice")]
    DuplicateKey { key: String },
    /// A metadata value's type is not known.
    #[error("{place}: value type {found}; wanted 0 to 12")]
    ValueType { place: String, found: u32 },
    /// An array of arrays.
    #[error("{place}: an array of arrays; wanted an array of numbers, bools or strings")]
    NestedArray { place: String },
    /// A bool is neither 0 nor 1.
    #[error("{place}: wanted a bool, 0 or 1, found {found}")]
    Bool { place: String, found: u8 },
    /// `general.alignment` is no alignment.
    #[error("general.alignment: wanted a u32, a power of two up to {ALIGNMENT_MAX}, found {found}")]
    Alignment { found: String },

    /// Two tensors have one name.
    #[error("tensor {tensor} stands twice")]
    DuplicateTensor { tensor: String },
    /// A tensor has too many dimensions.
    #[error("tensor {tensor} has {found} dimensions; wanted at most {DIMS_MAX}")]
    Dimensions { tensor: String, found: u32 },
    /// A dimension is zero.
    #[error("tensor {tensor}: dimension {index} is 0; wanted at least 1")]
    ZeroDimension { tensor: String, index: usize },
    /// The tensor's size overflows.
    #[error("tensor {tensor} of {dims:?} elements is larger than can be counted")]
    TooLarge { tensor: String, dims: Vec<u64> },
    /// The tensor type is not known.
    #[error(
        "tensor {tensor} has the unknown type {found}; supported: {}",
        DType::supported_names()
    )]
    TensorType { tensor: String, found: u32 },
    /// The tensor type is known but cannot be computed with.
    #[error(
        "tensor {tensor} has type {found}, which this version does not support; supported: {}",
        DType::supported_names()
    )]
    UnsupportedType { tensor: String, found: &'static str },
    /// A row is not a whole number of blocks.
    #[error("tensor {tensor}: rows of {row_len} elements; {dtype} wants a multiple of {block_len}")]
    RowNotBlocks { tensor: String, dtype: &'static str, row_len: u64, block_len: u64 },
    /// The tensor's data do not start at a multiple of the alignment.
    #[error("tensor {tensor}: data at offset {offset}; wanted a multiple of {alignment}")]
    Misaligned { tensor: String, offset: u64, alignment: u32 },
    /// The tensor's data are not in the file.
    #[error(
        "tensor {tensor}: wanted {bytes} bytes of data at offset {offset} of the data section, \
         found {found} (is the file cut short?)"
    )]
    DataMissing { tensor: String, offset: u64, bytes: u64, found: u64 },
    /// Two tensors claim the same bytes.
    #[error("tensors {first} and {second} overlap in the file")]
    Overlap { first: String, second: String },

    /// A part of a split model claims a number that cannot be.
    #[error("split.no {no} of split.count {count}; wanted a lower number, of at most {limit}")]
    SplitCount { no: u32, count: u32, limit: u32 },
    /// A part of a split model is not named like one.
    #[error("a part of a split model named {found}; wanted {wanted}, to find the other parts by")]
    SplitName { wanted: String, found: String },
    /// A part of a split model is not there.
    #[error("no such file; wanted {wanted} of a split model, whose other parts are here")]
    SplitMissing { wanted: String },
    /// A part of a split model is another than its name says.
    #[error("wanted {wanted} of a split model, found {found}")]
    SplitPart { wanted: String, found: String },
    /// The parts of a split model have more or fewer tensors than they should.
    #[error("split.tensors.count: wanted {wanted} tensors in all parts, found {found}")]
    SplitTensors { wanted: u64, found: u64 },
    /// A part of a split model in memory.
    #[error("{part} of a split model; wanted a whole file")]
    SplitMemory { part: String },

    /// A wanted metadata key is absent.
    #[error("metadata key {key} is missing; wanted {wanted}")]
    KeyMissing { key: String, wanted: String },
    /// A metadata value is of another type or out of range.
    #[error("metadata key {key}: wanted {wanted}, found {found}")]
    KeyType { key: String, wanted: String, found: String },
}

/// Most characters of a foreign name in a message.
const SHOWN_CHARS_MAX: usize = 80;

/// A name from the file as it may stand in a message: no control characters, not long.
pub(super) fn plain(name: &str) -> String {
    let mut shown: String =
        name.chars().take(SHOWN_CHARS_MAX).flat_map(char::escape_debug).collect();
    if name.chars().nth(SHOWN_CHARS_MAX).is_some() {
        shown.push('…');
    }
    shown
}
