//! The tensors of a folder's safetensors files, as a GGUF file would hold them.

use std::io;

use crate::gguf::{FileIdentity, TensorData};
use crate::tensor::quantize::quantize_row;
use crate::tensor::{DType, dequantize_row};

use super::HfError;
use super::names::Change;
use super::safetensors::{Entry, Safetensors};

/// A tensor under its GGUF name.
#[derive(Debug)]
pub(super) struct Tensor {
    pub(super) name: String,
    /// Row length first.
    pub(super) dims: Vec<u64>,
    /// Type that it is given out in.
    pub(super) dtype: DType,
    values: Values,
    change: Change,
}

#[derive(Debug)]
enum Values {
    /// Tensor of a file, by index.
    File { file: usize, dtype: DType, offset: u64 },
    /// Made from the configuration.
    Made(Vec<f32>),
}

impl Tensor {
    /// A tensor of a file.
    pub(super) fn of_file(
        name: String,
        change: Change,
        files: &[Safetensors],
        file: usize,
        entry: &Entry,
        quantize: impl Fn(u64) -> Option<DType>,
    ) -> Result<Self, HfError> {
        let refuse = |wanted: String, found: String| HfError::Tensor {
            path: files[file].path().to_owned(),
            tensor: entry.name.to_string(),
            wanted,
            found,
        };
        let dtype = match &entry.dtype {
            Ok(dtype) => *dtype,
            Err(other) => return Err(refuse("F32, F16 or BF16".to_owned(), format!("{other:?}"))),
        };
        let mut dims: Vec<u64> = entry.dims.iter().rev().copied().collect();
        if dims.is_empty() {
            dims.push(1);
        }
        if let Change::Pairs { heads } = change {
            let rows = *entry.dims.first().unwrap_or(&1);
            let per_head = u64::from(heads) * 2;
            if heads == 0 || !rows.is_multiple_of(per_head) {
                let wanted = format!("rows of {heads} heads of an even number each");
                return Err(refuse(wanted, format!("{rows} rows")));
            }
        }
        // Norms and biases take little room and are computed with as f32.
        let given_as =
            if dims.len() == 1 { DType::F32 } else { quantize(dims[0]).unwrap_or(dtype) };
        let values = Values::File { file, dtype, offset: entry.offset };
        Ok(Self { name, dims, dtype: given_as, values, change })
    }

    /// A vector of given values.
    pub(super) fn made(name: &str, values: Vec<f32>) -> Self {
        let (name, dims) = (name.to_owned(), vec![values.len() as u64]);
        Self { name, dims, dtype: DType::F32, values: Values::Made(values), change: Change::None }
    }

    fn row_len(&self) -> usize {
        self.dims[0] as usize
    }

    /// The row of the file that is row `row` here; of a vector, the element.
    fn source_row(&self, row: u64) -> u64 {
        let Change::Pairs { heads } = self.change else { return row };
        let rows: u64 =
            if self.dims.len() == 1 { self.dims[0] } else { self.dims[1..].iter().product() };
        let head_rows = rows / u64::from(heads);
        let (head, at) = (row / head_rows, row % head_rows);
        head * head_rows + at % 2 * (head_rows / 2) + at / 2
    }
}

/// All tensors of a folder.
#[derive(Debug)]
pub(super) struct Weights {
    pub(super) files: Vec<Safetensors>,
    pub(super) tensors: Vec<Tensor>,
    /// The folder's files that are no tensors, as they were before they were read.
    pub(super) others: Vec<FileIdentity>,
}

impl Weights {
    /// The values of row `row` of the file, or all of a vector, as f32.
    fn values(&self, tensor: &Tensor, row: u64) -> io::Result<Vec<f32>> {
        let mut values = match &tensor.values {
            Values::Made(values) => values.clone(),
            Values::File { file, dtype, offset } => {
                let mut values = vec![0.0; tensor.row_len()];
                let row_bytes = values.len() * dtype.block_bytes();
                let mut bytes = vec![0; row_bytes];
                self.files[*file].read(offset + row * row_bytes as u64, &mut bytes)?;
                dequantize_row(*dtype, &bytes, &mut values);
                values
            }
        };
        if tensor.change == Change::PlusOne {
            values.iter_mut().for_each(|value| *value += 1.0);
        }
        Ok(values)
    }

    /// The bytes of row `row` as they are given out.
    fn row(&self, tensor: &Tensor, row: u64, out: &mut [u8]) -> io::Result<()> {
        if tensor.dims.len() == 1 {
            let values = self.values(tensor, 0)?;
            let order = (0..values.len() as u64).map(|at| values[tensor.source_row(at) as usize]);
            out.chunks_exact_mut(4)
                .zip(order)
                .for_each(|(bytes, value)| bytes.copy_from_slice(&value.to_le_bytes()));
            return Ok(());
        }
        let row = tensor.source_row(row);
        match &tensor.values {
            Values::File { file, dtype, offset } if *dtype == tensor.dtype => {
                self.files[*file].read(offset + row * out.len() as u64, out)
            }
            _ => {
                let values = self.values(tensor, row)?;
                if let Some(bad) = values.iter().find(|value| !value.is_finite()) {
                    let what = format!("tensor {}: {bad} in row {row}", tensor.name);
                    return Err(io::Error::new(io::ErrorKind::InvalidData, what));
                }
                let mut blocks = Vec::with_capacity(out.len());
                quantize_row(tensor.dtype, &values, &mut blocks);
                out.copy_from_slice(&blocks);
                Ok(())
            }
        }
    }
}

impl TensorData for Weights {
    fn identity(&self) -> io::Result<Vec<FileIdentity>> {
        let files = self.files.iter().map(Safetensors::identity);
        files.chain(self.others.iter().cloned().map(Ok)).collect()
    }

    fn read(&self, index: usize, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let tensor = &self.tensors[index];
        if let Values::File { file, dtype, offset: start } = &tensor.values
            && *dtype == tensor.dtype
            && tensor.change == Change::None
        {
            return self.files[*file].read(start + offset, out);
        }
        let row_bytes = tensor.dtype.row_bytes(tensor.dims[0]);
        let row_bytes = row_bytes.ok_or(io::ErrorKind::InvalidInput)?;
        let mut bytes = vec![0; row_bytes as usize];
        let (mut done, mut at) = (0, offset);
        while done < out.len() {
            let (row, within) = (at / row_bytes, (at % row_bytes) as usize);
            let count = (bytes.len() - within).min(out.len() - done);
            if within == 0 && count == bytes.len() {
                self.row(tensor, row, &mut out[done..done + count])?;
            } else {
                self.row(tensor, row, &mut bytes)?;
                out[done..done + count].copy_from_slice(&bytes[within..within + count]);
            }
            done += count;
            at += count as u64;
        }
        Ok(())
    }
}
