//! Properties of characters, as the vocabularies' rules mean them.
//!
//! llama.cpp's tables are those of Unicode 15.1; a character that came later has none of the
//! properties here, whatever the tables of the `regex` crate have learned since.

use std::borrow::Cow;
use std::sync::OnceLock;

use regex_syntax::hir::{Class, HirKind};
use unicode_normalization::UnicodeNormalization as _;
use unicode_normalization::char::decompose_canonical;

use super::TokenizerError;

/// A normalisation form of Unicode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NormalForm {
    Nfc,
    Nfd,
    Nfkc,
    Nfkd,
}

impl NormalForm {
    /// The form of that name in `tokenizer.ggml.normalizer`.
    pub(super) fn named(name: &str) -> Result<Self, TokenizerError> {
        match name {
            "nfc" => Ok(Self::Nfc),
            "nfd" => Ok(Self::Nfd),
            "nfkc" => Ok(Self::Nfkc),
            "nfkd" => Ok(Self::Nfkd),
            found => Err(TokenizerError::UnknownNormalizer { found: found.to_owned() }),
        }
    }

    /// The text in this form. ASCII is in all of them.
    pub(super) fn of(self, text: &str) -> Cow<'_, str> {
        if text.is_ascii() {
            return Cow::Borrowed(text);
        }
        Cow::Owned(match self {
            Self::Nfc => text.nfc().collect(),
            Self::Nfd => text.nfd().collect(),
            Self::Nfkc => text.nfkc().collect(),
            Self::Nfkd => text.nfkd().collect(),
        })
    }
}

/// The pattern with each of its general categories cut down to what Unicode 15.1 had.
pub(super) fn dated(pattern: &str) -> String {
    let mut dated = pattern.to_owned();
    for category in [r"\p{L}", r"\p{N}", r"\p{P}", r"\p{S}", r"\p{M}"] {
        dated = dated.replace(category, &format!(r"[{category}&&\p{{Age=15.1}}]"));
    }
    dated
}

/// Characters with some property.
#[derive(Debug)]
pub(super) struct CharSet(Vec<(char, char)>);

impl CharSet {
    fn new(pattern: &str) -> Self {
        let parsed = regex_syntax::parse(&dated(pattern)).expect("constant and well formed");
        match parsed.into_kind() {
            HirKind::Class(Class::Unicode(class)) => {
                Self(class.iter().map(|range| (range.start(), range.end())).collect())
            }
            kind => unreachable!("a class of characters, not {kind:?}"),
        }
    }

    /// True if `c` is one of them.
    pub(super) fn has(&self, c: char) -> bool {
        let after = self.0.partition_point(|(first, _)| *first <= c);
        after > 0 && c <= self.0[after - 1].1
    }
}

/// The properties that are asked for one character at a time.
#[derive(Debug)]
pub(super) struct Classes {
    pub(super) number: CharSet,
    pub(super) punctuation: CharSet,
    pub(super) mark: CharSet,
    /// Control, format and private-use characters.
    pub(super) control: CharSet,
}

/// The properties, made when first asked for.
pub(super) fn classes() -> &'static Classes {
    static CLASSES: OnceLock<Classes> = OnceLock::new();
    CLASSES.get_or_init(|| Classes {
        number: CharSet::new(r"\p{N}"),
        punctuation: CharSet::new(r"\p{P}"),
        mark: CharSet::new(r"\p{M}"),
        control: CharSet::new(r"[[\p{Cc}\p{Cf}\p{Co}]&&\p{Age=15.1}]"),
    })
}

/// The character that is left of `c` without its accents: the first of its decomposition.
pub(super) fn without_accents(c: char) -> char {
    let mut first = None;
    decompose_canonical(c, |part| {
        first.get_or_insert(part);
    });
    first.unwrap_or(c)
}

/// `c` in lower case; İ, whose lower case is two characters, gives the first.
pub(super) fn lower_case(c: char) -> char {
    c.to_lowercase().next().unwrap_or(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_have_their_properties() {
        let classes = classes();
        assert!(classes.number.has('1') && classes.number.has('²') && !classes.number.has('a'));
        assert!(classes.punctuation.has('!') && !classes.punctuation.has('$'));
        assert!(classes.mark.has('\u{301}') && classes.control.has('\u{ad}'));
        assert!(!classes.control.has('\u{378}'), "not assigned");
    }

    #[test]
    fn accents_and_capitals_go() {
        assert_eq!(without_accents('é'), 'e');
        assert_eq!(without_accents('ǖ'), 'u');
        assert_eq!(without_accents('한'), '\u{1112}');
        assert_eq!(without_accents('x'), 'x');
        assert_eq!((lower_case('Ä'), lower_case('İ'), lower_case('ß')), ('ä', 'i', 'ß'));
    }
}
