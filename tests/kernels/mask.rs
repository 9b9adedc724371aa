//! `shaders/mask.comp`, and choosing among what it leaves, token for token as the host does.

use hob::kernels::sampling::{NONE, Row};
use hob::kernels::{mask, maxima, sample};
use hob::sampler::{Sampler, SamplingParams};

use super::{Case, Kind, on_both_variants};

/// A mask that leaves one in `every` tokens.
fn sparse(vocab: u32, every: u32) -> Vec<u32> {
    let mut words = vec![0; mask::words(vocab) as usize];
    for token in (0..vocab).filter(|token| (token * 31 + 7) % every == 0) {
        words[token as usize / 32] |= 1 << (token % 32);
    }
    words
}

#[test]
fn tokens_without_a_bit_become_impossible_and_rows_without_a_mask_stay() {
    on_both_variants(|executor, caps| {
        for vocab in [1, 31, 32, 33, 68, 5003] {
            let mut case = Case::new(caps, 64);
            // Logits beyond the vocabulary are padding of the table.
            let row = |mask| Row { mask, ..Row::best((vocab - 1).max(1)) };
            let rows = [row(1), row(NONE), row(0), row(2)];
            let kept = [sparse(vocab, 3), sparse(vocab, 7), sparse(vocab, 1)];
            let logits = case.floats(4 * vocab as usize);
            let (wanted, masks) = (case.slice(&rows), case.slice(&kept.concat()));
            mask::record(&mut case.recording, caps, (logits, wanted, masks), (4, vocab));
            let usable = (vocab - 1).max(1);
            let out = |mask: &[u32]| {
                let is_out = |token: &u32| mask[*token as usize / 32] >> (token % 32) & 1 == 0;
                (0..usable).filter(is_out).count()
            };
            let outs = [out(&kept[1]), 0, out(&kept[0]), 0];
            let finite = 4 * vocab as usize - outs.iter().sum::<usize>();
            case.expect(format!("logits of {vocab}"), logits, Kind::F32, finite, 0.0);
            let [found] = &case.check(executor)[..] else { panic!("one output") };
            for (row, wanted) in found.chunks(vocab as usize).zip(outs) {
                let out = row.iter().filter(|logit| **logit == f32::NEG_INFINITY).count();
                assert_eq!(out, wanted, "{vocab}");
            }
        }
    });
}

#[test]
fn device_and_host_choose_the_same_of_what_a_mask_leaves() {
    let plain = SamplingParams {
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        seed: Some(5),
        ..SamplingParams::default()
    };
    let kinds = [
        SamplingParams { temperature: 0.0, ..plain },
        SamplingParams { seed: Some(5), ..SamplingParams::default() },
        SamplingParams { top_k: 128, temperature: 50.0, ..plain },
        SamplingParams { top_p: 0.9, ..plain },
        SamplingParams { min_p: 0.05, ..plain },
        plain,
    ];
    on_both_variants(|executor, caps| {
        for (vocab, every) in [(68, 5), (5003, 2), (5003, 4000), (49_152, 300)] {
            let logits: Vec<f32> = (0..vocab)
                .map(|at| 12.0 - 4.0 * (1.0 + ((at * 7919 + 13) % vocab) as f32).ln())
                .collect();
            let allowed = sparse(vocab, every);
            let (mut rows, mut wanted) = (Vec::new(), Vec::new());
            for params in &kinds {
                let mut sampler = Sampler::new(params, vocab as usize).unwrap();
                rows.push(Row { mask: 0, ..sampler.row(0) });
                wanted.push(sampler.sample(&mut logits.clone(), &[], Some(&allowed)).unwrap());
            }
            let count = rows.len();
            let mut case = Case::new(caps, 65);
            let values = case.slice(&logits.repeat(count));
            let (rows, masks) = (case.slice(&rows), case.slice(&allowed));
            let found = case.garbage(2 * count * maxima::chunks(vocab) as usize);
            let chosen = case.garbage(count);
            let shape = (count as u32, vocab);
            mask::record(&mut case.recording, caps, (values, rows, masks), shape);
            maxima::record(&mut case.recording, caps, values, rows, found, shape);
            sample::record(&mut case.recording, caps, (values, rows, found), chosen, shape);
            case.expect(format!("tokens of {vocab}"), chosen, Kind::F32, count, 0.0);
            let chosen: Vec<u32> =
                case.check(executor)[0].iter().take(count).map(|token| token.to_bits()).collect();
            assert_eq!(chosen, wanted, "{vocab}, one in {every}");
        }
    });
}
