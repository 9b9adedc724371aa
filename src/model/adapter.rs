//! LoRA adapters: updates of a model's matrices, each the product of two narrow ones, from GGUF
//! files as llama.cpp writes them.
//!
//! `y = W x` becomes `y = W x + scale * alpha / rank * B (A x)`, with a scale of 0 for the rows of
//! whoever does not use the adapter. Ranks are padded to whole blocks by zeros, which add nothing.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::ModelLoadError;
use super::hyper::{HyperParams, Mlp};
use super::loader::packed_bytes;
use crate::gguf::{GgufBuilder, GgufFile, TensorInfo};
use crate::tensor::{DType, dequantize_row};

/// Adapters of a model: a step names those it uses by the bits of a word.
pub const ADAPTERS_MAX: usize = 32;

/// Largest rank; those in use have 4 to 256.
const RANK_MAX: u64 = 512;

/// Ranks are padded to a multiple of this, the shortest row of a matrix.
const RANK_STEP: u64 = 32;

/// Name of the zeros that stand beside B where gate and up are one matrix of the model.
pub(super) fn zeros_name(dtype: DType, [rank, rows]: [u64; 2]) -> String {
    format!("zeros.{dtype}.{rank}.{rows}")
}

/// Largest value: that of f16. With larger ones the product for a row that does not use the adapter
/// might not be finite, and 0 times that is not 0.
const VALUE_MAX: f32 = 65504.0;

/// The matrices that an adapter may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Q,
    K,
    V,
    Qkv,
    AttentionOut,
    Gate,
    Up,
    Down,
}

impl Part {
    /// True if it is one of two matrices that may be one on the device.
    fn is_gated(self) -> bool {
        matches!(self, Self::Gate | Self::Up)
    }
}

const PARTS: [(&str, Part); 8] = [
    ("attn_q", Part::Q),
    ("attn_k", Part::K),
    ("attn_v", Part::V),
    ("attn_qkv", Part::Qkv),
    ("attn_output", Part::AttentionOut),
    ("ffn_gate", Part::Gate),
    ("ffn_up", Part::Up),
    ("ffn_down", Part::Down),
];

/// One pair of an adapter's file.
#[derive(Clone, Debug)]
pub(super) struct Pair {
    pub layer: usize,
    pub part: Part,
    /// Name of the model's tensor.
    pub name: String,
    pub row_len: u64,
    pub rows: u64,
    /// Rank, rounded up to the padding of a matrix row.
    pub rank: u64,
    /// alpha / rank, or 1 where there is no alpha.
    pub scale: f32,
}

/// An adapter that fits a model, read and checked.
#[derive(Debug)]
pub struct AdapterFile {
    path: PathBuf,
    /// The pairs, padded.
    pub(super) padded: GgufFile,
    pub(super) pairs: Vec<Pair>,
}

impl AdapterFile {
    /// Reads an adapter for the model of file `base`.
    ///
    /// # Errors
    /// [`ModelLoadError`], naming the file and the key or tensor that is malformed, does not fit
    /// the model, or changes what hob has no updates for.
    pub fn open(path: &Path, base: &GgufFile, hyper: &HyperParams) -> Result<Self, ModelLoadError> {
        Self::read(&GgufFile::open(path)?, base, hyper)
    }

    /// The same of a file that is open.
    pub(super) fn read(
        file: &GgufFile,
        base: &GgufFile,
        hyper: &HyperParams,
    ) -> Result<Self, ModelLoadError> {
        let alpha = check_keys(file, hyper)?;
        let mut builder = GgufBuilder::new();
        let (mut pairs, mut known_zeros) = (Vec::new(), BTreeSet::new());
        for tensor in file.tensors() {
            let name = stem_of(file, &tensor.name)?;
            let (other, pair_of) = match tensor.name.ends_with(".lora_a") {
                true => (format!("{name}.lora_b"), Some(tensor)),
                false => (format!("{name}.lora_a"), None),
            };
            let Some(partner) = file.tensor(&other) else {
                return Err(refuse(file, &other, "the other half of its pair", "no such tensor"));
            };
            let Some(a) = pair_of else { continue };
            let pair = read_pair(file, (name, alpha), [a, partner], base, hyper)?;
            for (half, tensor, dims) in [
                ("lora_a", a, [pair.row_len, pair.rank]),
                ("lora_b", partner, [pair.rank, pair.rows]),
            ] {
                let (dtype, bytes) = padded(file, tensor, dims)?;
                builder = builder.tensor(&format!("{name}.{half}"), dtype, &dims, &bytes);
                let zeros = zeros_name(dtype, dims);
                if half == "lora_b" && pair.part.is_gated() && known_zeros.insert(zeros.clone()) {
                    builder = builder.tensor(&zeros, dtype, &dims, &vec![0; bytes.len()]);
                }
            }
            pairs.push(pair);
        }
        if pairs.is_empty() {
            return Err(refuse(file, "*.lora_a", "at least one pair", "none"));
        }
        let padded = GgufFile::from_bytes(file.path(), builder.build())?;
        Ok(Self { path: file.path().to_owned(), padded, pairs })
    }

    /// Path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes on a device whose matrices have rows in groups of `lanes`.
    #[must_use]
    pub fn bytes(&self, lanes: u64) -> u64 {
        let of = |name: String| self.padded.tensor(&name).map_or(0, |t| packed_bytes(t, lanes));
        let of_pair = |pair: &Pair| {
            let twice = if pair.part.is_gated() { 2 } else { 1 }; // with zeros beside it
            of(format!("{}.lora_a", pair.name)) + twice * of(format!("{}.lora_b", pair.name))
        };
        self.pairs.iter().map(of_pair).sum()
    }

    /// The largest rank of its pairs, with padding.
    pub(super) fn rank_max(&self) -> u64 {
        self.pairs.iter().map(|pair| pair.rank).max().unwrap_or(0)
    }
}

fn refuse(file: &GgufFile, tensor: &str, wanted: &str, found: impl ToString) -> ModelLoadError {
    ModelLoadError::Tensor {
        path: file.path().to_owned(),
        tensor: tensor.to_owned(),
        wanted: wanted.to_owned(),
        found: found.to_string(),
    }
}

/// Checks what the file says it is; its alpha.
fn check_keys(file: &GgufFile, hyper: &HyperParams) -> Result<f32, ModelLoadError> {
    let refuse = |key: &str, wanted: &str, found: String| ModelLoadError::Value {
        path: file.path().to_owned(),
        key: key.to_owned(),
        wanted: wanted.to_owned(),
        found,
    };
    for (key, wanted) in [
        ("general.type", "adapter"),
        ("adapter.type", "lora"),
        ("general.architecture", hyper.architecture.as_str()),
    ] {
        let found = file.metadata().str(key)?;
        if found != wanted {
            return Err(refuse(key, &format!("{wanted:?}"), format!("{found:?}")));
        }
    }
    let keys = file.metadata().iter().map(|(key, _)| key);
    if let Some(key) = keys.filter(|key| key.starts_with("adapter.")).find(|key| !is_known(key)) {
        let wanted = "no such key: hob applies an adapter to the whole text";
        let found = match key == "adapter.alora.invocation_tokens" {
            true => "an activated LoRA (aLoRA), meant for the text behind its invocation alone",
            false => "a setting that hob does not know",
        };
        return Err(refuse(key, wanted, found.to_owned()));
    }
    if hyper.encoder {
        let found = format!("{:?}, an encoder", hyper.architecture);
        return Err(refuse("general.architecture", "a model that generates", found));
    }
    let key = "adapter.lora.alpha";
    let alpha = file.metadata().f32(key)?;
    if !(0.0..=VALUE_MAX).contains(&alpha) {
        return Err(refuse(key, &format!("0 to {VALUE_MAX}"), alpha.to_string()));
    }
    Ok(alpha)
}

/// True for the keys that hob follows, and for those that tell people what the adapter is for.
fn is_known(key: &str) -> bool {
    const FOLLOWED: [&str; 2] = ["adapter.type", "adapter.lora.alpha"];
    const TOLD: [&str; 2] = ["adapter.lora.task_name", "adapter.lora.prompt_prefix"];
    FOLLOWED.contains(&key) || TOLD.contains(&key)
}

/// Name of the model's tensor that half a pair belongs to.
fn stem_of<'a>(file: &GgufFile, name: &'a str) -> Result<&'a str, ModelLoadError> {
    let stem = name.strip_suffix(".lora_a").or_else(|| name.strip_suffix(".lora_b"));
    stem.ok_or_else(|| refuse(file, name, "a name that ends with .lora_a or .lora_b", name))
}

/// Checks a pair against the tensor that it changes.
fn read_pair(
    file: &GgufFile,
    (name, alpha): (&str, f32),
    [a, b]: [&TensorInfo; 2],
    base: &GgufFile,
    hyper: &HyperParams,
) -> Result<Pair, ModelLoadError> {
    let found = name
        .strip_prefix("blk.")
        .and_then(|rest| rest.strip_suffix(".weight"))
        .and_then(|rest| rest.split_once('.'))
        .and_then(|(layer, part)| {
            let part = PARTS.into_iter().find(|(known, _)| *known == part)?.1;
            let layer = layer.parse::<usize>().ok().filter(|layer| *layer < hyper.layers.len())?;
            Some((layer, part))
        });
    let activated = |part| part == Part::Up && hyper.mlp == Mlp::Gelu;
    let (Some((layer, part)), Some(tensor)) = (found, base.tensor(name)) else {
        let wanted = format!(
            "an update of {} of a layer of the model",
            PARTS.map(|(known, _)| known).join(", ")
        );
        return Err(refuse(file, &a.name, &wanted, "an update of another tensor"));
    };
    if activated(part) {
        let wanted = "no update of ffn_up where the activation is a part of its product";
        return Err(refuse(file, &a.name, wanted, "one"));
    }
    let (row_len, rows, rank) = (tensor.row_len(), tensor.rows(), a.rows());
    if !(1..=RANK_MAX).contains(&rank) {
        return Err(refuse(file, &a.name, &format!("a rank of 1 to {RANK_MAX}"), rank));
    }
    for (half, wanted) in [(a, [row_len, rank]), (b, [rank, rows])] {
        let found = [half.row_len(), half.rows()];
        if found != wanted {
            let wanted = format!("shape {wanted:?}, for {name} of shape {:?}", [row_len, rows]);
            return Err(refuse(file, &half.name, &wanted, format!("shape {:?}", half.dims)));
        }
    }
    let scale = if alpha == 0.0 { 1.0 } else { alpha / rank as f32 };
    let rank = rank.next_multiple_of(RANK_STEP);
    Ok(Pair { layer, part, name: name.to_owned(), row_len, rows, rank, scale })
}

/// A tensor's values with zeros around them: bytes of a matrix of `dims`.
fn padded(
    file: &GgufFile,
    tensor: &TensorInfo,
    dims: [u64; 2],
) -> Result<(DType, Vec<u8>), ModelLoadError> {
    let dtype = tensor.supported_dtype()?;
    let mut bytes = vec![0; tensor.bytes as usize];
    file.read_tensor(tensor, 0, &mut bytes)?;
    let (row_len, rows) = (tensor.row_len() as usize, tensor.rows() as usize);
    let mut values = vec![0.0; row_len * rows];
    dequantize_row(dtype, &bytes, &mut values);
    if let Some(value) = values.iter().find(|value| value.is_nan() || value.abs() > VALUE_MAX) {
        return Err(refuse(file, &tensor.name, &format!("values up to {VALUE_MAX}"), value));
    }
    let kept = if dtype == DType::F16 { DType::F16 } else { DType::F32 };
    let value_bytes = if kept == DType::F16 { 2 } else { 4 };
    let mut out = Vec::with_capacity((dims[0] * dims[1]) as usize * value_bytes);
    for row in values.chunks_exact(row_len) {
        for value in row {
            match kept {
                DType::F16 => out.extend(half::f16::from_f32(*value).to_le_bytes()),
                _ => out.extend(value.to_le_bytes()),
            }
        }
        out.resize(out.len() + (dims[0] as usize - row_len) * value_bytes, 0);
    }
    out.resize((dims[0] * dims[1]) as usize * value_bytes, 0);
    Ok((kept, out))
}
