//! An executor that says other things of its device than are so.
#![allow(dead_code, unreachable_pub)] // each test uses a part

use hob::gpu::{Capabilities, Executor};

/// `inner`, which has others believe that its capabilities are `capabilities`.
pub struct Posing {
    pub inner: Box<dyn Executor>,
    pub capabilities: Capabilities,
}

impl Executor for Posing {
    hob::hand_on!(
        create_buffer destroy_buffer replace_buffer write read prepare release submit wait
        memory set_profiling timings
    );

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn avoid(&mut self, kernel: &'static str) {
        self.capabilities.avoided.insert(kernel);
    }
}
