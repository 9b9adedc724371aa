//! Tokens to text as they come: whole characters only.

use super::{Tokenizer, TokenizerError};

/// Turns tokens into text one by one and holds back the bytes of an unfinished character.
///
/// All that it returns, put together, is what [`Tokenizer::decode`] gives for all tokens.
#[derive(Clone, Debug)]
pub struct StreamDecoder {
    pending: Vec<u8>,
    at_start: bool,
    render_special: bool,
}

impl StreamDecoder {
    /// For tokens that go on behind a prompt: SPM's leading space is text and stays.
    #[must_use]
    pub fn continuing(render_special: bool) -> Self {
        Self { pending: Vec::new(), at_start: false, render_special }
    }

    /// For tokens that begin a text: the space that SPM puts first is taken off again.
    #[must_use]
    pub fn beginning(tokenizer: &Tokenizer, render_special: bool) -> Self {
        let at_start = tokenizer.puts_space_first();
        Self { pending: Vec::new(), at_start, render_special }
    }

    /// Takes a token and returns the text that is now certain; empty inside a character.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownToken`]; the decoder is then as before.
    pub fn push(&mut self, tokenizer: &Tokenizer, token: u32) -> Result<String, TokenizerError> {
        let at_start = &mut self.at_start;
        tokenizer.append_bytes(token, self.render_special, at_start, &mut self.pending)?;
        Ok(take_whole(&mut self.pending))
    }

    /// Ends the text: an unfinished character becomes U+FFFD.
    pub fn flush(&mut self) -> String {
        let rest = std::mem::take(&mut self.pending);
        String::from_utf8_lossy(&rest).into_owned()
    }
}

/// Takes the bytes off the front that will not change meaning; what cannot be UTF-8 is U+FFFD.
fn take_whole(bytes: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut at = 0;
    while at < bytes.len() {
        match std::str::from_utf8(&bytes[at..]) {
            Ok(whole) => {
                text.push_str(whole);
                at = bytes.len();
            }
            Err(error) => {
                let valid = at + error.valid_up_to();
                text.push_str(
                    std::str::from_utf8(&bytes[at..valid]).expect("valid up to here by the error"),
                );
                at = valid;
                let Some(bad) = error.error_len() else { break };
                text.push(char::REPLACEMENT_CHARACTER);
                at += bad;
            }
        }
    }
    bytes.drain(..at);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_unfinished_character_is_held_back() {
        let mut bytes = "é🍎".as_bytes()[..5].to_vec();
        assert_eq!(take_whole(&mut bytes), "é");
        assert_eq!(bytes, &"🍎".as_bytes()[..3]);
        bytes.push("🍎".as_bytes()[3]);
        assert_eq!(take_whole(&mut bytes), "🍎");
        assert!(bytes.is_empty());
    }

    proptest! {
        #[test]
        fn pieces_together_are_the_lossy_whole(bytes: Vec<u8>, cuts: Vec<prop::sample::Index>) {
            let mut cuts: Vec<_> = cuts.iter().map(|c| c.index(bytes.len() + 1)).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let (mut pending, mut text) = (Vec::new(), String::new());
            for pair in cuts.windows(2) {
                pending.extend_from_slice(&bytes[pair[0]..pair[1]]);
                text.push_str(&take_whole(&mut pending));
            }
            text.push_str(&String::from_utf8_lossy(&pending));
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }
    }
}
