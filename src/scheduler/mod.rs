//! Which requests run, and which tokens go into the next step: pure data and arithmetic, without a
//! clock and without a device.

mod batch;
mod fair;
pub mod pace;
mod priority;
mod slice;
mod slots;
mod step;

pub use batch::{Batch, TokenSpan};
pub use fair::{Claim, Fairness, Rank};
pub use pace::Pace;
pub use priority::Priority;
pub use slice::PrefillSlice;
pub use slots::{Placement, place};
pub use step::{Share, StepLimits, Work, plan};
