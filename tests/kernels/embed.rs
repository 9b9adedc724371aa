//! `shaders/embed.comp`.

use hob::gpu::{Capabilities, Executor};
use hob::kernels::sampling::PENDING;
use hob::kernels::{embed, matmul};
use hob::tensor::DType;

use super::{Case, Kind, on_both_variants, weights};

/// Weights are below 4 times the factor of 3; scale and bias of a quant are added up in f32.
const TOLERANCE: f32 = 5e-6;
const FACTOR: f32 = 3.0;

fn check(executor: &mut dyn Executor, caps: &Capabilities, seed: u64, rows: u64, cut: bool) {
    let mut case = Case::new(caps, seed);
    for dtype in DType::ALL {
        let row_len = if dtype.block_len() == 256 { 512 } else { 96 };
        let table = case.matrix(dtype, rows, row_len);
        let caps = if cut {
            weights::small_bindings(&case.caps, &table.packed.packing())
        } else {
            case.caps.clone()
        };
        let slices = table.packed.row_slices(&caps, matmul::GROUP_MULTIPLE);
        assert!(!cut || slices.len() > 2, "{dtype}: the table is to be cut into three");
        // Rows at both ends of every slice, and one twice.
        let mut tokens = vec![1];
        for slice in &slices {
            tokens.extend([slice.row_first, slice.row_first + slice.row_count - 1]);
        }
        tokens.push(1);
        let mut steps: Vec<[u32; 4]> =
            tokens.iter().map(|token| [*token as u32, u32::MAX, u32::MAX, u32::MAX]).collect();
        // The last two are known on the device alone.
        let (last, before) = (steps.len() - 1, steps.len() - 2);
        let chosen = case.slice(&[u32::MAX, steps[last][0], steps[before][0]]);
        (steps[last][0], steps[before][0]) = (PENDING | 1, PENDING | 2);
        let steps = case.slice(&steps);
        let count = tokens.len() * row_len as usize;
        let y = case.garbage(count);
        let tokens = tokens.len() as u32;
        let from = (steps, chosen);
        embed::record(&mut case.recording, &caps, &table.packed, from, y, tokens, FACTOR);
        case.expect(format!("{dtype} in {} slices", slices.len()), y, Kind::F32, count, TOLERANCE);
    }
    case.check(executor);
}

#[test]
fn rows_of_every_type_are_looked_up() {
    on_both_variants(|executor, caps| {
        let rows = u64::from(2 * caps.lanes + 3);
        for uniform_loads in [false, true] {
            let caps = Capabilities { uniform_loads, ..caps.clone() };
            check(executor, &caps, 41, rows, false);
        }
    });
}

#[test]
fn positions_are_looked_up_and_added() {
    on_both_variants(|executor, caps| {
        let mut case = Case::new(caps, 43);
        let rows = u64::from(2 * caps.lanes + 3);
        for dtype in [DType::F32, DType::Q8_0] {
            let table = case.matrix(dtype, rows, 96);
            let steps = [0, rows as u32 - 1, 1].map(|at| [u32::MAX, at, u32::MAX, u32::MAX]);
            let steps = case.slice(&steps);
            let y = case.floats(3 * 96);
            embed::record_positions(&mut case.recording, caps, &table.packed, steps, y, 3);
            case.expect(format!("positions of {dtype}"), y, Kind::F32, 3 * 96, TOLERANCE);
        }
        case.check(executor);
    });
}

#[test]
fn tables_larger_than_a_binding_are_cut_into_slices() {
    on_both_variants(|executor, caps| {
        let rows = u64::from(100 * caps.lanes - 1);
        for uniform_loads in [false, true] {
            let caps = Capabilities { uniform_loads, ..caps.clone() };
            check(executor, &caps, 42, rows, true);
        }
    });
}
