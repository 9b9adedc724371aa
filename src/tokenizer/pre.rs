//! Cutting text into words before byte-pair merging.
//!
//! The models' rules end in `\s+(?!\S)|\s+`: white space leaves its last character to the word that
//! follows. The look-ahead needs a backtracking matcher, whose time has no linear bound and whose
//! step limit a megabyte of spaces exceeds. So the rules here end in plain `\s+`, matched in linear
//! time, and the last character is given back afterwards.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use regex::Regex;

use super::TokenizerError;
use super::pre_names::{self, Digits, PreRule};
use super::unicode;

/// The rule where a file names none, or one that is not known and need not be.
pub(super) const DEFAULT: &str = "default";

/// Ready to cut text.
#[derive(Debug)]
pub(super) struct PreTokenizer {
    rule: &'static PreRule,
    stages: Arc<[Stage]>,
}

#[derive(Debug)]
struct Stage {
    regex: Regex,
    /// The rule ends in `\s+`, so that white space gives its last character back.
    gives_back: bool,
    /// The rule has `\s*[\r\n]` first, which takes white space up to a line end and keeps it.
    keeps_line_ends: bool,
    /// Lengths of white space that is kept together; none keeps all.
    runs: &'static [usize],
}

impl PreTokenizer {
    /// The pre-tokenizer of that name in `tokenizer.ggml.pre`.
    pub(super) fn new(name: &str) -> Result<Self, TokenizerError> {
        let rule = pre_names::rule(name).ok_or_else(|| TokenizerError::UnknownPre {
            found: name.to_owned(),
            known: pre_names::known_names(),
        })?;
        Ok(Self { rule, stages: compiled(rule) })
    }

    /// Steps other than splitting.
    pub(super) fn rule(&self) -> &'static PreRule {
        self.rule
    }

    /// Calls `word` with each word of `text`, in order; together they are the text.
    pub(super) fn split(&self, text: &str, word: &mut dyn FnMut(&str)) {
        match self.rule.digits {
            None => split_stages(&self.stages, text, word),
            Some(digits) => {
                digits.split(text, &mut |piece| split_stages(&self.stages, piece, word));
            }
        }
    }
}

/// A rule's patterns, compiled once: Unicode's classes make that take tens of milliseconds.
fn compiled(rule: &'static PreRule) -> Arc<[Stage]> {
    static COMPILED: Mutex<BTreeMap<&str, Arc<[Stage]>>> = Mutex::new(BTreeMap::new());
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    let compile = || rule.stages.iter().map(|pattern| Stage::new(pattern, rule)).collect();
    Arc::clone(compiled.entry(rule.name()).or_insert_with(compile))
}

fn split_stages(stages: &[Stage], text: &str, word: &mut dyn FnMut(&str)) {
    match stages.split_first() {
        Some((first, rest)) => first.split(text, &mut |piece| split_stages(rest, piece, word)),
        None => word(text),
    }
}

impl Digits {
    /// Calls `piece` with the parts of `text` that this rule makes.
    fn split(self, text: &str, piece: &mut dyn FnMut(&str)) {
        let mut done = 0;
        let mut cut = |at: usize| {
            if at > done {
                piece(&text[done..at]);
                done = at;
            }
        };
        let mut at = 0;
        while let Some(found) = text[at..].find(|c| self.takes(c)) {
            let start = at + found;
            let rest = &text[start..];
            let end = start + rest.find(|c| !self.takes(c)).unwrap_or(rest.len());
            at = end;
            let word_goes_on =
                text[end..].starts_with(|c: char| c == '_' || c.is_ascii_alphabetic());
            if self == Self::WholeWords && word_goes_on {
                continue;
            }
            if self != Self::BeforeThrees {
                cut(start);
            }
            let mut left = text[start..end].chars().count();
            for (offset, _) in text[start..end].char_indices() {
                if left.is_multiple_of(3) {
                    cut(start + offset);
                }
                left -= 1;
            }
            if self != Self::BeforeThrees {
                cut(end);
            }
        }
        cut(text.len());
    }

    fn takes(self, c: char) -> bool {
        match self {
            Self::Numerals => unicode::classes().number.has(c),
            Self::WholeWords | Self::BeforeThrees => c.is_ascii_digit(),
        }
    }
}

impl Stage {
    fn new(pattern: &str, rule: &PreRule) -> Self {
        let dated = unicode::dated(pattern);
        Self {
            regex: Regex::new(&dated).expect("a test compiles every pattern of the table"),
            runs: rule.white_space_runs,
            gives_back: pattern.ends_with(r"|\s+"),
            keeps_line_ends: pattern.contains(r"|\s*[\r\n]"),
        }
    }

    /// Calls `piece` with each match and each stretch between matches.
    fn split(&self, text: &str, piece: &mut dyn FnMut(&str)) {
        let mut done = 0;
        let mut at = 0;
        while let Some(found) = self.regex.find_at(text, at) {
            let end = found.start() + self.kept_bytes(found.as_str(), found.end() == text.len());
            if found.start() > done {
                piece(&text[done..found.start()]);
            }
            piece(&text[found.start()..end]);
            done = end;
            at = end;
        }
        if done < text.len() {
            piece(&text[done..]);
        }
    }

    /// Length of a match to keep: all but a final white-space character, which belongs to the next
    /// word.
    fn kept_bytes(&self, found: &str, at_end: bool) -> usize {
        if !self.gives_back || !found.ends_with(char::is_whitespace) {
            return found.len();
        }
        if self.keeps_line_ends && found.ends_with(['\r', '\n']) {
            return found.len();
        }
        if !self.runs.is_empty() && found.chars().all(char::is_whitespace) {
            return self.run_bytes(found, at_end);
        }
        if at_end {
            return found.len();
        }
        let last = found.chars().next_back().map_or(0, char::len_utf8);
        if last == found.len() || !found.chars().all(char::is_whitespace) {
            return found.len();
        }
        found.len() - last
    }

    /// The longest of the runs that leaves one character to the next word; one character at least.
    fn run_bytes(&self, found: &str, at_end: bool) -> usize {
        let free = found.chars().count() - usize::from(!at_end);
        let run = self.runs.iter().find(|run| **run <= free).copied().unwrap_or(1);
        found.char_indices().nth(run).map_or(found.len(), |(at, _)| at)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn words(name: &str, text: &str) -> Vec<String> {
        let mut words = Vec::new();
        PreTokenizer::new(name).unwrap().split(text, &mut |w| words.push(w.to_owned()));
        words
    }

    #[test]
    fn every_rule_compiles_and_loses_nothing() {
        let text = "Hello  world!\r\n\n \t x1234 don't CamelCase 苹果\u{3000}é\u{301} <a|b> \n ";
        for name in pre_names::known_names().split(", ") {
            assert_eq!(words(name, text).concat(), text, "{name}");
            assert!(words(name, "").iter().all(String::is_empty), "{name}");
        }
    }

    /// Held against the rules as the models have them, look-ahead and all: see `make_cuts.py`.
    #[test]
    fn texts_are_cut_as_by_the_rules_with_look_ahead() {
        let data = include_str!("../../tests/data/tokenizers/cuts.json");
        let data: serde_json::Value = serde_json::from_str(data).unwrap();
        let texts: Vec<_> =
            data["texts"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
        for (name, cuts) in data["lengths"].as_object().unwrap() {
            let pre = PreTokenizer::new(name).unwrap();
            for (text, wanted) in texts.iter().zip(cuts.as_array().unwrap()) {
                let mut found = Vec::new();
                pre.split(text, &mut |word| found.push(word.chars().count()));
                assert_eq!(serde_json::json!(found), *wanted, "{name}: {text:?}");
            }
        }
    }

    #[test]
    fn white_space_gives_its_last_character_to_the_next_word() {
        assert_eq!(words("gpt-2", "a   b"), ["a", "  ", " b"]);
        assert_eq!(words("gpt-2", "a \n\nb  "), ["a", " \n", "\n", "b", "  "]);
        assert_eq!(words("gpt-2", "a\nb"), ["a", "\n", "b"]);
        assert_eq!(words("llama-bpe", "a \n\nb"), ["a", " \n\n", "b"]);
        assert_eq!(words("llama-bpe", "a\t\tb"), ["a", "\t", "\tb"]);
        assert_eq!(words("qwen2", "a\n  b"), ["a", "\n", " ", " b"]);
    }

    #[test]
    fn numbers_are_cut_as_the_model_wants() {
        assert_eq!(words("llama3", "12345"), ["123", "45"]);
        assert_eq!(words("qwen2", "123"), ["1", "2", "3"]);
        assert_eq!(words("smollm", "a 12"), ["a", " ", "1", "2"]);
        assert_eq!(words("gpt-2", "a 12"), ["a", " 12"]);
    }

    #[test]
    fn words_of_one_case() {
        assert_eq!(words("gpt-4o", "CamelCaseXMLDon't"), ["Camel", "Case", "XMLDon't"]);
        assert_eq!(words("tekken", "Don't"), ["Don", "'t"]);
    }

    #[test]
    fn digits_are_cut_into_threes_from_the_right() {
        assert_eq!(words("superbpe", "ab1234567 x"), ["ab", "1", "234", "567", " x"]);
        assert_eq!(words("superbpe", "123"), ["123"]);
        assert_eq!(words("afmoe", "ab1234cd"), ["ab", "1", "234", "cd"]);
        assert_eq!(words("tiny_aya", "1234.5678x"), ["1", "234", ".", "567", "8", "x"]);
        assert_eq!(words("spark2_5", "1234"), ["1", "2", "3", "4"]);
    }

    #[test]
    fn white_space_in_runs_of_powers_of_two() {
        let lengths =
            |text: &str| words("jais-2", text).iter().map(String::len).collect::<Vec<_>>();
        assert_eq!(lengths(&format!("a{}b", " ".repeat(8))), [1, 4, 2, 1, 2]);
        assert_eq!(lengths(&" ".repeat(9)), [8, 1]);
        assert_eq!(lengths("a 1"), [1, 1, 1]);
        assert_eq!(lengths("a  \n b"), [1, 3, 2]);
    }

    #[test]
    fn scripts_without_spaces_are_cut_off() {
        assert_eq!(
            words("kimi-k2", "abc苹果x'll 12345"),
            ["abc", "苹果", "x'll", " ", "123", "45"]
        );
        assert_eq!(words("youtu", "苹果，好 don't"), ["苹果", "，", "好", " don't"]);
        assert_eq!(words("gemma4", "a b\n\nc"), ["a b", "\n\n", "c"]);
        assert_eq!(words("ufakzeka", "İstanbul'da"), ["İstanbul", "'da"]);
    }

    #[test]
    fn classes_are_those_of_unicode_15_1() {
        // U+1C89, a letter since 16.0, is no letter to the vocabularies there are.
        assert_eq!(words("qwen2", "a\u{1c89}b"), ["a", "\u{1c89}b"]);
        // U+2EBF0 is one since 15.1.
        assert_eq!(words("qwen2", "a\u{2ebf0}b"), ["a\u{2ebf0}b"]);
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let message = PreTokenizer::new("nope").unwrap_err().to_string();
        assert!(message.contains("\"nope\"") && message.contains("llama-bpe"), "{message}");
    }
}
