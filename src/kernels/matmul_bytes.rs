//! `shaders/matmul_bytes.comp`: matmuls of many tokens by bytes; `matmul_tiled` records them.

use super::matmul_experts::Params;
use super::spirv;

const _: () = assert!(spirv::MATMUL_BYTES_Q4_0_PUSH_BYTES as usize == size_of::<Params>());
const _: () = assert!(spirv::MATMUL_BYTES_Q4_0_BINDINGS == 6);
const _: () = assert!(spirv::MATMUL_BYTES_Q4_0_SPECS == 8);

/// Bytes of a block of 32 in shared memory, and of a block of x in narrower numbers.
pub const BLOCK_BYTES: u32 = 48;
