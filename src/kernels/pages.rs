//! `shaders/include/pages.glsl`: where a KV page keeps the key and value of a position.

use half::f16;

/// Pages of one layer.
///
/// ```text
/// K  [kv_heads][head_dim / quad][TOKENS] quads of 128 bits: neighbouring positions side by side
/// V  [kv_heads][TOKENS][head_dim / quad] quads: neighbouring dimensions side by side
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageLayout {
    /// Key and value heads.
    pub kv_heads: u32,
    /// Dimensions of a head, a multiple of 8.
    pub head_dim: u32,
    /// f16 rather than f32.
    pub half: bool,
}

impl PageLayout {
    /// Positions of a page.
    pub const TOKENS: u32 = 32;

    /// Values in a quad of 128 bits.
    const fn quad(&self) -> u32 {
        if self.half { 8 } else { 4 }
    }

    /// Words of one head at one position.
    const fn head_words(&self) -> u32 {
        if self.half { self.head_dim / 2 } else { self.head_dim }
    }

    /// Bytes of a page of one layer.
    #[must_use]
    pub const fn page_bytes(&self) -> u64 {
        8 * self.kv_heads as u64 * Self::TOKENS as u64 * self.head_words() as u64
    }

    /// Word and half of dimension `dim` of one head at position `slot` of `page`.
    fn word(&self, page: u32, slot: u32, kv_head: u32, value: bool, dim: u32) -> (usize, u32) {
        let per_word = self.quad() / 4;
        let in_page = if value {
            ((self.kv_heads + kv_head) * Self::TOKENS + slot) * self.head_words() + dim / per_word
        } else {
            let quad =
                (kv_head * (self.head_dim / self.quad()) + dim / self.quad()) * Self::TOKENS + slot;
            quad * 4 + dim % self.quad() / per_word
        };
        let page_words = (self.page_bytes() / 4) as usize;
        (page as usize * page_words + in_page as usize, dim % per_word)
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
        for (dim, v) in (0_u32..).zip(values) {
            let (word, part) = self.word(page, slot, kv_head, value, dim);
            if self.half {
                let shift = 16 * part;
                let bits = u32::from(f16::from_f32(*v).to_bits());
                words[word] = words[word] & !(0xffff << shift) | bits << shift;
            } else {
                words[word] = v.to_bits();
            }
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
        for (dim, v) in (0_u32..).zip(values) {
            let (word, part) = self.word(page, slot, kv_head, value, dim);
            *v = if self.half {
                f16::from_bits((words[word] >> (16 * part)) as u16).to_f32()
            } else {
                f32::from_bits(words[word])
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_of_a_page_have_places_of_their_own() {
        for half in [true, false] {
            let layout = PageLayout { kv_heads: 3, head_dim: 64, half };
            let mut seen = vec![0_u32; 2 * (layout.page_bytes() / 4) as usize];
            for value in [false, true] {
                for head in 0..3 {
                    for slot in 0..PageLayout::TOKENS {
                        for dim in 0..64 {
                            let (word, part) = layout.word(1, slot, head, value, dim);
                            seen[word] += 1 << (16 * part);
                        }
                    }
                }
            }
            let (first, second) = seen.split_at(seen.len() / 2);
            let once = if half { 0x1_0001 } else { 1 };
            assert!(first.iter().all(|n| *n == 0), "page 0 is untouched");
            assert!(second.iter().all(|n| *n == once), "page 1 is covered once");
        }
    }

    #[test]
    fn what_is_stored_is_loaded() {
        let layout = PageLayout { kv_heads: 2, head_dim: 32, half: true };
        let mut words = vec![0; (layout.page_bytes() / 4) as usize];
        let values: Vec<f32> = (0..32).map(|i| i as f32 / 4.0).collect();
        layout.store(&mut words, 0, 31, 1, true, &values);
        let mut loaded = vec![0.0; 32];
        layout.load(&words, 0, 31, 1, true, &mut loaded);
        assert_eq!(values, loaded);
    }
}
