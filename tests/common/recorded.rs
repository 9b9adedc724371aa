//! Which kernels a model records for a step.
#![allow(dead_code, unreachable_pub)] // each test uses a part

use hob::gpu::{Command, Dispatch};
use hob::kernels::matmul::Tier;
use hob::kernels::matmul_experts::Params;
use hob::model::{BatchShape, Choosing};

use crate::common::Driven;

/// The dispatches of a step of a session's `tokens` tokens, a prompt's or each of its own.
fn dispatches_of(model: &Driven, tokens: u32, one_token_each: bool) -> Vec<Dispatch> {
    let count = tokens as usize;
    let attention = model.runner.model().attention_shape(one_token_each, count, 1);
    let shape = BatchShape {
        tokens,
        tiles: tokens.div_ceil(attention.tile_tokens),
        attention,
        logit_rows: 0,
        encoded: false,
        adapters: 0,
        choosing: Choosing::Host,
        buffer_set: 0,
    };
    let recording = model.runner.model().record_forward(model.runner.kv(), shape);
    let dispatch = |command| match command {
        Command::Dispatch(dispatch) => Some(dispatch),
        _ => None,
    };
    recording.commands.into_iter().filter_map(dispatch).collect()
}

/// How many matmuls of a step of `tokens` tokens are of a tier: plain ones, and with experts.
pub fn matmuls_of(model: &Driven, tier: Tier, tokens: u32) -> [usize; 2] {
    let mut counts = [0; 2];
    for dispatch in dispatches_of(model, tokens, true) {
        let name = dispatch.kernel.name;
        if name.ends_with(tier.name()) && !name.contains("quantize_x") {
            counts[usize::from(Params::of(&dispatch).has_experts())] += 1;
        }
    }
    counts
}

/// The kernel that attends in a step of `tokens` tokens.
pub fn attention_of(model: &Driven, tokens: u32, one_token_each: bool) -> &'static str {
    let dispatches = dispatches_of(model, tokens, one_token_each);
    let mut names = dispatches.iter().map(|dispatch| dispatch.kernel.name);
    names.find(|name| name.starts_with("attention")).expect("a layer attends")
}
