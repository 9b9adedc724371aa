//! Tensor element types, their block formats, and the scalar code that turns blocks into f32.
//!
//! Pure: no file, no device.

mod dequant;
mod dtype;
mod finite;
mod grids;
pub mod layout;
mod packing;
pub mod quantize;
mod quants;
pub mod sliced;

pub use dequant::dequantize_row;
pub use dtype::{DType, UnsupportedType};
pub use finite::first_not_finite;
pub use packing::Packing;
