//! A bound on encoding a text: how many tokens are wanted, and whether anybody still waits for
//! them.

use super::TokenizerError;

/// Bytes between two looks at the flag.
const LOOK_BYTES: usize = 64 * 1024;

/// Why encoding stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    Cancelled,
    TooMany,
}

/// Counts what is done, and says when to stop.
pub struct Meter<'a> {
    cancelled: &'a dyn Fn() -> bool,
    tokens_max: usize,
    since_look: usize,
    stop: Option<Stop>,
}

impl<'a> Meter<'a> {
    /// Stops behind `tokens_max` tokens, and soon after `cancelled` holds, which is asked every
    /// 64 KiB.
    #[must_use]
    pub fn new(tokens_max: usize, cancelled: &'a dyn Fn() -> bool) -> Self {
        Self { cancelled, tokens_max, since_look: 0, stop: None }
    }

    /// Never stops.
    pub(super) fn unlimited() -> Self {
        Self::new(usize::MAX, &|| false)
    }

    /// Counts bytes that were worked on; false where to stop.
    pub(super) fn advance(&mut self, bytes: usize) -> bool {
        self.since_look += bytes;
        if self.since_look >= LOOK_BYTES { self.look() } else { self.stop.is_none() }
    }

    /// Asks now; false where to stop.
    pub(super) fn look(&mut self) -> bool {
        self.since_look = 0;
        if self.stop.is_none() && (self.cancelled)() {
            self.stop = Some(Stop::Cancelled);
        }
        self.stop.is_none()
    }

    /// Takes the number of tokens so far; false where to stop.
    pub(super) fn has_tokens(&mut self, count: usize) -> bool {
        if count > self.tokens_max {
            self.stop.get_or_insert(Stop::TooMany);
        }
        self.stop.is_none()
    }

    /// True once it has stopped.
    pub(super) fn is_stopped(&self) -> bool {
        self.stop.is_some()
    }

    /// The reason as an error.
    pub(super) fn check(&self) -> Result<(), TokenizerError> {
        match self.stop {
            None => Ok(()),
            Some(Stop::Cancelled) => Err(TokenizerError::Cancelled),
            Some(Stop::TooMany) => Err(TokenizerError::TooManyTokens { limit: self.tokens_max }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn the_flag_is_asked_every_64_kib() {
        let asked = Cell::new(0);
        let cancelled = || {
            asked.set(asked.get() + 1);
            asked.get() == 3
        };
        let mut meter = Meter::new(usize::MAX, &cancelled);
        let done = (0..100).take_while(|_| meter.advance(LOOK_BYTES / 2)).count();
        assert_eq!((done, asked.get()), (5, 3));
        assert!(matches!(meter.check(), Err(TokenizerError::Cancelled)));
    }
}
