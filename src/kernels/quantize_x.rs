//! `shaders/quantize_x.comp`: rows of x in f16 or bytes, before matmuls that multiply such numbers.

use bytemuck::{Pod, Zeroable};

use super::matmul::{Operands, Params as MatmulParams, Tier};
use super::matmul_experts;
use super::spirv;
use crate::gpu::{BufferSlice, Capabilities, Dispatch, Kernel};

/// Largest alignment that a device may ask of a bound offset.
pub(super) const ALIGN: u64 = 256;

/// Push constants, also of `block_sums`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs)] // the shader's Params say what each is
pub struct Params {
    pub x_stride: u32,
    pub blocks: u32,
    pub epsilon: f32,
}

impl Params {
    /// Those for the x of a matmul.
    pub(super) fn of_matmul(matmul: &MatmulParams) -> Self {
        let MatmulParams { x_stride, blocks, epsilon, .. } = *matmul;
        Self { x_stride, blocks, epsilon }
    }
}

const _: () = assert!(spirv::QUANTIZE_X_F16_PUSH_BYTES as usize == size_of::<Params>());
const _: () = assert!(spirv::QUANTIZE_X_F16_BINDINGS == 4 && spirv::QUANTIZE_X_F16_SPECS == 4);

/// Rows of x, narrowed, and what matmuls with them have to be multiplied by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantizedX {
    /// f16 `[rows, K]`, or blocks of bytes with their scales `[rows, K / 32]`.
    pub x: BufferSlice,
    /// f32 `[rows]`.
    pub factors: BufferSlice,
}

/// Bytes of the factors of so many rows, so that the rows behind them start aligned.
fn factor_bytes(rows: u64) -> u64 {
    (rows * 4).next_multiple_of(ALIGN)
}

/// Most bytes that so many rows of `row_len` values take, factors included.
#[must_use]
pub fn bytes(rows: u64, row_len: u64) -> u64 {
    factor_bytes(rows) + rows * row_len * 2
}

impl QuantizedX {
    /// Where the rows of a matmul's x go in `workspace`, a row of `row_bytes`; `None` where they do
    /// not fit.
    #[must_use]
    pub fn place(matmul: &Dispatch, row_bytes: u64, workspace: BufferSlice) -> Option<Self> {
        let rows = u64::from(matmul_experts::Params::of(matmul).x_rows());
        let first = factor_bytes(rows);
        if first + rows * row_bytes > workspace.bytes {
            return None;
        }
        let part =
            |offset, bytes| BufferSlice { offset: workspace.offset + offset, bytes, ..workspace };
        Some(Self { x: part(first, rows * row_bytes), factors: part(0, rows * 4) })
    }
}

/// True if a dispatch quantises to int8 blocks, false if it converts to f16.
#[must_use]
pub fn is_int8(dispatch: &Dispatch) -> bool {
    dispatch.kernel.name == spirv::QUANTIZE_X_INT8.name
}

/// The kernel that quantises x for a tier.
pub(super) fn kernel(tier: Tier) -> &'static Kernel {
    if tier == Tier::Bytes { &spirv::QUANTIZE_X_INT8 } else { &spirv::QUANTIZE_X_F16 }
}

/// The dispatch that narrows the x of a matmul in f32, its norm included.
#[must_use]
pub fn of_matmul(
    caps: &Capabilities,
    matmul: &Dispatch,
    tier: Tier,
    quantized: &QuantizedX,
) -> Dispatch {
    let all = matmul_experts::Params::of(matmul);
    let params = all.matmul;
    let Operands { x, gain, .. } = Operands::of(matmul);
    let norm = matmul.spec[5];
    // Several rows of lanes for a row that keeps them busy; software drivers are spared barriers.
    let split = (params.blocks * 8).div_ceil(caps.lanes * 4).next_power_of_two();
    let split_max = (caps.workgroup_invocations_max.min(256) / caps.lanes).max(1);
    Dispatch {
        kernel: kernel(tier),
        spec: vec![caps.lanes, if caps.is_cpu() { 1 } else { split.min(split_max) }, 1, norm],
        bindings: vec![x, if norm == 1 { gain } else { x }, quantized.x, quantized.factors],
        push: bytemuck::bytes_of(&Params::of_matmul(&params)).to_vec(),
        pointers: 0,
        groups: [all.x_rows(), 1, 1],
    }
}
