//! Packed weight matrices on the device, and the vectors beside them.

use crate::gpu::{BufferHandle, BufferSlice, Capabilities};
use crate::tensor::Packing;
use crate::tensor::layout::Layout;

/// A weight matrix in the planes of `tensor::layout`.
#[derive(Clone, Copy, Debug)]
pub struct PackedMatrix {
    /// Type, shape and interleave.
    pub layout: Layout,
    /// True if it is sliced rather than interleaved.
    pub sliced: bool,
    /// Plane of quads.
    pub quads: BufferHandle,
    /// Plane of words; `None` where the type has none.
    pub words: Option<BufferHandle>,
}

/// Neighbouring rows of a matrix that fit the device's largest binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowSlice {
    /// First row, a multiple of a group's.
    pub row_first: u64,
    /// Rows, without padding.
    pub row_count: u64,
    /// Groups of rows, with padding.
    pub groups: u64,
    /// Their part of the plane of quads.
    pub quads: BufferSlice,
    /// Their part of the plane of words, or of the quads where there are none.
    pub words: BufferSlice,
}

impl PackedMatrix {
    /// Packing of the matrix in its planes.
    #[must_use]
    pub fn packing(&self) -> Packing {
        Packing { layout: self.layout, sliced: self.sliced }
    }

    /// Cuts the matrix into as few pieces as `storage_range_max` and `storage_align` allow, each of
    /// a multiple of `group_multiple` groups but the last.
    ///
    /// # Panics
    /// If not even `group_multiple` groups can be bound, which `Weights` refuses at load.
    #[must_use]
    pub fn row_slices(&self, caps: &Capabilities, group_multiple: u64) -> Vec<RowSlice> {
        let packing = self.packing();
        let layout = &packing.layout;
        let quad_bytes = packing.group_quad_bytes();
        let word_bytes = packing.group_word_bytes();
        let step = Self::slice_step(&packing, caps, group_multiple);
        let fitting = caps.storage_range_max / quad_bytes.max(word_bytes) / step * step;
        assert!(fitting > 0, "rows of {} weights exceed a binding", layout.row_len);
        let mut slices = Vec::new();
        let mut first = 0;
        while first < packing.groups() {
            let groups = fitting.min(packing.groups() - first);
            let quads = BufferSlice {
                buffer: self.quads,
                offset: first * quad_bytes,
                bytes: groups * quad_bytes,
            };
            let words = self.words.map_or(quads, |buffer| BufferSlice {
                buffer,
                offset: first * word_bytes,
                bytes: groups * word_bytes,
            });
            let row_first = first * packing.group_rows();
            let row_count = (groups * packing.group_rows()).min(layout.rows - row_first);
            slices.push(RowSlice { row_first, row_count, groups, quads, words });
            first += groups;
        }
        slices
    }

    /// Groups that a slice must be a multiple of, so that both planes start aligned, and a bias
    /// too.
    fn slice_step(packing: &Packing, caps: &Capabilities, group_multiple: u64) -> u64 {
        let mut step = group_multiple.max(1);
        while !(step * packing.group_quad_bytes()).is_multiple_of(caps.storage_align)
            || !(step * packing.group_word_bytes()).is_multiple_of(caps.storage_align)
            || !(step * packing.group_rows() * 4).is_multiple_of(caps.storage_align)
        {
            step *= 2; // alignments are powers of two
        }
        step
    }

    /// True if every binding of the matrix fits the device.
    #[must_use]
    pub fn is_bindable(packing: &Packing, caps: &Capabilities, group_multiple: u64) -> bool {
        let step = Self::slice_step(packing, caps, group_multiple);
        step.saturating_mul(packing.group_quad_bytes().max(packing.group_word_bytes()))
            <= caps.storage_range_max
    }
}
