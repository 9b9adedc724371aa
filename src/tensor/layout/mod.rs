//! Packed matrices: how the blocks of a file's rows are laid out on the device.
//!
//! Rows are packed in groups of `lanes`, so that the lanes of a workgroup, which own a row each,
//! load neighbouring addresses. A row is cut into units; a unit takes some 128-bit quads and some
//! 32-bit words, each in a plane of its own, interleaved by lane:
//!
//! ```text
//! quads[((group * units + unit) * quads_per_unit + i) * lanes + lane]
//! words[((group * units + unit) * words_per_unit + i) * lanes + lane]
//! ```
//!
//! Packing is lossless, but for the padding of the last group and unit, which is zero: weights of
//! value 0 whose scale is 0. Most types keep their byte count. Those whose blocks number vectors of
//! a grid have the vectors looked up here, and their weights written as codes of two to four bits,
//! which a shader decodes without a table: at most 1.6 times the bytes of the file.
//! `shaders/include/weights.glsl` is the other end.

mod float;
mod k_quants;
mod legacy;
mod planes;
mod small;

use super::DType;
use planes::{UnitSink, UnitSource};

/// Planes of one packed matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Type of the elements.
    pub dtype: DType,
    /// Rows of the matrix.
    pub rows: u64,
    /// Weights in a row, a multiple of 32.
    pub row_len: u64,
    /// Rows of a group.
    pub lanes: u64,
}

/// Size of a unit: weights, quads, words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Weights.
    pub weights: u64,
    /// Number of 128-bit quads.
    pub quads: u64,
    /// Number of 32-bit words.
    pub words: u64,
}

impl Unit {
    /// The unit of a type; the table of `weights.glsl`.
    #[must_use]
    pub const fn of(dtype: DType) -> Self {
        let (weights, quads, words) = match dtype {
            DType::F32 => (32, 8, 0),
            DType::F16 | DType::BF16 => (32, 4, 0),
            DType::Q8_0 => (64, 4, 1),
            DType::Q4_0 => (64, 2, 1),
            DType::Q4_1 => (32, 1, 1),
            DType::Q5_0 => (64, 2, 3),
            DType::Q5_1 => (32, 1, 2),
            DType::Q4_K => (256, 9, 0),
            DType::Q5_K => (256, 11, 0),
            DType::Q6_K => (256, 13, 1),
            DType::Q2_K => (256, 5, 1),
            DType::Q3_K => (256, 7, 1),
            DType::IQ4_NL => (64, 2, 1),
            DType::IQ4_XS | DType::IQ3_XXS | DType::IQ3_S => (256, 8, 2),
            DType::MXFP4 => (64, 2, 3),
            DType::TQ1_0 | DType::TQ2_0 => (256, 4, 1),
            DType::IQ1_S => (256, 4, 2),
            DType::IQ1_M => (256, 5, 0),
            DType::IQ2_XXS => (256, 6, 2),
            DType::IQ2_XS | DType::IQ2_S => (256, 6, 3),
        };
        Self { weights, quads, words }
    }
}

impl Layout {
    /// Units in a row.
    #[must_use]
    pub fn units(&self) -> u64 {
        self.row_len.div_ceil(Unit::of(self.dtype).weights)
    }

    /// Groups of rows.
    #[must_use]
    pub fn groups(&self) -> u64 {
        self.rows.div_ceil(self.lanes)
    }

    /// Bytes a group takes in the plane of quads.
    #[must_use]
    pub fn group_quad_bytes(&self) -> u64 {
        self.units() * Unit::of(self.dtype).quads * self.lanes * 16
    }

    /// Bytes a group takes in the plane of words; 0 where the type has none.
    #[must_use]
    pub fn group_word_bytes(&self) -> u64 {
        self.units() * Unit::of(self.dtype).words * self.lanes * 4
    }

    /// Bytes of both planes, padding included; as many as can be counted where they are more.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let group = self.group_quad_bytes().saturating_add(self.group_word_bytes());
        self.groups().saturating_mul(group)
    }

    /// Packs up to `lanes` whole rows into a group of both planes.
    ///
    /// `rows`: the file's bytes of the group's rows, at most `lanes` of them, in order.
    /// `quads`, `words`: the group's bytes in the planes, [`Layout::group_quad_bytes`] and
    /// [`Layout::group_word_bytes`] long; every byte is written.
    ///
    /// # Panics
    /// If a length does not fit: a bug of the caller.
    pub fn pack_group(&self, rows: &[u8], quads: &mut [u8], words: &mut [u8]) {
        let row_bytes = usize::try_from(self.row_len / self.dtype.block_len() as u64)
            .expect("a row fits memory")
            * self.dtype.block_bytes();
        assert_eq!(quads.len() as u64, self.group_quad_bytes(), "plane of quads");
        assert_eq!(words.len() as u64, self.group_word_bytes(), "plane of words");
        assert!(
            rows.len().is_multiple_of(row_bytes) && rows.len() <= row_bytes * self.lanes as usize,
            "rows"
        );
        quads.fill(0);
        words.fill(0);
        let unit = Unit::of(self.dtype);
        let block_bytes = self.dtype.block_bytes();
        let blocks_per_unit = (unit.weights as usize / self.dtype.block_len()).max(1);
        // Float types have blocks of one weight: 32 of them make a unit.
        let unit_bytes = blocks_per_unit * block_bytes;
        for (lane, row) in rows.chunks_exact(row_bytes).enumerate() {
            for (index, bytes) in row.chunks(unit_bytes).enumerate() {
                let mut sink = UnitSink {
                    quads: &mut quads[index * (unit.quads * self.lanes * 16) as usize..],
                    words: &mut words[index * (unit.words * self.lanes * 4) as usize..],
                    lane,
                    lanes: self.lanes as usize,
                };
                pack_unit(self.dtype, bytes, &mut sink);
            }
        }
    }

    /// The weights of `row` as f32, read back from whole planes: the scalar twin of `weights.glsl`.
    ///
    /// # Panics
    /// If the planes are too short for `row`, or `out` is not `row_len` long.
    pub fn unpack_row(&self, quads: &[u8], words: &[u8], row: u64, out: &mut [f32]) {
        assert_eq!(out.len() as u64, self.row_len, "a row's weights");
        let (group, lane) = (row / self.lanes, (row % self.lanes) as usize);
        let unit = Unit::of(self.dtype);
        for (index, weights) in out.chunks_mut(unit.weights as usize).enumerate() {
            let at = group * self.units() + index as u64;
            let source = UnitSource {
                quads: &quads[(at * unit.quads * self.lanes * 16) as usize..],
                words: &words[(at * unit.words * self.lanes * 4) as usize..],
                lane,
                lanes: self.lanes as usize,
            };
            for (sub, block) in weights.chunks_mut(32).enumerate() {
                unpack_block(self.dtype, &source, sub, block);
            }
        }
    }
}

fn pack_unit(dtype: DType, bytes: &[u8], sink: &mut UnitSink<'_>) {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => float::pack(bytes, sink),
        DType::Q8_0 | DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 => {
            legacy::pack(dtype, bytes, sink);
        }
        DType::Q2_K | DType::Q3_K | DType::Q4_K | DType::Q5_K | DType::Q6_K => {
            k_quants::pack(dtype, bytes, sink);
        }
        _ => small::pack(dtype, bytes, sink),
    }
}

/// Block `sub` of a unit, at most 32 weights.
fn unpack_block(dtype: DType, unit: &UnitSource<'_>, sub: usize, out: &mut [f32]) {
    type Values = fn(DType, &UnitSource<'_>, usize) -> [i16; 32];
    type Scale = fn(DType, &UnitSource<'_>, usize, usize) -> (f32, f32);
    let (values, scale): (Values, Scale) = match dtype {
        DType::F32 | DType::F16 | DType::BF16 => return float::unpack(dtype, unit, out),
        DType::Q8_0 | DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 => {
            (legacy::values, legacy::scale)
        }
        DType::Q2_K | DType::Q3_K | DType::Q4_K | DType::Q5_K | DType::Q6_K => {
            (k_quants::values, k_quants::scale)
        }
        _ => (small::values, small::scale),
    };
    let values = values(dtype, unit, sub);
    for (part, out) in out.chunks_mut(16).enumerate() {
        let (scale, bias) = scale(dtype, unit, sub, part);
        for (out, u) in out.iter_mut().zip(&values[16 * part..]) {
            *out = scale * f32::from(*u) + bias;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::dequantize_row;
    use super::*;

    /// Bytes without NaN or infinity where a type reads floats: every high byte of a pair stays
    /// small.
    fn noise(len: usize, seed: u64) -> Vec<u8> {
        let mut state = seed;
        (0..len)
            .map(|i| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let byte = (state >> 33) as u8;
                if i % 2 == 1 { byte & 0xbb } else { byte }
            })
            .collect()
    }

    #[test]
    fn no_type_takes_much_more_memory_than_in_its_file() {
        for dtype in DType::ALL {
            let unit = Unit::of(dtype);
            let packed = unit.quads * 16 + unit.words * 4;
            let file = dtype.row_bytes(unit.weights).unwrap();
            assert!(10 * packed <= 16 * file, "{dtype}: {packed} bytes for {file}");
        }
    }

    #[test]
    fn packing_then_unpacking_gives_the_weights_of_the_file() {
        for dtype in DType::ALL {
            for lanes in [1, 4, 8, 32] {
                // An odd number of blocks and of rows: units and groups end in padding.
                let row_len = if dtype.block_len() == 256 { 512 } else { 96 };
                let layout = Layout { dtype, rows: lanes + 3, row_len, lanes };
                let row_bytes = row_len as usize / dtype.block_len() * dtype.block_bytes();
                let mut file = noise(row_bytes * layout.rows as usize, 7);
                if dtype == DType::MXFP4 {
                    file.chunks_exact_mut(17).for_each(|block| block[0] &= 0x7f); // exponents
                }
                let mut quads = vec![0xff; (layout.group_quad_bytes() * layout.groups()) as usize];
                let mut words = vec![0xff; (layout.group_word_bytes() * layout.groups()) as usize];
                for group in 0..layout.groups() as usize {
                    let rows = &file[group * lanes as usize * row_bytes..];
                    let rows = &rows[..rows.len().min(lanes as usize * row_bytes)];
                    let (q, w) = (layout.group_quad_bytes(), layout.group_word_bytes());
                    layout.pack_group(
                        rows,
                        &mut quads[group * q as usize..][..q as usize],
                        &mut words[group * w as usize..][..w as usize],
                    );
                }
                let (mut wanted, mut found) =
                    (vec![0.0; row_len as usize], vec![0.0; row_len as usize]);
                for (row, bytes) in file.chunks_exact(row_bytes).enumerate() {
                    dequantize_row(dtype, bytes, &mut wanted);
                    layout.unpack_row(&quads, &words, row as u64, &mut found);
                    // scale * u + bias rounds otherwise than scale * (u - zero point).
                    let largest = wanted.iter().fold(0.0_f32, |m, w| m.max(w.abs()));
                    for (i, (w, f)) in wanted.iter().zip(&found).enumerate() {
                        let close = (w - f).abs() <= 1e-5 * largest;
                        assert!(close, "{dtype:?} lanes {lanes} row {row} weight {i}: {w} != {f}");
                    }
                }
            }
        }
    }
}
