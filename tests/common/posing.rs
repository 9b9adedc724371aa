//! An executor that says other things of its device than are so.
#![allow(dead_code, unreachable_pub)] // each test uses a part

use hob::gpu::{Capabilities, Command, DeviceType, Executor};
use hob::kernels::matmul::Tier;
use hob::kernels::matmul_experts::Params;
use hob::model::{BatchShape, Choosing};

use crate::common::Driven;

/// `inner`, which has others believe that its capabilities are `capabilities`.
pub struct Posing {
    pub inner: Box<dyn Executor>,
    pub capabilities: Capabilities,
}

impl Posing {
    /// A GPU that has products of a tier, and no better one, which software drivers never take by
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

/// How many products of a step of `tokens` tokens are of a tier: plain ones, and with experts.
pub fn products_of(model: &Driven, tier: Tier, tokens: u32) -> [usize; 2] {
    let shape = BatchShape {
        tokens,
        tiles: tokens,
        tile_tokens: 1,
        logit_rows: 0,
        encoded: false,
        splits: 1,
        adapters: 0,
        choosing: Choosing::Host,
        turn: 0,
    };
    let recording = model.runner.model().record_forward(model.runner.kv(), shape);
    let mut counts = [0; 2];
    for command in &recording.commands {
        let Command::Dispatch(dispatch) = command else { continue };
        if dispatch.kernel.name.ends_with(tier.name()) && !dispatch.kernel.name.contains("narrow") {
            counts[usize::from(Params::of(dispatch).has_experts())] += 1;
        }
    }
    counts
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
