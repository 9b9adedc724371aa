//! `shaders/glu.comp`.

use hob::kernels::glu::{self, Glu};

use super::{Case, Kind, on_both_variants};

/// Values are below 100: exp and tanh of drivers and of the host differ in their last places.
const TOLERANCE: f32 = 5e-5;

#[test]
fn gates_open_by_either_activation() {
    on_both_variants(|executor, caps| {
        let mut case = Case::new(caps, 31);
        for gelu in [false, true] {
            for (dim, group, tokens) in [(4, 4, 1), (100, 100, 3), (257, 257, 2), (96, 8, 3)] {
                let values = case.random.floats(2 * dim * tokens as usize, -8.0, 8.0);
                let x = case.slice(&values);
                let count = dim * tokens as usize;
                let y = case.garbage(count);
                let args = Glu { x, y, dim: dim as u64, group, gelu };
                glu::record(&mut case.recording, &case.caps, &args, tokens);
                let name = format!("gelu {gelu}, {tokens} rows of {dim} in groups of {group}");
                case.expect(name, y, Kind::F32, count, TOLERANCE);
            }
        }
        case.check(executor);
    });
}

#[test]
fn extreme_gates_give_no_nan() {
    on_both_variants(|executor, caps| {
        let mut case = Case::new(caps, 32);
        for gelu in [false, true] {
            let gates = [-1e4_f32, -200.0, -90.0, -0.0, 0.0, 90.0, 200.0, 1e4];
            let x = case.slice(&[gates, [1.0; 8]].concat());
            let y = case.garbage(8);
            let args = Glu { x, y, dim: 8, group: 8, gelu };
            glu::record(&mut case.recording, &case.caps, &args, 1);
            case.expect(format!("gelu {gelu}"), y, Kind::F32, 8, TOLERANCE);
        }
        case.check(executor);
    });
}
