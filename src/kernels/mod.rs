//! One file per shader: its parameters, bindings and grid. A function here appends a dispatch to a
//! recording; nothing here runs anything.

pub mod attention;
pub mod attention_tiled;
pub mod block_sums;
pub mod embed;
pub mod fma_peak;
pub mod gather_rows;
pub mod glu;
pub mod layer_norm;
pub mod mask;
pub mod matmul;
pub mod matmul_bytes;
pub mod matmul_experts;
pub mod matmul_sliced;
pub mod matmul_tiled;
pub mod matrix;
pub mod maxima;
pub mod moe_combine;
pub mod moe_lists;
pub mod moe_route;
pub mod pages;
pub mod penalise;
pub mod qkv_post;
pub mod quantize_x;
pub mod read_stream;
pub mod rms_norm;
pub mod sample;
pub mod sampling;
pub mod spirv;
pub mod tuned;
pub mod work;

use crate::gpu::{BufferSlice, Capabilities, Kernel};
use crate::tensor::DType;

pub use matmul_experts::PackedExperts;
pub use matrix::{PackedMatrix, RowSlice};
pub use pages::{KvFormat, PageLayout};

/// Picks the variant for the device: with subgroup operations, unless it has none or computes them
/// wrongly, or through shared memory.
fn by_subgroups(
    caps: &Capabilities,
    subgroups: &'static Kernel,
    shared: &'static Kernel,
) -> &'static Kernel {
    if caps.subgroup_ops && !caps.avoids(subgroups) { subgroups } else { shared }
}

/// A dimension, offset or count as a shader takes it.
fn u32_of(value: u64) -> u32 {
    u32::try_from(value).expect("Weights and KvLayout refuse what 32 bits cannot count")
}

/// Bindings that a specialization leaves unused still need a buffer: any readable one will do.
fn or_unused(slice: Option<BufferSlice>, unused: BufferSlice) -> BufferSlice {
    slice.unwrap_or(unused)
}

/// The variant of a shader for weights of a type: `STEM_TYPE` and a suffix.
fn by_format(stem: &str, dtype: DType, suffix: &str) -> &'static Kernel {
    let name = format!("{stem}_{}{suffix}", dtype.name().to_ascii_lowercase());
    let index = spirv::ALL.binary_search_by(|kernel| kernel.name.cmp(&name));
    spirv::ALL[index.expect("a test looks every type's variants up")]
}

/// The same where the variant depends on the device too, and how many of its first bindings it
/// takes as pointers: the best one that does not compute wrongly, else the last.
fn by_format_and_device(
    stem: &str,
    dtype: DType,
    kind: &str,
    caps: &Capabilities,
) -> (&'static Kernel, u32) {
    let variants = [
        ("_pointers", 3, caps.subgroup_ops && caps.buffer_pointers),
        ("", 0, caps.subgroup_ops),
        ("_shared", 0, true),
    ];
    let mut offered = variants.into_iter().filter(|(.., offered)| *offered).map(|variant| {
        let (suffix, pointers, _) = variant;
        (by_format(stem, dtype, &format!("{kind}{suffix}")), pointers)
    });
    let last = || (by_format(stem, dtype, &format!("{kind}_shared")), 0);
    offered.find(|(kernel, _)| !caps.avoids(kernel)).unwrap_or_else(last)
}

/// The kernel of a name; `None` where this build has no such.
#[must_use]
pub fn by_name(name: &str) -> Option<&'static Kernel> {
    let index = spirv::ALL.binary_search_by(|kernel| kernel.name.cmp(name)).ok()?;
    Some(spirv::ALL[index])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_its_variants() {
        for dtype in DType::ALL {
            by_format("embed", dtype, "");
            for tier in ["matrix", "half"] {
                by_format("matmul_tiled", dtype, &format!("_{tier}"));
            }
            for kind in ["", "_experts"] {
                for suffix in ["", "_pointers", "_shared"] {
                    by_format("matmul", dtype, &format!("{kind}{suffix}"));
                }
            }
        }
    }
}
