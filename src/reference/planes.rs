//! Reading packed weights by the interface of a kernel that has them bound.

use crate::gpu::Dispatch;
use crate::tensor::layout::Layout;
use crate::tensor::{DType, Packing};

/// How the rows bound to `dispatch` are packed, from its kernel's name (`STEM_TYPE`, perhaps with
/// `sliced_`, `tiled_` or `bytes_` before the type and `_experts`, `_shared`, `_pointers` or a tier
/// behind it) and its parameters.
pub(super) fn packing(
    dispatch: &Dispatch,
    stem: &str,
    rows: u32,
    units: u32,
    blocks: u32,
) -> Packing {
    let name = dispatch.kernel.name;
    let suffixes = ["_shared", "_pointers", "_experts", "_matrix", "_half"];
    let name = suffixes.iter().fold(name, |name, s| name.strip_suffix(s).unwrap_or(name));
    let format = name.strip_prefix(stem).expect("the kernel's stem").trim_start_matches('_');
    let (format, sliced) = match format.strip_prefix("sliced_") {
        Some(format) => (format, true),
        None => (format.trim_start_matches("tiled_").trim_start_matches("bytes_"), false),
    };
    let dtype = DType::from_name(format).expect("a format of weights.glsl");
    let row_len = u64::from(blocks) * 32;
    let lanes = u64::from(dispatch.spec[0]);
    let packing = Packing::new(Layout { dtype, rows: u64::from(rows), row_len, lanes }, sliced);
    assert_eq!(u64::from(units), packing.units(), "units of {name}");
    packing
}
