//! `shaders/fma_peak.comp`: multiply-adds and no more, to measure what a device computes at most.

use bytemuck::{Pod, Zeroable};

use super::spirv;
use crate::gpu::{BufferSlice, Capabilities, Dispatch, Recording};

/// Push constants.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs)] // the shader's Params say what each is
pub struct Params {
    pub rounds: u32,
    pub factor: f32,
}

const _: () = assert!(spirv::FMA_PEAK_PUSH_BYTES as usize == size_of::<Params>());
const _: () = assert!(spirv::FMA_PEAK_BINDINGS == 1 && spirv::FMA_PEAK_SPECS == 4);

/// Factor of each round: below 1, so that no value leaves the range of floats.
const FACTOR: f32 = 0.75;

/// Appends `rounds` multiply-adds of `sums` values in each lane of `workgroups` workgroups.
///
/// `y`: f32 `[workgroups, lanes]`.
pub fn record(
    recording: &mut Recording,
    caps: &Capabilities,
    y: BufferSlice,
    workgroups: u32,
    sums: u32,
    rounds: u32,
) {
    let params = Params { rounds, factor: FACTOR };
    recording.dispatch(Dispatch {
        kernel: &spirv::FMA_PEAK,
        spec: vec![caps.lanes, 1, 1, sums],
        bindings: vec![y],
        push: bytemuck::bytes_of(&params).to_vec(),
        pointers: 0,
        groups: [workgroups, 1, 1],
    });
}
