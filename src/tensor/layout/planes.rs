//! A lane's unit in the planes, being written or read, and how its bits are put together.

/// One lane's unit, being written.
pub(super) struct UnitSink<'a> {
    pub(super) quads: &'a mut [u8],
    pub(super) words: &'a mut [u8],
    pub(super) lane: usize,
    pub(super) lanes: usize,
}

impl UnitSink<'_> {
    pub(super) fn quad(&mut self, index: usize, value: [u32; 4]) {
        let at = (index * self.lanes + self.lane) * 16;
        let value = value.map(u32::to_le);
        self.quads[at..at + 16].copy_from_slice(bytemuck::bytes_of(&value));
    }

    pub(super) fn word(&mut self, index: usize, value: u32) {
        let at = (index * self.lanes + self.lane) * 4;
        self.words[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    /// Writes the low four bits of a unit's `codes`, a quad for every 32.
    pub(super) fn put_nibbles(&mut self, first_quad: usize, codes: &[u8]) {
        for (sub, codes) in codes.chunks_exact(32).enumerate() {
            self.quad(first_quad + sub, nibbles(codes_of(codes)));
        }
    }

    /// Writes the low two bits of a unit's `codes`, a quad for every 64.
    pub(super) fn put_pairs(&mut self, first_quad: usize, codes: &[u8]) {
        for (index, codes) in codes.chunks_exact(64).enumerate() {
            let pairs = |word: usize| bit_pairs(words_of(&codes[16 * word..]));
            self.quad(first_quad + index, std::array::from_fn(pairs));
        }
    }

    /// Writes the third bits of a unit's `codes`, a quad for every 128.
    pub(super) fn put_third_bits(&mut self, first_quad: usize, codes: &[u8]) {
        for (index, codes) in codes.chunks_exact(128).enumerate() {
            let bits = |word: usize| single_bits(codes_of(&codes[32 * word..]), 2);
            self.quad(first_quad + index, std::array::from_fn(bits));
        }
    }
}

/// One lane's unit, being read.
pub(super) struct UnitSource<'a> {
    pub(super) quads: &'a [u8],
    pub(super) words: &'a [u8],
    pub(super) lane: usize,
    pub(super) lanes: usize,
}

impl UnitSource<'_> {
    pub(super) fn quad(&self, index: usize) -> [u32; 4] {
        let at = (index * self.lanes + self.lane) * 16;
        std::array::from_fn(|i| le_u32(&self.quads[at + 4 * i..]))
    }

    pub(super) fn word(&self, index: usize) -> u32 {
        le_u32(&self.words[(index * self.lanes + self.lane) * 4..])
    }

    /// The nibbles of block `sub`.
    pub(super) fn nibbles(&self, first_quad: usize, sub: usize) -> [i16; 32] {
        let quad = self.quad(first_quad + sub);
        std::array::from_fn(|i| (quad[i / 8] >> (8 * (i % 4) + 4 * (i / 4 % 2)) & 15) as i16)
    }

    /// The bit pairs of block `sub`.
    pub(super) fn pairs(&self, first_quad: usize, sub: usize) -> [i16; 32] {
        let quad = self.quad(first_quad + sub / 2);
        std::array::from_fn(|i| {
            let word = quad[sub % 2 * 2 + i / 16];
            (word >> (8 * (i % 4) + 2 * (i / 4 % 4)) & 3) as i16
        })
    }

    /// The third bits of block `sub`, each 0 or 1.
    pub(super) fn third_bits(&self, first_quad: usize, sub: usize) -> [i16; 32] {
        let word = self.quad(first_quad + sub / 4)[sub % 4];
        std::array::from_fn(|i| (word >> (8 * (i % 4) + i / 4) & 1) as i16)
    }

    /// Byte `index` of a quad.
    pub(super) fn byte(&self, quad: usize, index: usize) -> u8 {
        (self.quad(quad)[index / 4] >> (8 * (index % 4))) as u8
    }
}

pub(super) fn le_u32(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

pub(super) fn le_u16(bytes: &[u8]) -> u32 {
    u32::from(u16::from_le_bytes([bytes[0], bytes[1]]))
}

pub(super) fn words_of(bytes: &[u8]) -> [u32; 4] {
    bytemuck::pod_read_unaligned::<[u32; 4]>(&bytes[..16]).map(u32::from_le)
}

/// Codes of 32 weights, a byte each, four to a word.
pub(super) type Codes = [u32; 8];

pub(super) fn codes_of(bytes: &[u8]) -> Codes {
    bytemuck::pod_read_unaligned::<Codes>(&bytes[..32]).map(u32::from_le)
}

/// Four-bit codes where a byte holds those of weights j (low) and j + 16 (high).
pub(super) fn half_block_codes(bytes: &[u8]) -> Codes {
    let [a, b, c, d] = words_of(bytes);
    [a, b, c, d, a >> 4, b >> 4, c >> 4, d >> 4].map(|word| word & 0x0f0f_0f0f)
}

/// Packs the low four bits of codes: word w holds weights 8 w ..; its even nibbles are the first
/// four, its odd ones the last four.
pub(super) fn nibbles(codes: Codes) -> [u32; 4] {
    let [a, b, c, d, e, f, g, h] = codes.map(|word| word & 0x0f0f_0f0f);
    [a | b << 4, c | d << 4, e | f << 4, g | h << 4]
}

/// Packs the low two bits of 16 codes: bits 2 s of byte c belong to weight 4 s + c.
pub(super) fn bit_pairs(codes: [u32; 4]) -> u32 {
    (0..4).fold(0, |word, s| word | (codes[s] & 0x0303_0303) << (2 * s))
}

/// Packs bit `number` of codes: bit i of byte c belongs to weight 4 i + c.
pub(super) fn single_bits(codes: Codes, number: u32) -> u32 {
    (0..8).fold(0, |word, i| word | (codes[i] >> number & 0x0101_0101) << i)
}

/// The same, of a word whose bits are the weights' in their order.
pub(super) fn fifth_bits(bits: u32) -> u32 {
    let spread = |i: usize| (bits >> (4 * i) & 15).wrapping_mul(0x0020_4081) & 0x0101_0101;
    (0..8).fold(0, |word, i| word | spread(i) << i)
}

pub(super) fn f16(bits: u32) -> f32 {
    half::f16::from_bits(bits as u16).to_f32()
}
