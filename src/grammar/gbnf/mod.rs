//! GBNF, llama.cpp's form of BNF, made to a Lark grammar.
//!
//! GBNF has no lexer: `ws ::= [ \t\n]*` may leave a line break to the rule behind it. Lark has one,
//! and a lexeme takes as much as it can. So `lower` makes lexemes of the largest parts that are
//! regular, `conflicts` finds those that could take what belongs to whatever follows, and these are
//! split, down to single characters where need be.

mod automaton;
mod conflicts;
mod emit;
mod lower;
mod parse;

use std::ops::RangeInclusive;

use super::GrammarError;
use crate::tokenizer::Tokenizer;

const KIND: &str = "GBNF grammar";

fn invalid(message: impl Into<String>) -> GrammarError {
    GrammarError::Invalid { kind: KIND, message: message.into() }
}

/// Code points, in ranges that ascend and do not touch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Class(Vec<RangeInclusive<u32>>);

const CODE_POINT_MAX: u32 = 0x10_ffff;
const SURROGATES: RangeInclusive<u32> = 0xd800..=0xdfff;

impl Class {
    fn of(ranges: impl IntoIterator<Item = RangeInclusive<u32>>) -> Self {
        let mut ranges: Vec<_> = ranges.into_iter().filter(|range| !range.is_empty()).collect();
        ranges.sort_by_key(|range| *range.start());
        let mut merged: Vec<RangeInclusive<u32>> = Vec::new();
        for range in ranges {
            match merged.last_mut() {
                Some(last) if *range.start() <= last.end().saturating_add(1) => {
                    *last = *last.start()..=(*last.end()).max(*range.end());
                }
                _ => merged.push(range),
            }
        }
        Self(merged)
    }

    fn any() -> Self {
        Self(vec![0..=SURROGATES.start() - 1, SURROGATES.end() + 1..=CODE_POINT_MAX])
    }

    fn negated(&self) -> Self {
        let mut out = Vec::new();
        let mut from = 0;
        for range in &self.0 {
            if *range.start() > from {
                out.push(from..=range.start() - 1);
            }
            from = range.end() + 1;
        }
        out.push(from..=CODE_POINT_MAX);
        Self::of(out).without_surrogates()
    }

    fn without_surrogates(self) -> Self {
        let cut = |range: RangeInclusive<u32>| {
            let (start, end) = range.into_inner();
            [start..=end.min(SURROGATES.start() - 1), start.max(SURROGATES.end() + 1)..=end]
        };
        Self::of(self.0.into_iter().flat_map(cut))
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn meets(&self, other: &Self) -> bool {
        let (mut a, mut b) = (self.0.iter().peekable(), other.0.iter().peekable());
        while let (Some(x), Some(y)) = (a.peek(), b.peek()) {
            if x.start() <= y.end() && y.start() <= x.end() {
                return true;
            }
            if x.end() < y.end() {
                a.next()
            } else {
                b.next()
            };
        }
        false
    }
}

/// A part of a grammar.
#[derive(Clone, Debug)]
enum Node {
    Class(Class),
    /// One of these tokens, whatever their text.
    Tokens(Vec<RangeInclusive<u32>>),
    Rule(usize),
    All(Vec<Part>),
    Any(Vec<Part>),
    /// At least, and at most.
    Repeat(Box<Part>, u32, Option<u32>),
}

/// A node and its number, by which what is found out about it is kept.
#[derive(Clone, Debug)]
struct Part {
    id: usize,
    node: Node,
}

/// A grammar whose rules all exist.
#[derive(Debug)]
struct Rules {
    bodies: Vec<Part>,
    root: usize,
    /// How many parts there are.
    parts: usize,
}

/// The grammar in Lark, from this rule on.
pub(super) fn to_lark(
    text: &str,
    root: &str,
    tokenizer: &Tokenizer,
) -> Result<String, GrammarError> {
    let rules = parse::parse(text, root, tokenizer)?;
    let traits = lower::Traits::of(&rules);
    let mut split = vec![false; rules.parts];
    loop {
        let lowered = lower::lower(&rules, &traits, &split)?;
        let found = conflicts::find(&lowered)?;
        if found.is_empty() {
            return Ok(emit::emit(&lowered));
        }
        for part in found {
            split[part] = true;
        }
    }
}
