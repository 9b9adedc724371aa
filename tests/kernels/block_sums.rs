//! `shaders/block_sums.comp`.

use hob::gpu::{Command, Recording};
use hob::kernels::block_sums::{self, Summed};
use hob::kernels::matmul::{self, Epilogue, Matmul};
use hob::tensor::DType;

use super::{Case, Kind, on_both_variants};

/// Relative to the sum of |x|: sums in another order.
const TOLERANCE: f32 = 1e-6;

#[test]
fn rows_of_any_length_are_added_up_block_by_block() {
    on_both_variants(|executor, caps| {
        if !caps.slices_weights() {
            return println!("this variant of the device slices no weights, which it is for");
        }
        let mut case = Case::new(caps, 22);
        let tokens = 3;
        // A block, as many as there are lanes, and some more.
        for row_len in [32, 256, 576] {
            let matrix = case.matrix(DType::Q8_0, 8, row_len);
            let x_stride = row_len + 32;
            let x = case.floats((tokens * x_stride) as usize);
            let gain = case.floats(row_len as usize);
            for norm in [None, Some((gain, 1e-5))] {
                let y = case.garbage(64);
                let product = Matmul {
                    weights: &matrix.packed,
                    x,
                    x_stride,
                    y,
                    y_stride: 8,
                    y_offset: 0,
                    tokens: tokens as u32,
                    norm,
                    bias: None,
                    scale: 1.0,
                    epilogue: Epilogue::Store,
                    room: None,
                };
                let mut plain = Recording::new();
                matmul::record(&mut plain, &case.caps, &product);
                let [Command::Dispatch(product)] = &plain.commands[..] else {
                    panic!("a dispatch")
                };
                let room_bytes = block_sums::bytes(tokens, row_len);
                let room = case.garbage(room_bytes as usize / 4);
                let summed = Summed::place(product, room).expect("there is room");
                assert_eq!(summed.x == x, norm.is_none());
                let dispatch = block_sums::of_product(&case.caps, product, &summed);
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
    on_both_variants(|_, caps| {
        if !caps.slices_weights() {
            return println!("this variant of the device slices no weights, which it is for");
        }
        let mut case = Case::new(caps, 23);
        let matrix = case.matrix(DType::Q8_0, 8, 64);
        let (x, gain, y) = (case.floats(128), case.floats(64), case.garbage(64));
        let product = Matmul {
            weights: &matrix.packed,
            x,
            x_stride: 64,
            y,
            y_stride: 8,
            y_offset: 0,
            tokens: 2,
            norm: Some((gain, 1e-5)),
            bias: None,
            scale: 1.0,
            epilogue: Epilogue::Store,
            room: None,
        };
        let mut plain = Recording::new();
        matmul::record(&mut plain, &case.caps, &product);
        let [Command::Dispatch(product)] = &plain.commands[..] else { panic!("a dispatch") };
        let mut room = case.garbage(block_sums::bytes(2, 64) as usize / 4);
        assert!(Summed::place(product, room).is_some());
        room.bytes = block_sums::bytes(2, 64) - 4;
        assert_eq!(Summed::place(product, room), None);
    });
}
