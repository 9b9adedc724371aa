//! Tokens that are found in text as they stand, before anything else: control and user-defined.

use aho_corasick::{AhoCorasick, AhoCorasickKind};

use super::meter::Meter;
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
/// longest in what is left. Tokens of one length are found together, so that a text is walked once
/// for each length that occurs in it, however many tokens there are.
#[derive(Debug)]
pub(super) struct Specials {
    /// Longest first.
    ids: Vec<u32>,
    /// Finds which of `ids` occur at all; its patterns are theirs.
    matcher: AhoCorasick,
    /// The tokens of one length each, longest first.
    lengths: Vec<Length>,
    /// The white space that the tokens swallow.
    strips: Vec<Strip>,
}

/// Finds the tokens of one length.
#[derive(Debug)]
struct Length {
    bytes: usize,
    /// Index of its first pattern in `ids`; the others follow.
    first: usize,
    matcher: AhoCorasick,
}

/// A token that was found, with the white space it swallows.
#[derive(Clone, Copy, Debug)]
struct Found {
    id: u32,
    /// Where the text before ends, and the text behind begins.
    before: u32,
    behind: u32,
}

/// White space that a special token swallows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Strip {
    Nothing,
    Before,
    Behind,
}

impl Strip {
    /// As the file says, or by the names of model, architecture and pre-tokenizer, as most files do
    /// not say.
    fn of(id: u32, token: &str, source: &VocabSource) -> Self {
        if !source.token_strips.is_empty() {
            return match source.token_strips.get(id as usize) {
                Some(1) => Self::Before,
                Some(2) => Self::Behind,
                _ => Self::Nothing,
            };
        }
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

/// Places between two characters.
fn inner_boundaries(text: &str) -> impl Iterator<Item = usize> {
    text.char_indices().skip(1).map(|(at, _)| at)
}

/// True for the characters of C's `isspace`.
const SPACES: [char; 6] = [' ', '\t', '\n', '\u{b}', '\u{c}', '\r'];

impl Specials {
    pub(super) fn new(vocab: &Vocab, source: &VocabSource) -> Result<Self, TokenizerError> {
        let special = Kind::CONTROL.and(Kind::USER_DEFINED).and(Kind::UNKNOWN);
        let mut ids: Vec<u32> = (0..vocab.len() as u32)
            .filter(|id| vocab.kind(*id).is(special) && !vocab.text(*id).is_empty())
            .collect();
        ids.sort_by_key(|id| std::cmp::Reverse(vocab.text(*id).len()));
        let matcher = matcher(vocab, &ids)?;
        let mut lengths = Vec::new();
        let mut first = 0;
        for same in ids.chunk_by(|a, b| vocab.text(*a).len() == vocab.text(*b).len()) {
            let bytes = vocab.text(same[0]).len();
            lengths.push(Length { bytes, first, matcher: self::matcher(vocab, same)? });
            first += same.len();
        }
        let strips = ids.iter().map(|id| Strip::of(*id, vocab.text(*id), source)).collect();
        Ok(Self { ids, matcher, lengths, strips })
    }

    /// Places behind the first character of every control token that `text` spells.
    pub(super) fn control_places(&self, vocab: &Vocab, text: &str) -> Vec<usize> {
        let found = self.matcher.find_overlapping_iter(text);
        let control =
            found.filter(|found| vocab.kind(self.ids[found.pattern().as_usize()]).is_hidden());
        let behind_first =
            |start: usize| start + text[start..].chars().next().map_or(0, char::len_utf8);
        control.map(|found| behind_first(found.start())).collect()
    }

    /// True if `text` begins with the end of a control token.
    pub(super) fn begins_inside(&self, vocab: &Vocab, text: &str) -> bool {
        self.control_texts(vocab)
            .any(|token| inner_boundaries(token).any(|at| text.starts_with(&token[at..])))
    }

    /// True if `text` ends with the beginning of a control token.
    pub(super) fn ends_inside(&self, vocab: &Vocab, text: &str) -> bool {
        self.control_texts(vocab)
            .any(|token| inner_boundaries(token).any(|at| text.ends_with(&token[..at])))
    }

    fn control_texts<'a>(&'a self, vocab: &'a Vocab) -> impl Iterator<Item = &'a str> {
        let control = self.ids.iter().filter(move |id| vocab.kind(**id).is_hidden());
        control.map(move |id| vocab.text(*id))
    }

    /// True if some token swallows white space.
    pub(super) fn swallow(&self) -> bool {
        self.strips.iter().any(|strip| *strip != Strip::Nothing)
    }

    /// Cuts `text` at special tokens; control tokens only where `parse_special`. `None` where the
    /// meter stops.
    pub(super) fn split<'a>(
        &self,
        vocab: &Vocab,
        text: &'a str,
        parse_special: bool,
        meter: &mut Meter<'_>,
    ) -> Option<impl Iterator<Item = Fragment<'a>> + use<'a>> {
        let mut occurring = self.occurring(text, meter)?;
        if !parse_special {
            let ids = self.ids.iter();
            occurring.iter_mut().zip(ids).for_each(|(occurs, id)| {
                *occurs &= !vocab.kind(*id).is_hidden();
            });
        }
        let mut taken = Taken { text, bits: Vec::new(), found: Vec::new() };
        for (at, length) in self.lengths.iter().enumerate() {
            let end = self.lengths.get(at + 1).map_or(self.ids.len(), |next| next.first);
            if occurring[length.first..end].contains(&true) {
                self.take(length, &occurring, &mut taken, meter)?;
            }
        }
        taken.found.sort_unstable_by_key(|found| found.before);
        Some(fragments(text, taken.found))
    }

    /// Takes the places of the tokens of one length, of equal ones in the order of their ids.
    fn take(
        &self,
        length: &Length,
        wanted: &[bool],
        taken: &mut Taken<'_>,
        meter: &mut Meter<'_>,
    ) -> Option<()> {
        // Places that overlap each other, one after the other; all of them where a token may
        // swallow white space that is a token itself.
        let swallow = self.swallow();
        let mut chain: Vec<(u32, u32)> = Vec::new();
        for found in length.matcher.find_overlapping_iter(taken.text) {
            if !meter.advance(1) {
                return None;
            }
            let (index, start) = (length.first + found.pattern().as_usize(), found.start());
            if !wanted[index] || !taken.is_free(start, length.bytes) {
                continue;
            }
            let is_apart = |(_, last): &(u32, u32)| *last as usize + length.bytes <= start;
            if !swallow && chain.last().is_some_and(is_apart) {
                self.take_chain(&mut chain, length.bytes, taken);
            }
            chain.push((index as u32, start as u32));
        }
        self.take_chain(&mut chain, length.bytes, taken);
        Some(())
    }

    fn take_chain(&self, chain: &mut Vec<(u32, u32)>, bytes: usize, taken: &mut Taken<'_>) {
        chain.sort_unstable();
        for (index, start) in chain.drain(..) {
            if taken.is_free(start as usize, bytes) {
                let index = index as usize;
                taken.take(start as usize, bytes, self.ids[index], self.strips[index]);
            }
        }
    }

    /// Which of `ids` occur in `text`.
    fn occurring(&self, text: &str, meter: &mut Meter<'_>) -> Option<Vec<bool>> {
        let mut seen = vec![false; self.ids.len()];
        for found in self.matcher.find_overlapping_iter(text) {
            if !meter.advance(1) {
                return None;
            }
            seen[found.pattern().as_usize()] = true;
        }
        meter.look().then_some(seen)
    }
}

fn matcher(vocab: &Vocab, ids: &[u32]) -> Result<AhoCorasick, TokenizerError> {
    Ok(AhoCorasick::builder()
        .kind(Some(AhoCorasickKind::ContiguousNFA))
        .build(ids.iter().map(|id| vocab.text(*id)))?)
}

/// The bytes of a text that are tokens already, or white space that one swallowed.
struct Taken<'a> {
    text: &'a str,
    /// One for each byte, once there is a token.
    bits: Vec<u64>,
    found: Vec<Found>,
}

impl Taken<'_> {
    fn has(&self, at: usize) -> bool {
        self.bits.get(at / 64).is_some_and(|word| word >> (at % 64) & 1 == 1)
    }

    /// True if a place is free. Whatever was taken is at least as long, so that it covers an end of
    /// the place if it covers any of it.
    fn is_free(&self, start: usize, bytes: usize) -> bool {
        !self.has(start) && !self.has(start + bytes - 1)
    }

    fn take(&mut self, start: usize, bytes: usize, id: u32, strip: Strip) {
        self.bits.resize(self.text.len().div_ceil(64), 0);
        let end = start + bytes;
        let text = self.text.as_bytes();
        let swallows = |at: &usize| SPACES.contains(&text[*at].into()) && !self.has(*at);
        let before = match strip {
            Strip::Before => (0..start).rev().take_while(swallows).count(),
            _ => 0,
        };
        let behind = match strip {
            Strip::Behind => (end..text.len()).take_while(swallows).count(),
            _ => 0,
        };
        let (before, behind) = (start - before, end + behind);
        for at in before..behind {
            self.bits[at / 64] |= 1 << (at % 64);
        }
        self.found.push(Found { id, before: before as u32, behind: behind as u32 });
    }
}

/// The text between the tokens, and the tokens.
fn fragments(text: &str, found: Vec<Found>) -> impl Iterator<Item = Fragment<'_>> {
    let mut at = 0;
    found.into_iter().map(Some).chain([None]).flat_map(move |found| {
        let end = found.map_or(text.len(), |found| found.before as usize);
        let before = &text[at..end];
        at = found.map_or(end, |found| found.behind as usize);
        let before = (!before.is_empty()).then_some(Fragment::Text(before));
        before.into_iter().chain(found.map(|found| Fragment::Token(found.id)))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    /// llama.cpp's way: one pass for each token, the longest first.
    fn one_by_one<'a>(specials: &Specials, vocab: &Vocab, text: &'a str) -> Vec<Fragment<'a>> {
        let mut fragments = vec![Fragment::Text(text)];
        for (id, strip) in specials.ids.iter().zip(&specials.strips) {
            let mut next = Vec::new();
            for fragment in fragments {
                let Fragment::Text(mut rest) = fragment else {
                    next.push(fragment);
                    continue;
                };
                let token = vocab.text(*id);
                while let Some(at) = rest.find(token) {
                    let before = &rest[..at];
                    let trimmed = before.trim_end_matches(SPACES);
                    let before = if *strip == Strip::Before { trimmed } else { before };
                    next.extend((!before.is_empty()).then_some(Fragment::Text(before)));
                    next.push(Fragment::Token(*id));
                    rest = &rest[at + token.len()..];
                    if *strip == Strip::Behind {
                        rest = rest.trim_start_matches(SPACES);
                    }
                }
                next.extend((!rest.is_empty()).then_some(Fragment::Text(rest)));
            }
            fragments = next;
        }
        fragments
    }

    proptest! {
        #[test]
        fn all_tokens_of_a_length_at_once_cut_as_one_by_one(
            tokens in prop::collection::vec("[ab<> ]{1,4}|é[ab]", 1..12),
            text in "[ab<> é]{0,40}",
            strips in prop::collection::vec(0..3, 12),
        ) {
            let vocab = Vocab::new(&tokens.iter().collect(), &vec![4; tokens.len()]).unwrap();
            let mut specials = Specials::new(&vocab, &VocabSource::default()).unwrap();
            let strip = |n: &i32| [Strip::Nothing, Strip::Before, Strip::Behind][*n as usize];
            for (own, other) in specials.strips.iter_mut().zip(&strips) {
                *own = strip(other);
            }
            let mut meter = Meter::unlimited();
            let found: Vec<_> =
                specials.split(&vocab, &text, true, &mut meter).unwrap().collect();
            prop_assert_eq!(found, one_by_one(&specials, &vocab, &text));
        }
    }
}
