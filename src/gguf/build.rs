//! Writes GGUF files: for tests, and for tools that make model files.

use super::header::{ALIGNMENT_DEFAULT, ALIGNMENT_KEY};
use super::value::{Array, StrArray, Value};
use crate::tensor::DType;

/// Collects metadata and tensors and lays them out as a GGUF file.
///
/// It writes what it is told, also what the reader refuses (duplicate keys, unknown types), so that
/// tests can make such files.
///
/// ```
/// use hob::gguf::{GgufBuilder, GgufFile};
/// use hob::tensor::DType;
///
/// let bytes = GgufBuilder::new()
///     .metadata("general.architecture", "llama")
///     .metadata("llama.block_count", 1u32)
///     .tensor("output_norm.weight", DType::F32, &[2], &[0; 8])
///     .build();
/// let file = GgufFile::from_bytes("small.gguf".as_ref(), bytes)?;
/// assert_eq!(file.metadata().u32("llama.block_count")?, 1);
/// # Ok::<(), hob::gguf::GgufError>(())
/// ```
#[derive(Clone, Debug)]
pub struct GgufBuilder {
    version: u32,
    alignment: u32,
    entries: Vec<(String, Value)>,
    tensors: Vec<Tensor>,
}

#[derive(Clone, Debug)]
struct Tensor {
    name: String,
    type_id: u32,
    dims: Vec<u64>,
    /// Size of the data, which a header alone does without.
    bytes: u64,
    data: Vec<u8>,
}

impl Default for GgufBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl GgufBuilder {
    /// An empty file of version 3.
    pub fn new() -> Self {
        let (entries, tensors) = (Vec::new(), Vec::new());
        Self { version: 3, alignment: ALIGNMENT_DEFAULT, entries, tensors }
    }

    /// Sets the container version; 2 and 3 have the same layout.
    #[must_use]
    pub fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    /// Aligns tensor data to `alignment` bytes, not zero, and says so in the metadata.
    #[must_use]
    pub fn alignment(mut self, alignment: u32) -> Self {
        self.alignment = alignment;
        self.metadata(ALIGNMENT_KEY, alignment)
    }

    /// Appends a metadata entry.
    #[must_use]
    pub fn metadata(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.entries.push((key.to_owned(), value.into()));
        self
    }

    /// Appends a tensor of `dims` (row length first) with its data, whole blocks of `dtype`.
    #[must_use]
    pub fn tensor(self, name: &str, dtype: DType, dims: &[u64], data: &[u8]) -> Self {
        self.raw_tensor(name, dtype.ggml_id(), dims, data)
    }

    /// Appends a tensor of any `ggml_type` number.
    #[must_use]
    pub fn raw_tensor(mut self, name: &str, type_id: u32, dims: &[u64], data: &[u8]) -> Self {
        let (name, dims, data) = (name.to_owned(), dims.to_vec(), data.to_vec());
        self.tensors.push(Tensor { name, type_id, dims, bytes: data.len() as u64, data });
        self
    }

    /// Appends a tensor of `bytes` bytes of data, for [`GgufBuilder::header`] alone: whoever writes
    /// the file writes the data, each tensor's padded to the alignment.
    #[must_use]
    pub fn described_tensor(mut self, name: &str, type_id: u32, dims: &[u64], bytes: u64) -> Self {
        let (name, dims, data) = (name.to_owned(), dims.to_vec(), Vec::new());
        self.tensors.push(Tensor { name, type_id, dims, bytes, data });
        self
    }

    /// The file's bytes up to the data section.
    pub fn header(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        put(&mut out, self.version.to_le_bytes());
        put(&mut out, (self.tensors.len() as u64).to_le_bytes());
        put(&mut out, (self.entries.len() as u64).to_le_bytes());
        for (key, value) in &self.entries {
            put_str(&mut out, key);
            put_value(&mut out, value);
        }
        let mut offset = 0u64;
        for tensor in &self.tensors {
            put_str(&mut out, &tensor.name);
            put(&mut out, (tensor.dims.len() as u32).to_le_bytes());
            for dim in &tensor.dims {
                put(&mut out, dim.to_le_bytes());
            }
            put(&mut out, tensor.type_id.to_le_bytes());
            put(&mut out, offset.to_le_bytes());
            offset = (offset + tensor.bytes).next_multiple_of(self.alignment.into());
        }
        self.pad(&mut out);
        out
    }

    /// The whole file.
    pub fn build(&self) -> Vec<u8> {
        let mut out = self.header();
        for tensor in &self.tensors {
            out.extend(&tensor.data);
            self.pad(&mut out);
        }
        out
    }

    fn pad(&self, out: &mut Vec<u8>) {
        out.resize(out.len().next_multiple_of(self.alignment as usize), 0);
    }
}

fn put<const N: usize>(out: &mut Vec<u8>, bytes: [u8; N]) {
    out.extend(bytes);
}

fn put_str(out: &mut Vec<u8>, text: &str) {
    put(out, (text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    put(out, type_id(value).to_le_bytes());
    match value {
        Value::U8(value) => put(out, value.to_le_bytes()),
        Value::I8(value) => put(out, value.to_le_bytes()),
        Value::U16(value) => put(out, value.to_le_bytes()),
        Value::I16(value) => put(out, value.to_le_bytes()),
        Value::U32(value) => put(out, value.to_le_bytes()),
        Value::I32(value) => put(out, value.to_le_bytes()),
        Value::U64(value) => put(out, value.to_le_bytes()),
        Value::I64(value) => put(out, value.to_le_bytes()),
        Value::F32(value) => put(out, value.to_le_bytes()),
        Value::F64(value) => put(out, value.to_le_bytes()),
        Value::Bool(value) => out.push(u8::from(*value)),
        Value::Str(value) => put_str(out, value),
        Value::Array(array) => put_array(out, array),
    }
}

fn type_id(value: &Value) -> u32 {
    match value {
        Value::U8(_) => 0,
        Value::I8(_) => 1,
        Value::U16(_) => 2,
        Value::I16(_) => 3,
        Value::U32(_) => 4,
        Value::I32(_) => 5,
        Value::F32(_) => 6,
        Value::Bool(_) => 7,
        Value::Str(_) => 8,
        Value::Array(_) => 9,
        Value::U64(_) => 10,
        Value::I64(_) => 11,
        Value::F64(_) => 12,
    }
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    fn each<T: Copy, const N: usize>(out: &mut Vec<u8>, values: &[T], bytes: fn(T) -> [u8; N]) {
        values.iter().for_each(|&value| put(out, bytes(value)));
    }
    fn strings(out: &mut Vec<u8>, values: &StrArray) {
        values.iter().for_each(|text| put_str(out, text));
    }
    let element_id: u32 = match array {
        Array::U8(_) => 0,
        Array::I8(_) => 1,
        Array::U16(_) => 2,
        Array::I16(_) => 3,
        Array::U32(_) => 4,
        Array::I32(_) => 5,
        Array::F32(_) => 6,
        Array::Bool(_) => 7,
        Array::Str(_) => 8,
        Array::U64(_) => 10,
        Array::I64(_) => 11,
        Array::F64(_) => 12,
    };
    put(out, element_id.to_le_bytes());
    put(out, (array.len() as u64).to_le_bytes());
    match array {
        Array::U8(values) => each(out, values, u8::to_le_bytes),
        Array::I8(values) => each(out, values, i8::to_le_bytes),
        Array::U16(values) => each(out, values, u16::to_le_bytes),
        Array::I16(values) => each(out, values, i16::to_le_bytes),
        Array::U32(values) => each(out, values, u32::to_le_bytes),
        Array::I32(values) => each(out, values, i32::to_le_bytes),
        Array::F32(values) => each(out, values, f32::to_le_bytes),
        Array::Bool(values) => each(out, values, |value| [u8::from(value)]),
        Array::Str(values) => strings(out, values),
        Array::U64(values) => each(out, values, u64::to_le_bytes),
        Array::I64(values) => each(out, values, i64::to_le_bytes),
        Array::F64(values) => each(out, values, f64::to_le_bytes),
    }
}
