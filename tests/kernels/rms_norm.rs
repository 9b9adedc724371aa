//! `shaders/rms_norm.comp`.

use hob::kernels::rms_norm::{self, RmsNorm};

use super::{Case, Kind, on_both_variants};

/// Values are below 4: a few units in their last place.
const TOLERANCE: f32 = 2e-6;

#[test]
fn rows_are_normalised_and_stored_or_added() {
    on_both_variants(|executor, caps| {
        let mut case = Case::new(caps, 11);
        // Widths of less than a vector for each lane, and of several and a part.
        for (dim, tokens) in [(4, 1), (64, 3), (100, 5), (576, 2)] {
            for residual in [false, true] {
                let count = dim * tokens as usize;
                let args = RmsNorm {
                    x: case.floats(count),
                    gain: case.floats(dim),
                    y: if residual { case.floats(count) } else { case.garbage(count) },
                    dim: dim as u64,
                    epsilon: 1e-5,
                    residual,
                };
                rms_norm::record(&mut case.recording, &case.caps, &args, tokens);
                let name = format!("{tokens} rows of {dim}, residual {residual}");
                case.expect(name, args.y, Kind::F32, count, TOLERANCE);
            }
        }
        case.check(executor);
    });
}

#[test]
fn rows_of_zeros_and_of_large_values_stay_finite() {
    on_both_variants(|executor, caps| {
        let mut case = Case::new(caps, 12);
        let mut x = vec![0.0_f32; 64];
        x.extend([1e18; 64]);
        let args = RmsNorm {
            x: case.slice(&x),
            gain: case.floats(64),
            y: case.garbage(128),
            dim: 64,
            epsilon: 1e-6,
            residual: false,
        };
        rms_norm::record(&mut case.recording, &case.caps, &args, 2);
        case.expect("zeros and 1e18".into(), args.y, Kind::F32, 128, TOLERANCE);
        case.check(executor);
    });
}
