//! One Rust file per shader: its parameters, bindings and grid.

pub mod spirv;
