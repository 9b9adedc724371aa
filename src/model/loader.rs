//! From the file's tensors to packed planes on the device, a few megabytes at a time.
//! `rows` reads and packs them.

use std::collections::HashSet;

use super::rows::Source;
pub(super) use super::rows::{Arrangement, Part};
use super::{HyperParams, Limits, ModelLoadError, Progress, scratch::Scratch};
use crate::gguf::{GgufFile, TensorInfo};
use crate::gpu::{BufferDesc, BufferHandle, BufferSlice, BufferUsage, Executor};
use crate::kernels::{PackedExperts, PackedMatrix, matmul, matmul_sliced};
use crate::tensor::layout::Layout;
use crate::tensor::{Packing, dequantize_row};

/// Bytes that are packed between two reports of progress.
const CHUNK_BYTES: u64 = 4 << 20;

/// Largest vocabulary: four times that of any model known.
const VOCAB_MAX: u64 = 1 << 20;

/// Reads tensors of one file onto one device.
pub(super) struct Loader<'a> {
    executor: &'a mut dyn Executor,
    file: &'a GgufFile,
    progress: Progress<'a>,
    used: HashSet<&'a str>,
    done_bytes: u64,
    total_bytes: u64,
    parameters: u64,
}

impl<'a> Loader<'a> {
    pub(super) fn new(
        executor: &'a mut dyn Executor,
        file: &'a GgufFile,
        progress: Progress<'a>,
    ) -> Self {
        let total_bytes = file.tensors().iter().map(|tensor| tensor.bytes).sum();
        progress(0, total_bytes);
        let used = HashSet::new();
        Self { executor, file, progress, used, done_bytes: 0, total_bytes, parameters: 0 }
    }

    pub(super) fn executor(&mut self) -> &mut dyn Executor {
        self.executor
    }

    pub(super) fn lanes(&self) -> u64 {
        self.executor.capabilities().lanes.into()
    }

    /// Bytes of the weights in the file, and their number.
    pub(super) fn totals(&self) -> (u64, u64) {
        (self.total_bytes, self.parameters)
    }

    /// Refuses a model that the device has no room for, before anything is loaded.
    pub(super) fn check_fits(
        &self,
        limits: &Limits,
        hyper: &HyperParams,
    ) -> Result<(), ModelLoadError> {
        let memory = self.executor.memory();
        let free_bytes = memory.budget_bytes.saturating_sub(memory.used_bytes);
        let vocab = self.file.tensor("token_embd.weight").map_or(0, TensorInfo::rows);
        let scratch_bytes = Scratch::bytes(self.executor.capabilities(), hyper, vocab, limits);
        let packed = |tensor| packed_bytes(tensor, self.lanes());
        let weights_bytes =
            self.file.tensors().iter().map(packed).sum::<u64>() + limits.adapter_bytes;
        let kv_bytes = limits.kv_bytes;
        let needed_bytes = weights_bytes.saturating_add(kv_bytes).saturating_add(scratch_bytes);
        if needed_bytes <= free_bytes {
            return Ok(());
        }
        Err(ModelLoadError::TooLarge {
            path: self.file.path().to_owned(),
            needed_bytes,
            weights_bytes,
            kv_bytes,
            context_tokens: limits.context_tokens,
            scratch_bytes,
            free_bytes,
        })
    }

    /// Refuses a file with tensors that nothing has asked for: they would change the result.
    pub(super) fn check_all_used(&self) -> Result<(), ModelLoadError> {
        let unused = self.file.tensors().iter().find(|t| !self.used.contains(t.name.as_str()));
        let Some(tensor) = unused else { return Ok(()) };
        let architecture = self.file.metadata().str("general.architecture")?.to_owned();
        let path = self.file.path().to_owned();
        Err(ModelLoadError::UnknownTensor { path, tensor: tensor.name.clone(), architecture })
    }

    pub(super) fn refuse(
        &self,
        tensor: &str,
        wanted: &str,
        found: impl ToString,
    ) -> ModelLoadError {
        ModelLoadError::Tensor {
            path: self.file.path().to_owned(),
            tensor: tensor.to_owned(),
            wanted: wanted.to_owned(),
            found: found.to_string(),
        }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.file.tensor(name).is_some()
    }

    /// Rows of a tensor, where the file has it.
    pub(super) fn rows_of(&self, name: &str) -> Option<u64> {
        self.file.tensor(name).map(TensorInfo::rows)
    }

    /// The tensor `name`, which must have `dims`.
    pub(super) fn tensor(
        &mut self,
        name: &str,
        dims: &[u64],
    ) -> Result<&'a TensorInfo, ModelLoadError> {
        let Some(tensor) = self.file.tensor(name) else {
            return Err(self.refuse(name, &format!("shape {dims:?}"), "no such tensor"));
        };
        // Trailing dimensions of 1 carry nothing.
        let found = tensor.dims.iter().rposition(|dim| *dim != 1).map_or(0, |last| last + 1);
        let wanted = dims.iter().rposition(|dim| *dim != 1).map_or(0, |last| last + 1);
        if tensor.dims[..found] != dims[..wanted] {
            let found = format!("shape {:?}", tensor.dims);
            return Err(self.refuse(name, &format!("shape {dims:?}"), found));
        }
        self.used.insert(&tensor.name);
        Ok(tensor)
    }

    /// The values of a vector as f32, where the file has it.
    pub(super) fn opt_vector_values(
        &mut self,
        name: &str,
        len: u64,
    ) -> Result<Option<Vec<f32>>, ModelLoadError> {
        if !self.has(name) {
            return Ok(None);
        }
        self.values(name, &[len]).map(Some)
    }

    /// The values of a small tensor as f32, row after row.
    fn values(&mut self, name: &str, dims: &[u64]) -> Result<Vec<f32>, ModelLoadError> {
        let tensor = self.tensor(name, dims)?;
        let dtype = tensor.supported_dtype()?;
        let mut bytes = vec![0; tensor.bytes as usize];
        self.file.read_tensor(tensor, 0, &mut bytes)?;
        let len = dims.iter().product::<u64>();
        let mut values = vec![0.0; len as usize];
        dequantize_row(dtype, &bytes, &mut values);
        if let Some(bad) = values.iter().position(|value| !value.is_finite()) {
            let found = format!("{} at index {bad}", values[bad]);
            return Err(self.refuse(name, "finite values", found));
        }
        self.parameters += len;
        self.advance(tensor.bytes);
        Ok(values)
    }

    /// A vector as f32 on the device, where the file has it.
    pub(super) fn opt_vector(
        &mut self,
        name: &str,
        len: u64,
    ) -> Result<Option<BufferSlice>, ModelLoadError> {
        let values = self.opt_vector_values(name, len)?;
        values.map(|values| self.upload_vector(name, &values)).transpose()
    }

    /// A vector as f32 on the device.
    pub(super) fn vector(&mut self, name: &str, len: u64) -> Result<BufferSlice, ModelLoadError> {
        self.table(name, &[len])
    }

    /// A small tensor as f32 on the device, row after row.
    pub(super) fn table(
        &mut self,
        name: &str,
        dims: &[u64],
    ) -> Result<BufferSlice, ModelLoadError> {
        let values = self.values(name, dims)?;
        self.upload_vector(name, &values)
    }

    pub(super) fn upload_vector(
        &mut self,
        label: &str,
        values: &[f32],
    ) -> Result<BufferSlice, ModelLoadError> {
        let bytes = (values.len() * 4) as u64;
        let buffer = self.create(label, bytes)?;
        self.executor.write(buffer, 0, values.len() * 4, &mut |out| {
            out.copy_from_slice(bytemuck::cast_slice(values));
        })?;
        Ok(BufferSlice { buffer, offset: 0, bytes })
    }

    fn create(&mut self, label: &str, bytes: u64) -> Result<BufferHandle, ModelLoadError> {
        let usage = BufferUsage::Weights;
        Ok(self.executor.create_buffer(&BufferDesc { label: label.to_owned(), bytes, usage })?)
    }

    fn advance(&mut self, bytes: u64) {
        self.done_bytes += bytes;
        (self.progress)(self.done_bytes, self.total_bytes);
    }

    /// One tensor as a matrix of `rows` rows of `row_len` weights.
    pub(super) fn matrix(
        &mut self,
        name: &str,
        row_len: u64,
        rows: u64,
    ) -> Result<PackedMatrix, ModelLoadError> {
        let tensor = self.tensor(name, &[row_len, rows])?;
        self.pack(&[Part::whole(tensor)], Arrangement::Stacked)
    }

    /// True if the parts can make one matrix: one type, and rows that fill their groups.
    pub(super) fn can_join(&self, parts: &[Part<'_>]) -> bool {
        let lanes = self.lanes();
        let dtype = parts[0].tensor.dtype;
        parts.iter().all(|part| part.tensor.dtype == dtype && part.rows % lanes == 0)
    }

    /// Packs parts, as one matrix, onto the device.
    pub(super) fn pack(
        &mut self,
        parts: &[Part<'_>],
        arrangement: Arrangement,
    ) -> Result<PackedMatrix, ModelLoadError> {
        let first = parts[0].tensor;
        let layout = Layout {
            dtype: first.supported_dtype()?,
            rows: parts.iter().map(|part| part.rows).sum(),
            row_len: first.row_len(),
            lanes: self.lanes(),
        };
        let caps = self.executor.capabilities();
        let packing = Packing::new(layout, matmul_sliced::is_wanted(caps, layout.dtype));
        self.check_packing(first, &packing)?;
        let (quads, words) = self.create_planes(&first.name, &packing, 1)?;
        let matrix = PackedMatrix { layout, sliced: packing.sliced, quads, words };
        self.fill(&matrix, 0, parts, arrangement)?;
        Ok(matrix)
    }

    /// Packs the parts of each expert, as a matrix of its own, onto the device. All are alike.
    pub(super) fn pack_experts<const N: usize>(
        &mut self,
        experts: &[[Part<'_>; N]],
        arrangement: Arrangement,
    ) -> Result<PackedExperts, ModelLoadError> {
        let first = experts[0][0].tensor;
        let layout = Layout {
            dtype: first.supported_dtype()?,
            rows: experts[0].iter().map(|part| part.rows).sum(),
            row_len: first.row_len(),
            lanes: self.lanes(),
        };
        let packing = Packing::new(layout, false);
        self.check_packing(first, &packing)?;
        let count = experts.len() as u32;
        let caps = self.executor.capabilities();
        if !PackedExperts::is_bindable(&layout, count, caps) {
            let wanted = format!("experts that fit a binding of {} bytes", caps.storage_range_max);
            let found = format!("experts of {} rows of {}", layout.rows, layout.row_len);
            return Err(self.refuse(&first.name, &wanted, found));
        }
        let (quads, words) = self.create_planes(&first.name, &packing, count.into())?;
        let matrix = PackedMatrix { layout, sliced: false, quads, words };
        for (index, parts) in (0..).zip(experts) {
            self.fill(&matrix, index * layout.groups(), parts, arrangement)?;
        }
        Ok(PackedExperts { layout, experts: count, quads, words })
    }

    /// Planes for `count` matrices, one behind the other.
    fn create_planes(
        &mut self,
        label: &str,
        packing: &Packing,
        count: u64,
    ) -> Result<(BufferHandle, Option<BufferHandle>), ModelLoadError> {
        let groups = count * packing.groups();
        let quads = self.create(label, groups * packing.group_quad_bytes())?;
        let word_bytes = groups * packing.group_word_bytes();
        let words = match word_bytes {
            0 => None,
            _ => Some(self.create(&format!("{label} scales"), word_bytes)?),
        };
        Ok((quads, words))
    }

    /// Packs parts into the groups of `matrix` from `group_first` on.
    fn fill(
        &mut self,
        matrix: &PackedMatrix,
        group_first: u64,
        parts: &[Part<'_>],
        arrangement: Arrangement,
    ) -> Result<(), ModelLoadError> {
        let packing = matrix.packing();
        let layout = &packing.layout;
        let group_bytes = packing.group_quad_bytes() + packing.group_word_bytes();
        let step = (CHUNK_BYTES / group_bytes).max(1);
        let mut group = 0;
        while group < packing.groups() {
            let count = step.min(packing.groups() - group);
            self.pack_groups(matrix, parts, arrangement, (group_first, group), count)?;
            group += count;
        }
        self.parameters += layout.rows * layout.row_len;
        Ok(())
    }

    fn check_packing(&self, tensor: &TensorInfo, packing: &Packing) -> Result<(), ModelLoadError> {
        let layout = &packing.layout;
        if !layout.row_len.is_multiple_of(32) {
            let found = format!("rows of {}", layout.row_len);
            return Err(self.refuse(&tensor.name, "rows of a multiple of 32 weights", found));
        }
        let caps = self.executor.capabilities();
        if !PackedMatrix::is_bindable(packing, caps, matmul::GROUP_MULTIPLE) {
            let wanted = format!("rows that fit a binding of {} bytes", caps.storage_range_max);
            let found = format!("rows of {} weights", layout.row_len);
            return Err(self.refuse(&tensor.name, &wanted, found));
        }
        Ok(())
    }

    /// Packs `count` groups of the parts' rows, from `first` on, behind `behind` groups.
    fn pack_groups(
        &mut self,
        matrix: &PackedMatrix,
        parts: &[Part<'_>],
        arrangement: Arrangement,
        (behind, first): (u64, u64),
        count: u64,
    ) -> Result<(), ModelLoadError> {
        let packing = matrix.packing();
        let (quad_bytes, word_bytes) = (packing.group_quad_bytes(), packing.group_word_bytes());
        let at = behind + first;
        let mut words = vec![0; (count * word_bytes) as usize];
        let quad_len = (count * quad_bytes) as usize;
        let source = Source { file: self.file, parts, packing, arrangement };
        let mut read = Ok(0);
        // Straight to where they stay: finding memory for them is the threads' work as well.
        self.executor.write(matrix.quads, at * quad_bytes, quad_len, &mut |out| {
            read = source.pack(first, out, &mut words);
        })?;
        let bytes = read?;
        if let Some(buffer) = matrix.words {
            self.executor.write(buffer, at * word_bytes, words.len(), &mut |out| {
                out.copy_from_slice(&words);
            })?;
        }
        self.advance(bytes);
        Ok(())
    }
}

/// Bytes of a tensor on the device. Types that are larger when packed than in the file count at
/// their packed size.
pub(super) fn packed_bytes(tensor: &TensorInfo, lanes: u64) -> u64 {
    let (rows, row_len) = (tensor.rows(), tensor.row_len());
    match tensor.supported_dtype() {
        Ok(dtype) if rows > 1 => Layout { dtype, rows, row_len, lanes }.bytes().max(tensor.bytes),
        _ => tensor.bytes,
    }
}

impl Loader<'_> {
    /// Size of the vocabulary: rows of the token table, which must not be fewer than the tokens.
    pub(super) fn vocab(&self) -> Result<u64, ModelLoadError> {
        let name = "token_embd.weight";
        let Some(tensor) = self.file.tensor(name) else {
            return Err(self.refuse(name, "the token table", "no such tensor"));
        };
        let rows = tensor.rows();
        let tokens = match self.file.metadata().get("tokenizer.ggml.tokens") {
            Some(_) => self.file.metadata().str_array("tokenizer.ggml.tokens")?.len() as u64,
            None => rows, // dropped once the tokenizer was built, or a file without one
        };
        if tokens > rows || rows > VOCAB_MAX {
            let wanted = format!("one row for each of the {tokens} tokens, at most {VOCAB_MAX}");
            return Err(self.refuse(name, &wanted, format!("{rows} rows")));
        }
        Ok(rows)
    }
}
