//! Probes: single dispatches of a model, made small, that two executors run over the same contents.
//!
//! A [`Probe`] takes a dispatch as it stands in a recording, with what its buffers hold at that
//! moment, so it needs to know neither what the model is nor what a kernel's inputs mean: a kernel
//! that is added later is held against its twin as well. Only the largest operands are cut down
//! (`shrink`), since a twin computes slowly.

mod contents;
mod key;
mod shrink;
mod values;

pub use contents::{Probe, floats};
pub use key::{Key, forget, read, write};
pub use shrink::TABLE_ROWS;
pub use values::Difference;
