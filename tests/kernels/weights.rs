//! Random weights of every type, in the file's blocks and packed for a device.

use half::{bf16, f16};
use hob::gpu::Capabilities;
use hob::kernels::{PackedExperts, PackedMatrix, matmul};
use hob::tensor::layout::Layout;
use hob::tensor::{DType, dequantize_row};

use super::{Case, GARBAGE};
use crate::random::Random;

/// A packed matrix of a case.
pub(super) struct Matrix {
    pub packed: PackedMatrix,
    /// Largest sum of |w| of a row.
    pub row_sum: f32,
}

/// The planes of random rows.
struct Planes {
    layout: Layout,
    quads: Vec<u8>,
    words: Vec<u8>,
    row_sum: f32,
}

/// A file's bytes of `rows` random rows, with weights between about -2 and 2.
pub(super) fn random_rows(random: &mut Random, dtype: DType, rows: u64, row_len: u64) -> Vec<u8> {
    let bytes = (dtype.row_bytes(row_len).unwrap() * rows) as usize;
    let mut out: Vec<u8> = (0..bytes).map(|_| random.next() as u8).collect();
    for block in out.chunks_exact_mut(dtype.block_bytes()) {
        let mut half_at = |at: usize, low: f32, high: f32| {
            let value = f16::from_f32(random.between(low, high));
            block[at..at + 2].copy_from_slice(&value.to_le_bytes());
        };
        match dtype {
            DType::F32 => block.copy_from_slice(&random.between(-1.0, 1.0).to_le_bytes()),
            DType::F16 => half_at(0, -1.0, 1.0),
            DType::BF16 => {
                let value = bf16::from_f32(random.between(-1.0, 1.0));
                block.copy_from_slice(&value.to_le_bytes());
            }
            DType::Q8_0 => half_at(0, -0.008, 0.008),
            DType::Q4_0 => half_at(0, -0.12, 0.12),
            DType::Q5_0 => half_at(0, -0.06, 0.06),
            DType::Q4_1 => {
                half_at(0, 0.0, 0.12);
                half_at(2, -1.0, 0.0);
            }
            DType::Q5_1 => {
                half_at(0, 0.0, 0.06);
                half_at(2, -1.0, 0.0);
            }
            DType::Q4_K => {
                half_at(0, 0.0, 0.002);
                half_at(2, 0.0, 0.02);
            }
            DType::Q5_K => {
                half_at(0, 0.0, 0.001);
                half_at(2, 0.0, 0.02);
            }
            DType::Q6_K => half_at(208, -0.0005, 0.0005),
        }
    }
    out
}

impl Case {
    /// A random matrix; the rows that fill up its last group are garbage.
    pub(super) fn matrix(&mut self, dtype: DType, rows: u64, row_len: u64) -> Matrix {
        let planes = self.planes(dtype, rows, row_len);
        let quads = self.plane(planes.quads);
        let words = (!planes.words.is_empty()).then(|| self.plane(planes.words));
        let packed = PackedMatrix { layout: planes.layout, quads, words };
        Matrix { packed, row_sum: planes.row_sum }
    }

    /// Random matrices of a mixture's experts, and the largest sum of |w| of a row.
    pub(super) fn experts(
        &mut self,
        dtype: DType,
        experts: u32,
        rows: u64,
        row_len: u64,
    ) -> (PackedExperts, f32) {
        let mut all = self.planes(dtype, rows, row_len);
        for _ in 1..experts {
            let next = self.planes(dtype, rows, row_len);
            all.quads.extend(next.quads);
            all.words.extend(next.words);
            all.row_sum = all.row_sum.max(next.row_sum);
        }
        let quads = self.plane(all.quads);
        let words = (!all.words.is_empty()).then(|| self.plane(all.words));
        (PackedExperts { layout: all.layout, experts, quads, words }, all.row_sum)
    }

    fn planes(&mut self, dtype: DType, rows: u64, row_len: u64) -> Planes {
        let layout = Layout { dtype, rows, row_len, lanes: self.caps.lanes.into() };
        let mut bytes = random_rows(&mut self.random, dtype, rows, row_len);
        let row_bytes = dtype.row_bytes(row_len).unwrap() as usize;
        let mut values = vec![0.0; row_len as usize];
        let row_sum = bytes
            .chunks_exact(row_bytes)
            .map(|row| {
                dequantize_row(dtype, row, &mut values);
                values.iter().map(|v| v.abs()).sum()
            })
            .fold(0.0, f32::max);
        bytes.resize((layout.groups() * layout.lanes) as usize * row_bytes, GARBAGE);
        let (quad_bytes, word_bytes) = (layout.group_quad_bytes(), layout.group_word_bytes());
        let mut quads = vec![0; (layout.groups() * quad_bytes) as usize];
        let mut words = vec![0; (layout.groups() * word_bytes) as usize];
        for (group, rows) in bytes.chunks_exact(row_bytes * layout.lanes as usize).enumerate() {
            let (q, w) = (quad_bytes as usize, word_bytes as usize);
            layout.pack_group(rows, &mut quads[group * q..][..q], &mut words[group * w..][..w]);
        }
        Planes { layout, quads, words, row_sum }
    }
}

/// Capabilities whose bindings are so small that a matrix falls into several slices.
pub(super) fn small_bindings(caps: &Capabilities, layout: &Layout) -> Capabilities {
    let bytes = layout.group_quad_bytes().max(layout.group_word_bytes());
    let mut caps = Capabilities { storage_range_max: bytes, ..caps.clone() };
    while !PackedMatrix::is_bindable(layout, &caps, matmul::GROUP_MULTIPLE) {
        caps.storage_range_max *= 2;
    }
    caps
}
