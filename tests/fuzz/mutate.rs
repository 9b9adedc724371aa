//! Inputs for fuzzing on stable: changes of a corpus, by a seeded generator.

/// Numbers at which lengths and counts go wrong.
const EDGES: [u64; 12] =
    [0, 1, 7, 8, 0x7F, 0xFF, 0xFFFF, 0x7FFF_FFFF, 0xFFFF_FFFF, 1 << 40, i64::MAX as u64, u64::MAX];

/// Pieces of the languages that the targets read.
const PIECES: [&str; 36] = [
    "{{ ",
    " }}",
    "{% ",
    " %}",
    "{% for m in messages %}",
    "{% endfor %}",
    "{% set x = x + x %}",
    "{% set ns = namespace(x=[1]) %}",
    "{% if ",
    "{% endif %}",
    " | tojson",
    " * 99999",
    " ~ ",
    " + ",
    "range(99999)",
    "[x, x]",
    "messages",
    ".split(' ')",
    "loop.index",
    "| join('-')",
    "'a' * 9999",
    "\"dtype\":\"F32\"",
    "\"shape\":[1]",
    "\"data_offsets\":[0,4]",
    "{\"a\":",
    "},",
    "[[[[",
    "\n\n",
    "\n!<s>",
    "\na b",
    "▁",
    "é",
    "llama\n",
    "t5\n",
    "'ll",
    "123456789",
];

/// Longest input: what is wrong shows in small ones.
const INPUT_BYTES_MAX: usize = 1 << 14;

/// Makes inputs.
pub(crate) struct Mutator {
    state: u64,
    corpus: Vec<Vec<u8>>,
}

impl Mutator {
    /// From a seed, and a corpus that is not empty.
    pub(crate) fn new(seed: u64, corpus: Vec<Vec<u8>>) -> Self {
        Self { state: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1, corpus }
    }

    /// A number below `limit`, by xorshift.
    fn below(&mut self, limit: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 11) as usize % limit.max(1)
    }

    fn any(&mut self) -> Vec<u8> {
        let index = self.below(self.corpus.len());
        self.corpus[index].clone()
    }

    /// The next input: one of the corpus, changed up to eight times.
    pub(crate) fn next_input(&mut self) -> Vec<u8> {
        let mut input = self.any();
        for _ in 0..=self.below(8) {
            self.change(&mut input);
        }
        input.truncate(INPUT_BYTES_MAX);
        input
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let at = self.below(input.len() + 1);
        let rest = input.len() - at;
        match self.below(9) {
            0 if rest > 0 => input[at] ^= 1 << self.below(8),
            1 if rest > 0 => input[at] = self.below(256) as u8,
            2 => {
                let count = self.below(rest.min(64) + 1);
                input.drain(at..at + count);
            }
            3 => {
                let bytes: Vec<u8> = (0..self.below(8)).map(|_| self.below(256) as u8).collect();
                input.splice(at..at, bytes);
            }
            4 => {
                let count = self.below(rest.min(256) + 1);
                let piece = input[at..at + count].to_vec();
                let to = self.below(input.len() + 1);
                input.splice(to..to, piece);
            }
            5 => {
                let other = self.any();
                let from = self.below(other.len() + 1);
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
            6 => {
                let edge = EDGES[self.below(EDGES.len())].wrapping_sub(self.below(2) as u64);
                let width = [1, 2, 4, 8][self.below(4)].min(rest);
                input[at..at + width].copy_from_slice(&edge.to_le_bytes()[..width]);
            }
            7 => {
                let text = EDGES[self.below(EDGES.len())].to_string();
                input.splice(at..at, text.into_bytes());
            }
            _ => {
                let piece = PIECES[self.below(PIECES.len())];
                input.splice(at..at, piece.bytes());
            }
        }
    }
}
