//! Whether the engine gets on, for whoever watches over it from outside.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts what the engine gets done: commands, steps, pieces of a model that is loaded. Cheap to
/// clone; all clones are one.
#[derive(Clone, Debug, Default)]
pub struct Heartbeat(Arc<AtomicU64>);

impl Heartbeat {
    /// Notes that something got done.
    pub fn beat(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Count of progress so far.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
