//! Every shader against its scalar twin: the same recording, over the same memory, on the device
//! and on the reference executor, under the validation layer and with NaN wherever nothing may be
//! read.
#![allow(clippy::unwrap_used)]

#[path = "common/blocks.rs"]
mod blocks;
#[path = "common/device.rs"]
mod device;
mod kernels;
#[path = "common/random.rs"]
mod random;
