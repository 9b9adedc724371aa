//! `shaders/sample.comp`: token for token as the host chooses.

use hob::gpu::{Capabilities, Executor};
use hob::kernels::sampling::{NONE, Row};
use hob::kernels::{maxima, sample};
use hob::sampler::{Sampler, SamplingParams};

use super::{Case, Kind, on_both_variants};

fn plain() -> SamplingParams {
    SamplingParams {
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repeat_penalty: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        seed: Some(3),
        ..SamplingParams::default()
    }
}

/// What the device chooses from rows of logits; `nothing`: from how many it chooses none.
fn choose(
    executor: &mut dyn Executor,
    caps: &Capabilities,
    (logits, rows): (&[f32], &[Row]),
    nothing: usize,
) -> Vec<u32> {
    let vocab = (logits.len() / rows.len()) as u32;
    let count = rows.len();
    let mut case = Case::new(caps, 63);
    let values = case.slice(logits);
    let wanted = case.slice(rows);
    let found = case.garbage(2 * count * maxima::chunks(vocab) as usize);
    let chosen = case.garbage(count);
    let shape = (count as u32, vocab);
    maxima::record(&mut case.recording, caps, values, wanted, found, shape);
    sample::record(&mut case.recording, caps, (values, wanted, found), chosen, shape);
    case.expect(format!("tokens of {vocab}"), chosen, Kind::F32, count - nothing, 0.0);
    case.check(executor)[0].iter().take(count).map(|token| token.to_bits()).collect()
}

/// Logits of a text's next token: a few stand out.
fn peaked(vocab: usize) -> Vec<f32> {
    (0..vocab).map(|at| 12.0 - 4.0 * (1.0 + ((at * 7919 + 13) % vocab) as f32).ln()).collect()
}

#[test]
fn the_device_draws_the_tokens_that_the_host_draws() {
    let kinds = [
        SamplingParams { temperature: 0.0, ..plain() },
        SamplingParams { seed: Some(3), ..SamplingParams::default() },
        SamplingParams { top_k: 1, ..plain() },
        SamplingParams { top_k: 128, temperature: 50.0, ..plain() },
        SamplingParams { top_k: 100, top_p: 0.5, min_p: 0.2, temperature: 3.0, ..plain() },
        SamplingParams { top_p: 0.9, ..plain() },
        SamplingParams { top_p: 0.0, temperature: 1e-30, ..plain() },
        SamplingParams { top_p: 0.95, min_p: 0.1, temperature: 1.5, ..plain() },
        SamplingParams { min_p: 0.05, temperature: 0.7, ..plain() },
        SamplingParams { temperature: 2.0, ..plain() },
        plain(),
    ];
    const STEPS: u64 = 12;
    on_both_variants(|executor, caps| {
        for vocab in [68, 5003, 49_152] {
            let logits = peaked(vocab);
            let (mut rows, mut all, mut wanted) = (Vec::new(), Vec::new(), Vec::new());
            for params in &kinds {
                let mut sampler = Sampler::new(params, vocab).unwrap();
                let steps = if vocab > 5003 { 2 } else { STEPS };
                rows.extend((0..steps).map(|ahead| sampler.row(ahead)));
                for _ in 0..steps {
                    wanted.push(sampler.sample(&mut logits.clone(), &[], None).unwrap());
                    all.extend_from_slice(&logits);
                }
            }
            assert_eq!(choose(executor, caps, (&all, &rows), 0), wanted, "of {vocab}");
            let different: std::collections::BTreeSet<u32> = wanted.into_iter().collect();
            assert!(different.len() > 2, "of {vocab}: {different:?}");
        }
    });
}

#[test]
fn of_equal_logits_the_lower_tokens_stay() {
    on_both_variants(|executor, caps| {
        let logits = vec![1.5; 320];
        let draws = |params: SamplingParams| {
            let sampler = Sampler::new(&params, logits.len()).unwrap();
            (0..8).map(|ahead| sampler.row(ahead)).collect::<Vec<_>>()
        };
        for (params, end) in [
            (SamplingParams { temperature: 0.0, ..plain() }, 1),
            (SamplingParams { top_k: 7, ..plain() }, 7),
            (SamplingParams { top_p: 0.125, ..plain() }, 40),
        ] {
            let rows = draws(params);
            let all = logits.repeat(rows.len());
            let found = choose(executor, caps, (&all, &rows), 0);
            assert!(found.iter().all(|token| *token < end), "{params:?}: {found:?}");
        }
    });
}

#[test]
fn what_the_device_cannot_choose_is_left_to_the_host() {
    on_both_variants(|executor, caps| {
        let sampler = |params: SamplingParams| Sampler::new(&params, 2000).unwrap().row(0);
        let flat = sampler(SamplingParams { top_p: 0.9, ..plain() });
        let few = sampler(SamplingParams { top_k: 5, ..plain() });
        let logits = [vec![0.25; 2000], vec![f32::NEG_INFINITY; 2000], {
            let mut row = vec![0.5; 2000];
            row[1999] = f32::NAN;
            row
        }];
        let rows = [flat, few, few];
        let found = choose(executor, caps, (&logits.concat(), &rows), 3);
        assert_eq!(found, [NONE; 3]);
        let any = choose(executor, caps, (&logits[0], &[sampler(plain())]), 0);
        assert!(any[0] < 2000, "all may stay where nothing cuts");
    });
}
