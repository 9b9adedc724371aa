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
    /// The white space that the tokens swallow.
    strips: Vec<Strip>,
}

/// White space that a special token swallows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Strip {
    Nothing,
    Before,
    Behind,
}

impl Strip {
    /// By the names of model, architecture and pre-tokenizer: the files do not say.
    fn of(token: &str, source: &VocabSource) -> Self {
        let contains = |text: &Option<String>, parts: &[&str]| {
            let text = text.as_deref().unwrap_or_default().to_lowercase();
            parts.iter().any(|part| text.contains(part))
        };
        let masks = contains(&source.pre, &["jina-v2-de", "jina-v2-es", "jina-v2-code"])
            || contains(&source.architecture, &["nomic-bert-moe", "jina-bert-v3"]);
        if masks {
            return if token == "<mask>" { Self::Before } else { Self::Nothing };
        }
        if contains(&source.model_name, &["phi-3", "phi3"]) {
            let keeps = ["<unk>", "<s>", "<|endoftext|>"].contains(&token);
            return if keeps { Self::Nothing } else { Self::Behind };
        }
        let masks = contains(&source.model_name, &["modern-bert"]);
        if masks && token == "[MASK]" { Self::Before } else { Self::Nothing }
    }
}

/// What C's `isspace` holds for.
const SPACES: [char; 6] = [' ', '\t', '\n', '\u{b}', '\u{c}', '\r'];

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
        let strips = ids.iter().map(|id| Strip::of(vocab.text(*id), source)).collect();
        Ok(Self { ids, matcher, strips })
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
                        cut(text, token, id, self.strips[index], &mut next);
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
fn cut<'a>(text: &'a str, token: &str, id: u32, strip: Strip, out: &mut Vec<Fragment<'a>>) {
    let mut rest = text;
    while let Some(at) = rest.find(token) {
        let before = &rest[..at];
        let before = if strip == Strip::Before { before.trim_end_matches(SPACES) } else { before };
        if !before.is_empty() {
            out.push(Fragment::Text(before));
        }
        out.push(Fragment::Token(id));
        rest = &rest[at + token.len()..];
        if strip == Strip::Behind {
            rest = rest.trim_start_matches(SPACES);
        }
    }
    if !rest.is_empty() {
        out.push(Fragment::Text(rest));
    }
}
