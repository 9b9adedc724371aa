//! `shaders/penalise.comp`.

use hob::kernels::penalise::{self, Penalise};
use hob::kernels::sampling::{NONE, Penalty, Row};

use super::{Case, Kind, on_both_variants};

const VOCAB: u32 = 100;
/// Tokens in the list of each row.
const LISTED: u32 = 64;

#[test]
fn listed_tokens_and_the_pending_one_are_made_less_likely_by_their_counts() {
    on_both_variants(|executor, caps| {
        let mut case = Case::new(caps, 62);
        let row = |penalties, penalty_pending| Row {
            penalties,
            penalty_pending,
            penalty: 1.5,
            relief: 1.0 / 1.5,
            frequency: 0.3,
            presence: 0.7,
            ..Row::best(VOCAB - 1)
        };
        // None, one that is listed, one that is not, and one beyond the vocabulary.
        let rows = [row(64, NONE), row(20, 0), row(0, 1), row(3, 2)];
        let list = |row| {
            (0..LISTED).map(move |at| Penalty {
                token: at + row,
                count: at % 5,
                repeats: at % 2,
                bias: if at % 3 == 0 { 0.7 - at as f32 / 9.0 } else { 0.0 },
            })
        };
        let listed: Vec<Penalty> = (0..4).flat_map(list).collect();
        let rows: Vec<Row> =
            (0..).zip(rows).map(|(at, row)| Row { penalties_at: at * LISTED, ..row }).collect();
        let logits = case.floats(4 * VOCAB as usize);
        let args = Penalise {
            logits,
            wanted: case.slice(&rows),
            listed: case.slice(&listed),
            chosen: case.slice(&[5_u32, 77, VOCAB - 1]),
        };
        penalise::record(&mut case.recording, caps, &args, (4, VOCAB));
        case.expect("logits".into(), logits, Kind::F32, 4 * VOCAB as usize, 0.0);
        case.check(executor);
    });
}
