//! `shaders/block_sums.comp`.

use hob::gpu::{BufferSlice, Command, Dispatch, Recording};
use hob::kernels::block_sums::{self, Summed};
use hob::kernels::matmul::{self, Epilogue, Matmul};
use hob::tensor::DType;

use super::matmul_sliced::where_it_runs;
use super::{Case, Kind};

/// Relative to the sum of |x|: sums in another order.
const TOLERANCE: f32 = 1e-6;

/// A matmul of eight rows with x of `[tokens, x_stride]`, as one dispatch.
fn matmul(
    case: &mut Case,
    row_len: u64,
    (x, x_stride, tokens): (BufferSlice, u64, u64),
    norm: Option<(BufferSlice, f32)>,
) -> Dispatch {
    let matrix = case.matrix(DType::Q8_0, 8, row_len);
    let product = Matmul {
        weights: &matrix.packed,
        x,
        x_stride,
        y: case.garbage(64),
        y_stride: 8,
        y_offset: 0,
        tokens: tokens as u32,
        norm,
        bias: None,
        scale: 1.0,
        epilogue: Epilogue::Store,
        workspace: None,
    };
    let mut plain = Recording::new();
    matmul::record(&mut plain, &case.caps, &product);
    let Some(Command::Dispatch(dispatch)) = plain.commands.pop() else { panic!("a dispatch") };
    assert_eq!(plain.commands.len(), 0, "one dispatch");
    dispatch
}

#[test]
fn rows_of_any_length_are_added_up_block_by_block() {
    where_it_runs(|executor, caps| {
        let mut case = Case::new(caps, 22);
        let tokens = 3;
        // A block, as many as there are lanes, and some more.
        for row_len in [32, 256, 576] {
            let x_stride = row_len + 32;
            let x = case.floats((tokens * x_stride) as usize);
            let gain = case.floats(row_len as usize);
            for norm in [None, Some((gain, 1e-5))] {
                let product = matmul(&mut case, row_len, (x, x_stride, tokens), norm);
                let workspace = case.garbage(block_sums::bytes(tokens, row_len) as usize / 4);
                let summed = Summed::place(&product, workspace).expect("there is room");
                assert_eq!(summed.x == x, norm.is_none());
                let dispatch = block_sums::of_matmul(&case.caps, &product, &summed);
                case.recording.dispatch(dispatch);
                let name = format!("{row_len}, {norm:?}");
                let sums = (tokens * row_len / 8) as usize;
                case.expect(name.clone(), summed.sums, Kind::F32, sums, 32.0 * TOLERANCE);
                if norm.is_some() {
                    let values = (tokens * row_len) as usize;
                    case.expect(name, summed.x, Kind::F32, values, 0.0);
                }
            }
        }
        case.check(executor);
    });
}

#[test]
fn what_has_no_room_is_not_placed() {
    where_it_runs(|_, caps| {
        let mut case = Case::new(caps, 23);
        let (x, gain) = (case.floats(128), case.floats(64));
        let product = matmul(&mut case, 64, (x, 64, 2), Some((gain, 1e-5)));
        let mut workspace = case.garbage(block_sums::bytes(2, 64) as usize / 4);
        assert!(Summed::place(&product, workspace).is_some());
        workspace.bytes = block_sums::bytes(2, 64) - 4;
        assert_eq!(Summed::place(&product, workspace), None);
    });
}
