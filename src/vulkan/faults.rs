//! Calls that a test has fail, with any VkResult, in place of the driver.

use std::sync::{Mutex, PoisonError};

use ash::vk;

/// Calls that are to fail, one after the other.
#[derive(Debug, Default)]
pub struct Faults(Mutex<Vec<Fault>>);

#[derive(Debug)]
struct Fault {
    call: &'static str,
    /// Number of calls that succeed first.
    after: u64,
    result: vk::Result,
}

impl Faults {
    /// From now on, the `after`-th next `call` (from 0; such as `vkQueueSubmit`) gives the VkResult
    /// `result`, and the driver hears nothing of it.
    pub fn add(&self, call: &'static str, after: u64, result: i32) {
        let fault = Fault { call, after, result: vk::Result::from_raw(result) };
        self.list().push(fault);
    }

    /// Faults that have not happened.
    #[must_use]
    pub fn left(&self) -> usize {
        self.list().len()
    }

    /// Counts a call; the result it is to give, if it is to fail.
    pub(super) fn take(&self, call: &str) -> Option<vk::Result> {
        let mut faults = self.list();
        let at = faults.iter().position(|fault| fault.call == call)?;
        if faults[at].after > 0 {
            faults[at].after -= 1;
            return None;
        }
        Some(faults.remove(at).result)
    }

    fn list(&self) -> std::sync::MutexGuard<'_, Vec<Fault>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
