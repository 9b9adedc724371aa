//! What a model wrote and the parser has not taken yet, with the places of special tokens.

use std::collections::VecDeque;

/// Longest mark.
const MARK_BYTES_MAX: usize = 64;

/// Text to parse.
#[derive(Clone, Debug, Default)]
pub(super) struct Input {
    text: String,
    /// Where `text` is read.
    at: usize,
    /// Bytes of a character that is not whole.
    bytes: Vec<u8>,
    /// Where special tokens begin in `text`.
    special: VecDeque<usize>,
    /// True if nothing follows.
    pub(super) ended: bool,
}

/// What a search for marks found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The mark of this number, so many bytes ahead.
    Mark(usize, usize),
    /// None; so many bytes are before anything that may become one.
    Safe(usize),
}

impl Input {
    pub(super) fn push(&mut self, bytes: &[u8], special: bool) {
        if self.at > 4096 && self.at * 2 > self.text.len() {
            self.text.drain(..self.at);
            self.special.retain_mut(|place| {
                let kept = *place >= self.at;
                *place = place.saturating_sub(self.at);
                kept
            });
            self.at = 0;
        }
        if special {
            self.special.push_back(self.text.len());
        }
        self.bytes.extend_from_slice(bytes);
        loop {
            match std::str::from_utf8(&self.bytes) {
                Ok(text) => {
                    self.text.push_str(text);
                    self.bytes.clear();
                    return;
                }
                Err(error) => {
                    let whole = error.valid_up_to();
                    let text = String::from_utf8_lossy(&self.bytes[..whole]).into_owned();
                    self.text.push_str(&text);
                    let Some(wrong) = error.error_len() else {
                        self.bytes.drain(..whole);
                        return;
                    };
                    self.text.push(char::REPLACEMENT_CHARACTER);
                    self.bytes.drain(..whole + wrong);
                }
            }
        }
    }

    pub(super) fn end(&mut self) {
        if !std::mem::take(&mut self.bytes).is_empty() {
            self.text.push(char::REPLACEMENT_CHARACTER);
        }
        self.ended = true;
    }

    pub(super) fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    pub(super) fn is_empty(&self) -> bool {
        self.at == self.text.len()
    }

    /// Takes so many bytes.
    pub(super) fn take(&mut self, bytes: usize) -> String {
        let text = self.rest()[..bytes].to_owned();
        self.at += bytes;
        while self.special.front().is_some_and(|place| *place < self.at) {
            self.special.pop_front();
        }
        text
    }

    /// Skips white space; true if something else follows.
    pub(super) fn skip_white(&mut self, also: &[char]) -> bool {
        let rest = self.rest();
        let skipped = rest.len()
            - rest.trim_start_matches(|c: char| c.is_whitespace() || also.contains(&c)).len();
        self.take(skipped);
        !self.is_empty()
    }

    fn is_special(&self, ahead: usize) -> bool {
        self.special.contains(&(self.at + ahead))
    }

    /// True if the rest begins with a mark; none if more text is needed to tell.
    pub(super) fn begins(&self, mark: &str, marks: &Marks) -> Option<bool> {
        let rest = self.rest();
        if !marks.fits(mark, self.is_special(0)) && !rest.is_empty() {
            return Some(false);
        }
        if rest.starts_with(mark) {
            return Some(true);
        }
        if mark.starts_with(rest) && !self.ended { None } else { Some(false) }
    }

    /// Looks for the first of several marks. Of two at one place the longer one counts.
    pub(super) fn find(&self, wanted: &[&str], marks: &Marks) -> Found {
        let rest = self.rest();
        let mut best: Option<(usize, usize)> = None;
        for (number, mark) in wanted.iter().enumerate().filter(|(_, mark)| !mark.is_empty()) {
            let limit = best.map_or(rest.len(), |(at, _)| (at + mark.len()).min(rest.len()));
            let limit = (limit..=rest.len()).find(|at| rest.is_char_boundary(*at));
            let places = rest[..limit.unwrap_or(rest.len())].match_indices(mark);
            let mut places = places.filter(|(at, _)| marks.fits(mark, self.is_special(*at)));
            let Some((at, _)) = places.next() else { continue };
            let better = best.is_none_or(|(before, other)| {
                at < before || (at == before && mark.len() > wanted[other].len())
            });
            if better {
                best = Some((at, number));
            }
        }
        let safe = if self.ended { rest.len() } else { self.safe(wanted, marks) };
        match best {
            // A longer mark may begin there, or before.
            Some((at, number)) if at < safe => Found::Mark(number, at),
            _ => Found::Safe(safe),
        }
    }

    /// Bytes before anything that may become a mark.
    fn safe(&self, wanted: &[&str], marks: &Marks) -> usize {
        let rest = self.rest();
        let from = rest.len().saturating_sub(MARK_BYTES_MAX);
        let from = (from..=rest.len()).find(|at| rest.is_char_boundary(*at)).unwrap_or(rest.len());
        for (at, _) in rest[from..].char_indices() {
            let tail = &rest[from + at..];
            let special = self.is_special(from + at);
            let may_be = |mark: &&&str| {
                mark.len() > tail.len() && mark.starts_with(tail) && marks.fits(mark, special)
            };
            if wanted.iter().any(|mark| may_be(&mark)) {
                return from + at;
            }
        }
        rest.len()
    }
}

/// Which marks are special tokens.
#[derive(Clone, Debug, Default)]
pub(super) struct Marks(pub(super) Vec<String>);

impl Marks {
    /// True if a mark can begin where a special token does, or does not.
    fn fits(&self, mark: &str, at_special: bool) -> bool {
        let wants_special = self.0.iter().any(|special| mark.starts_with(special.as_str()));
        wants_special == at_special || (at_special && !wants_special)
    }
}
