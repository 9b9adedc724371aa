//! `shaders/layer_norm.comp`.

use hob::kernels::layer_norm::{self, LayerNorm};

use super::{Case, Kind, on_both_variants};

/// Values are below 4: a few units in their last place.
const TOLERANCE: f32 = 3e-6;

#[test]
fn rows_lose_their_mean_and_deviation() {
    on_both_variants(|executor, caps| {
        let mut case = Case::new(caps, 15);
        // Widths of less than a vector for each lane, and of several and a part.
        for (dim, tokens) in [(4, 1), (64, 3), (100, 5), (576, 2)] {
            for with_bias in [false, true] {
                let count = dim * tokens as usize;
                let (x, gain, bias) = (case.floats(count), case.floats(dim), case.floats(dim));
                let y = case.garbage(count);
                let bias = with_bias.then_some(bias);
                let args = LayerNorm { x, gain, bias, y, dim: dim as u64, epsilon: 1e-5 };
                layer_norm::record(&mut case.recording, &case.caps, &args, tokens);
                let name = format!("{tokens} rows of {dim}, bias {with_bias}");
                case.expect(name, args.y, Kind::F32, count, TOLERANCE);
            }
        }
        case.check(executor);
    });
}

#[test]
fn equal_values_leave_the_bias_and_a_large_mean_does_not_drown_the_deviation() {
    on_both_variants(|executor, caps| {
        let mut case = Case::new(caps, 16);
        let mut x = vec![7.0_f32; 64];
        x.extend((0..64_u8).map(|i| 1024.0 + f32::from(i % 4)));
        let args = LayerNorm {
            x: case.slice(&x),
            gain: case.floats(64),
            bias: Some(case.floats(64)),
            y: case.garbage(128),
            dim: 64,
            epsilon: 1e-6,
        };
        layer_norm::record(&mut case.recording, &case.caps, &args, 2);
        case.expect("7 and 1024 to 1027".into(), args.y, Kind::F32, 128, TOLERANCE);
        case.check(executor);
    });
}
