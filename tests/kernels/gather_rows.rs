//! `shaders/gather_rows.comp`.

use hob::kernels::gather_rows;

use super::{Case, Kind, on_both_variants};

#[test]
fn wanted_rows_are_copied_exactly() {
    on_both_variants(|executor, caps| {
        let mut case = Case::new(caps, 21);
        for dim in [4, 68, 576] {
            let x = case.floats(7 * dim);
            let rows = case.slice(&[6_u32, 0, 3, 3]);
            let y = case.garbage(4 * dim);
            gather_rows::record(&mut case.recording, &case.caps, x, rows, y, dim as u64, 4);
            case.expect(format!("rows of {dim}"), y, Kind::F32, 4 * dim, 0.0);
        }
        case.check(executor);
    });
}
