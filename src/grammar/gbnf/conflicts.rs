//! Finds lexemes that would take what belongs to whatever follows.
//!
//! The lexer reads on as long as some lexeme that is allowed at its beginning can go on. That is
//! wrong where another one, or the same, has just ended and the next character may begin what
//! follows it. So: which atoms may follow which, which may be allowed at the same place, and by
//! which characters they go on.

use std::collections::HashMap;
use std::rc::Rc;

use super::automaton::{Automaton, Meeting, meet};
use super::lower::{Expr, Lowered, Regex, Text};
use super::{Class, invalid};
use crate::grammar::GrammarError;

/// Atoms of a grammar.
const ATOMS_MAX: usize = 6000;
/// Steps of all that is computed here, a second or so.
const FUEL: u64 = 100_000_000;

/// Parts that have to be split; none if all is well.
pub(super) fn find(lowered: &Lowered) -> Result<Vec<usize>, GrammarError> {
    if lowered.atoms.len() > ATOMS_MAX {
        return Err(too_complex());
    }
    let mut analysis = Analysis::new(lowered);
    analysis.find_followers()?;
    analysis.find_conflicts()
}

fn too_complex() -> GrammarError {
    invalid("it is too large")
}

/// A set of atoms.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Set(Vec<u64>);

impl Set {
    fn new(size: usize) -> Self {
        Self(vec![0; size.div_ceil(64)])
    }

    fn insert(&mut self, at: usize) -> bool {
        let (word, bit) = (&mut self.0[at / 64], 1 << (at % 64));
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    /// True if that made it larger.
    fn add(&mut self, other: &Self) -> bool {
        let mut grew = false;
        for (word, more) in self.0.iter_mut().zip(&other.0) {
            grew |= *more & !*word != 0;
            *word |= more;
        }
        grew
    }

    fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().enumerate().flat_map(|(at, word)| {
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| at * 64 + bit)
        })
    }
}

/// What a part may begin with.
#[derive(Clone, Debug)]
struct First {
    atoms: Set,
    nullable: bool,
}

struct Analysis<'a> {
    lowered: &'a Lowered,
    /// Number of each atom's automaton; none for tokens.
    automaton_of: Vec<Option<usize>>,
    automata: Vec<Automaton>,
    /// Of each rule.
    first: Vec<First>,
    behind_rule: Vec<Set>,
    /// Of each atom.
    behind: Vec<Set>,
    meetings: HashMap<(usize, usize), Meeting>,
    fuel: u64,
}

impl<'a> Analysis<'a> {
    fn new(lowered: &'a Lowered) -> Self {
        let size = lowered.atoms.len();
        let mut numbers: HashMap<Rc<Regex>, usize> = HashMap::new();
        let mut automata = Vec::new();
        let automaton_of = lowered.atoms.iter().map(|atom| match &atom.text {
            Text::Lexeme(regex) => Some(*numbers.entry(Rc::clone(regex)).or_insert_with(|| {
                automata.push(Automaton::of(regex));
                automata.len() - 1
            })),
            Text::Tokens(_) => None,
        });
        let automaton_of = automaton_of.collect();
        let rules = lowered.rules.len();
        Self {
            lowered,
            automaton_of,
            automata,
            first: vec![First { atoms: Set::new(size), nullable: false }; rules],
            behind_rule: vec![Set::new(size); rules],
            behind: vec![Set::new(size); size],
            meetings: HashMap::new(),
            fuel: FUEL,
        }
    }

    fn spend(&mut self, amount: usize) -> Result<(), GrammarError> {
        self.fuel = self.fuel.checked_sub(amount as u64).ok_or_else(too_complex)?;
        Ok(())
    }

    fn set(&self) -> Set {
        Set::new(self.lowered.atoms.len())
    }

    fn first_of(&mut self, expr: &Expr) -> Result<First, GrammarError> {
        self.spend(1 + self.lowered.atoms.len() / 64)?;
        Ok(match expr {
            Expr::Atom(at) => {
                let mut atoms = self.set();
                atoms.insert(*at);
                let automaton = self.automaton_of[*at].map(|number| &self.automata[number]);
                First { atoms, nullable: automaton.is_some_and(|automaton| automaton.nullable) }
            }
            Expr::Rule(rule) => self.first[*rule].clone(),
            Expr::All(parts) => {
                let mut first = First { atoms: self.set(), nullable: true };
                for part in parts {
                    let more = self.first_of(part)?;
                    first.atoms.add(&more.atoms);
                    first.nullable = more.nullable;
                    if !more.nullable {
                        break;
                    }
                }
                first
            }
            Expr::Any(parts) => {
                let mut first = First { atoms: self.set(), nullable: false };
                for part in parts {
                    let more = self.first_of(part)?;
                    first.atoms.add(&more.atoms);
                    first.nullable |= more.nullable;
                }
                first
            }
            Expr::Repeat(part, least, _) => {
                let first = self.first_of(part)?;
                First { nullable: first.nullable || *least == 0, ..first }
            }
        })
    }

    fn find_followers(&mut self) -> Result<(), GrammarError> {
        let lowered = self.lowered;
        let mut grows = true;
        while grows {
            grows = false;
            for (number, body) in lowered.rules.iter().enumerate() {
                let first = self.first_of(body)?;
                let known = &mut self.first[number];
                grows |= known.nullable != first.nullable;
                known.nullable |= first.nullable;
                grows |= known.atoms.add(&first.atoms);
            }
        }
        grows = true;
        while grows {
            grows = false;
            for (number, body) in lowered.rules.iter().enumerate() {
                let after = self.behind_rule[number].clone();
                grows |= self.follow(body, &after)?;
            }
        }
        Ok(())
    }

    /// Notes what may come behind the atoms and rules of a part that `after` may come behind;
    /// whether anything of it is new for a rule.
    fn follow(&mut self, expr: &Expr, after: &Set) -> Result<bool, GrammarError> {
        self.spend(1 + self.lowered.atoms.len() / 64)?;
        Ok(match expr {
            Expr::Atom(at) => {
                self.behind[*at].add(after);
                false
            }
            Expr::Rule(rule) => self.behind_rule[*rule].add(after),
            Expr::All(parts) => {
                let mut after = after.clone();
                let mut grew = false;
                for part in parts.iter().rev() {
                    grew |= self.follow(part, &after)?;
                    let first = self.first_of(part)?;
                    if first.nullable {
                        after.add(&first.atoms);
                    } else {
                        after = first.atoms;
                    }
                }
                grew
            }
            Expr::Any(parts) => {
                let mut grew = false;
                for part in parts {
                    grew |= self.follow(part, after)?;
                }
                grew
            }
            Expr::Repeat(part, _, most) => {
                let mut after = after.clone();
                if most.is_none_or(|most| most > 1) {
                    after.add(&self.first_of(part)?.atoms);
                }
                self.follow(part, &after)?
            }
        })
    }

    /// Characters that may come behind each atom.
    fn characters_behind(&mut self) -> Result<Vec<Class>, GrammarError> {
        let mut all = Vec::with_capacity(self.behind.len());
        for at in 0..self.behind.len() {
            let mut numbers: Vec<usize> =
                self.behind[at].iter().filter_map(|atom| self.automaton_of[atom]).collect();
            numbers.sort_unstable();
            numbers.dedup();
            self.spend(1 + numbers.len())?;
            let classes = numbers.into_iter().flat_map(|n| self.automata[n].first_class().0);
            all.push(Class::of(classes));
        }
        Ok(all)
    }

    /// Goes through all pairs of atoms that may be allowed at the same place.
    fn find_conflicts(&mut self) -> Result<Vec<usize>, GrammarError> {
        let behind = self.characters_behind()?;
        let size = self.lowered.atoms.len();
        let mut seen = Set::new(size * size);
        let mut open: Vec<(usize, usize)> = Vec::new();
        let root = self.first[0].atoms.clone();
        self.add_pairs(&root, &root, &mut seen, &mut open)?;
        let mut split = Vec::new();
        while let Some((a, b)) = open.pop() {
            let common = match (self.automaton_of[a], self.automaton_of[b]) {
                (Some(x), Some(y)) => {
                    let meeting = self.meeting(x, y)?;
                    if meeting.first_goes_on.meets(&behind[b]) {
                        split.push(self.lowered.atoms[a].part);
                    }
                    if meeting.second_goes_on.meets(&behind[a]) {
                        split.push(self.lowered.atoms[b].part);
                    }
                    meeting.common
                }
                (None, None) => true,
                _ => false,
            };
            if common {
                let (a, b) = (self.behind[a].clone(), self.behind[b].clone());
                self.add_pairs(&a, &b, &mut seen, &mut open)?;
            }
        }
        split.sort_unstable();
        split.dedup();
        Ok(split)
    }

    fn add_pairs(
        &mut self,
        a: &Set,
        b: &Set,
        seen: &mut Set,
        open: &mut Vec<(usize, usize)>,
    ) -> Result<(), GrammarError> {
        let size = self.lowered.atoms.len();
        for x in a.iter() {
            self.spend(1)?;
            for y in b.iter() {
                self.spend(1)?;
                let (x, y) = (x.min(y), x.max(y));
                if seen.insert(x * size + y) {
                    open.push((x, y));
                }
            }
        }
        Ok(())
    }

    fn meeting(&mut self, x: usize, y: usize) -> Result<Meeting, GrammarError> {
        if let Some(known) = self.meetings.get(&(x, y)) {
            return Ok(known.clone());
        }
        let met = meet(&self.automata[x], &self.automata[y], &mut self.fuel);
        let met = met.ok_or_else(too_complex)?;
        self.meetings.insert((x, y), met.clone());
        Ok(met)
    }
}
