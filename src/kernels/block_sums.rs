//! `shaders/block_sums.comp`: sums of x's blocks, before matmuls that want them.

use super::matmul::{Operands, Params as MatmulParams};
use super::quantize_x::{ALIGN, Params};
use super::spirv;
use crate::gpu::{BufferSlice, Capabilities, Dispatch};

/// Bytes of a block's sums.
const SUMS_BYTES: u64 = 16;

const _: () = assert!(spirv::BLOCK_SUMS_PUSH_BYTES as usize == size_of::<Params>());
const _: () = assert!(spirv::BLOCK_SUMS_BINDINGS == 4 && spirv::BLOCK_SUMS_SPECS == 4);

/// Output of the kernel: block sums of rows of x.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summed {
    /// x times the gain of a norm, f32 `[rows, K]`; x itself where there is no norm.
    pub x: BufferSlice,
    /// f32 `[rows, K / 32, 4]`: of a block, of both its halves, and in a row's first one the
    /// factor of the norm.
    pub sums: BufferSlice,
}

/// Bytes of the sums of so many rows, so that what is behind them starts aligned.
fn sums_bytes(rows: u64, row_len: u64) -> u64 {
    (rows * row_len / 32 * SUMS_BYTES).next_multiple_of(ALIGN)
}

/// Most bytes that so many rows of `row_len` values take, those of x times a gain included.
#[must_use]
pub fn bytes(rows: u64, row_len: u64) -> u64 {
    sums_bytes(rows, row_len) + rows * row_len * 4
}

impl Summed {
    /// Where what is made of a matmul's x goes in `workspace`; `None` where it does not fit.
    #[must_use]
    pub fn place(matmul: &Dispatch, workspace: BufferSlice) -> Option<Self> {
        let params: MatmulParams = bytemuck::pod_read_unaligned(&matmul.push);
        let (rows, row_len) = (u64::from(params.tokens), 32 * u64::from(params.blocks));
        let first = sums_bytes(rows, row_len);
        let part =
            |offset, bytes| BufferSlice { offset: workspace.offset + offset, bytes, ..workspace };
        let (x, end) = match matmul.spec[5] {
            0 => (Operands::of(matmul).x, first),
            _ => (part(first, rows * row_len * 4), first + rows * row_len * 4),
        };
        let sums = part(0, rows * row_len / 32 * SUMS_BYTES);
        (end <= workspace.bytes).then_some(Self { x, sums })
    }
}

/// The dispatch that adds up the x of a matmul, its norm's gain and factor included.
#[must_use]
pub fn of_matmul(caps: &Capabilities, matmul: &Dispatch, summed: &Summed) -> Dispatch {
    let params: MatmulParams = bytemuck::pod_read_unaligned(&matmul.push);
    let Operands { x, gain, .. } = Operands::of(matmul);
    let norm = matmul.spec[5];
    // Without a norm no x is written: the sums are bound in its place.
    let (gain, gained) = if norm == 1 { (gain, summed.x) } else { (x, summed.sums) };
    Dispatch {
        kernel: &spirv::BLOCK_SUMS,
        spec: vec![caps.lanes, 1, 1, norm],
        bindings: vec![x, gain, gained, summed.sums],
        push: bytemuck::bytes_of(&Params::of_matmul(&params)).to_vec(),
        pointers: 0,
        groups: [params.tokens, 1, 1],
    }
}
