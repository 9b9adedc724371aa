//! Element types of tensors and the sizes of their blocks.

/// Element type of a tensor, as GGUF numbers them (`ggml_type`).
///
/// A tensor of any of these types is stored as rows of whole blocks; the unquantised types have
/// blocks of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(non_camel_case_types, missing_docs)] // the names are the field's own
pub enum DType {
    F32,
    F16,
    BF16,
    Q8_0,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q4_K,
    Q5_K,
    Q6_K,
    Q2_K,
    Q3_K,
    IQ4_NL,
    IQ4_XS,
    MXFP4,
    TQ1_0,
    TQ2_0,
    IQ1_S,
    IQ1_M,
    IQ2_XXS,
    IQ2_XS,
    IQ2_S,
    IQ3_XXS,
    IQ3_S,
}

/// Block size and byte size of a type, from the format.
struct Facts {
    dtype: DType,
    ggml_id: u32,
    name: &'static str,
    block_len: usize,
    block_bytes: usize,
}

/// In the order of the enum.
const FACTS: [Facts; DType::COUNT] = [
    facts(DType::F32, 0, "F32", 1, 4),
    facts(DType::F16, 1, "F16", 1, 2),
    facts(DType::BF16, 30, "BF16", 1, 2),
    facts(DType::Q8_0, 8, "Q8_0", 32, 34),
    facts(DType::Q4_0, 2, "Q4_0", 32, 18),
    facts(DType::Q4_1, 3, "Q4_1", 32, 20),
    facts(DType::Q5_0, 6, "Q5_0", 32, 22),
    facts(DType::Q5_1, 7, "Q5_1", 32, 24),
    facts(DType::Q4_K, 12, "Q4_K", 256, 144),
    facts(DType::Q5_K, 13, "Q5_K", 256, 176),
    facts(DType::Q6_K, 14, "Q6_K", 256, 210),
    facts(DType::Q2_K, 10, "Q2_K", 256, 84),
    facts(DType::Q3_K, 11, "Q3_K", 256, 110),
    facts(DType::IQ4_NL, 20, "IQ4_NL", 32, 18),
    facts(DType::IQ4_XS, 23, "IQ4_XS", 256, 136),
    facts(DType::MXFP4, 39, "MXFP4", 32, 17),
    facts(DType::TQ1_0, 34, "TQ1_0", 256, 54),
    facts(DType::TQ2_0, 35, "TQ2_0", 256, 66),
    facts(DType::IQ1_S, 19, "IQ1_S", 256, 50),
    facts(DType::IQ1_M, 29, "IQ1_M", 256, 56),
    facts(DType::IQ2_XXS, 16, "IQ2_XXS", 256, 66),
    facts(DType::IQ2_XS, 17, "IQ2_XS", 256, 74),
    facts(DType::IQ2_S, 22, "IQ2_S", 256, 82),
    facts(DType::IQ3_XXS, 18, "IQ3_XXS", 256, 98),
    facts(DType::IQ3_S, 21, "IQ3_S", 256, 110),
];

const fn facts(
    dtype: DType,
    ggml_id: u32,
    name: &'static str,
    block_len: usize,
    block_bytes: usize,
) -> Facts {
    Facts { dtype, ggml_id, name, block_len, block_bytes }
}

impl DType {
    const COUNT: usize = 25;

    /// Every supported type.
    pub const ALL: [Self; Self::COUNT] = {
        let mut all = [Self::F32; Self::COUNT];
        let mut index = 0;
        while index < Self::COUNT {
            all[index] = FACTS[index].dtype;
            assert!(all[index] as usize == index, "FACTS is in the order of the enum");
            index += 1;
        }
        all
    };

    const fn facts(self) -> &'static Facts {
        &FACTS[self as usize]
    }

    /// The type with this `ggml_type` number, or None if this version does not support it.
    pub fn from_ggml(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.ggml_id() == id)
    }

    /// The type with this name, in whatever case.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.name().eq_ignore_ascii_case(name))
    }

    /// The `ggml_type` number of this type, as GGUF stores it.
    pub const fn ggml_id(self) -> u32 {
        self.facts().ggml_id
    }

    /// The name by which model files and their makers know the type, such as `Q4_K`.
    pub const fn name(self) -> &'static str {
        self.facts().name
    }

    /// Elements in a block; a row's length is a multiple of it.
    pub const fn block_len(self) -> usize {
        self.facts().block_len
    }

    /// Bytes in a block.
    pub const fn block_bytes(self) -> usize {
        self.facts().block_bytes
    }

    /// Bytes of a row of `row_len` elements, or None if the row is not a whole number of blocks or
    /// the size overflows.
    pub const fn row_bytes(self, row_len: u64) -> Option<u64> {
        row_bytes(row_len, self.block_len() as u64, self.block_bytes() as u64)
    }

    /// Names of all supported types, separated by commas, for messages.
    pub fn supported_names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// A `ggml_type` that model files may hold and this version cannot compute with.
///
/// Its size is known, so a file that has such tensors can still be listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnsupportedType {
    /// The `ggml_type` number.
    pub id: u32,
    /// The type's name, such as `Q8_K`.
    pub name: &'static str,
    /// Elements in a block.
    pub block_len: u32,
    /// Bytes in a block.
    pub block_bytes: u32,
}

/// `(ggml_type, name, elements in a block, bytes in a block)`.
const UNSUPPORTED: [(u32, &str, u32, u32); 9] = [
    (9, "Q8_1", 32, 36),
    (15, "Q8_K", 256, 292),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (40, "NVFP4", 64, 36),
    (41, "Q1_0", 128, 18),
];

impl UnsupportedType {
    /// The type with this `ggml_type` number, or None if the number is unknown or supported.
    pub fn from_ggml(id: u32) -> Option<Self> {
        UNSUPPORTED.iter().find(|row| row.0 == id).map(|&(id, name, block_len, block_bytes)| Self {
            id,
            name,
            block_len,
            block_bytes,
        })
    }

    /// Bytes of a row of `row_len` elements, or None if the row is not a whole number of blocks or
    /// the size overflows.
    pub const fn row_bytes(self, row_len: u64) -> Option<u64> {
        row_bytes(row_len, self.block_len as u64, self.block_bytes as u64)
    }
}

const fn row_bytes(row_len: u64, block_len: u64, block_bytes: u64) -> Option<u64> {
    if row_len.is_multiple_of(block_len) {
        (row_len / block_len).checked_mul(block_bytes)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_unique_and_known() {
        let mut seen = std::collections::HashSet::new();
        for dtype in DType::ALL {
            assert_eq!(DType::from_ggml(dtype.ggml_id()), Some(dtype));
            assert_eq!(UnsupportedType::from_ggml(dtype.ggml_id()), None);
            assert!(seen.insert(dtype.ggml_id()));
            assert_eq!(format!("{dtype:?}"), dtype.name());
        }
        for (id, name, ..) in UNSUPPORTED {
            assert_eq!(DType::from_ggml(id), None);
            assert_eq!(UnsupportedType::from_ggml(id).map(|kind| kind.name), Some(name));
            assert!(seen.insert(id));
        }
        assert_eq!(UnsupportedType::from_ggml(99), None);
    }

    #[test]
    fn rows_are_whole_blocks() {
        assert_eq!(DType::F32.row_bytes(3), Some(12));
        assert_eq!(DType::Q4_0.row_bytes(64), Some(36));
        assert_eq!(DType::Q4_K.row_bytes(576), None);
        assert_eq!(DType::Q6_K.row_bytes(512), Some(420));
        assert_eq!(DType::F32.row_bytes(u64::MAX), None);
        let q8_k = UnsupportedType::from_ggml(15).map(|kind| kind.row_bytes(512));
        assert_eq!(q8_k, Some(Some(584)));
    }
}
