//! Reading packed weights by the interface of a kernel that has them bound.

use crate::gpu::Dispatch;
use crate::tensor::DType;
use crate::tensor::layout::{Layout, Unit};

/// The layout of the rows bound to `dispatch`, from its kernel's name (`STEM_TYPE`,
/// perhaps with `_experts`, `_shared` or `_pointers` behind it) and its parameters.
pub(super) fn layout(
    dispatch: &Dispatch,
    stem: &str,
    rows: u32,
    units: u32,
    blocks: u32,
) -> Layout {
    let name = dispatch.kernel.name;
    let suffixes = ["_shared", "_pointers", "_experts"];
    let name = suffixes.iter().fold(name, |name, s| name.strip_suffix(s).unwrap_or(name));
    let format = name.strip_prefix(stem).expect("the kernel's stem").trim_start_matches('_');
    let dtype = DType::from_name(format).expect("a format of weights.glsl");
    let row_len = u64::from(blocks) * 32;
    assert_eq!(u64::from(units), row_len.div_ceil(Unit::of(dtype).weights), "units of {name}");
    Layout { dtype, rows: u64::from(rows), row_len, lanes: u64::from(dispatch.spec[0]) }
}
