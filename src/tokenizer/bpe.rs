//! Byte-pair encoding: the pair of tokens that was merged first in training merges first.

use std::collections::HashMap;

use super::merge::{Merge, Merger, NO_TOKEN};
use super::meter::Meter;
use super::pre::{self, PreTokenizer};
use super::pre_names::Spelling;
use super::vocab::Vocab;
use super::{TokenizerError, VocabSource, byte_level, unicode};

#[derive(Debug)]
pub(super) struct Bpe {
    pre: PreTokenizer,
    ignore_merges: bool,
    /// The token of each byte, or [`NO_TOKEN`].
    byte_ids: [u32; 256],
    /// Ids above the vocabulary, for what merges mention and the vocabulary lacks.
    unlisted: HashMap<String, u32>,
    /// By left and right: rank and merged token.
    merges: HashMap<(u32, u32), (u32, u32)>,
}

impl Bpe {
    pub(super) fn new(vocab: &Vocab, source: &VocabSource) -> Result<Self, TokenizerError> {
        let pre = PreTokenizer::new(source.pre_tokenizer().unwrap_or(pre::DEFAULT))?;
        if source.merges.is_empty() {
            return Err(TokenizerError::MissingMerges);
        }
        let byte_ids = std::array::from_fn(|byte| {
            vocab.id(written_byte(byte as u8, pre.rule().spelling).as_bytes()).unwrap_or(NO_TOKEN)
        });
        let merges = HashMap::with_capacity(source.merges.len());
        let ignore_merges = source.ignore_merges.unwrap_or(pre.rule().ignore_merges);
        let mut bpe = Self { pre, ignore_merges, byte_ids, unlisted: HashMap::new(), merges };
        let mut joined = String::new();
        for (rank, merge) in source.merges.iter().enumerate() {
            // The left part has at least one character, which may itself be a space.
            let first = merge.chars().next().map_or(0, char::len_utf8);
            let Some(space) = merge[first..].find(' ') else { continue };
            let (left, right) = (&merge[..first + space], &merge[first + space + 1..]);
            joined.clear();
            joined.push_str(left);
            joined.push_str(right);
            let pair = (bpe.listed(vocab, left), bpe.listed(vocab, right));
            let id = bpe.listed(vocab, &joined);
            bpe.merges.entry(pair).or_insert((rank as u32, id));
        }
        Ok(bpe)
    }

    /// True if BOS is added where the file does not say.
    pub(super) fn adds_bos(&self) -> bool {
        self.pre.rule().add_bos
    }

    /// Encoding of token texts.
    pub(super) fn spelling(&self) -> Spelling {
        self.pre.rule().spelling
    }

    /// The id of a part of a merge: its token's, or one above the vocabulary.
    fn listed(&mut self, vocab: &Vocab, text: &str) -> u32 {
        if let Some(id) = vocab.id(text.as_bytes()) {
            return id;
        }
        let next = (vocab.len() + self.unlisted.len()) as u32;
        *self.unlisted.entry(text.to_owned()).or_insert(next)
    }

    /// The id of a part of a word, or [`NO_TOKEN`].
    fn id(&self, vocab: &Vocab, text: &str) -> u32 {
        let id = vocab.id(text.as_bytes());
        id.or_else(|| self.unlisted.get(text).copied()).unwrap_or(NO_TOKEN)
    }

    /// True if every byte that no merge takes becomes a token of its own.
    pub(super) fn keeps_every_byte(&self) -> bool {
        let all = !self.byte_ids.contains(&NO_TOKEN);
        all && matches!(self.spelling(), Spelling::Bytes | Spelling::Escaped)
    }

    pub(super) fn encode(
        &self,
        vocab: &Vocab,
        text: &str,
        lower: bool,
        meter: &mut Meter<'_>,
        out: &mut Vec<u32>,
    ) {
        match self.spelling() {
            Spelling::Bytes => self.encode_bytes(vocab, text, meter, out),
            Spelling::Escaped => {
                let text = text.replace(' ', super::encode::SPM_SPACE);
                let mut merger = Merger::default();
                self.pre.split(&text, &mut |word| {
                    self.merge_word(vocab, word, &mut merger, meter, out);
                });
            }
            Spelling::Spaceless => {
                let mut merger = Merger::default();
                for word in text.split_whitespace() {
                    if lower {
                        let word: String = word.chars().map(unicode::lower_case).collect();
                        self.merge_word(vocab, &word, &mut merger, meter, out);
                    } else {
                        self.merge_word(vocab, word, &mut merger, meter, out);
                    }
                }
            }
        }
    }

    fn encode_bytes(&self, vocab: &Vocab, text: &str, meter: &mut Meter<'_>, out: &mut Vec<u32>) {
        // What each byte begins as; only now and then is it not simply the byte's token.
        let first_ids: [u32; 256] = std::array::from_fn(|byte| match self.byte_ids[byte] {
            NO_TOKEN => self.id(vocab, &written_byte(byte as u8, Spelling::Bytes)),
            id => id,
        });
        let mut merger = Merger::default();
        let mut written = String::new();
        self.pre.split(text, &mut |word| {
            if !has_more(word, meter, out) {
                return;
            }
            if self.ignore_merges {
                written.clear();
                written.extend(word.bytes().map(byte_level::byte_to_char));
                if let Some(id) = vocab.id(written.as_bytes()) {
                    out.push(id);
                    return;
                }
            }
            merger.clear();
            for byte in word.bytes() {
                merger.push(1, first_ids[byte as usize]);
            }
            self.run(vocab, word, &mut merger, meter, out);
        });
    }

    /// Merges the characters of a word that is spelled as it is.
    fn merge_word(
        &self,
        vocab: &Vocab,
        word: &str,
        merger: &mut Merger,
        meter: &mut Meter<'_>,
        out: &mut Vec<u32>,
    ) {
        if !has_more(word, meter, out) {
            return;
        }
        let rule = self.pre.rule();
        let is_line_ends = rule.keeps_line_ends_whole && word.bytes().all(|byte| byte == b'\n');
        if let Some(id) = vocab.id(word.as_bytes())
            && (is_line_ends || self.ignore_merges)
        {
            out.push(id);
            return;
        }
        merger.clear();
        for (at, c) in word.char_indices() {
            let len = c.len_utf8();
            merger.push(len as u32, self.id(vocab, &word[at..at + len]));
        }
        self.run(vocab, word, merger, meter, out);
    }

    fn run(
        &self,
        vocab: &Vocab,
        word: &str,
        merger: &mut Merger,
        meter: &mut Meter<'_>,
        out: &mut Vec<u32>,
    ) {
        merger.run(meter, |left, right| {
            let (key, id) = *self.merges.get(&(left.id, right.id))?;
            Some(Merge { key, id })
        });
        if meter.is_stopped() {
            return;
        }
        for symbol in merger.merged() {
            if (symbol.id as usize) < vocab.len() {
                out.push(symbol.id);
                continue;
            }
            // A byte that the vocabulary lacks is left out, as llama.cpp does.
            let start = symbol.start as usize;
            let bytes = &word.as_bytes()[start..start + symbol.len as usize];
            let ids = bytes.iter().map(|byte| self.byte_ids[*byte as usize]);
            out.extend(ids.filter(|id| *id != NO_TOKEN));
        }
    }
}

/// Counts the next word; false where the meter stops.
fn has_more(word: &str, meter: &mut Meter<'_>, out: &[u32]) -> bool {
    meter.advance(word.len()) && meter.has_tokens(out.len())
}

/// The text of the token that stands for a byte alone.
fn written_byte(byte: u8, spelling: Spelling) -> String {
    match spelling {
        Spelling::Bytes => byte_level::byte_to_char(byte).to_string(),
        Spelling::Escaped | Spelling::Spaceless => format!("<0x{byte:02X}>"),
    }
}
