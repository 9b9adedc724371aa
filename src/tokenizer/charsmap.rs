//! SentencePiece's precompiled character map: what a text's beginning is normalised to.
//!
//! A length in bytes, a trie of that length as an XOR-compressed double array of 32-bit units, and
//! zero-terminated replacement texts, to which the trie's leaves point. After Kanda, Space- and
//! Time-Efficient String Dictionaries (2018), and llama.cpp's reading of it.

use super::TokenizerError;

/// The map of a model's file.
#[derive(Debug, Default)]
pub(super) struct Charsmap {
    units: Vec<u32>,
    /// Storage that the leaves refer to.
    texts: Vec<u8>,
}

impl Charsmap {
    /// Parses `tokenizer.ggml.precompiled_charsmap`; no bytes are no map.
    pub(super) fn new(bytes: &[u8]) -> Result<Self, TokenizerError> {
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        let wrong = |detail| TokenizerError::Charsmap { bytes: bytes.len(), detail };
        let (length, rest) = bytes.split_first_chunk().ok_or_else(|| wrong("no length"))?;
        let units_bytes = u32::from_le_bytes(*length) as usize;
        if units_bytes >= rest.len() {
            return Err(wrong("a trie that is longer than the map"));
        }
        let (units, texts) = rest.split_at(units_bytes);
        if texts.last() != Some(&0) {
            return Err(wrong("a replacement without an end"));
        }
        let units = units
            .chunks_exact(4)
            .map(|unit| u32::from_le_bytes(unit.try_into().expect("chunks of 4")));
        Ok(Self { units: units.collect(), texts: texts.to_vec() })
    }

    /// The longest beginning of `text` that the map has: its length, and what it becomes.
    ///
    /// # Errors
    /// The map points outside itself.
    pub(super) fn longest(&self, text: &[u8]) -> Result<Option<(usize, &[u8])>, TokenizerError> {
        if self.units.is_empty() {
            return Ok(None);
        }
        let mut longest = None;
        let mut node = base(self.unit(0)?);
        for (at, byte) in text.iter().enumerate() {
            if *byte == 0 {
                break;
            }
            node ^= u32::from(*byte);
            let unit = self.unit(node)?;
            // The low byte, and the bit that only leaves have, say whose child it is.
            if unit & (1 << 31 | 0xFF) != u32::from(*byte) {
                break;
            }
            node ^= base(unit);
            if unit >> 8 & 1 == 1 {
                longest = Some((at + 1, self.unit(node)? & !(1 << 31)));
            }
        }
        longest.map(|(len, start)| Ok((len, self.text(start as usize)?))).transpose()
    }

    fn unit(&self, index: u32) -> Result<u32, TokenizerError> {
        self.units.get(index as usize).copied().ok_or_else(|| self.broken("outside the trie"))
    }

    fn text(&self, start: usize) -> Result<&[u8], TokenizerError> {
        let texts = self.texts.get(start..).ok_or_else(|| self.broken("outside the texts"))?;
        let end = texts.iter().position(|byte| *byte == 0);
        Ok(&texts[..end.expect("the last byte is 0, by the check when it was parsed")])
    }

    fn broken(&self, detail: &'static str) -> TokenizerError {
        TokenizerError::Charsmap { bytes: 4 + self.units.len() * 4 + self.texts.len(), detail }
    }
}

/// Edges to a unit's children.
fn base(unit: u32) -> u32 {
    (unit >> 10) << ((unit & 1 << 9) >> 6)
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A map of one character, `from`, to `to`.
    pub(in super::super) fn map_of(from: u8, to: &str) -> Vec<u8> {
        // The root's children are at 256 ^ byte; the leaf's value is one block further.
        let mut units = vec![0_u32; 1024];
        units[0] = 256 << 10;
        units[256 ^ from as usize] = 512 << 10 | 1 << 8 | u32::from(from);
        units[256 ^ 512 ^ from as usize] = 1 << 31;
        let mut bytes = (units.len() as u32 * 4).to_le_bytes().to_vec();
        bytes.extend(units.iter().flat_map(|unit| unit.to_le_bytes()));
        bytes.extend(to.bytes().chain([0]));
        bytes
    }

    #[test]
    fn a_mapped_character_is_replaced() {
        let map = Charsmap::new(&map_of(b'\t', " ")).unwrap();
        assert_eq!(map.longest(b"\tx").unwrap(), Some((1, &b" "[..])));
        assert_eq!(map.longest(b"x\t").unwrap(), None);
        assert_eq!(map.longest(b"").unwrap(), None);
        assert_eq!(Charsmap::new(&[]).unwrap().longest(b"x").unwrap(), None);
    }

    #[test]
    fn a_broken_map_is_an_error() {
        assert!(Charsmap::new(&[1, 0]).is_err());
        assert!(Charsmap::new(&[200, 0, 0, 0, 1, 2, 3, 0]).is_err());
        assert!(Charsmap::new(&[4, 0, 0, 0, 1, 2, 3, 0, b'x']).is_err());
        // One unit whose children are far outside.
        let map = Charsmap::new(&[4, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0]).unwrap();
        assert!(map.longest(b"x").is_err());
    }
}
