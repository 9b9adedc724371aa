//! Reads GBNF: rules, texts, classes of characters, tokens, groups and repetitions.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use super::{Class, Node, Part, Rules, invalid};
use crate::grammar::{GrammarError, vocabulary};
use crate::tokenizer::Tokenizer;

/// Groups within one another.
const DEPTH_MAX: usize = 128;
/// Repetitions of a repetition.
const STACKED_MAX: usize = 8;
/// Repetitions that may be asked for, as in llama.cpp.
const REPEATS_MAX: u32 = 2000;

pub(super) fn parse(text: &str, root: &str, tokenizer: &Tokenizer) -> Result<Rules, GrammarError> {
    let mut parser = Parser {
        text,
        at: 0,
        depth: 0,
        tokenizer,
        numbers: HashMap::new(),
        names: Vec::new(),
        bodies: Vec::new(),
        parts: 0,
    };
    parser.skip(true);
    while parser.at < text.len() {
        parser.rule()?;
    }
    let Some(&root) = parser.numbers.get(root).filter(|number| parser.is_defined(**number)) else {
        return Err(invalid(format!("it has no rule {root:?}, with which it begins")));
    };
    let missing = (0..parser.names.len()).find(|number| !parser.is_defined(*number));
    if let Some(number) = missing {
        return Err(invalid(format!("it has no rule {:?}", parser.names[number])));
    }
    let Parser { bodies, parts, .. } = parser;
    Ok(Rules { bodies: bodies.into_iter().flatten().collect(), root, parts })
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    tokenizer: &'a Tokenizer,
    numbers: HashMap<&'a str, usize>,
    names: Vec<String>,
    bodies: Vec<Option<Part>>,
    parts: usize,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn take(&mut self, wanted: &str) -> bool {
        let found = self.rest().starts_with(wanted);
        self.at += if found { wanted.len() } else { 0 };
        found
    }

    fn next(&mut self) -> Result<char, GrammarError> {
        let c = self.peek().ok_or_else(|| self.error("it ends too early"))?;
        self.at += c.len_utf8();
        Ok(c)
    }

    fn error(&self, message: &str) -> GrammarError {
        let line = self.text[..self.at].matches('\n').count() + 1;
        let near: String = self.rest().chars().take(20).collect();
        invalid(format!("line {line}: {message}, at {near:?}"))
    }

    /// Skips blanks and remarks, and line breaks where these mean nothing.
    fn skip(&mut self, lines: bool) {
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' => self.at += 1,
                '\r' | '\n' if lines => self.at += 1,
                '#' => self.at += self.rest().find(['\r', '\n']).unwrap_or(self.rest().len()),
                _ => return,
            }
        }
    }

    fn part(&mut self, node: Node) -> Part {
        self.parts += 1;
        Part { id: self.parts - 1, node }
    }

    fn is_defined(&self, number: usize) -> bool {
        self.bodies[number].is_some()
    }

    fn name(&mut self) -> Option<&'a str> {
        let rest = self.rest();
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let name = &rest[..rest.find(|c| !is_part(c)).unwrap_or(rest.len())];
        self.at += name.len();
        (!name.is_empty()).then_some(name)
    }

    fn number_of(&mut self, name: &'a str) -> usize {
        let next = self.names.len();
        let number = *self.numbers.entry(name).or_insert(next);
        if number == next {
            self.names.push(name.to_owned());
            self.bodies.push(None);
        }
        number
    }

    fn rule(&mut self) -> Result<(), GrammarError> {
        let name = self.name().ok_or_else(|| self.error("wanted the name of a rule"))?;
        let number = self.number_of(name);
        self.skip(false);
        if !self.take("::=") {
            return Err(self.error("wanted ::="));
        }
        self.skip(true);
        let body = self.alternatives(false)?;
        self.bodies[number] = Some(body);
        if !matches!(self.peek(), None | Some('\r' | '\n')) {
            return Err(self.error("wanted the end of the rule"));
        }
        self.skip(true);
        Ok(())
    }

    fn alternatives(&mut self, nested: bool) -> Result<Part, GrammarError> {
        let mut all = vec![self.sequence(nested)?];
        while self.take("|") {
            self.skip(true);
            all.push(self.sequence(nested)?);
        }
        Ok(match all.len() {
            1 => all.remove(0),
            _ => self.part(Node::Any(all)),
        })
    }

    fn sequence(&mut self, nested: bool) -> Result<Part, GrammarError> {
        let mut parts = Vec::new();
        while let Some(mut part) = self.symbol()? {
            self.skip(nested);
            let mut stacked = 0;
            while let Some((least, most)) = self.repetition()? {
                stacked += 1;
                if stacked > STACKED_MAX {
                    return Err(self.error("too many repetitions of repetitions"));
                }
                part = self.part(Node::Repeat(Box::new(part), least, most));
                self.skip(nested);
            }
            parts.push(part);
        }
        Ok(match parts.len() {
            1 => parts.remove(0),
            _ => self.part(Node::All(parts)),
        })
    }

    fn symbol(&mut self) -> Result<Option<Part>, GrammarError> {
        let node = match self.peek() {
            Some('"') => {
                self.at += 1;
                let mut parts = Vec::new();
                while !self.take("\"") {
                    let c = self.character()?;
                    let class = Class::of([c..=c]).without_surrogates();
                    if class.is_empty() {
                        return Err(self.error("half a surrogate pair before this"));
                    }
                    parts.push(self.part(Node::Class(class)));
                }
                Node::All(parts)
            }
            Some('[') => {
                self.at += 1;
                Node::Class(self.class()?)
            }
            Some('.') => {
                self.at += 1;
                Node::Class(Class::any())
            }
            Some('<') => {
                let id = self.token()?;
                Node::Tokens(vec![id..=id])
            }
            Some('!') => {
                self.at += 1;
                Node::Tokens(self.tokens_but()?)
            }
            Some('(') => return self.group().map(Some),
            Some(c) if c.is_ascii_alphanumeric() || c == '-' || c == '_' => {
                let name = self.name().ok_or_else(|| self.error("wanted a name"))?;
                Node::Rule(self.number_of(name))
            }
            _ => return Ok(None),
        };
        Ok(Some(self.part(node)))
    }

    fn group(&mut self) -> Result<Part, GrammarError> {
        self.at += 1;
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(GrammarError::TooDeep { kind: super::KIND, limit: DEPTH_MAX });
        }
        self.skip(true);
        let inner = self.alternatives(true)?;
        if !self.take(")") {
            return Err(self.error("wanted )"));
        }
        self.depth -= 1;
        Ok(inner)
    }

    /// How often, at least and at most.
    fn repetition(&mut self) -> Result<Option<(u32, Option<u32>)>, GrammarError> {
        let bounds = match self.peek() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            Some('{') => {
                self.at += 1;
                return self.counted().map(Some);
            }
            _ => return Ok(None),
        };
        self.at += 1;
        Ok(Some(bounds))
    }

    fn counted(&mut self) -> Result<(u32, Option<u32>), GrammarError> {
        self.skip(true);
        let least = self.count()?;
        self.skip(true);
        let mut most = Some(least);
        if self.take(",") {
            self.skip(true);
            most = match self.peek() {
                Some('}') => None,
                _ => Some(self.count()?),
            };
            self.skip(true);
        }
        if !self.take("}") {
            return Err(self.error("wanted }"));
        }
        if most.is_some_and(|most| most < least) {
            return Err(self.error("wanted at most no less than at least"));
        }
        Ok((least, most))
    }

    fn count(&mut self) -> Result<u32, GrammarError> {
        let rest = self.rest();
        let digits = &rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())];
        let count = digits.parse().ok().filter(|count| *count <= REPEATS_MAX);
        let wanted = || self.error(&format!("wanted a number up to {REPEATS_MAX}"));
        let count = count.ok_or_else(wanted)?;
        self.at += digits.len();
        Ok(count)
    }

    fn class(&mut self) -> Result<Class, GrammarError> {
        let negated = self.take("^");
        let mut ranges = Vec::new();
        while !self.take("]") {
            let first = self.character()?;
            let is_range = self.rest().starts_with('-') && !self.rest().starts_with("-]");
            let last = match is_range {
                true => {
                    self.at += 1;
                    self.character()?
                }
                false => first,
            };
            if last < first {
                return Err(self.error("wanted a range that ascends"));
            }
            ranges.push(first..=last);
        }
        let class = Class::of(ranges).without_surrogates();
        let class = if negated { class.negated() } else { class };
        if class.is_empty() {
            return Err(self.error("an empty class of characters before this"));
        }
        Ok(class)
    }

    /// A code point, as it stands or escaped.
    fn character(&mut self) -> Result<u32, GrammarError> {
        let c = self.next()?;
        if c != '\\' {
            return Ok(c.into());
        }
        Ok(match self.next()? {
            'x' => self.hex(2)?,
            'u' => self.hex(4)?,
            'U' => self.hex(8)?,
            't' => '\t'.into(),
            'r' => '\r'.into(),
            'n' => '\n'.into(),
            c @ ('\\' | '"' | '[' | ']') => c.into(),
            _ => return Err(self.error("unknown escape before this")),
        })
    }

    fn hex(&mut self, digits: usize) -> Result<u32, GrammarError> {
        let found = self.rest().get(..digits);
        let found = found.filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
        let value = found.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        let value = value.filter(|value| *value <= super::CODE_POINT_MAX);
        let wanted = || self.error(&format!("wanted {digits} hexadecimal digits of a character"));
        let value = value.ok_or_else(wanted)?;
        self.at += digits;
        Ok(value)
    }
}

/// Tokens.
impl Parser<'_> {
    /// `<[10]>` or `<name>`.
    fn token(&mut self) -> Result<u32, GrammarError> {
        if !self.take("<") {
            return Err(self.error("wanted a token"));
        }
        let end = self.rest().find('>').ok_or_else(|| self.error("wanted > behind a token"))?;
        let name = &self.rest()[..end];
        let by_number = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        let found = match by_number {
            Some(number) => number.parse().ok().filter(|id| *id < self.vocab_size()),
            None => vocabulary::find(self.tokenizer, name),
        };
        let id = found.ok_or_else(|| self.error("the vocabulary has no such token"))?;
        self.at += end + 1;
        Ok(id)
    }

    fn vocab_size(&self) -> u32 {
        self.tokenizer.vocab_size() as u32
    }

    /// All tokens but one, and but those that end a text.
    fn tokens_but(&mut self) -> Result<Vec<RangeInclusive<u32>>, GrammarError> {
        let mut out = self.tokenizer.stop_ids().to_vec();
        out.push(self.token()?);
        out.sort_unstable();
        out.dedup();
        let mut ranges = Vec::new();
        let mut from = 0;
        for id in out {
            if id > from {
                ranges.push(from..=id - 1);
            }
            from = id + 1;
        }
        if from < self.vocab_size() {
            ranges.push(from..=self.vocab_size() - 1);
        }
        Ok(ranges)
    }
}
