//! `shaders/moe_combine.comp`.

use hob::kernels::moe_combine::{self, MoeCombine};

use super::{Case, Kind, on_both_variants};

/// Sums of up to six values below 1, and the exp of a sigmoid.
const TOLERANCE: f32 = 2e-6;

#[test]
fn results_of_experts_add_up_by_their_weights() {
    on_both_variants(|executor, caps| {
        let mut case = Case::new(caps, 61);
        for (dim, used, tokens) in [(4, 1, 1), (100, 2, 3), (260, 5, 2)] {
            for shares in 0..3 {
                for residual in [false, true] {
                    let x = case.floats(tokens * used * dim);
                    let weights = case.floats(tokens * used);
                    let shared = (case.floats(tokens * dim), case.floats(tokens));
                    let y = if residual {
                        case.floats(tokens * dim)
                    } else {
                        case.garbage(tokens * dim)
                    };
                    let sum = MoeCombine {
                        x,
                        weights,
                        shared: (shares > 0)
                            .then_some((shared.0, (shares == 2).then_some(shared.1))),
                        y,
                        dim: dim as u64,
                        used: used as u32,
                        factor: 0.5,
                        residual,
                    };
                    moe_combine::record(&mut case.recording, &case.caps, &sum, tokens as u32);
                    let name = format!("{used} experts, shares {shares}, residual {residual}");
                    case.expect(name, y, Kind::F32, tokens * dim, TOLERANCE);
                }
            }
        }
        case.check(executor);
    });
}
