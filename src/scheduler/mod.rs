//! Which tokens go into the next step: pure data and arithmetic, no device.

mod batch;
mod slice;

pub use batch::{Batch, TokenSpan};
pub use slice::PrefillSlice;
