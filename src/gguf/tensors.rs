//! What a file says of each tensor, and where its data are.

use std::path::Path;
use std::sync::Arc;

use super::error::{GgufError, GgufFault, plain};
use crate::tensor::{DType, UnsupportedType};

/// The type of a tensor in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorType {
    /// A type that can be computed with.
    Supported(DType),
    /// A type that is known by name and size only.
    Unsupported(UnsupportedType),
}

impl TensorType {
    fn from_ggml(id: u32) -> Option<Self> {
        (DType::from_ggml(id).map(Self::Supported))
            .or_else(|| UnsupportedType::from_ggml(id).map(Self::Unsupported))
    }

    /// The type's name, such as `Q4_K`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Supported(dtype) => dtype.name(),
            Self::Unsupported(kind) => kind.name,
        }
    }

    /// The `ggml_type` number.
    pub fn ggml_id(self) -> u32 {
        match self {
            Self::Supported(dtype) => dtype.ggml_id(),
            Self::Unsupported(kind) => kind.id,
        }
    }

    fn block_len(self) -> u64 {
        match self {
            Self::Supported(dtype) => dtype.block_len() as u64,
            Self::Unsupported(kind) => u64::from(kind.block_len),
        }
    }

    fn row_bytes(self, row_len: u64) -> Option<u64> {
        match self {
            Self::Supported(dtype) => dtype.row_bytes(row_len),
            Self::Unsupported(kind) => kind.row_bytes(row_len),
        }
    }
}

/// One tensor of a file.
#[derive(Clone, Debug)]
pub struct TensorInfo {
    /// Name, unique in the file.
    pub name: String,
    /// Type of the elements.
    pub dtype: TensorType,
    /// One to four dimensions in ggml's order: `dims[0]` is the length of a row. None is zero and
    /// their product fits in a u64.
    pub dims: Vec<u64>,
    /// Offset of the data in bytes, from the start of the file (of a split model, of its part).
    pub offset: u64,
    /// Size of its data in bytes; all are within the file.
    pub bytes: u64,
    /// The file of a split model that has its data.
    pub(super) part: usize,
    path: Arc<Path>,
}

impl TensorInfo {
    /// Checks what the header says of a tensor; `offset` is still relative to the data section. A
    /// tensor without dimensions is one element.
    pub(super) fn new(
        name: String,
        type_id: u32,
        mut dims: Vec<u64>,
        offset: u64,
        path: Arc<Path>,
    ) -> Result<Self, GgufFault> {
        if dims.is_empty() {
            dims.push(1);
        }
        if let Some(index) = dims.iter().position(|&dim| dim == 0) {
            return Err(GgufFault::ZeroDimension { tensor: plain(&name), index });
        }
        let Some(dtype) = TensorType::from_ggml(type_id) else {
            return Err(GgufFault::TensorType { tensor: plain(&name), found: type_id });
        };
        if !dims[0].is_multiple_of(dtype.block_len()) {
            return Err(GgufFault::RowNotBlocks {
                tensor: plain(&name),
                dtype: dtype.name(),
                row_len: dims[0],
                block_len: dtype.block_len(),
            });
        }
        // i64 is what ggml counts in: elements and bytes beyond it are nobody's tensor.
        let countable = |count: &u64| i64::try_from(*count).is_ok();
        let product = |first: u64| dims[1..].iter().try_fold(first, |n, &dim| n.checked_mul(dim));
        let elements = product(dims[0]).filter(countable);
        let bytes = dtype.row_bytes(dims[0]).and_then(product).filter(countable);
        let (Some(_), Some(bytes)) = (elements, bytes) else {
            return Err(GgufFault::TooLarge { tensor: plain(&name), dims });
        };
        Ok(Self { name, dtype, dims, offset, bytes, part: 0, path })
    }

    /// The tensor, in file `part` of a split model.
    pub(super) fn in_part(self, part: usize) -> Self {
        Self { part, ..self }
    }

    /// Elements in a row.
    pub fn row_len(&self) -> u64 {
        self.dims[0]
    }

    /// Number of rows: the product of all dimensions but the first.
    pub fn rows(&self) -> u64 {
        self.dims[1..].iter().product()
    }

    /// The type to compute with.
    ///
    /// # Errors
    /// If the type is known by name only.
    pub fn supported_dtype(&self) -> Result<DType, GgufError> {
        match self.dtype {
            TensorType::Supported(dtype) => Ok(dtype),
            TensorType::Unsupported(kind) => {
                let tensor = plain(&self.name);
                let fault = GgufFault::UnsupportedType { tensor, found: kind.name };
                Err(GgufError::new(&self.path, fault))
            }
        }
    }
}

/// Makes the tensors' offsets absolute, after checking that each tensor's data are aligned, within
/// the file and no other tensor's.
pub(super) fn place(
    tensors: &mut [TensorInfo],
    data_start: u64,
    alignment: u32,
    file_bytes: u64,
) -> Result<(), GgufFault> {
    let data_bytes = file_bytes.saturating_sub(data_start);
    for tensor in tensors.iter_mut() {
        let TensorInfo { offset, bytes, .. } = *tensor;
        if !offset.is_multiple_of(u64::from(alignment)) {
            let tensor = plain(&tensor.name);
            return Err(GgufFault::Misaligned { tensor, offset, alignment });
        }
        let found = data_bytes.saturating_sub(offset);
        if bytes > found {
            let tensor = plain(&tensor.name);
            return Err(GgufFault::DataMissing { tensor, offset, bytes, found });
        }
        tensor.offset += data_start;
    }
    let mut order: Vec<&TensorInfo> = tensors.iter().collect();
    order.sort_by_key(|tensor| tensor.offset);
    for pair in order.windows(2) {
        if pair[0].offset + pair[0].bytes > pair[1].offset {
            let (first, second) = (plain(&pair[0].name), plain(&pair[1].name));
            return Err(GgufFault::Overlap { first, second });
        }
    }
    Ok(())
}
