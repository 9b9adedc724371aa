//! Twin of `shaders/matmul_bytes.comp`: matmuls of the narrowed x with weights as they are.

use super::Memory;
use super::matmul_tiled;
use crate::gpu::Dispatch;
use crate::kernels::matmul_bytes::BLOCK_BYTES;

pub(super) fn run(dispatch: &Dispatch, memory: &mut Memory) {
    matmul_tiled::run_with(dispatch, memory, |bytes| {
        bytes.chunks_exact(BLOCK_BYTES as usize).flat_map(values).collect()
    });
}

/// The values of a block: its bytes by its scale.
fn values(block: &[u8]) -> impl Iterator<Item = f32> {
    let scale = f32::from_le_bytes([block[32], block[33], block[34], block[35]]);
    block[..32].iter().map(move |byte| f32::from(byte.cast_signed()) * scale)
}
