//! Tokens that are found in text as they stand, before anything else: control and user-defined.

use aho_corasick::{AhoCorasick, AhoCorasickKind};

use super::vocab::{Kind, Vocab};
use super::{TokenizerError, VocabSource};

/// A stretch of text, or a special token found in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fragment<'a> {
    Text(&'a str),
    Token(u32),
}

/// Finds special tokens.
///
/// As in llama.cpp, the longest token takes its places first, wherever they are, then the next
/// longest in what is left.
#[derive(Debug)]
pub(super) struct Specials {
    /// Longest first.
    ids: Vec<u32>,
    /// Finds which of `ids` occur at all; its patterns are theirs.
    matcher: AhoCorasick,
    /// The tokens swallow the white space behind them (Phi-3).
    strips_right: Vec<bool>,
}

impl Specials {
    pub(super) fn new(vocab: &Vocab, source: &VocabSource) -> Result<Self, TokenizerError> {
        let special = Kind::CONTROL.and(Kind::USER_DEFINED).and(Kind::UNKNOWN);
        let mut ids: Vec<u32> = (0..vocab.len() as u32)
            .filter(|id| vocab.kind(*id).is(special) && !vocab.text(*id).is_empty())
            .collect();
        ids.sort_by_key(|id| std::cmp::Reverse(vocab.text(*id).len()));
        let matcher = AhoCorasick::builder()
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .build(ids.iter().map(|id| vocab.text(*id)))?;
        let name = source.model_name.as_deref().unwrap_or_default().to_lowercase();
        let is_phi3 = name.contains("phi-3") || name.contains("phi3");
        let keeps = ["<unk>", "<s>", "<|endoftext|>"];
        let strips_right =
            ids.iter().map(|id| is_phi3 && !keeps.contains(&vocab.text(*id))).collect();
        Ok(Self { ids, matcher, strips_right })
    }

    /// Cuts `text` at special tokens; control tokens only where `parse_special`.
    pub(super) fn split<'a>(
        &self,
        vocab: &Vocab,
        text: &'a str,
        parse_special: bool,
    ) -> Vec<Fragment<'a>> {
        let mut fragments = vec![Fragment::Text(text)];
        for index in self.occurring(text) {
            let id = self.ids[index];
            if vocab.kind(id).is_hidden() && !parse_special {
                continue;
            }
            let token = vocab.text(id);
            let mut next = Vec::with_capacity(fragments.len() + 2);
            for fragment in fragments {
                match fragment {
                    Fragment::Text(text) => {
                        cut(text, token, id, self.strips_right[index], &mut next);
                    }
                    Fragment::Token(_) => next.push(fragment),
                }
            }
            fragments = next;
        }
        fragments
    }

    /// Indices into `ids` of the tokens that occur in `text`, in their order.
    fn occurring(&self, text: &str) -> Vec<usize> {
        let mut seen = vec![false; self.ids.len()];
        for found in self.matcher.find_overlapping_iter(text) {
            seen[found.pattern().as_usize()] = true;
        }
        (0..seen.len()).filter(|index| seen[*index]).collect()
    }
}

/// Cuts `text` at each `token` and appends the parts.
fn cut<'a>(text: &'a str, token: &str, id: u32, strips_right: bool, out: &mut Vec<Fragment<'a>>) {
    let mut rest = text;
    while let Some(at) = rest.find(token) {
        if at > 0 {
            out.push(Fragment::Text(&rest[..at]));
        }
        out.push(Fragment::Token(id));
        rest = &rest[at + token.len()..];
        if strips_right {
            rest = rest.trim_start_matches([' ', '\t', '\n', '\u{b}', '\u{c}', '\r']);
        }
    }
    if !rest.is_empty() {
        out.push(Fragment::Text(rest));
    }
}
