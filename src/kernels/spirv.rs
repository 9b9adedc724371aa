//! Every shader module of `shaders/`, as `build.rs` compiled and reflected it.
//!
//! For a module `matmul_q4_1` there are `MATMUL_Q4_1` (the [`Kernel`]) and, for checks at compile
//! time, `MATMUL_Q4_1_PUSH_BYTES`, `MATMUL_Q4_1_BINDINGS` and `MATMUL_Q4_1_SPECS`:
//!
//! ```ignore
//! const _: () = assert!(spirv::MATMUL_Q4_1_PUSH_BYTES as usize == size_of::<Params>());
//! ```

#[allow(unused_imports, reason = "without any shader there is no access to name")]
use crate::gpu::{Access, Kernel};

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
