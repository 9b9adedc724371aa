//! Random weights of every type, packed for a device.

use hob::gpu::Capabilities;
use hob::kernels::{PackedExperts, PackedMatrix, matmul};
use hob::tensor::layout::Layout;
use hob::tensor::{DType, Packing, dequantize_row};

use super::{Case, GARBAGE};
use crate::blocks::random_rows;

/// A packed matrix of a case.
pub(super) struct Matrix {
    pub packed: PackedMatrix,
    /// Largest sum of |w| of a row.
    pub row_sum: f32,
}

/// The planes of random rows.
struct Planes {
    packing: Packing,
    quads: Vec<u8>,
    words: Vec<u8>,
    row_sum: f32,
}

impl Case {
    /// A random matrix; the rows that fill up its last group are garbage.
    pub(super) fn matrix(&mut self, dtype: DType, rows: u64, row_len: u64) -> Matrix {
        let planes = self.planes(dtype, rows, row_len, self.caps.slices_weights());
        let quads = self.plane(planes.quads);
        let words = (!planes.words.is_empty()).then(|| self.plane(planes.words));
        let Packing { layout, sliced } = planes.packing;
        let packed = PackedMatrix { layout, sliced, quads, words };
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
        let mut all = self.planes(dtype, rows, row_len, false);
        for _ in 1..experts {
            let next = self.planes(dtype, rows, row_len, false);
            all.quads.extend(next.quads);
            all.words.extend(next.words);
            all.row_sum = all.row_sum.max(next.row_sum);
        }
        let quads = self.plane(all.quads);
        let words = (!all.words.is_empty()).then(|| self.plane(all.words));
        (PackedExperts { layout: all.packing.layout, experts, quads, words }, all.row_sum)
    }

    fn planes(&mut self, dtype: DType, rows: u64, row_len: u64, sliced: bool) -> Planes {
        let layout = Layout { dtype, rows, row_len, lanes: self.caps.lanes.into() };
        let packing = Packing::new(layout, sliced);
        let group_rows = packing.group_rows() as usize;
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
        bytes.resize(packing.groups() as usize * group_rows * row_bytes, GARBAGE);
        let (quad_bytes, word_bytes) = (packing.group_quad_bytes(), packing.group_word_bytes());
        let mut quads = vec![0; (packing.groups() * quad_bytes) as usize];
        let mut words = vec![0; (packing.groups() * word_bytes) as usize];
        for (group, rows) in bytes.chunks_exact(row_bytes * group_rows).enumerate() {
            let (q, w) = (quad_bytes as usize, word_bytes as usize);
            packing.pack_group(rows, &mut quads[group * q..][..q], &mut words[group * w..][..w]);
        }
        Planes { packing, quads, words, row_sum }
    }
}

/// Capabilities whose bindings are so small that a matrix falls into several slices.
pub(super) fn small_bindings(caps: &Capabilities, packing: &Packing) -> Capabilities {
    let bytes = packing.group_quad_bytes().max(packing.group_word_bytes());
    let mut caps = Capabilities { storage_range_max: bytes, ..caps.clone() };
    while !PackedMatrix::is_bindable(packing, &caps, matmul::GROUP_MULTIPLE) {
        caps.storage_range_max *= 2;
    }
    caps
}
