//! Tokens to text.

use std::borrow::Cow;

use super::encode::SPM_SPACE;
use super::vocab::Kind;
use super::{Tokenizer, TokenizerError, byte_level};

impl Tokenizer {
    /// The bytes that a token stands for; a control token stands for its text.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownToken`].
    pub fn token_bytes(&self, token: u32) -> Result<Cow<'_, [u8]>, TokenizerError> {
        let token = self.vocab.check(token)?;
        let (text, kind) = (self.vocab.text(token), self.vocab.kind(token));
        if kind.is_hidden() || kind.is(Kind::USER_DEFINED) {
            return Ok(Cow::Borrowed(text.as_bytes()));
        }
        if kind.is(Kind::BYTE) {
            return Ok(match byte_of(text) {
                Some(byte) => Cow::Owned(vec![byte]),
                None => Cow::Borrowed(text.as_bytes()),
            });
        }
        if !kind.is(Kind::NORMAL) {
            return Ok(Cow::Borrowed(&[]));
        }
        if self.model.is_byte_level() {
            let mut bytes = Vec::with_capacity(text.len());
            byte_level::decode_into(text, &mut bytes);
            return Ok(Cow::Owned(bytes));
        }
        if text.contains(SPM_SPACE) {
            return Ok(Cow::Owned(text.replace(SPM_SPACE, " ").into_bytes()));
        }
        Ok(Cow::Borrowed(text.as_bytes()))
    }

    /// The text of tokens that begin a text: the space that some models put first is taken off.
    ///
    /// `render_special` shows control tokens as their text; without it they are left out. Bytes
    /// that are not UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownToken`].
    pub fn decode(&self, tokens: &[u32], render_special: bool) -> Result<String, TokenizerError> {
        let mut bytes = Vec::with_capacity(tokens.len() * 4);
        let mut at_start = self.puts_space_first();
        for token in tokens {
            self.append_bytes(*token, render_special, &mut at_start, &mut bytes)?;
        }
        Ok(match String::from_utf8_lossy(&bytes) {
            Cow::Owned(text) => text,
            Cow::Borrowed(_) => String::from_utf8(bytes).expect("just found to be UTF-8"),
        })
    }

    /// True if [`encode`](Self::encode) puts a space before the text.
    pub(super) fn puts_space_first(&self) -> bool {
        self.model.puts_space_first()
    }

    /// Appends a token's bytes. While `at_start`, one leading space is left out; the first token
    /// that shows anything ends the start.
    pub(super) fn append_bytes(
        &self,
        token: u32,
        render_special: bool,
        at_start: &mut bool,
        out: &mut Vec<u8>,
    ) -> Result<(), TokenizerError> {
        let token = self.vocab.check(token)?;
        if !render_special && self.vocab.kind(token).is_hidden() {
            return Ok(());
        }
        let bytes = self.token_bytes(token)?;
        let shown = match bytes.strip_prefix(b" ") {
            Some(rest) if *at_start => rest,
            _ => &bytes,
        };
        *at_start &= bytes.is_empty();
        out.extend_from_slice(shown);
        Ok(())
    }
}

/// The byte that a token written `<0xNN>` stands for.
fn byte_of(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    u8::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 2)
}
