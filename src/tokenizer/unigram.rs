//! Unigram: of all ways to cut a text into tokens, the one whose scores add up highest.
//!
//! After SentencePiece's Viterbi search, as llama.cpp has it: scores are logarithms, added up in
//! f64; a character that no token has costs ten more than the least likely token.

use super::charsmap::Charsmap;
use super::encode::SPM_SPACE;
use super::meter::Meter;
use super::prefixes::Prefixes;
use super::vocab::{Kind, Vocab};
use super::{TokenizerError, VocabSource};

/// Score of an unknown character, below that of the worst token.
const UNKNOWN_PENALTY: f32 = 10.0;

/// Longest text: the search keeps 16 bytes for each byte of it.
const TEXT_BYTES_MAX: usize = 64 << 20;

#[derive(Debug)]
pub(super) struct Unigram {
    tokens: Prefixes,
    user_defined: Prefixes,
    scores: Vec<f32>,
    charsmap: Charsmap,
    unknown: u32,
    unknown_score: f64,
    pub(super) add_space_prefix: bool,
    merge_spaces: bool,
}

/// The best way to come to some place of the text.
#[derive(Clone, Copy, Debug)]
struct Best {
    score: f64,
    token: u32,
    start: u32,
}

impl Unigram {
    pub(super) fn new(
        vocab: &Vocab,
        source: &VocabSource,
        unknown: Option<u32>,
    ) -> Result<Self, TokenizerError> {
        let unknown = unknown.ok_or(TokenizerError::MissingSpecial {
            flag: "tokenizer.ggml.model is \"t5\"",
            key: "tokenizer.ggml.unknown_token_id",
        })?;
        let scores: Vec<f32> =
            (0..vocab.len()).map(|id| source.scores.get(id).copied().unwrap_or(0.0)).collect();
        let normal = (0..vocab.len()).filter(|id| vocab.kind(*id as u32).is(Kind::NORMAL));
        let least = normal.map(|id| scores[id]).fold(f32::MAX, f32::min);
        let other = Kind::CONTROL.and(Kind::UNKNOWN).and(Kind::BYTE);
        Ok(Self {
            tokens: Prefixes::new(vocab, |id| !vocab.kind(id).is(other)),
            user_defined: Prefixes::new(vocab, |id| vocab.kind(id).is(Kind::USER_DEFINED)),
            scores,
            charsmap: Charsmap::new(&source.charsmap)?,
            unknown,
            unknown_score: f64::from(least - UNKNOWN_PENALTY),
            add_space_prefix: source.add_space_prefix.unwrap_or(false),
            merge_spaces: source.remove_extra_whitespaces.unwrap_or(false),
        })
    }

    pub(super) fn encode(
        &self,
        vocab: &Vocab,
        text: &str,
        meter: &mut Meter<'_>,
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        if text.len() > TEXT_BYTES_MAX {
            let (bytes, limit) = (text.len(), TEXT_BYTES_MAX);
            return Err(TokenizerError::TextTooLong { bytes, limit });
        }
        let text = self.normalize(vocab, text)?;
        let best = self.search(vocab, &text, meter);
        meter.check()?;
        let first = out.len();
        let mut at = text.len();
        while at > 0 {
            let Best { token, start, .. } = best[at];
            // Unknown characters side by side are one unknown token.
            if token != self.unknown || out.len() == first || out.last() != Some(&token) {
                out.push(token);
            }
            at = start as usize;
        }
        out[first..].reverse();
        Ok(())
    }

    /// The best way to each place of `text` where a character ends.
    fn search(&self, vocab: &Vocab, text: &[u8], meter: &mut Meter<'_>) -> Vec<Best> {
        let never = Best { score: f64::MIN, token: self.unknown, start: 0 };
        let mut best = vec![never; text.len() + 1];
        best[0].score = 0.0;
        let mut start = 0;
        while start < text.len() && meter.advance(1) {
            let so_far = best[start].score;
            let char_bytes = utf8_bytes(text[start]).min(text.len() - start);
            let mut offer = |end: usize, token: u32, score: f64| {
                let score = so_far + score;
                if score > best[end].score {
                    best[end] = Best { score, token, start: start as u32 };
                }
            };
            let mut has_char = false;
            let mut walk = self.tokens.walk(vocab);
            for (offset, byte) in text[start..].iter().enumerate() {
                if !walk.step(*byte) {
                    break;
                }
                let Some(token) = walk.token() else { continue };
                has_char |= offset + 1 == char_bytes;
                offer(start + offset + 1, token, self.score(vocab, token));
            }
            if !has_char {
                offer(start + char_bytes, self.unknown, self.unknown_score);
            }
            start += char_bytes;
        }
        best
    }

    /// User-defined tokens are taken wherever they can be.
    fn score(&self, vocab: &Vocab, token: u32) -> f64 {
        let is_user_defined = vocab.kind(token).is(Kind::USER_DEFINED);
        if is_user_defined { 0.0 } else { self.scores[token as usize].into() }
    }

    /// The text as the tokens spell it: characters mapped, spaces as U+2581.
    fn normalize(&self, vocab: &Vocab, text: &str) -> Result<Vec<u8>, TokenizerError> {
        let mut out = Vec::with_capacity(text.len() + text.len() / 2 + SPM_SPACE.len());
        let mut has_prefix = !self.add_space_prefix;
        let mut in_word = false;
        let mut at = 0;
        while at < text.len() {
            let (taken, bytes) = self.next(vocab, &text[at..])?;
            for byte in bytes {
                if *byte == b' ' {
                    in_word = false;
                    if !self.merge_spaces {
                        out.extend_from_slice(SPM_SPACE.as_bytes());
                    }
                    continue;
                }
                if !in_word {
                    in_word = true;
                    if !has_prefix || self.merge_spaces {
                        out.extend_from_slice(SPM_SPACE.as_bytes());
                        has_prefix = true;
                    }
                }
                out.push(*byte);
            }
            at += taken;
        }
        Ok(out)
    }

    /// Length of the prefix of `text` that is consumed, and its replacement.
    fn next<'a>(
        &'a self,
        vocab: &Vocab,
        text: &'a str,
    ) -> Result<(usize, &'a [u8]), TokenizerError> {
        let bytes = text.as_bytes();
        // What may be a user-defined token stays as it is.
        let mut walk = self.user_defined.walk(vocab);
        let agreeing = bytes.iter().take_while(|byte| walk.step(**byte)).count();
        let agreeing = (0..=agreeing).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        if agreeing > 0 {
            return Ok((agreeing, &bytes[..agreeing]));
        }
        if let Some((taken, becomes)) = self.charsmap.longest(bytes)? {
            // The map's keys are whole characters, unless it is broken.
            let taken = (taken..=bytes.len()).find(|at| text.is_char_boundary(*at));
            return Ok((taken.unwrap_or(bytes.len()), becomes));
        }
        let taken = utf8_bytes(bytes[0]).min(bytes.len());
        Ok((taken, &bytes[..taken]))
    }
}

/// Bytes of the character that begins with `byte`; 1 where none can.
fn utf8_bytes(byte: u8) -> usize {
    match byte {
        0xC0..=0xDF => 2,
        0xE0..=0xEF => 3,
        0xF0..=0xFF => 4,
        _ => 1,
    }
}
