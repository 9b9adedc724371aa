//! Cuts a grammar into lexemes: the largest regular parts, but for those that have to be split.

use std::collections::{HashMap, VecDeque};
use std::ops::RangeInclusive;
use std::rc::Rc;

use super::{Class, Node, Part, Rules, invalid};
use crate::grammar::GrammarError;

/// Characters that a lexeme is made of, repetitions written out; a larger part is several.
const LEXEME_SIZE_MAX: usize = 2000;
/// Levels of a lexeme's expression.
const LEXEME_DEPTH_MAX: usize = 100;
/// Rules of a grammar.
const RULES_MAX: usize = 4096;

/// A regular expression, of characters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Regex {
    Class(Class),
    All(Vec<Rc<Regex>>),
    Any(Vec<Rc<Regex>>),
    Repeat(Rc<Regex>, u32, Option<u32>),
}

/// What the parser sees as one.
#[derive(Clone, Debug)]
pub(super) struct Atom {
    pub text: Text,
    /// The part to split where it takes too much.
    pub part: usize,
}

#[derive(Clone, Debug)]
pub(super) enum Text {
    Lexeme(Rc<Regex>),
    Tokens(Vec<RangeInclusive<u32>>),
}

/// A rule's body, over atoms.
#[derive(Clone, Debug)]
pub(super) enum Expr {
    Atom(usize),
    Rule(usize),
    All(Vec<Expr>),
    Any(Vec<Expr>),
    Repeat(Box<Expr>, u32, Option<u32>),
}

/// A grammar over atoms.
#[derive(Debug, Default)]
pub(super) struct Lowered {
    /// The first is the root.
    pub rules: Vec<Expr>,
    pub atoms: Vec<Atom>,
}

/// What is known of a regular part.
#[derive(Clone, Copy, Debug)]
struct Measure {
    size: usize,
    depth: usize,
}

/// Which rules can be parts of lexemes.
#[derive(Debug)]
pub(super) struct Traits {
    rules: Vec<Option<Measure>>,
}

impl Traits {
    /// A rule is regular if it is made of characters and of regular rules, and not too large.
    pub(super) fn of(rules: &Rules) -> Self {
        let mut named_in = vec![Vec::new(); rules.bodies.len()];
        let mut open: Vec<usize> = Vec::with_capacity(rules.bodies.len());
        for (number, body) in rules.bodies.iter().enumerate() {
            let mut named = Vec::new();
            names(body, &mut named);
            named.sort_unstable();
            named.dedup();
            open.push(named.len());
            named.into_iter().for_each(|name| named_in[name].push(number));
        }
        let mut traits = Self { rules: vec![None; rules.bodies.len()] };
        let mut ready: VecDeque<usize> = (0..open.len()).filter(|rule| open[*rule] == 0).collect();
        while let Some(rule) = ready.pop_front() {
            traits.rules[rule] = traits.measure(&rules.bodies[rule]);
            if traits.rules[rule].is_none() {
                continue;
            }
            for user in &named_in[rule] {
                open[*user] -= 1;
                if open[*user] == 0 {
                    ready.push_back(*user);
                }
            }
        }
        traits
    }

    fn measure(&self, part: &Part) -> Option<Measure> {
        let measure = match &part.node {
            Node::Class(_) => Measure { size: 1, depth: 1 },
            Node::Tokens(_) => return None,
            Node::Rule(rule) => self.rules[*rule]?,
            Node::All(parts) | Node::Any(parts) => {
                let mut sum = Measure { size: 1, depth: 0 };
                for part in parts {
                    let measure = self.measure(part)?;
                    sum.size += measure.size;
                    sum.depth = sum.depth.max(measure.depth);
                }
                sum
            }
            Node::Repeat(part, least, most) => {
                let measure = self.measure(part)?;
                let times = most.unwrap_or(least + 1).max(1) as usize;
                Measure { size: measure.size.saturating_mul(times), ..measure }
            }
        };
        let measure = Measure { depth: measure.depth + 1, ..measure };
        let fits = measure.size <= LEXEME_SIZE_MAX && measure.depth <= LEXEME_DEPTH_MAX;
        fits.then_some(measure)
    }
}

fn names(part: &Part, out: &mut Vec<usize>) {
    match &part.node {
        Node::Class(_) | Node::Tokens(_) => {}
        Node::Rule(rule) => out.push(*rule),
        Node::All(parts) | Node::Any(parts) => parts.iter().for_each(|part| names(part, out)),
        Node::Repeat(part, ..) => names(part, out),
    }
}

/// Cuts a grammar; `split` has the parts that must not become lexemes as they stand.
pub(super) fn lower(
    rules: &Rules,
    traits: &Traits,
    split: &[bool],
) -> Result<Lowered, GrammarError> {
    let mut lowering = Lowering {
        rules,
        traits,
        split,
        out: Lowered::default(),
        numbers: HashMap::new(),
        pending: VecDeque::new(),
        regexes: HashMap::new(),
    };
    lowering.number_of(rules.root);
    while let Some(rule) = lowering.pending.pop_front() {
        let body = lowering.expr(&rules.bodies[rule]);
        lowering.out.rules.push(body);
        if lowering.numbers.len() > RULES_MAX {
            return Err(invalid(format!("it has more than {RULES_MAX} rules")));
        }
    }
    Ok(lowering.out)
}

struct Lowering<'a> {
    rules: &'a Rules,
    traits: &'a Traits,
    split: &'a [bool],
    out: Lowered,
    /// New numbers of the rules that are rules still.
    numbers: HashMap<usize, usize>,
    pending: VecDeque<usize>,
    /// Expressions of rules that are parts of lexemes.
    regexes: HashMap<usize, Rc<Regex>>,
}

impl Lowering<'_> {
    fn number_of(&mut self, rule: usize) -> usize {
        let next = self.numbers.len();
        let number = *self.numbers.entry(rule).or_insert(next);
        if number == next {
            self.pending.push_back(rule);
        }
        number
    }

    fn is_whole(&self, part: &Part) -> bool {
        !self.split[part.id] && self.traits.measure(part).is_some()
    }

    fn atom(&mut self, text: Text, part: usize) -> Expr {
        self.out.atoms.push(Atom { text, part });
        Expr::Atom(self.out.atoms.len() - 1)
    }

    fn expr(&mut self, part: &Part) -> Expr {
        if matches!(&part.node, Node::All(parts) if parts.is_empty()) {
            return Expr::All(Vec::new());
        }
        let is_class = matches!(part.node, Node::Class(_));
        if is_class || self.is_whole(part) {
            let regex = self.regex(part);
            return self.atom(Text::Lexeme(regex), part.id);
        }
        match &part.node {
            Node::Class(_) => unreachable!("a class is a lexeme"),
            Node::Tokens(ranges) => self.atom(Text::Tokens(ranges.clone()), part.id),
            Node::Rule(rule) => Expr::Rule(self.number_of(*rule)),
            Node::All(parts) => Expr::All(self.sequence(part.id, parts)),
            Node::Any(parts) => Expr::Any(parts.iter().map(|part| self.expr(part)).collect()),
            Node::Repeat(part, least, most) => {
                Expr::Repeat(Box::new(self.expr(part)), *least, *most)
            }
        }
    }

    /// Parts one behind the other; neighbours that are regular are one lexeme.
    fn sequence(&mut self, id: usize, parts: &[Part]) -> Vec<Expr> {
        let mut out = Vec::new();
        let mut rest = parts;
        while let Some(first) = rest.first() {
            let run = rest.iter().take_while(|part| self.is_whole(part)).count();
            let run = self.fitting(&rest[..run]);
            if run < 2 || self.split[id] {
                out.push(self.expr(first));
                rest = &rest[1..];
                continue;
            }
            let regexes = rest[..run].iter().map(|part| self.regex(part)).collect();
            out.push(self.atom(Text::Lexeme(Rc::new(Regex::All(regexes))), id));
            rest = &rest[run..];
        }
        out
    }

    /// How many of these parts are not too many for one lexeme.
    fn fitting(&self, parts: &[Part]) -> usize {
        let mut size = 0_usize;
        let fits = |part: &&Part| {
            size += self.traits.measure(part).map_or(0, |measure| measure.size);
            size < LEXEME_SIZE_MAX
        };
        parts.iter().take_while(fits).count()
    }

    fn regex(&mut self, part: &Part) -> Rc<Regex> {
        let all = |lowering: &mut Self, parts: &[Part]| -> Vec<Rc<Regex>> {
            parts.iter().map(|part| lowering.regex(part)).collect()
        };
        match &part.node {
            Node::Class(class) => Rc::new(Regex::Class(class.clone())),
            Node::Tokens(_) => unreachable!("tokens are in no lexeme"),
            Node::Rule(rule) => {
                if let Some(known) = self.regexes.get(rule) {
                    return Rc::clone(known);
                }
                let rules = self.rules;
                let regex = self.regex(&rules.bodies[*rule]);
                self.regexes.insert(*rule, Rc::clone(&regex));
                regex
            }
            Node::All(parts) => Rc::new(Regex::All(all(self, parts))),
            Node::Any(parts) => Rc::new(Regex::Any(all(self, parts))),
            Node::Repeat(part, least, most) => {
                Rc::new(Regex::Repeat(self.regex(part), *least, *most))
            }
        }
    }
}
