//! An executor that says other things of its device than are so.
#![allow(dead_code, unreachable_pub)] // each test uses a part

use hob::gpu::{Capabilities, DeviceType, Executor};
use hob::kernels::matmul::Tier;

/// `inner`, which has others believe that its capabilities are `capabilities`.
pub struct SpoofedDevice {
    pub inner: Box<dyn Executor>,
    pub capabilities: Capabilities,
}

impl SpoofedDevice {
    /// A GPU that has matmuls of a tier, and no better one, which software drivers never take by
    /// themselves. A GPU has no use for sliced weights.
    pub fn gpu(inner: Box<dyn Executor>, tier: Tier) -> Self {
        let mut capabilities = Capabilities {
            device_type: DeviceType::Discrete,
            uniform_loads: false,
            ..inner.capabilities().clone()
        };
        if tier == Tier::Half {
            capabilities.matrix_units = None;
        }
        Self { inner, capabilities }
    }
}

impl Executor for SpoofedDevice {
    hob::delegate!(
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
