//! Tokens that a text begins with: a trie, kept as a sorted list that each byte narrows.

use super::vocab::Vocab;

/// Tokens in the order of their bytes.
#[derive(Debug)]
pub(super) struct Prefixes {
    ids: Vec<u32>,
}

/// The tokens that agree with the bytes walked so far.
#[derive(Debug)]
pub(super) struct Walk<'a> {
    vocab: &'a Vocab,
    left: &'a [u32],
    depth: usize,
}

impl Prefixes {
    /// Takes the tokens that `wanted` holds for.
    pub(super) fn new(vocab: &Vocab, wanted: impl Fn(u32) -> bool) -> Self {
        let mut ids: Vec<u32> = (0..vocab.len() as u32)
            .filter(|id| !vocab.text(*id).is_empty() && wanted(*id))
            .collect();
        // Of equal tokens the first is found.
        ids.sort_by(|a, b| vocab.text(*a).cmp(vocab.text(*b)).then(a.cmp(b)));
        Self { ids }
    }

    /// Begins at the root.
    pub(super) fn walk<'a>(&'a self, vocab: &'a Vocab) -> Walk<'a> {
        Walk { vocab, left: &self.ids, depth: 0 }
    }
}

impl Walk<'_> {
    /// Walks one byte on; false if no token goes on so.
    pub(super) fn step(&mut self, byte: u8) -> bool {
        // The token that ends here sorts first; what is left goes on with some byte.
        let next = |id: &u32| self.vocab.text(*id).as_bytes().get(self.depth).copied();
        let first = self.left.partition_point(|id| next(id) < Some(byte));
        let count = self.left[first..].partition_point(|id| next(id) == Some(byte));
        self.left = &self.left[first..first + count];
        self.depth += 1;
        !self.left.is_empty()
    }

    /// The token that is just the bytes walked.
    pub(super) fn token(&self) -> Option<u32> {
        let first = *self.left.first()?;
        (self.vocab.text(first).len() == self.depth).then_some(first)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn finds_all_tokens_that_a_text_begins_with() {
        let tokens = ["ab", "b", "a", "abcd", "", "a"].into_iter().collect();
        let vocab = Vocab::new(&tokens, &[]).unwrap();
        let prefixes = Prefixes::new(&vocab, |_| true);
        let mut walk = prefixes.walk(&vocab);
        let mut found = Vec::new();
        for byte in b"abcx" {
            if !walk.step(*byte) {
                break;
            }
            found.extend(walk.token());
        }
        assert_eq!(found, [2, 0]);
        assert_eq!(walk.depth, 4);
        assert!(!prefixes.walk(&vocab).step(b'c'));
    }
}
