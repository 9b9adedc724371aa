//! The reference executor: every kernel's scalar twin, in f32 Rust.
//!
//! It runs the same recordings over the same buffer layouts as a device, one dispatch after the
//! other, and is what kernels are held against. It knows a kernel by the stem of its shader's name.

mod attention;
mod attention_tiled;
mod block_sums;
mod embed;
mod executor;
mod fma_peak;
mod gather_rows;
mod glu;
mod layer_norm;
mod mask;
mod matmul;
mod matmul_bytes;
mod matmul_experts;
mod matmul_sliced;
mod matmul_tiled;
mod maxima;
mod memory;
mod moe_combine;
mod moe_lists;
mod moe_route;
mod penalise;
mod planes;
mod qkv_post;
mod quantize_x;
mod read_stream;
mod rms_norm;
mod sample;

pub use executor::ReferenceExecutor;
pub use memory::Memory;

use crate::gpu::Dispatch;

/// Runs one dispatch over host memory.
///
/// # Panics
/// If the kernel has no twin, or a binding is too short: bugs of the caller.
pub fn run(dispatch: &Dispatch, memory: &mut Memory) {
    let name = dispatch.kernel.name;
    const STEMS: [&str; 19] = [
        "matmul",
        "embed",
        "qkv_post",
        "attention",
        "rms_norm",
        "layer_norm",
        "gather_rows",
        "glu",
        "quantize_x",
        "block_sums",
        "moe_route",
        "moe_lists",
        "moe_combine",
        "read_stream",
        "fma_peak",
        "mask",
        "maxima",
        "penalise",
        "sample",
    ];
    let stem = STEMS
        .into_iter()
        .find(|stem| name == *stem || name.strip_prefix(stem).is_some_and(|s| s.starts_with('_')));
    match stem {
        Some("matmul") if name.contains("_experts") => matmul_experts::run(dispatch, memory),
        Some("matmul") if name.contains("_sliced") => matmul_sliced::run(dispatch, memory),
        Some("matmul") if name.contains("_bytes") => matmul_bytes::run(dispatch, memory),
        Some("matmul") if name.contains("_tiled") => matmul_tiled::run(dispatch, memory),
        Some("matmul") => matmul::run(dispatch, memory),
        Some("moe_route") => moe_route::run(dispatch, memory),
        Some("moe_lists") => moe_lists::run(dispatch, memory),
        Some("moe_combine") => moe_combine::run(dispatch, memory),
        Some("embed") => embed::run(dispatch, memory),
        Some("qkv_post") => qkv_post::run(dispatch, memory),
        Some("attention") if name.contains("_tiled") => attention_tiled::run(dispatch, memory),
        Some("attention") => attention::run(dispatch, memory),
        Some("rms_norm") => rms_norm::run(dispatch, memory),
        Some("layer_norm") => layer_norm::run(dispatch, memory),
        Some("gather_rows") => gather_rows::run(dispatch, memory),
        Some("quantize_x") => quantize_x::run(dispatch, memory),
        Some("block_sums") => block_sums::run(dispatch, memory),
        Some("glu") => glu::run(dispatch, memory),
        Some("read_stream") => read_stream::run(dispatch, memory),
        Some("fma_peak") => fma_peak::run(dispatch, memory),
        Some("mask") => mask::run(dispatch, memory),
        Some("maxima") => maxima::run(dispatch, memory),
        Some("penalise") => penalise::run(dispatch, memory),
        Some("sample") => sample::run(dispatch, memory),
        _ => panic!("kernel {name} has no twin in src/reference"),
    }
}
