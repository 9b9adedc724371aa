//! LoRA adapters: updates of a model's matrices, each the product of two narrow ones, from GGUF
//! files as llama.cpp writes them.
//!
//! `y = W x` becomes `y = W x + scale * alpha / rank * B (A x)`, with a scale of 0 for the rows of
//! whoever does not use the adapter. Ranks are padded to whole blocks by zeros, which add nothing.

use std::path::{Path, PathBuf};

use super::ModelLoadError;
use super::forward::{Input, Step};
use super::hyper::{HyperParams, Mlp};
use super::layers::Layer;
use super::loader::Loader;
use crate::gguf::{GgufBuilder, GgufFile, TensorInfo};
use crate::gpu::{BufferDesc, BufferSlice, BufferUsage, DeviceError, Executor, Recording};
use crate::kernels::PackedMatrix;
use crate::kernels::matmul::{self, Epilogue, Matmul};
use crate::kernels::moe_combine::{self, MoeCombine};
use crate::tensor::{DType, dequantize_row};

/// Adapters of a model: a step names those it uses by the bits of a word.
pub const ADAPTERS_MAX: usize = 32;

/// Largest rank; those in use have 4 to 256.
const RANK_MAX: u64 = 512;

/// Ranks are padded to a multiple of this, the shortest row of a matrix.
const RANK_STEP: u64 = 32;

/// Largest value: that of f16. With larger ones the product for a row that does not use the adapter
/// might not be finite, and 0 times that is not 0.
const VALUE_MAX: f32 = 65504.0;

/// What the rows of an [`AdapterFile`]'s scales begin at a multiple of, in floats: the largest
/// alignment that devices ask for.
const SCALES_STEP: u64 = 64;

/// The matrices that an adapter may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Q,
    K,
    V,
    Qkv,
    AttentionOut,
    Gate,
    Up,
    Down,
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
struct Pair {
    layer: usize,
    part: Part,
    /// Name of the model's tensor.
    name: String,
    row_len: u64,
    rows: u64,
    /// With padding.
    rank: u64,
    /// alpha / rank, or 1 where there is no alpha.
    scale: f32,
}

/// An adapter that fits a model, read and checked.
#[derive(Debug)]
pub struct AdapterFile {
    path: PathBuf,
    /// The pairs, padded.
    padded: GgufFile,
    pairs: Vec<Pair>,
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
        let mut pairs = Vec::new();
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
            }
            pairs.push(pair);
        }
        if pairs.is_empty() {
            return Err(refuse(file, "*.lora_a", "at least one pair", "none"));
        }
        let padded = GgufFile::from_bytes(file.path(), builder.build())?;
        Ok(Self { path: file.path().to_owned(), padded, pairs })
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes on the device.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.padded.tensors().iter().map(|tensor| tensor.bytes).sum()
    }

    pub(super) fn rank_max(&self) -> u64 {
        self.pairs.iter().map(|pair| pair.rank).max().unwrap_or(0)
    }

    /// Puts the pairs on the device, as adapter number `index` of the model.
    pub(super) fn load(
        &self,
        executor: &mut dyn Executor,
        hyper: &HyperParams,
        index: usize,
        layers: &mut [Layer],
    ) -> Result<(), ModelLoadError> {
        let mut progress = |_, _| {};
        let mut loader = Loader::new(executor, &self.padded, &mut progress);
        let head_dim = u64::from(hyper.head_dim);
        let (q_width, kv_width) =
            (u64::from(hyper.heads) * head_dim, u64::from(hyper.kv_heads) * head_dim);
        for pair in &self.pairs {
            let a = loader.matrix(&format!("{}.lora_a", pair.name), pair.row_len, pair.rank)?;
            let b = loader.matrix(&format!("{}.lora_b", pair.name), pair.rank, pair.rows)?;
            let updates = &mut layers[pair.layer].updates;
            let (place, offset) = match pair.part {
                Part::Q | Part::Qkv => (&mut updates.qkv, 0),
                Part::K => (&mut updates.qkv, q_width),
                Part::V => (&mut updates.qkv, q_width + kv_width),
                Part::AttentionOut => (&mut updates.attention_out, 0),
                Part::Gate => (&mut updates.gate_up, 0),
                Part::Up if hyper.gate_in_up => (&mut updates.gate_up, 0),
                Part::Up => (&mut updates.gate_up, hyper.feed_forward),
                Part::Down => (&mut updates.down, 0),
            };
            place.push(Update { adapter: index, a, b, scale: pair.scale, offset });
        }
        Ok(())
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

/// One update on the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Update {
    /// Number of the adapter.
    adapter: usize,
    a: PackedMatrix,
    b: PackedMatrix,
    scale: f32,
    /// First column of the result that it is added to.
    offset: u64,
}

/// Updates of a layer's products.
#[derive(Clone, Debug, Default)]
pub(super) struct Updates {
    pub qkv: Vec<Update>,
    pub attention_out: Vec<Update>,
    pub gate_up: Vec<Update>,
    pub down: Vec<Update>,
}

/// Buffers of steps that use adapters.
#[derive(Clone, Copy, Debug)]
pub(super) struct AdapterScratch {
    /// A x, f32 `[tokens, rank]`.
    low: BufferSlice,
    /// The same times the rows' scales.
    scaled: BufferSlice,
    /// f32 `[adapters, scales_stride]`: scales of the tokens, written by the host.
    pub scales: BufferSlice,
    /// Floats between adapters.
    pub scales_stride: u64,
}

impl AdapterScratch {
    pub(super) fn create(
        executor: &mut dyn Executor,
        adapters: &[AdapterFile],
        tokens_max: u64,
    ) -> Result<Self, DeviceError> {
        let rank = adapters.iter().map(AdapterFile::rank_max).max().unwrap_or(RANK_STEP);
        let scales_stride = tokens_max.next_multiple_of(SCALES_STEP);
        let mut create = |label: &str, floats: u64, usage| {
            let desc = BufferDesc { label: label.to_owned(), bytes: 4 * floats, usage };
            let buffer = executor.create_buffer(&desc)?;
            Ok::<_, DeviceError>(BufferSlice { buffer, offset: 0, bytes: 4 * floats })
        };
        Ok(Self {
            low: create("adapter rows", tokens_max * rank, BufferUsage::Scratch)?,
            scaled: create("scaled adapter rows", tokens_max * rank, BufferUsage::Scratch)?,
            scales: create(
                "adapter scales",
                adapters.len() as u64 * scales_stride,
                BufferUsage::Upload,
            )?,
            scales_stride,
        })
    }

    /// The scales of the tokens for one adapter.
    pub(super) fn scales_of(&self, adapter: usize) -> BufferSlice {
        let bytes = 4 * self.scales_stride;
        let offset = self.scales.offset + adapter as u64 * bytes;
        BufferSlice { buffer: self.scales.buffer, offset, bytes }
    }
}

impl Step<'_> {
    /// Adds to `y` what the step's adapters make of `input`, times `factor`.
    pub(super) fn update(
        &self,
        recording: &mut Recording,
        updates: &[Update],
        input: Input,
        (y, y_width): (BufferSlice, u64),
        factor: f32,
    ) {
        let Some(scratch) = self.model.adapter_scratch else { return };
        let (caps, tokens) = (&self.model.capabilities, self.shape.tokens);
        let used = updates.iter().filter(|update| self.shape.adapters >> update.adapter & 1 == 1);
        for Update { adapter, a, b, scale, offset } in used {
            let rank = b.layout.row_len;
            let narrow = Matmul {
                weights: a,
                x: input.x,
                x_stride: a.layout.row_len,
                y: scratch.low,
                y_stride: rank,
                y_offset: 0,
                tokens,
                norm: input.gain.map(|gain| (gain, self.model.hyper.epsilon)),
                bias: None,
                scale: 1.0,
                epilogue: Epilogue::Store,
                narrow: None,
            };
            matmul::record(recording, caps, &narrow);
            let rows = MoeCombine {
                x: scratch.low,
                weights: scratch.scales_of(*adapter),
                shared: None,
                y: scratch.scaled,
                dim: rank,
                used: 1,
                factor: *scale,
                residual: false,
            };
            moe_combine::record(recording, caps, &rows, tokens);
            let wide = Matmul {
                weights: b,
                x: scratch.scaled,
                x_stride: rank,
                y,
                y_stride: y_width,
                y_offset: *offset,
                norm: None,
                scale: factor,
                epilogue: Epilogue::Residual,
                ..narrow
            };
            matmul::record(recording, caps, &wide);
        }
    }
}
