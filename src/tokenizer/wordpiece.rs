//! WordPiece: BERT's words, each cut into the longest tokens from the left.
//!
//! A vocabulary in a GGUF file marks the tokens that begin a word with U+2581 and leaves the others
//! bare, where BERT's own file marks the others with `##`.

use super::encode::SPM_SPACE;
use super::meter::Meter;
use super::prefixes::Prefixes;
use super::unicode::{classes, lower_case, without_accents};
use super::vocab::Vocab;
use super::{TokenizerError, VocabSource};

#[derive(Debug)]
pub(super) struct WordPiece {
    prefixes: Prefixes,
    unknown: u32,
    lowercase: bool,
    strip_accents: bool,
}

impl WordPiece {
    pub(super) fn new(
        vocab: &Vocab,
        source: &VocabSource,
        unknown: Option<u32>,
    ) -> Result<Self, TokenizerError> {
        let unknown = unknown.ok_or(TokenizerError::MissingSpecial {
            flag: "tokenizer.ggml.model is \"bert\"",
            key: "tokenizer.ggml.unknown_token_id",
        })?;
        let lowercase = source.lowercase.unwrap_or(true);
        Ok(Self {
            prefixes: Prefixes::new(vocab, |_| true),
            unknown,
            lowercase,
            strip_accents: source.strip_accents.unwrap_or(lowercase),
        })
    }

    pub(super) fn encode(
        &self,
        vocab: &Vocab,
        text: &str,
        meter: &mut Meter<'_>,
        out: &mut Vec<u32>,
    ) {
        let mut word = SPM_SPACE.to_owned();
        let end_word = |word: &mut String, out: &mut Vec<u32>| {
            if word.len() > SPM_SPACE.len() {
                self.encode_word(vocab, word.as_bytes(), out);
                word.truncate(SPM_SPACE.len());
            }
        };
        for c in text.chars() {
            if !meter.advance(c.len_utf8()) || !meter.has_tokens(out.len()) {
                return;
            }
            let c = if self.strip_accents { without_accents(c) } else { c };
            if c.is_whitespace() {
                end_word(&mut word, out);
                continue;
            }
            let is_accent = self.strip_accents && classes().mark.has(c);
            if matches!(c, '\0' | '\u{FFFD}') || classes().control.has(c) || is_accent {
                continue;
            }
            let stands_alone = stands_alone(c);
            if stands_alone {
                end_word(&mut word, out);
            }
            word.push(if self.lowercase { lower_case(c) } else { c });
            if stands_alone {
                end_word(&mut word, out);
            }
        }
        end_word(&mut word, out);
    }

    /// The longest tokens from the left, or the unknown token for all of it.
    fn encode_word(&self, vocab: &Vocab, word: &[u8], out: &mut Vec<u32>) {
        let before = out.len();
        let mut at = 0;
        while at < word.len() {
            let mut walk = self.prefixes.walk(vocab);
            let mut longest = None;
            for (offset, byte) in word[at..].iter().enumerate() {
                if !walk.step(*byte) {
                    break;
                }
                longest = walk.token().map(|id| (at + offset + 1, id)).or(longest);
            }
            let Some((end, id)) = longest else {
                out.truncate(before);
                out.push(self.unknown);
                return;
            };
            out.push(id);
            at = end;
        }
    }
}

/// True if `c` is a word of its own: punctuation, an ASCII symbol, or a Han character.
fn stands_alone(c: char) -> bool {
    let is_ascii_symbol = matches!(c, '$' | '+' | '<'..='>' | '^' | '`' | '|' | '~');
    is_ascii_symbol || classes().punctuation.has(c) || is_han(c)
}

/// BERT's Han characters, with the range of its Rust implementation that misses a block.
fn is_han(c: char) -> bool {
    matches!(c, '\u{4E00}'..='\u{9FFF}' | '\u{3400}'..='\u{4DBF}' | '\u{20000}'..='\u{2A6DF}'
        | '\u{2A700}'..='\u{2B73F}' | '\u{2B740}'..='\u{2B81F}' | '\u{2B920}'..='\u{2CEAF}'
        | '\u{F900}'..='\u{FAFF}' | '\u{2F800}'..='\u{2FA1F}')
}
