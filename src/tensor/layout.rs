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
//! Packing is lossless and keeps the byte count (but for the padding of the last group and unit,
//! which is zero: weights of value 0 whose scale is 0). `shaders/include/weights.glsl` is the other
//! end.

use super::DType;

/// Planes of one packed matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Element type.
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
    /// 128-bit quads.
    pub quads: u64,
    /// 32-bit words.
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

/// One lane's unit, being written.
struct UnitSink<'a> {
    quads: &'a mut [u8],
    words: &'a mut [u8],
    lane: usize,
    lanes: usize,
}

impl UnitSink<'_> {
    fn quad(&mut self, index: usize, value: [u32; 4]) {
        let at = (index * self.lanes + self.lane) * 16;
        for (to, word) in self.quads[at..at + 16].chunks_exact_mut(4).zip(value) {
            to.copy_from_slice(&word.to_le_bytes());
        }
    }

    fn word(&mut self, index: usize, value: u32) {
        let at = (index * self.lanes + self.lane) * 4;
        self.words[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
}

/// One lane's unit, being read.
struct UnitSource<'a> {
    quads: &'a [u8],
    words: &'a [u8],
    lane: usize,
    lanes: usize,
}

impl UnitSource<'_> {
    fn quad(&self, index: usize) -> [u32; 4] {
        let at = (index * self.lanes + self.lane) * 16;
        std::array::from_fn(|i| le_u32(&self.quads[at + 4 * i..]))
    }

    fn word(&self, index: usize) -> u32 {
        le_u32(&self.words[(index * self.lanes + self.lane) * 4..])
    }
}

fn le_u32(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn le_u16(bytes: &[u8]) -> u32 {
    u32::from(u16::from_le_bytes([bytes[0], bytes[1]]))
}

fn words_of(bytes: &[u8]) -> [u32; 4] {
    std::array::from_fn(|i| le_u32(&bytes[4 * i..]))
}

/// Packs 32 four-bit values, `nibble(i)` of weight i: word w holds weights 8 w ..; its even nibbles
/// are the first four, its odd ones the last four.
fn nibbles(nibble: impl Fn(usize) -> u8) -> [u32; 4] {
    std::array::from_fn(|w| {
        (0..4).fold(0, |word, i| {
            let pair = u32::from(nibble(8 * w + i)) | u32::from(nibble(8 * w + 4 + i)) << 4;
            word | pair << (8 * i)
        })
    })
}

/// Packs the fifth bits of 32 weights: bit i of byte c belongs to weight 4 i + c.
fn fifth_bits(bit: impl Fn(usize) -> bool) -> u32 {
    (0..32).fold(0, |word, w| word | u32::from(bit(w)) << (8 * (w % 4) + w / 4))
}

fn pack_unit(dtype: DType, bytes: &[u8], sink: &mut UnitSink<'_>) {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => {
            for (i, quad) in bytes.chunks_exact(16).enumerate() {
                sink.quad(i, words_of(quad));
            }
        }
        DType::Q4_0 | DType::Q5_0 | DType::Q8_0 => pack_pair(dtype, bytes, sink),
        DType::Q4_1 => {
            sink.word(0, le_u32(bytes));
            sink.quad(0, nibbles(|i| half_block_nibble(&bytes[4..], i)));
        }
        DType::Q5_1 => {
            sink.word(0, le_u32(bytes));
            sink.word(1, fifth_bits(|i| le_u32(&bytes[4..]) >> i & 1 == 1));
            sink.quad(0, nibbles(|i| half_block_nibble(&bytes[8..], i)));
        }
        DType::Q4_K | DType::Q5_K => pack_k45(dtype, bytes, sink),
        DType::Q6_K => pack_q6_k(bytes, sink),
    }
}

/// Nibble of weight i where a byte holds weights j (low) and j + 16 (high).
fn half_block_nibble(bytes: &[u8], i: usize) -> u8 {
    if i < 16 { bytes[i] & 15 } else { bytes[i - 16] >> 4 }
}

/// Two blocks of 32 with one f16 scale each; a missing second block stays zero.
fn pack_pair(dtype: DType, bytes: &[u8], sink: &mut UnitSink<'_>) {
    let mut scales = 0;
    for (sub, block) in bytes.chunks_exact(dtype.block_bytes()).enumerate() {
        scales |= le_u16(block) << (16 * sub);
        match dtype {
            DType::Q4_0 => sink.quad(sub, nibbles(|i| half_block_nibble(&block[2..], i))),
            DType::Q5_0 => {
                sink.word(1 + sub, fifth_bits(|i| le_u32(&block[2..]) >> i & 1 == 1));
                sink.quad(sub, nibbles(|i| half_block_nibble(&block[6..], i)));
            }
            _ => {
                // Signed bytes become unsigned ones with a zero point of 128.
                let flip = |half: &[u8]| words_of(half).map(|word| word ^ 0x8080_8080);
                sink.quad(2 * sub, flip(&block[2..18]));
                sink.quad(2 * sub + 1, flip(&block[18..34]));
            }
        }
    }
    sink.word(0, scales);
}

/// A superblock of Q4_K or Q5_K: d, dmin, 12 bytes of 6-bit scales and mins, (32 bytes of fifth
/// bits,) 128 bytes of nibbles.
fn pack_k45(dtype: DType, bytes: &[u8], sink: &mut UnitSink<'_>) {
    let mut head = [le_u32(bytes), 0, 0, 0];
    for sub in 0..8 {
        let (scale, min) = scale_min_k4(&bytes[4..16], sub);
        head[1] |= u32::from(scale & 15) << (4 * sub);
        head[2] |= u32::from(min & 15) << (4 * sub);
        head[3] |= u32::from(scale >> 4) << (2 * sub) | u32::from(min >> 4) << (16 + 2 * sub);
    }
    sink.quad(0, head);
    let quants = &bytes[bytes.len() - 128..];
    let first = if dtype == DType::Q5_K { 3 } else { 1 };
    for sub in 0..8 {
        let of = |i: usize| quants[sub / 2 * 32 + i] >> (4 * (sub % 2)) & 15;
        sink.quad(first + sub, nibbles(of));
    }
    if dtype == DType::Q5_K {
        let high: [u32; 8] =
            std::array::from_fn(|sub| fifth_bits(|i| bytes[16 + i] >> sub & 1 == 1));
        sink.quad(1, [high[0], high[1], high[2], high[3]]);
        sink.quad(2, [high[4], high[5], high[6], high[7]]);
    }
}

/// The 6-bit scale and min of a sub-block of 32, as Q4_K and Q5_K store them.
fn scale_min_k4(packed: &[u8], sub: usize) -> (u8, u8) {
    if sub < 4 {
        (packed[sub] & 63, packed[sub + 4] & 63)
    } else {
        (
            packed[sub + 4] & 15 | packed[sub - 4] >> 6 << 4,
            packed[sub + 4] >> 4 | packed[sub] >> 6 << 4,
        )
    }
}

/// A superblock of Q6_K: 128 bytes of low nibbles, 64 of high bit pairs, 16 signed scales, d.
fn pack_q6_k(bytes: &[u8], sink: &mut UnitSink<'_>) {
    let (low, rest) = bytes.split_at(128);
    let (high, rest) = rest.split_at(64);
    sink.quad(0, words_of(&rest[..16]));
    sink.word(0, le_u16(&rest[16..]));
    // Weight w = 128 n + 32 q + l: its nibble is half q / 2 of low[64 n + 32 (q % 2) + l], its bit
    // pair is number q of high[32 n + l].
    let mut pairs = [[0_u32; 2]; 8];
    for (sub, pair) in pairs.iter_mut().enumerate() {
        let (n, q) = (sub / 4, sub % 4);
        let nibble = |l: usize| low[64 * n + 32 * (q % 2) + l] >> (4 * (q / 2)) & 15;
        sink.quad(5 + sub, nibbles(nibble));
        for l in 0..32 {
            let bits = u32::from(high[32 * n + l] >> (2 * q) & 3);
            // Byte word i = l / 4: the first four go to word 0, two bits of a byte each.
            pair[l / 16] |= bits << (8 * (l % 4) + 2 * (l / 4 % 4));
        }
    }
    for quad in 0..4 {
        let (a, b) = (pairs[2 * quad], pairs[2 * quad + 1]);
        sink.quad(1 + quad, [a[0], a[1], b[0], b[1]]);
    }
}

fn f16(bits: u32) -> f32 {
    half::f16::from_bits(bits as u16).to_f32()
}

fn unpack_block(dtype: DType, unit: &UnitSource<'_>, sub: usize, out: &mut [f32]) {
    match dtype {
        DType::F32 => {
            for (i, out) in out.iter_mut().enumerate() {
                *out = f32::from_bits(unit.quad(i / 4)[i % 4]);
            }
        }
        DType::F16 | DType::BF16 => {
            for (i, out) in out.iter_mut().enumerate() {
                let bits = unit.quad(i / 8)[i % 8 / 2] >> (16 * (i % 2)) & 0xffff;
                *out = if dtype == DType::F16 { f16(bits) } else { f32::from_bits(bits << 16) };
            }
        }
        _ => {
            let values = block_values(dtype, unit, sub);
            for (part, out) in out.chunks_mut(16).enumerate() {
                let (scale, bias) = block_scale(dtype, unit, sub, part);
                for (out, u) in out.iter_mut().zip(&values[16 * part..]) {
                    *out = scale * f32::from(*u) + bias;
                }
            }
        }
    }
}

/// The unsigned values of a quantised block.
fn block_values(dtype: DType, unit: &UnitSource<'_>, sub: usize) -> [u8; 32] {
    let first = match dtype {
        DType::Q4_K => 1,
        DType::Q5_K => 3,
        DType::Q6_K => 5,
        _ => 0,
    };
    if dtype == DType::Q8_0 {
        return std::array::from_fn(|i| {
            (unit.quad(2 * sub + i / 16)[i % 16 / 4] >> (8 * (i % 4))) as u8
        });
    }
    let quad = unit.quad(first + sub);
    let fifth = match dtype {
        DType::Q5_0 => unit.word(1 + sub),
        DType::Q5_1 => unit.word(1),
        DType::Q5_K => unit.quad(1 + sub / 4)[sub % 4],
        _ => 0,
    };
    std::array::from_fn(|i| {
        let nibble = quad[i / 8] >> (8 * (i % 4) + 4 * (i / 4 % 2)) & 15;
        let high = if dtype == DType::Q6_K {
            let pairs = unit.quad(1 + sub / 2)[2 * (sub % 2) + i / 16];
            pairs >> (8 * (i % 4) + 2 * (i / 4 % 4)) & 3
        } else {
            fifth >> (8 * (i % 4) + i / 4) & 1
        };
        (nibble | high << 4) as u8
    })
}

/// Scale and bias of 16 weights of a quantised block.
fn block_scale(dtype: DType, unit: &UnitSource<'_>, sub: usize, part: usize) -> (f32, f32) {
    match dtype {
        DType::Q4_0 | DType::Q5_0 | DType::Q8_0 => {
            let d = f16(unit.word(0) >> (16 * sub) & 0xffff);
            let zero_point = match dtype {
                DType::Q4_0 => -8.0,
                DType::Q5_0 => -16.0,
                _ => -128.0,
            };
            (d, zero_point * d)
        }
        DType::Q4_1 | DType::Q5_1 => (f16(unit.word(0) & 0xffff), f16(unit.word(0) >> 16)),
        DType::Q4_K | DType::Q5_K => {
            let head = unit.quad(0);
            let scale = head[1] >> (4 * sub) & 15 | (head[3] >> (2 * sub) & 3) << 4;
            let min = head[2] >> (4 * sub) & 15 | (head[3] >> (16 + 2 * sub) & 3) << 4;
            (f16(head[0] & 0xffff) * scale as f32, -(f16(head[0] >> 16) * min as f32))
        }
        _ => {
            let index = 2 * sub + part;
            let scale = (unit.quad(0)[index / 4] >> (8 * (index % 4))) as u8 as i8;
            let scale = f16(unit.word(0)) * f32::from(scale);
            (scale, -32.0 * scale)
        }
    }
}

#[cfg(test)]
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
    fn packing_then_unpacking_gives_the_weights_of_the_file() {
        for dtype in DType::ALL {
            for lanes in [1, 4, 8, 32] {
                // An odd number of blocks and of rows: units and groups end in padding.
                let row_len = if dtype.block_len() == 256 { 512 } else { 96 };
                let layout = Layout { dtype, rows: lanes + 3, row_len, lanes };
                let row_bytes = row_len as usize / dtype.block_len() * dtype.block_bytes();
                let file = noise(row_bytes * layout.rows as usize, 7);
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
