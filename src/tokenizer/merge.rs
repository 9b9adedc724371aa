//! Greedy pair merging, the heart of BPE and SPM alike.
//!
//! The symbols of one word form a linked list; a heap holds the pairs that may merge. The best pair
//! merges, its neighbours make new pairs, and pairs whose symbols changed since are dropped when
//! they come up. n symbols take O(n log n) time, however long the word is.

use super::meter::Meter;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// No neighbour.
const END: u32 = u32::MAX;

/// No token has this id: the symbol's text is not in the vocabulary.
pub(super) const NO_TOKEN: u32 = u32::MAX;

/// A stretch of the word.
#[derive(Clone, Copy, Debug)]
pub(super) struct Symbol {
    /// First byte in the word.
    pub(super) start: u32,
    /// Bytes; 0 when merged into its left neighbour.
    pub(super) len: u32,
    /// Token, or [`NO_TOKEN`].
    pub(super) id: u32,
    prev: u32,
    next: u32,
}

/// Token that a pair merges into.
#[derive(Clone, Copy, Debug)]
pub(super) struct Merge {
    /// The lowest merges first; of equals, the leftmost.
    pub(super) key: u32,
    /// The token it makes.
    pub(super) id: u32,
}

/// A pair in the heap; the order of the fields is the order of merging.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    key: u32,
    left: u32,
    len: u32,
    id: u32,
}

/// Buffers kept from word to word.
#[derive(Debug, Default)]
pub(super) struct Merger {
    symbols: Vec<Symbol>,
    heap: BinaryHeap<Reverse<Pair>>,
}

impl Merger {
    /// Starts a new word.
    pub(super) fn clear(&mut self) {
        self.symbols.clear();
        self.heap.clear();
    }

    /// Appends the word's next symbol: `len` bytes that are the token `id`, or [`NO_TOKEN`].
    pub(super) fn push(&mut self, len: u32, id: u32) {
        let index = self.symbols.len() as u32;
        let start = self.symbols.last().map_or(0, |s| s.start + s.len);
        if let Some(last) = self.symbols.last_mut() {
            last.next = index;
        }
        let prev = index.checked_sub(1).unwrap_or(END);
        self.symbols.push(Symbol { start, len, id, prev, next: END });
    }

    /// Merges until no pair can, or the meter stops; `find` says what two neighbours merge into.
    pub(super) fn run(
        &mut self,
        meter: &mut Meter<'_>,
        find: impl Fn(&Symbol, &Symbol) -> Option<Merge>,
    ) {
        for right in 1..self.symbols.len() as u32 {
            self.offer(right - 1, right, &find);
        }
        while let Some(Reverse(pair)) = self.heap.pop() {
            if !meter.advance(1) {
                return;
            }
            let left = self.symbols[pair.left as usize];
            if left.len == 0 || left.next == END {
                continue;
            }
            let right = self.symbols[left.next as usize];
            if left.len + right.len != pair.len {
                continue;
            }
            self.symbols[left.next as usize].len = 0;
            if right.next != END {
                self.symbols[right.next as usize].prev = pair.left;
            }
            let merged = &mut self.symbols[pair.left as usize];
            merged.len = pair.len;
            merged.id = pair.id;
            merged.next = right.next;
            self.offer(left.prev, pair.left, &find);
            self.offer(pair.left, right.next, &find);
        }
    }

    fn offer(&mut self, left: u32, right: u32, find: impl Fn(&Symbol, &Symbol) -> Option<Merge>) {
        if left == END || right == END {
            return;
        }
        let (l, r) = (self.symbols[left as usize], self.symbols[right as usize]);
        if let Some(Merge { key, id }) = find(&l, &r) {
            self.heap.push(Reverse(Pair { key, left, len: l.len + r.len, id }));
        }
    }

    /// The symbols that are left, in order.
    pub(super) fn merged(&self) -> impl Iterator<Item = &Symbol> {
        self.symbols.iter().filter(|s| s.len > 0)
    }
}

/// A merge key that puts higher scores first.
pub(super) fn key_of_score(score: f32) -> u32 {
    // Flipping the sign bit of positives and all bits of negatives orders floats as integers; the
    // result is inverted, because the lowest key merges first. Adding 0 turns -0 into 0.
    let bits = (score + 0.0).to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    !ascending
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn higher_scores_have_lower_keys() {
        let scores = [1e9, 2.0, 1.5, 0.0, -0.5, -1.0, -1000.0, f32::NEG_INFINITY];
        for pair in scores.windows(2) {
            assert!(key_of_score(pair[0]) < key_of_score(pair[1]), "{pair:?}");
        }
        assert_eq!(key_of_score(0.0), key_of_score(-0.0));
    }

    #[test]
    fn merges_the_lowest_key_and_then_the_leftmost() {
        let mut merger = Merger::default();
        for _ in 0..5 {
            merger.push(1, 0);
        }
        // Two of length 1 make 1; two of length 2 make 2.
        merger.run(&mut Meter::unlimited(), |l, r| {
            (l.id == r.id).then_some(Merge { key: l.id, id: l.id + 1 })
        });
        let got: Vec<_> = merger.merged().map(|s| (s.start, s.len, s.id)).collect();
        assert_eq!(got, [(0, 4, 2), (4, 1, 0)]);
    }

    #[test]
    fn a_stale_pair_is_dropped() {
        // "abc": bc merges first, so ab, offered before, must not.
        let mut merger = Merger::default();
        for id in 0..3 {
            merger.push(1, id);
        }
        merger.run(&mut Meter::unlimited(), |l, r| match (l.id, r.id) {
            (0, 1) => Some(Merge { key: 5, id: 10 }),
            (1, 2) => Some(Merge { key: 1, id: 11 }),
            _ => None,
        });
        let ids: Vec<_> = merger.merged().map(|s| s.id).collect();
        assert_eq!(ids, [0, 11]);
    }
}
