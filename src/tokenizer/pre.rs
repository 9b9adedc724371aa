//! Cutting text into words before byte-pair merging.
//!
//! The models' rules end in `\s+(?!\S)|\s+`: white space leaves its last character to the word that
//! follows. The look-ahead needs a backtracking matcher, whose time has no linear bound and whose
//! step limit a megabyte of spaces exceeds. So the rules here end in plain `\s+`, matched in linear
//! time, and the last character is given back afterwards.

use regex::Regex;

use super::TokenizerError;
use super::pre_names::{self, PreRule};

/// Ready to cut text.
#[derive(Debug)]
pub(super) struct PreTokenizer {
    rule: &'static PreRule,
    stages: Vec<Stage>,
}

#[derive(Debug)]
struct Stage {
    regex: Regex,
    /// The rule ends in `\s+`, so that white space gives its last character back.
    gives_back: bool,
    /// The rule has `\s*[\r\n]` first, which takes white space up to a line end and keeps it.
    keeps_line_ends: bool,
}

impl PreTokenizer {
    /// The pre-tokenizer of that name in `tokenizer.ggml.pre`.
    pub(super) fn new(name: &str) -> Result<Self, TokenizerError> {
        let rule = pre_names::rule(name).ok_or_else(|| TokenizerError::UnknownPre {
            found: name.to_owned(),
            known: pre_names::known_names(),
        })?;
        let stages = rule.stages.iter().map(|pattern| Stage::new(pattern)).collect();
        Ok(Self { rule, stages })
    }

    /// A word that is a token as it stands is not merged.
    pub(super) fn ignore_merges(&self) -> bool {
        self.rule.ignore_merges
    }

    /// Whether BOS is added where the file does not say.
    pub(super) fn add_bos(&self) -> bool {
        self.rule.add_bos
    }

    /// Calls `word` with each word of `text`, in order; together they are the text.
    pub(super) fn split(&self, text: &str, word: &mut dyn FnMut(&str)) {
        split_stages(&self.stages, text, word);
    }
}

fn split_stages(stages: &[Stage], text: &str, word: &mut dyn FnMut(&str)) {
    match stages.split_first() {
        Some((first, rest)) => first.split(text, &mut |piece| split_stages(rest, piece, word)),
        None => word(text),
    }
}

impl Stage {
    fn new(pattern: &str) -> Self {
        Self {
            regex: Regex::new(pattern).expect("a test compiles every pattern of the table"),
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

    /// How much of a match is kept: all but a last white-space character that the next word takes.
    fn kept_bytes(&self, found: &str, at_end: bool) -> usize {
        if at_end || !self.gives_back || !found.ends_with(char::is_whitespace) {
            return found.len();
        }
        if self.keeps_line_ends && found.ends_with(['\r', '\n']) {
            return found.len();
        }
        let last = found.chars().next_back().map_or(0, char::len_utf8);
        if last == found.len() || !found.chars().all(char::is_whitespace) {
            return found.len();
        }
        found.len() - last
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
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let message = PreTokenizer::new("nope").unwrap_err().to_string();
        assert!(message.contains("\"nope\"") && message.contains("llama-bpe"), "{message}");
    }
}
