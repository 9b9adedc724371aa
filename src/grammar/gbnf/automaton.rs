//! Position automata of regular expressions, and what two of them have in common.

use std::collections::HashSet;

use super::Class;
use super::lower::Regex;

/// A position is a class of characters in the expression; a word is a walk over positions.
#[derive(Debug, Default)]
pub(super) struct Automaton {
    pub classes: Vec<Class>,
    /// Positions that a word may begin with.
    pub first: Vec<usize>,
    /// Positions that it may go on with.
    pub next: Vec<Vec<usize>>,
    /// Whether it may end there.
    pub ends: Vec<bool>,
    pub nullable: bool,
}

/// A part of the expression, while the automaton is built.
struct Piece {
    first: Vec<usize>,
    last: Vec<usize>,
    nullable: bool,
}

impl Automaton {
    pub(super) fn of(regex: &Regex) -> Self {
        let mut automaton = Self::default();
        let whole = automaton.piece(regex);
        automaton.ends = vec![false; automaton.classes.len()];
        whole.last.iter().for_each(|last| automaton.ends[*last] = true);
        automaton.first = whole.first;
        automaton.nullable = whole.nullable;
        for next in &mut automaton.next {
            next.sort_unstable();
            next.dedup();
        }
        automaton
    }

    /// All characters that a word may begin with.
    pub(super) fn first_class(&self) -> Class {
        let ranges = self.first.iter().flat_map(|at| self.classes[*at].0.iter().cloned());
        Class::of(ranges)
    }

    fn piece(&mut self, regex: &Regex) -> Piece {
        match regex {
            Regex::Class(class) => {
                let at = self.classes.len();
                self.classes.push(class.clone());
                self.next.push(Vec::new());
                Piece { first: vec![at], last: vec![at], nullable: false }
            }
            Regex::All(parts) => {
                let mut whole = Piece { first: Vec::new(), last: Vec::new(), nullable: true };
                for part in parts {
                    let piece = self.piece(part);
                    whole = self.joined(whole, piece);
                }
                whole
            }
            Regex::Any(parts) => {
                let mut whole = Piece { first: Vec::new(), last: Vec::new(), nullable: false };
                for part in parts {
                    let piece = self.piece(part);
                    whole.first.extend(piece.first);
                    whole.last.extend(piece.last);
                    whole.nullable |= piece.nullable;
                }
                whole
            }
            Regex::Repeat(part, least, most) => self.repeated(part, *least, *most),
        }
    }

    fn joined(&mut self, a: Piece, b: Piece) -> Piece {
        for last in &a.last {
            self.next[*last].extend(&b.first);
        }
        let mut first = a.first;
        if a.nullable {
            first.extend(b.first);
        }
        let mut last = b.last;
        if b.nullable {
            last.extend(a.last);
        }
        Piece { first, last, nullable: a.nullable && b.nullable }
    }

    fn repeated(&mut self, part: &Regex, least: u32, most: Option<u32>) -> Piece {
        let none = || Piece { first: Vec::new(), last: Vec::new(), nullable: true };
        // From behind: a part that may be left out, and more of them within it.
        let mut tail = match most {
            Some(_) => none(),
            None => {
                let mut piece = self.piece(part);
                for last in &piece.last {
                    self.next[*last].extend(&piece.first);
                }
                piece.nullable = true;
                piece
            }
        };
        let optional = most.map_or(0, |most| most - least);
        for times in (0..least + optional).rev() {
            let piece = self.piece(part);
            tail = self.joined(piece, tail);
            tail.nullable |= times >= least;
        }
        tail
    }
}

/// How two lexemes that may begin at the same place get in each other's way.
#[derive(Clone, Debug)]
pub(super) struct Meeting {
    /// There is a word of both.
    pub common: bool,
    /// Characters by which the first goes on behind a word of the second.
    pub first_goes_on: Class,
    /// Characters by which the second goes on behind a word of the first.
    pub second_goes_on: Class,
}

/// Walks both at once; `fuel` is what it may cost.
pub(super) fn meet(a: &Automaton, b: &Automaton, fuel: &mut u64) -> Option<Meeting> {
    let mut seen = HashSet::new();
    let mut open = Vec::new();
    let mut reach = |from: (&[usize], &[usize]), open: &mut Vec<(usize, usize)>| {
        for x in from.0 {
            for y in from.1 {
                *fuel = fuel.checked_sub(1)?;
                if a.classes[*x].meets(&b.classes[*y]) && seen.insert((*x, *y)) {
                    open.push((*x, *y));
                }
            }
        }
        Some(())
    };
    reach((&a.first, &b.first), &mut open)?;
    let (mut first, mut second, mut common) = (Vec::new(), Vec::new(), false);
    while let Some((x, y)) = open.pop() {
        common |= a.ends[x] && b.ends[y];
        if b.ends[y] {
            first.extend(&a.next[x]);
        }
        if a.ends[x] {
            second.extend(&b.next[y]);
        }
        reach((&a.next[x], &b.next[y]), &mut open)?;
    }
    let class = |automaton: &Automaton, mut positions: Vec<usize>| {
        positions.sort_unstable();
        positions.dedup();
        Class::of(positions.into_iter().flat_map(|at| automaton.classes[at].0.clone()))
    };
    Some(Meeting { common, first_goes_on: class(a, first), second_goes_on: class(b, second) })
}
