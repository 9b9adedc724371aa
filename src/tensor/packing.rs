//! The two ways a matrix lies on a device: rows interleaved by lane, or sliced.

use super::layout::Layout;
use super::sliced;

/// Arrangement of a matrix in its planes. A group is the unit of packing, binding and counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packing {
    /// Type, shape and lanes.
    pub layout: Layout,
    /// True if it is sliced, so that a group is a tile of [`sliced::TILE_ROWS`] rows; else it is
    /// interleaved, and a group has `layout.lanes` rows.
    pub sliced: bool,
}

impl Packing {
    /// Sliced where the rows are whole units and the number of lanes allows it, and `wanted`.
    #[must_use]
    pub fn new(layout: Layout, wanted: bool) -> Self {
        let fits = layout.lanes == sliced::LANES as u64
            && layout.row_len.is_multiple_of(sliced::unit(layout.dtype).0 as u64);
        Self { layout, sliced: wanted && fits }
    }

    /// Rows of a group.
    #[must_use]
    pub fn group_rows(&self) -> u64 {
        if self.sliced { sliced::TILE_ROWS as u64 } else { self.layout.lanes }
    }

    /// Groups of rows.
    #[must_use]
    pub fn groups(&self) -> u64 {
        self.layout.rows.div_ceil(self.group_rows())
    }

    /// Units of a row.
    #[must_use]
    pub fn units(&self) -> u64 {
        match self.sliced {
            true => self.layout.row_len / sliced::unit(self.layout.dtype).0 as u64,
            false => self.layout.units(),
        }
    }

    /// Bytes a group takes in the plane of quads.
    #[must_use]
    pub fn group_quad_bytes(&self) -> u64 {
        match self.sliced {
            true => {
                let words = sliced::unit(self.layout.dtype).1;
                self.units() * (sliced::TILE_GROUPS * words * 4) as u64
            }
            false => self.layout.group_quad_bytes(),
        }
    }

    /// Bytes a group takes in the plane of words; 0 where there is none.
    #[must_use]
    pub fn group_word_bytes(&self) -> u64 {
        if self.sliced { 0 } else { self.layout.group_word_bytes() }
    }

    /// Packs up to [`Packing::group_rows`] whole rows into a group of both planes; every byte of
    /// them is written.
    ///
    /// # Panics
    /// If a length does not fit: a bug of the caller.
    pub fn pack_group(&self, rows: &[u8], quads: &mut [u8], words: &mut [u8]) {
        if self.sliced {
            sliced::pack_tile(self.layout.dtype, self.layout.row_len, rows, quads);
        } else {
            self.layout.pack_group(rows, quads, words);
        }
    }

    /// The weights of `row` as f32, from whole planes.
    ///
    /// # Panics
    /// If the planes are too short for `row`, or `out` is not `row_len` long.
    pub fn unpack_row(&self, quads: &[u8], words: &[u8], row: u64, out: &mut [f32]) {
        if self.sliced {
            sliced::unpack_row(self.layout.dtype, self.layout.row_len, quads, row, out);
        } else {
            self.layout.unpack_row(quads, words, row, out);
        }
    }
}
