//! Which tokens go into the next step.

mod batch;

pub use batch::{Batch, TokenSpan};
