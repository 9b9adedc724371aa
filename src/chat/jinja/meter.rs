//! What a rendering may use: steps, memory, time. All is asked for before it is used.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::time::Instant;

use super::{Fault, Outcome};

/// The limits of a rendering.
#[derive(Clone, Copy)]
pub(in super::super) struct Limits<'a> {
    /// Expressions and statements evaluated, and pieces of [`STEP_BYTES`] of data looked at.
    pub(in super::super) steps: u64,
    /// Bytes of values that exist at one time.
    pub(in super::super) bytes: u64,
    /// Time at which it ends.
    pub(in super::super) until: Instant,
    /// True when the caller has given up.
    pub(in super::super) cancelled: &'a (dyn Fn() -> bool + Sync),
}

/// Bytes of data that are looked at in a step.
pub(super) const STEP_BYTES: usize = 256;

/// Steps between two looks at the clock.
const CLOCK_STEPS: u64 = 4096;

/// Bytes that a value is worth beside its text.
pub(super) const VALUE_BYTES: usize = 48;

/// Counts what a rendering uses.
pub(super) struct Meter<'a> {
    steps: Cell<u64>,
    until_clock: Cell<u64>,
    bytes: Cell<u64>,
    limits: Limits<'a>,
}

impl fmt::Debug for Meter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meter").field("steps", &self.steps).field("bytes", &self.bytes).finish()
    }
}

impl<'a> Meter<'a> {
    pub(super) fn new(limits: Limits<'a>) -> Rc<Self> {
        let (steps, bytes) = (Cell::new(limits.steps), Cell::new(limits.bytes));
        Rc::new(Self { steps, until_clock: Cell::new(0), bytes, limits })
    }

    /// Pays for a number of steps.
    pub(super) fn steps(&self, steps: u64) -> Outcome<()> {
        let left = self.steps.get().checked_sub(steps).ok_or(Fault::Steps)?;
        self.steps.set(left);
        match self.until_clock.get().checked_sub(steps) {
            Some(left) => self.until_clock.set(left),
            None => self.look_at_clock()?,
        }
        Ok(())
    }

    #[cold]
    fn look_at_clock(&self) -> Outcome<()> {
        self.until_clock.set(CLOCK_STEPS);
        if (self.limits.cancelled)() {
            return Err(Fault::Cancelled);
        }
        if Instant::now() > self.limits.until { Err(Fault::Time) } else { Ok(()) }
    }

    /// Pays for a look at that many bytes of data.
    pub(super) fn look(&self, bytes: usize) -> Outcome<()> {
        self.steps(1 + (bytes / STEP_BYTES) as u64)
    }

    /// Takes memory until the result is dropped.
    pub(super) fn hold(self: &Rc<Self>, bytes: usize) -> Outcome<Held<'a>> {
        let mut held = Held { meter: Rc::clone(self), bytes: 0 };
        held.grow(bytes)?;
        Ok(held)
    }

    /// Takes memory for as long as the rendering runs.
    pub(super) fn keep(&self, bytes: usize) -> Outcome<()> {
        let left = self.bytes.get().checked_sub(bytes as u64).ok_or(Fault::Memory)?;
        self.bytes.set(left);
        Ok(())
    }

    /// Takes memory for `count` pieces of `bytes`.
    pub(super) fn hold_many(self: &Rc<Self>, count: usize, bytes: usize) -> Outcome<Held<'a>> {
        self.hold(count.checked_mul(bytes).ok_or(Fault::Memory)?)
    }
}

/// Memory that was taken; it goes back when this is dropped.
#[derive(Debug)]
pub(super) struct Held<'a> {
    meter: Rc<Meter<'a>>,
    bytes: u64,
}

impl Held<'_> {
    /// Takes more; making the data costs steps as well.
    pub(super) fn grow(&mut self, bytes: usize) -> Outcome<()> {
        self.meter.steps((bytes / STEP_BYTES) as u64)?;
        let left = self.meter.bytes.get().checked_sub(bytes as u64).ok_or(Fault::Memory)?;
        self.meter.bytes.set(left);
        self.bytes += bytes as u64;
        Ok(())
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.meter.bytes.set(self.meter.bytes.get() + self.bytes);
    }
}

/// A text in the making, paid for as it grows.
#[derive(Debug)]
pub(super) struct Buffer<'a> {
    text: String,
    held: Held<'a>,
}

impl<'a> Buffer<'a> {
    pub(super) fn new(meter: &Rc<Meter<'a>>) -> Outcome<Self> {
        Ok(Self { text: String::new(), held: meter.hold(0)? })
    }

    pub(super) fn push(&mut self, text: &str) -> Outcome<()> {
        self.held.grow(text.len())?;
        self.text.push_str(text);
        Ok(())
    }

    /// Adds a character several times.
    pub(super) fn fill(&mut self, character: char, count: usize) -> Outcome<()> {
        let bytes = count.checked_mul(character.len_utf8()).ok_or(Fault::Memory)?;
        self.held.grow(bytes)?;
        self.text.extend(std::iter::repeat_n(character, count));
        Ok(())
    }

    /// The text and the memory that it takes.
    pub(super) fn into_parts(self) -> (String, Held<'a>) {
        (self.text, self.held)
    }
}
