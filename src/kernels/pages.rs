//! `shaders/include/pages.glsl`: where a KV page keeps a position's key and value, and as what.

use half::f16;

use super::spirv;
use crate::gpu::Capabilities;

/// Number format of keys and values; the numbers are those of the shaders' `KV_FORMAT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvFormat {
    /// 4 bytes a value.
    F32 = 0,
    /// 2 bytes a value.
    F16 = 1,
    /// Signed bytes in blocks of 32, with an f16 scale for each: heads of whole blocks alone.
    Q8_0 = 2,
}

impl KvFormat {
    /// Values that share a scale in [`KvFormat::Q8_0`].
    pub const BLOCK: u32 = 32;

    /// Code of the format in shaders.
    #[must_use]
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// The format of a number in the shaders.
    ///
    /// # Panics
    /// If there is none of this number: a bug of the caller.
    #[must_use]
    pub fn of_code(code: u32) -> Self {
        let formats = [Self::F32, Self::F16, Self::Q8_0];
        formats.into_iter().find(|format| format.code() == code).expect("a format's number")
    }

    /// As the configuration writes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Q8_0 => "q8_0",
        }
    }

    /// True if heads of so many dimensions can be kept in it.
    #[must_use]
    pub const fn holds(self, head_dim: u32) -> bool {
        !matches!(self, Self::Q8_0) || head_dim.is_multiple_of(Self::BLOCK)
    }

    /// Values in a word of 32 bits.
    const fn per_word(self) -> u32 {
        match self {
            Self::F32 => 1,
            Self::F16 => 2,
            Self::Q8_0 => 4,
        }
    }
}

/// Words of 32 bits that a lane loads at once.
const QUAD_WORDS: u32 = 4;

/// Pages of one layer.
///
/// ```text
/// [kv_heads] of
///     K  [words of a head / key_words][TOKENS][key_words] words of 32 bits
///     V  [TOKENS][words of a head] words
/// ```
///
/// and with [`KvFormat::Q8_0`], behind them, words of two f16 scales (the last may be half used):
///
/// ```text
/// of K  [kv_heads][head_dim / 64][TOKENS]
/// of V  [kv_heads][TOKENS][head_dim / 64]
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageLayout {
    /// Key and value heads.
    pub kv_heads: u32,
    /// Dimensions of a head, a multiple of 8, and one that the format holds.
    pub head_dim: u32,
    /// Storage format of keys and values.
    pub format: KvFormat,
    /// Words of a position's key that are side by side: a quad, which a lane loads at once, or one
    /// word, where lanes load together.
    pub key_words: u32,
}

impl PageLayout {
    /// Positions of a page.
    pub const TOKENS: u32 = 32;

    /// Pages as the device reads them best.
    ///
    /// # Panics
    /// If the format does not hold heads of so many dimensions: the caller has checked it.
    #[must_use]
    pub fn new(caps: &Capabilities, kv_heads: u32, head_dim: u32, format: KvFormat) -> Self {
        assert!(format.holds(head_dim), "{} holds whole blocks alone", format.name());
        let cooperative =
            caps.prefers_cooperative_loads() && !caps.avoids(&spirv::ATTENTION_COOPERATIVE);
        Self { kv_heads, head_dim, format, key_words: if cooperative { 1 } else { QUAD_WORDS } }
    }

    /// The same pages as another device reads them best, or one on which kernels were found wrong.
    #[must_use]
    pub fn on(self, caps: &Capabilities) -> Self {
        Self::new(caps, self.kv_heads, self.head_dim, self.format)
    }

    /// Whole pages of this layout as those of quads, the form in which caches leave the device: a
    /// file or another device may be their next place.
    pub fn keys_to_quads(&self, pages: &mut [u8]) {
        self.reorder_keys(pages, |own, quad| (own, quad));
    }

    /// The reverse of [`PageLayout::keys_to_quads`].
    pub fn keys_from_quads(&self, pages: &mut [u8]) {
        self.reorder_keys(pages, |own, quad| (quad, own));
    }

    /// Moves each word of the keys from the first place to the second that `places` makes of its
    /// place in this layout and its place among quads.
    fn reorder_keys(&self, pages: &mut [u8], places: impl Fn(usize, usize) -> (usize, usize)) {
        if self.key_words == QUAD_WORDS {
            return;
        }
        let head_bytes = (4 * self.head_words() * Self::TOKENS) as usize;
        let mut keys = vec![0; head_bytes];
        for page in pages.chunks_exact_mut(self.page_bytes() as usize) {
            let heads = page.chunks_exact_mut(2 * head_bytes).take(self.kv_heads as usize);
            for head in heads {
                keys.copy_from_slice(&head[..head_bytes]);
                for word in 0..self.head_words() {
                    for slot in 0..Self::TOKENS {
                        let at = |side: u32| {
                            let part = word / side * Self::TOKENS + slot;
                            4 * (part * side + word % side) as usize
                        };
                        let (from, to) = places(at(self.key_words), at(QUAD_WORDS));
                        head[to..to + 4].copy_from_slice(&keys[from..from + 4]);
                    }
                }
            }
        }
    }

    /// Words of one head's values at one position.
    const fn head_words(&self) -> u32 {
        self.head_dim / self.format.per_word()
    }

    /// Words of one head's scales at one position.
    const fn scale_words(&self) -> u32 {
        match self.format {
            KvFormat::Q8_0 => self.head_dim.div_ceil(2 * KvFormat::BLOCK),
            KvFormat::F32 | KvFormat::F16 => 0,
        }
    }

    /// Bytes of a page of one layer.
    #[must_use]
    pub const fn page_bytes(&self) -> u64 {
        self.token_bytes() * Self::TOKENS as u64
    }

    /// Bytes of one position in one layer, scales included.
    #[must_use]
    pub const fn token_bytes(&self) -> u64 {
        8 * self.kv_heads as u64 * (self.head_words() + self.scale_words()) as u64
    }

    /// First word of `page`.
    fn page_at(&self, page: u32) -> usize {
        page as usize * (self.page_bytes() / 4) as usize
    }

    /// Word of dimension `dim` of one head at position `slot` of `page`, and which of the word's
    /// values it is.
    fn word(&self, page: u32, slot: u32, kv_head: u32, value: bool, dim: u32) -> (usize, u32) {
        let per_word = self.format.per_word();
        let (words, word, side) = (self.head_words(), dim / per_word, self.key_words);
        let in_page = if value {
            ((2 * kv_head + 1) * Self::TOKENS + slot) * words + word
        } else {
            let part = (2 * kv_head * (words / side) + word / side) * Self::TOKENS + slot;
            part * side + word % side
        };
        (self.page_at(page) + in_page as usize, dim % per_word)
    }

    /// Word of the scale of block `block` of one head at position `slot` of `page`, and which of
    /// the word's two it is.
    fn scale(&self, page: u32, slot: u32, kv_head: u32, value: bool, block: u32) -> (usize, u32) {
        let (words, behind) = (self.scale_words(), 2 * self.kv_heads * Self::TOKENS);
        let in_scales = if value {
            ((self.kv_heads + kv_head) * Self::TOKENS + slot) * words + block / 2
        } else {
            (kv_head * words + block / 2) * Self::TOKENS + slot
        };
        (self.page_at(page) + (behind * self.head_words() + in_scales) as usize, block % 2)
    }

    /// Stores one head's key or value, `head_dim` values, among `words` of the layer.
    pub fn store(
        &self,
        words: &mut [u32],
        page: u32,
        slot: u32,
        kv_head: u32,
        value: bool,
        values: &[f32],
    ) {
        let bits = 32 / self.format.per_word();
        let mut put = |(word, part): (usize, u32), bits: u32, new: u32| {
            let mask = u32::MAX >> (32 - bits);
            words[word] = words[word] & !(mask << (bits * part)) | (new & mask) << (bits * part);
        };
        if self.format == KvFormat::Q8_0 {
            for (block, values) in (0..).zip(values.chunks_exact(KvFormat::BLOCK as usize)) {
                let (scale, codes) = quantized(values);
                let place = self.scale(page, slot, kv_head, value, block);
                put(place, 16, u32::from(scale.to_bits()));
                for (dim, code) in (KvFormat::BLOCK * block..).zip(codes) {
                    put(self.word(page, slot, kv_head, value, dim), bits, code.cast_unsigned());
                }
            }
            return;
        }
        for (dim, v) in (0..).zip(values) {
            let new = match self.format {
                KvFormat::F16 => u32::from(stored_half(*v).to_bits()),
                _ => v.to_bits(),
            };
            put(self.word(page, slot, kv_head, value, dim), bits, new);
        }
    }

    /// Loads one head's key or value, `head_dim` values, from `words` of the layer.
    pub fn load(
        &self,
        words: &[u32],
        page: u32,
        slot: u32,
        kv_head: u32,
        value: bool,
        values: &mut [f32],
    ) {
        let half = |(word, part): (usize, u32)| {
            f16::from_bits((words[word] >> (16 * part)) as u16).to_f32()
        };
        for (dim, v) in (0..).zip(values) {
            let place = self.word(page, slot, kv_head, value, dim);
            *v = match self.format {
                KvFormat::F32 => f32::from_bits(words[place.0]),
                KvFormat::F16 => half(place),
                KvFormat::Q8_0 => {
                    let code = (words[place.0] >> (8 * place.1)) as i8;
                    let block = dim / KvFormat::BLOCK;
                    f32::from(code) * half(self.scale(page, slot, kv_head, value, block))
                }
            };
        }
    }
}

/// Values that are larger, or no numbers, spoil the block of KV_Q8_0 that they are in: its scale is
/// NaN, and so are all products with it. As in `qkv_post.comp`.
const STORED_MAX: f32 = 1e38;

/// An f32 as pages of f16 hold it: past the range the largest, and NaN where it is no finite
/// number.
fn stored_half(v: f32) -> f16 {
    let largest = f16::MAX.to_f32();
    if v.is_finite() { f16::from_f32(v.clamp(-largest, largest)) } else { f16::NAN }
}

/// A block of values as whole multiples, up to 127, of a scale.
fn quantized(values: &[f32]) -> (f16, impl Iterator<Item = i32>) {
    let largest = values.iter().fold(0.0_f32, |largest, v| largest.max(v.abs()));
    let scale = match values.iter().all(|v| v.abs() <= STORED_MAX) {
        true => f16::from_f32((largest / 127.0).min(f16::MAX.to_f32())),
        false => f16::NAN,
    };
    // By the scale as it is kept, so that rounding it adds nothing to the error.
    let factor = if scale > f16::ZERO { 1.0 / scale.to_f32() } else { 0.0 };
    let code = move |v: &f32| match scale.is_nan() {
        true => 0,
        false => (v * factor).round_ties_even().clamp(-127.0, 127.0) as i32,
    };
    (scale, values.iter().map(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMATS: [KvFormat; 3] = [KvFormat::F32, KvFormat::F16, KvFormat::Q8_0];

    #[test]
    fn keys_and_values_of_a_page_have_places_of_their_own() {
        let shapes = FORMATS.into_iter().flat_map(|format| [(format, 64, 4), (format, 96, 1)]);
        for (format, head_dim, key_words) in shapes {
            let layout = PageLayout { kv_heads: 3, head_dim, format, key_words };
            let mut seen = vec![0_u64; 2 * (layout.page_bytes() / 4) as usize];
            for value in [false, true] {
                for (head, slot) in
                    (0..3).flat_map(|h| (0..PageLayout::TOKENS).map(move |s| (h, s)))
                {
                    for dim in 0..head_dim {
                        let (word, part) = layout.word(1, slot, head, value, dim);
                        seen[word] += 1 << (8 * part);
                    }
                    for block in 0..2 * layout.scale_words() {
                        let (word, part) = layout.scale(1, slot, head, value, block);
                        seen[word] += 0x1_0000 << (8 * part);
                    }
                }
            }
            let (first, second) = seen.split_at(seen.len() / 2);
            let once = (0..layout.format.per_word()).map(|part| 1 << (8 * part)).sum::<u64>();
            assert!(first.iter().all(|n| *n == 0), "page 0 is untouched");
            let scales = second.len() - (6 * PageLayout::TOKENS * layout.head_words()) as usize;
            let (values, scales) = second.split_at(second.len() - scales);
            assert!(values.iter().all(|n| *n == once), "{layout:?}: values cover their words once");
            assert!(scales.iter().all(|n| *n == 0x101_0000), "{layout:?}: and so do scales");
        }
    }

    #[test]
    fn what_is_stored_is_loaded() {
        for format in FORMATS {
            let layout = PageLayout { kv_heads: 2, head_dim: 96, format, key_words: 4 };
            let mut words = vec![0; (layout.page_bytes() / 4) as usize];
            // Whole multiples of what becomes each block's scale.
            let code = |at: usize| if at == 31 { 127.0 } else { 4.0 * at as f32 - 64.0 };
            let values: Vec<f32> =
                (0..96).map(|at| code(at % 32) / [4.0, 8.0, 1.0][at / 32]).collect();
            layout.store(&mut words, 0, 31, 1, true, &values);
            let mut loaded = vec![0.0; 96];
            layout.load(&words, 0, 31, 1, true, &mut loaded);
            assert_eq!(values, loaded, "{format:?}");
        }
    }

    #[test]
    fn pages_that_leave_the_device_have_the_form_of_quads() {
        for (format, head_dim) in FORMATS.into_iter().flat_map(|f| [(f, 64), (f, 96)]) {
            let quads = PageLayout { kv_heads: 2, head_dim, format, key_words: 4 };
            let own = PageLayout { key_words: 1, ..quads };
            let pages = [quads, own].map(|layout| {
                let mut words = vec![0; 2 * (layout.page_bytes() / 4) as usize];
                for (at, (page, slot, head)) in
                    [(0, 0, 0), (0, 31, 1), (1, 7, 1)].into_iter().enumerate()
                {
                    let values: Vec<f32> =
                        (0..head_dim).map(|dim| (dim + 100 * at as u32) as f32).collect();
                    layout.store(&mut words, page, slot, head, false, &values);
                    layout.store(&mut words, page, slot, head, true, &values);
                }
                words
            });
            let [left, of_own] = pages;
            let mut words = of_own.clone();
            own.keys_to_quads(bytemuck::cast_slice_mut(&mut words));
            assert_eq!(words, left);
            own.keys_from_quads(bytemuck::cast_slice_mut(&mut words));
            assert_eq!(words, of_own);
        }
    }

    #[test]
    fn blocks_keep_a_value_to_half_a_step_whatever_its_size() {
        let format = KvFormat::Q8_0;
        let layout = PageLayout { kv_heads: 1, head_dim: 32, format, key_words: 1 };
        for size in [0.0_f32, 1e-12, 1e-6, 1.0, 3e4, 8e6] {
            let values: Vec<f32> =
                (0..32).map(|i| size * ((i * 37 % 64) as f32 / 32.0 - 1.0)).collect();
            let mut words = vec![0; (layout.page_bytes() / 4) as usize];
            layout.store(&mut words, 0, 0, 0, false, &values);
            let mut loaded = vec![0.0; 32];
            layout.load(&words, 0, 0, 0, false, &mut loaded);
            // The smallest scales are multiples of 2^-24.
            let step = (size / 127.0).max(127.0 / 16_777_216.0) * 1.001;
            for (found, wanted) in loaded.iter().zip(&values) {
                assert!((found - wanted).abs() <= step / 2.0, "{found}, {wanted} wanted");
            }
        }
    }

    #[test]
    fn a_format_says_what_it_takes() {
        let of = |format| PageLayout { kv_heads: 3, head_dim: 64, format, key_words: 4 };
        let bytes = |format| of(format).token_bytes();
        assert_eq!(FORMATS.map(bytes), [6 * 256, 6 * 128, 6 * 68]);
        assert!(KvFormat::Q8_0.holds(96) && !KvFormat::Q8_0.holds(80) && KvFormat::F16.holds(80));
        assert_eq!(FORMATS.map(|format| KvFormat::of_code(format.code())), FORMATS);
    }
}
