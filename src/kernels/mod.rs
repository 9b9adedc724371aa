//! One file per shader: its parameters, bindings and grid. A function here appends a dispatch to a
//! recording; nothing here runs anything.

pub mod attention;
pub mod embed;
pub mod fma_peak;
pub mod gather_rows;
pub mod glu;
pub mod layer_norm;
pub mod matmul;
pub mod matmul_experts;
pub mod matrix;
pub mod moe_combine;
pub mod moe_lists;
pub mod moe_route;
pub mod pages;
pub mod qkv_post;
pub mod read_stream;
pub mod rms_norm;
pub mod spirv;
pub mod work;

use crate::gpu::{BufferSlice, Capabilities, Kernel};
use crate::tensor::DType;

pub use matmul_experts::PackedExperts;
pub use matrix::{PackedMatrix, RowSlice};
pub use pages::PageLayout;

/// Picks the variant for the device: with subgroup operations, or through shared memory.
fn by_subgroups(
    caps: &Capabilities,
    subgroups: &'static Kernel,
    shared: &'static Kernel,
) -> &'static Kernel {
    if caps.subgroup_ops { subgroups } else { shared }
}

/// A dimension, offset or count as a shader takes it.
fn u32_of(value: u64) -> u32 {
    u32::try_from(value).expect("Weights and KvLayout refuse what 32 bits cannot count")
}

/// Bindings that a specialization leaves unused still need a buffer: any readable one will do.
fn or_unused(slice: Option<BufferSlice>, unused: BufferSlice) -> BufferSlice {
    slice.unwrap_or(unused)
}

/// The FORMAT number of `shaders/include/weights.glsl`.
#[must_use]
pub const fn format_index(dtype: DType) -> usize {
    match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::BF16 => 2,
        DType::Q8_0 => 3,
        DType::Q4_0 => 4,
        DType::Q4_1 => 5,
        DType::Q5_0 => 6,
        DType::Q5_1 => 7,
        DType::Q4_K => 8,
        DType::Q5_K => 9,
        DType::Q6_K => 10,
    }
}
