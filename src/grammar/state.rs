//! A grammar and how far one text has come in it.

use llguidance::Matcher;
use llguidance::api::StopReason;
use llguidance::toktrie::TokEnv;

use super::{BeginsAfter, GrammarError};

/// Words of a mask over so many tokens: a bit for each, the first lowest.
#[must_use]
pub fn mask_words(vocab_size: usize) -> usize {
    vocab_size.div_ceil(32)
}

/// How far a text has come in its grammar.
pub struct GrammarState {
    matcher: Matcher,
    tokens: TokEnv,
    waiting: Option<Waiting>,
}

/// The grammar does not hold yet.
#[derive(Clone, Debug)]
enum Waiting {
    ForToken(u32),
    /// The text, and the last bytes that were written.
    ForText(Vec<u8>, Vec<u8>),
}

impl std::fmt::Debug for GrammarState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrammarState").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

impl Clone for GrammarState {
    fn clone(&self) -> Self {
        Self {
            matcher: self.matcher.clone(),
            tokens: self.tokens.clone(),
            waiting: self.waiting.clone(),
        }
    }
}

impl GrammarState {
    pub(super) fn new(matcher: Matcher, tokens: TokEnv, after: Option<BeginsAfter>) -> Self {
        let waiting = after.map(|after| match after {
            BeginsAfter::Token(token) => Waiting::ForToken(token),
            BeginsAfter::Text(text) => Waiting::ForText(text.into_bytes(), Vec::new()),
        });
        Self { matcher, tokens, waiting }
    }

    /// True if the grammar holds already.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.waiting.is_none()
    }

    /// Writes which tokens may come next; tokens that end a generation are allowed where the text
    /// is complete. `mask` has [`mask_words`] words; tokens beyond the tokenizer's are forbidden.
    ///
    /// # Errors
    /// [`GrammarError::Stuck`] where there are none, or the limits on a step are passed.
    pub fn mask(&mut self, mask: &mut [u32]) -> Result<(), GrammarError> {
        let trie = self.tokens.tok_trie();
        if self.waiting.is_some() {
            mask.fill(u32::MAX);
            let ends = trie.eos_tokens();
            let beyond = trie.vocab_size() as u32..mask.len() as u32 * 32;
            for token in ends.iter().copied().chain(beyond) {
                mask[token as usize / 32] &= !(1 << (token % 32));
            }
            return Ok(());
        }
        let allowed = self.matcher.compute_mask_or_eos().map_err(|error| stuck(&error))?;
        let words = allowed.as_slice();
        let words = &words[..words.len().min(mask.len())];
        let (known, beyond) = mask.split_at_mut(words.len());
        known.copy_from_slice(words);
        beyond.fill(0);
        if mask.iter().all(|word| *word == 0) {
            return Err(GrammarError::Stuck("no token may come next".into()));
        }
        Ok(())
    }

    /// Takes the token that was chosen.
    ///
    /// # Errors
    /// [`GrammarError::Stuck`] if the grammar does not allow it here.
    pub fn accept(&mut self, token: u32) -> Result<(), GrammarError> {
        match &mut self.waiting {
            None => self.consume(&[token]),
            Some(Waiting::ForToken(wanted)) => {
                if token == *wanted {
                    self.waiting = None;
                }
                Ok(())
            }
            Some(Waiting::ForText(wanted, written)) => {
                written.extend_from_slice(text_of(&self.tokens, token));
                let Some(at) = find(written, wanted) else {
                    let keep = written.len().min(wanted.len().saturating_sub(1));
                    written.drain(..written.len() - keep);
                    return Ok(());
                };
                let rest = written.split_off(at + wanted.len());
                self.waiting = None;
                let rest = rest.trim_ascii_start();
                let tokens = self.tokens.tok_trie().greedy_tokenize(rest);
                self.consume(&tokens)
            }
        }
    }

    fn consume(&mut self, tokens: &[u32]) -> Result<(), GrammarError> {
        if self.matcher.is_stopped() && self.matcher.stop_reason().is_ok() {
            return Ok(()); // the token that ends it
        }
        self.matcher.consume_tokens(tokens).map_err(|error| stuck(&error))
    }

    /// True if the text is complete and nothing can follow.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let reason = self.matcher.stop_reason();
        self.waiting.is_none() && reason != StopReason::NotStopped && reason.is_ok()
    }

    /// True if the text may end here.
    pub fn may_end(&mut self) -> bool {
        self.waiting.is_none() && (self.is_over() || self.matcher.is_accepting().unwrap_or(false))
    }
}

fn stuck(error: &impl std::fmt::Display) -> GrammarError {
    GrammarError::Stuck(super::compile::brief(&error.to_string()))
}

/// Bytes of a token as it is written.
fn text_of(tokens: &TokEnv, token: u32) -> &[u8] {
    let trie = tokens.tok_trie();
    let bytes = trie.token(token);
    if trie.is_special_token(token) { &bytes[1..] } else { bytes }
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    if wanted.is_empty() {
        return Some(0);
    }
    text.windows(wanted.len()).position(|window| window == wanted)
}
