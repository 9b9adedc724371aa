//! `shaders/moe_route.comp`.

use hob::kernels::moe_route::{self, Router};

use super::{Case, Kind, on_both_variants};

/// Weights are at most `scale`; exp of drivers and of the host differ in their last places.
const TOLERANCE: f32 = 5e-6;

fn add(case: &mut Case, router: Router, logits: &[f32], numbers: bool) {
    let tokens = logits.len() / router.experts as usize;
    let count = tokens * router.used as usize;
    let logits = case.slice(logits);
    let (experts, weights) = (case.garbage(count), case.garbage(count));
    let out = (experts, weights);
    moe_route::record(&mut case.recording, &case.caps, &router, logits, out, tokens as u32);
    // Small numbers are finite as floats, and must be equal.
    case.expect(format!("experts by {router:?}"), experts, Kind::F32, count, 0.0);
    if numbers {
        let tolerance = TOLERANCE * router.scale;
        case.expect(format!("weights by {router:?}"), weights, Kind::F32, count, tolerance);
    }
}

fn routers(experts: u32, used: u32) -> [Router; 4] {
    let router = Router { experts, used, sigmoid: false, normalise: false, scale: 1.0 };
    [
        router,
        Router { normalise: true, ..router },
        Router { sigmoid: true, ..router },
        Router { sigmoid: true, normalise: true, scale: 2.5, ..router },
    ]
}

#[test]
fn the_best_experts_are_chosen_and_weighed() {
    on_both_variants(|executor, caps| {
        let mut case = Case::new(caps, 41);
        for (experts, used, tokens) in [(4, 2, 3), (8, 8, 1), (60, 4, 2), (5, 1, 2)] {
            let logits = case.random.floats((experts * tokens) as usize, -9.0, 9.0);
            for router in routers(experts, used) {
                add(&mut case, router, &logits, true);
            }
        }
        case.check(executor);
    });
}

#[test]
fn of_equal_experts_the_first_is_chosen() {
    on_both_variants(|executor, caps| {
        let mut case = Case::new(caps, 42);
        let [softmax, ..] = routers(20, 6);
        let logits: Vec<f32> = (0..40).map(|i| [0.5, 1.0, 0.5, 1.0, -3.0][i % 5]).collect();
        add(&mut case, softmax, &logits, true);
        let found = case.check(executor);
        let chosen: Vec<u32> = found[0][..6].iter().map(|expert| expert.to_bits()).collect();
        assert_eq!(chosen, [1, 3, 6, 8, 11, 13]);
    });
}

#[test]
fn logits_that_are_no_numbers_choose_different_experts() {
    on_both_variants(|executor, caps| {
        let mut case = Case::new(caps, 43);
        let [softmax, ..] = routers(9, 5);
        let mut logits = vec![f32::NAN; 9];
        logits.extend([1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY]);
        logits.extend([-0.0, 0.0, f32::MIN_POSITIVE, f32::NEG_INFINITY, 3.0]);
        add(&mut case, softmax, &logits, false);
        case.check(executor);
    });
}
