//! Reads GGUF model files, versions 2 and 3: metadata, the list of tensors, tensor data by range.
//!
//! Owns the container: what is well formed and where each tensor's bytes are. It must not know what
//! a key or tensor means; `model` and `tokenizer` do. Files are foreign input: every count and
//! length is held against the bytes that are really there before anything is allocated, and each
//! refusal names the file, the key or tensor, what was wanted and what was found. Data are read by
//! position, never mapped, so a file that shrinks under the daemon gives an error and not a signal.

mod build;
mod cursor;
mod error;
mod fuzz;
mod header;
mod identity;
mod metadata;
mod source;
mod split;
mod tensors;
mod value;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

pub use build::GgufBuilder;
pub use error::{GgufError, GgufFault};
pub use fuzz::fuzz_gguf;
pub use identity::FileIdentity;
pub use metadata::Metadata;
pub use source::TensorData;
pub use tensors::{TensorInfo, TensorType};
pub use value::{Array, StrArray, Value};

use crate::tensor::DType;
use header::Header;
use source::Source;
use split::Part;

/// An open GGUF file, or the files of a split model: headers in memory, tensor data on disk.
#[derive(Debug)]
pub struct GgufFile {
    parts: Vec<Part>,
    version: u32,
    alignment: u32,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
}

impl GgufFile {
    /// Opens the file at `path` and reads its header. Tensor data stay on disk. Of a split model,
    /// `path` may be any part; the others are found by their names beside it.
    ///
    /// # Errors
    /// If the path is not a readable regular file or its header is not well formed, or a tensor's
    /// data would lie outside the file, or a part is missing or is not what its name says. Tensors
    /// of a type that is only known by name are listed.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let (parts, header) = split::open(path)?;
        Ok(Self::new(parts, header))
    }

    /// Reads a file that is already in memory; `path` is its name in messages.
    ///
    /// # Errors
    /// As [`GgufFile::open`]; and a part of a split model.
    pub fn from_bytes(path: &Path, bytes: Vec<u8>) -> Result<Self, GgufError> {
        let (path, source): (Arc<Path>, _) = (path.into(), Source::Bytes(bytes));
        let read = header::read(&source, &path);
        let checked = read.and_then(|header| split::refuse_part(&header).map(|()| header));
        let header = checked.map_err(|fault| GgufError::new(&path, fault))?;
        Ok(Self::new(vec![Part { path, source }], header))
    }

    /// A model that is not in a GGUF file, as if it were: `path` is its name in messages. The
    /// tensors have a name, a type and dimensions, the row length first; `data` has their bytes, by
    /// their places in `tensors`.
    ///
    /// # Errors
    /// A key or a tensor that is there twice, or a shape that its type cannot have.
    pub fn from_parts(
        path: &Path,
        entries: Vec<(String, Value)>,
        tensors: Vec<(String, DType, Vec<u64>)>,
        data: Box<dyn TensorData>,
    ) -> Result<Self, GgufError> {
        let path: Arc<Path> = path.into();
        let refuse = |fault| GgufError::new(&path, fault);
        let mut metadata = Metadata::new(Arc::clone(&path));
        for (key, value) in entries {
            if !metadata.insert(key.clone(), value) {
                return Err(refuse(GgufFault::DuplicateKey { key }));
            }
        }
        let mut infos = Vec::with_capacity(tensors.len());
        let mut by_name = HashMap::with_capacity(tensors.len());
        for (index, (name, dtype, dims)) in tensors.into_iter().enumerate() {
            if by_name.insert(name.clone(), index).is_some() {
                return Err(refuse(GgufFault::DuplicateTensor { tensor: name }));
            }
            let info = TensorInfo::new(name, dtype.ggml_id(), dims, 0, Arc::clone(&path));
            infos.push(info.map_err(refuse)?);
        }
        let bytes = infos.iter().map(|tensor| tensor.bytes).fold(0, u64::saturating_add);
        Ok(Self {
            parts: vec![Part { path: Arc::clone(&path), source: Source::Made { data, bytes } }],
            version: 0,
            alignment: 1,
            metadata,
            tensors: infos,
            by_name,
        })
    }

    fn new(parts: Vec<Part>, header: Header) -> Self {
        let by_name = (header.tensors.iter().enumerate())
            .map(|(index, tensor)| (tensor.name.clone(), index))
            .collect();
        Self {
            parts,
            version: header.version,
            alignment: header.alignment,
            metadata: header.metadata,
            tensors: header.tensors,
            by_name,
        }
    }

    /// Path the file was opened at; for a split model, of its first part.
    pub fn path(&self) -> &Path {
        &self.parts[0].path
    }

    /// The files of the model in order: one, unless it is split.
    pub fn part_paths(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.parts.iter().map(|part| &*part.path)
    }

    /// The container version, 2 or 3; 0 for a model that is in no GGUF file.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Tensor data start at multiples of this many bytes from the start of the data section.
    pub fn alignment(&self) -> u32 {
        self.alignment
    }

    /// Size of the whole file, or of all parts, in bytes, as it was when opened.
    pub fn file_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.source.bytes()).sum()
    }

    /// All metadata, in the order of the file.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All metadata, to take values out that are not needed again.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }

    /// All tensors, in the order of the file.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&index| &self.tensors[index])
    }

    /// The files as they are now, those that are open: where one has been written to since, it is
    /// not what its header was read from. None for a model in memory.
    ///
    /// # Errors
    /// Reading fails.
    pub fn identity(&self) -> Result<Vec<FileIdentity>, GgufError> {
        let mut files = Vec::new();
        for (number, part) in self.parts.iter().enumerate() {
            let of_part = self.tensors.iter().filter(|tensor| tensor.part == number);
            let header_bytes = of_part.map(|tensor| tensor.offset).min().unwrap_or(u64::MAX);
            let found = match &part.source {
                Source::File { file, .. } => {
                    FileIdentity::of(file, header_bytes).map(|id| vec![id])
                }
                Source::Bytes(_) => Ok(Vec::new()),
                Source::Made { data, .. } => data.identity(),
            };
            let fault = |error| GgufError::new(&part.path, GgufFault::Identity { error });
            files.extend(found.map_err(fault)?);
        }
        Ok(files)
    }

    /// Fills `out` with the bytes of `tensor` from `offset_in_tensor` on.
    ///
    /// # Errors
    /// If the range is not within the tensor, or reading fails.
    pub fn read_tensor(
        &self,
        tensor: &TensorInfo,
        offset_in_tensor: u64,
        out: &mut [u8],
    ) -> Result<(), GgufError> {
        let wanted = out.len() as u64;
        let inside = offset_in_tensor.checked_add(wanted).is_some_and(|end| end <= tensor.bytes);
        if !inside {
            let fault = GgufFault::Range {
                tensor: error::plain(&tensor.name),
                offset: offset_in_tensor,
                wanted,
                bytes: tensor.bytes,
            };
            return Err(GgufError::new(&self.parts[0].path, fault));
        }
        let part = &self.parts[tensor.part];
        let read = match (&part.source, tensor.offset.checked_add(offset_in_tensor)) {
            (Source::Made { data, .. }, _) => match self.by_name.get(&tensor.name) {
                Some(index) => data.read(*index, offset_in_tensor, out),
                None => Err(std::io::ErrorKind::NotFound.into()),
            },
            (source, Some(at)) => source.read_exact_at(at, out),
            (_, None) => Err(std::io::ErrorKind::UnexpectedEof.into()),
        };
        read.map_err(|error| {
            let tensor = error::plain(&tensor.name);
            GgufError::new(&part.path, GgufFault::ReadTensor { tensor, wanted, error })
        })
    }
}

#[cfg(test)]
mod tests;
