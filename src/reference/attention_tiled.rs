//! Twin of `shaders/attention_tiled.comp`: attention of q, keys and values in f16. Weights stay as
//! they are: how the device rounds them depends on which blocks come first.

use half::f16;

use super::Memory;
use super::attention::run_with;
use crate::gpu::Dispatch;

pub(super) fn run(dispatch: &Dispatch, memory: &mut Memory) {
    let [_, _, _, head_dim, format, key_words, _, causal, ..] = dispatch.spec[..] else {
        panic!("attention_tiled has thirteen constants")
    };
    run_with(dispatch, memory, (head_dim, format, key_words), causal == 1, |value| {
        f16::from_f32(value.clamp(f16::MIN.to_f32(), f16::MAX.to_f32())).to_f32()
    });
}
