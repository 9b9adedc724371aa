//! `shaders/fma_peak.comp`.

use hob::kernels::fma_peak;

use super::{Case, Kind, on_both_variants};

/// 24 values of up to 8 each, rounded in another place where a driver fuses.
const TOLERANCE: f32 = 192.0 * 1e-5;

#[test]
fn as_many_rounds_are_computed_as_are_asked_for() {
    on_both_variants(|executor, caps| {
        let mut case = Case::new(caps, 72);
        for (sums, rounds) in [(8, 0), (8, 1), (24, 7), (24, 100)] {
            let count = 3 * caps.lanes as usize;
            let y = case.garbage(count);
            fma_peak::record(&mut case.recording, caps, y, 3, sums, rounds);
            case.expect(format!("{sums} sums, {rounds} rounds"), y, Kind::F32, count, TOLERANCE);
        }
        case.check(executor);
    });
}
