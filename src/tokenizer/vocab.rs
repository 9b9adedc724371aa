//! The tokens of a vocabulary, compactly: one block of text, and a hash table of ids.
//!
//! A quarter million tokens take about 9 bytes each beside their text, where two hash maps of owned
//! strings would take over a hundred.

use std::hash::{BuildHasher, RandomState};

use super::TokenizerError;
use crate::gguf::StrArray;

/// An empty slot of the table.
const EMPTY: u32 = u32::MAX;

/// Kind of token; a token may be of several kinds (llama.cpp adds CONTROL by text).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind(u8);

impl Kind {
    pub(super) const NORMAL: Self = Self(1);
    pub(super) const UNKNOWN: Self = Self(2);
    pub(super) const CONTROL: Self = Self(4);
    pub(super) const USER_DEFINED: Self = Self(8);
    pub(super) const BYTE: Self = Self(16);
    /// Unused or undefined.
    pub(super) const NONE: Self = Self(0);

    /// From an entry of `tokenizer.ggml.token_type`.
    pub(super) fn from_gguf(value: i32) -> Self {
        match value {
            1 => Self::NORMAL,
            2 => Self::UNKNOWN,
            3 => Self::CONTROL,
            4 => Self::USER_DEFINED,
            6 => Self::BYTE,
            _ => Self::NONE,
        }
    }

    /// Both kinds at once.
    pub(super) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// True if it is one of `any`.
    pub(super) fn is(self, any: Self) -> bool {
        self.0 & any.0 != 0
    }

    /// Found in text only when special tokens are parsed; hidden when text is rendered.
    pub(super) fn is_hidden(self) -> bool {
        self.is(Self::CONTROL.and(Self::UNKNOWN))
    }
}

/// The tokens: text and kind by id, id by text.
#[derive(Debug)]
pub(super) struct Vocab {
    text: String,
    /// End offset of each token's text.
    ends: Vec<u32>,
    kinds: Vec<Kind>,
    /// Open addressing with linear probing; a power of two, at most half full.
    table: Vec<u32>,
    hasher: RandomState,
    token_bytes_max: usize,
}

impl Vocab {
    /// Takes the tokens in the order of their ids; `types` as in `tokenizer.ggml.token_type`, or
    /// empty, which makes all normal. Of equal tokens, the first is found by text.
    pub(super) fn new(tokens: &StrArray, types: &[i32]) -> Result<Self, TokenizerError> {
        let bytes: usize = tokens.iter().map(str::len).sum();
        if tokens.len().max(bytes) >= (u32::MAX / 4) as usize {
            return Err(TokenizerError::VocabTooLarge { found: tokens.len(), limit: u32::MAX / 4 });
        }
        let mut vocab = Self {
            text: String::with_capacity(bytes),
            ends: Vec::with_capacity(tokens.len()),
            kinds: Vec::with_capacity(tokens.len()),
            table: vec![EMPTY; (tokens.len() * 2).next_power_of_two()],
            hasher: RandomState::new(),
            token_bytes_max: tokens.iter().map(str::len).max().unwrap_or(0),
        };
        for (id, token) in tokens.iter().enumerate() {
            let slot = vocab.slot(token.as_bytes());
            if vocab.table[slot] == EMPTY {
                vocab.table[slot] = id as u32;
            }
            vocab.text.push_str(token);
            vocab.ends.push(vocab.text.len() as u32);
            vocab.kinds.push(types.get(id).map_or(Kind::NORMAL, |t| Kind::from_gguf(*t)));
        }
        Ok(vocab)
    }

    /// The slot that holds `text`, or the empty one where it belongs.
    fn slot(&self, text: &[u8]) -> usize {
        let mask = self.table.len() - 1;
        let mut slot = self.hasher.hash_one(text) as usize & mask;
        loop {
            match self.table[slot] {
                EMPTY => return slot,
                id if self.text(id).as_bytes() == text => return slot,
                _ => slot = (slot + 1) & mask,
            }
        }
    }

    /// Number of tokens.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Length of the longest token.
    pub(super) fn token_bytes_max(&self) -> usize {
        self.token_bytes_max
    }

    /// The token with this text.
    pub(super) fn id(&self, text: &[u8]) -> Option<u32> {
        if text.is_empty() || text.len() > self.token_bytes_max {
            return None;
        }
        match self.table[self.slot(text)] {
            EMPTY => None,
            id => Some(id),
        }
    }

    /// Text of a token of the vocabulary.
    pub(super) fn text(&self, id: u32) -> &str {
        let id = id as usize;
        let start = if id == 0 { 0 } else { self.ends[id - 1] as usize };
        &self.text[start..self.ends[id] as usize]
    }

    /// Kind of a token of the vocabulary.
    pub(super) fn kind(&self, id: u32) -> Kind {
        self.kinds[id as usize]
    }

    /// Changes a token's kind.
    pub(super) fn set_kind(&mut self, id: u32, kind: Kind) {
        self.kinds[id as usize] = kind;
    }

    /// Makes a token a control token, whatever else it is.
    pub(super) fn add_control(&mut self, id: u32) {
        let kind = self.kind(id).and(Kind::CONTROL);
        self.set_kind(id, kind);
    }

    /// Checks that an id from outside is in the vocabulary.
    pub(super) fn check(&self, token: u32) -> Result<u32, TokenizerError> {
        if (token as usize) < self.len() {
            return Ok(token);
        }
        Err(TokenizerError::UnknownToken { token, vocab_size: self.len() })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn finds_every_token_by_text_and_by_id() {
        let tokens: StrArray = (0..5000).map(|i| format!("t{i}")).collect();
        let vocab = Vocab::new(&tokens, &[]).unwrap();
        for (id, token) in tokens.iter().enumerate() {
            assert_eq!(vocab.id(token.as_bytes()), Some(id as u32));
            assert_eq!(vocab.text(id as u32), token);
        }
        assert_eq!(vocab.id(b"t5000"), None);
        assert_eq!(vocab.id(b""), None);
        assert!(vocab.check(5000).is_err());
    }

    #[test]
    fn of_equal_tokens_the_first_is_found() {
        let tokens = ["a", "", "a"].into_iter().collect();
        let vocab = Vocab::new(&tokens, &[1, 1, 4]).unwrap();
        assert_eq!(vocab.id(b"a"), Some(0));
        assert_eq!(vocab.text(2), "a");
        assert!(vocab.kind(2).is(Kind::USER_DEFINED));
    }
}
