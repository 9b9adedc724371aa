//! `shaders/maxima.comp`.

use hob::kernels::maxima;
use hob::kernels::sampling::{NONE, Row, key};

use super::{Case, Kind, on_both_variants};

/// Rows of so many logits, of which `bad_chunks` hold what is no number.
fn check(vocab: u32, logits: &[f32], bad_chunks: usize) {
    on_both_variants(|executor, caps| {
        let mut case = Case::new(caps, 61);
        let rows = logits.len() as u32 / vocab;
        let values = case.slice(logits);
        // Logits beyond the vocabulary are padding of the table.
        let wanted = case.slice(&vec![Row::best(vocab - 1); rows as usize]);
        let words = 2 * (rows * maxima::chunks(vocab)) as usize;
        let out = case.garbage(words);
        maxima::record(&mut case.recording, caps, values, wanted, out, (rows, vocab));
        let finite = words - 2 * bad_chunks; // what says so looks like garbage
        case.expect(format!("chunks of {vocab}"), out, Kind::F32, finite, 0.0);
        let [found] = &case.check(executor)[..] else { panic!("one output") };
        let chunks = words / rows as usize;
        let rows = logits.chunks_exact(vocab as usize).zip(found.chunks_exact(chunks));
        for (at, (row, found)) in rows.enumerate() {
            let usable = &row[..row.len() - 1];
            let wanted = match bad_chunks {
                0 => usable.iter().map(|logit| key(*logit)).max().unwrap(),
                _ => NONE,
            };
            let found = found.iter().step_by(2).map(|key| key.to_bits()).max();
            assert_eq!(found, Some(wanted), "row {at} of {vocab}");
        }
    });
}

#[test]
fn the_largest_logit_of_each_chunk_is_found_and_its_first_token() {
    for vocab in [3, 68, 999, 20_011] {
        let mut logits: Vec<f32> =
            (0..2 * vocab).map(|at| (at * 7919 % 1009) as f32 / 100.0 - 5.0).collect();
        logits[0] = f32::NEG_INFINITY;
        logits[1] = -0.0;
        logits[vocab as usize - 1] = f32::NAN; // padding
        check(vocab, &logits, 0);
    }
}

#[test]
fn a_chunk_with_what_is_no_number_says_so() {
    for bad in [f32::NAN, -f32::NAN, f32::INFINITY] {
        let mut logits = vec![1.0; 200];
        logits[150] = bad;
        check(200, &logits, 1);
    }
}
