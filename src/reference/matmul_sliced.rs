//! Twin of `shaders/matmul_sliced.comp`: that of `shaders/matmul.comp`, which reads its operands
//! and its weights by the kernel's name and bindings.

pub(super) use super::matmul::run;
