//! A tokenizer as llguidance wants it: a trie of the bytes of all tokens.

use std::sync::Arc;

use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};

use crate::tokenizer::Tokenizer;

/// The trie; tokens that are no text begin with a byte that no text has.
struct Vocabulary {
    trie: TokTrie,
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.trie.greedy_tokenize(bytes)
    }

    fn tokenize_is_canonical(&self) -> bool {
        false // no tokens are forced: the model chooses how a text is cut
    }
}

/// Builds the trie of a vocabulary: a tenth of a second for 150,000 tokens.
pub(super) fn environment(tokenizer: &Tokenizer) -> TokEnv {
    let ids = 0..tokenizer.vocab_size() as u32;
    let mut words: Vec<Vec<u8>> = ids.map(|id| word(tokenizer, id)).collect();
    let mut stops = tokenizer.stop_ids().to_vec();
    if stops.is_empty() {
        // Such a model never ends a text; the trie wants an end.
        stops.push(words.len() as u32);
        words.push(b"\xff<end>".to_vec());
    }
    let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, stops[0]), &words);
    let trie = trie.with_eos_tokens(&stops);
    Arc::new(Vocabulary { trie })
}

/// Bytes of a token in the trie.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let text = tokenizer.token_text(id).unwrap_or_default();
    if is_marker(tokenizer, id) {
        if text.is_empty() {
            return Vec::new();
        }
        let mut marked = Vec::with_capacity(text.len() + 1);
        marked.push(TokTrie::SPECIAL_TOKEN_MARKER);
        marked.extend_from_slice(text.as_bytes());
        return marked;
    }
    match tokenizer.token_bytes(id) {
        // A byte of its own would be taken for the mark; it is in no UTF-8 text.
        Ok(bytes) if bytes.first() != Some(&TokTrie::SPECIAL_TOKEN_MARKER) => bytes.into_owned(),
        _ => Vec::new(),
    }
}

/// True for tokens that a text does not contain: control tokens, and those of a vocabulary's own
/// that look like marks, as `<tool_call>` and `[INST]`.
fn is_marker(tokenizer: &Tokenizer, id: u32) -> bool {
    if tokenizer.is_control(id) {
        return true;
    }
    let text = tokenizer.token_text(id).unwrap_or_default();
    let enclosed = |open, close| text.len() > 2 && text.starts_with(open) && text.ends_with(close);
    tokenizer.is_user_defined(id) && (enclosed('<', '>') || enclosed('[', ']'))
}

/// The token that a grammar means by `<name>`: of that very text, else of the name alone.
pub(super) fn find(tokenizer: &Tokenizer, name: &str) -> Option<u32> {
    tokenizer.token_of_text(&format!("<{name}>")).or_else(|| tokenizer.token_of_text(name))
}
