//! Tests of the sampler as a whole and of its filters.

#![allow(clippy::unwrap_used)]

use super::*;

/// Everything off: plain softmax.
fn plain() -> SamplingParams {
    SamplingParams {
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repeat_penalty: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        seed: Some(42),
        ..SamplingParams::default()
    }
}

/// Logits of these probabilities.
fn logits(probabilities: &[f32]) -> Vec<f32> {
    probabilities.iter().map(|p| p.ln()).collect()
}

/// Number of times each token is drawn in `draws` steps.
fn counts(params: &SamplingParams, logits: &[f32], draws: usize) -> Vec<usize> {
    let mut sampler = Sampler::new(params, logits.len()).unwrap();
    let mut counts = vec![0; logits.len()];
    for _ in 0..draws {
        counts[sampler.sample(&mut logits.to_vec(), &[], None).unwrap() as usize] += 1;
    }
    counts
}

fn drawn(params: &SamplingParams, probabilities: &[f32]) -> Vec<usize> {
    let counts = counts(params, &logits(probabilities), 2000);
    (0..counts.len()).filter(|id| counts[*id] > 0).collect()
}

#[test]
fn greedy_takes_the_best_and_of_equals_the_lowest() {
    let params = SamplingParams { temperature: 0.0, ..plain() };
    let mut sampler = Sampler::new(&params, 4).unwrap();
    assert_eq!(sampler.sample(&mut [0.0, 2.0, 2.0, -1.0], &[], None), Ok(1));
    assert_eq!(sampler.sample(&mut [-5.0, f32::NEG_INFINITY, -3.0, -3.0], &[], None), Ok(2));
    assert_eq!(sampler.step(), 2);
}

#[test]
fn draws_follow_the_probabilities() {
    let probabilities = [0.5, 0.3, 0.15, 0.05];
    let draws = 20_000;
    for (temperature, wanted) in [
        (1.0, probabilities),
        // Squared and normalised.
        (0.5, [0.25 / 0.365, 0.09 / 0.365, 0.0225 / 0.365, 0.0025 / 0.365]),
    ] {
        let params = SamplingParams { temperature, ..plain() };
        for (count, p) in counts(&params, &logits(&probabilities), draws).iter().zip(wanted) {
            let p = f64::from(p);
            let deviation = (draws as f64 * p * (1.0 - p)).sqrt();
            let off = *count as f64 - draws as f64 * p;
            assert!(off.abs() < 4.0 * deviation, "T {temperature} p {p}: {count}");
        }
    }
}

#[test]
fn a_stream_depends_on_seed_and_step_alone() {
    let logits = logits(&[0.25; 4]);
    let run = |seed: u64, from: u64| -> Vec<u32> {
        let params = SamplingParams { seed: Some(seed), ..plain() };
        let mut sampler = Sampler::new(&params, 4).unwrap();
        sampler.set_step(from);
        (from..64).map(|_| sampler.sample(&mut logits.clone(), &[], None).unwrap()).collect()
    };
    assert_eq!(run(1, 0), run(1, 0));
    assert_eq!(run(1, 0)[40..], run(1, 40));
    assert_ne!(run(1, 0), run(2, 0));
    let unseeded = SamplingParams { seed: None, ..plain() };
    let seeds = [0; 2].map(|_| Sampler::new(&unseeded, 4).unwrap().seed());
    assert_ne!(seeds[0], seeds[1]);
}

#[test]
fn top_k_keeps_the_k_best_and_of_equals_the_lowest() {
    let p = [0.1, 0.4, 0.1, 0.3, 0.1];
    assert_eq!(drawn(&SamplingParams { top_k: 2, ..plain() }, &p), [1, 3]);
    assert_eq!(drawn(&SamplingParams { top_k: 3, ..plain() }, &p), [0, 1, 3]);
    assert_eq!(drawn(&SamplingParams { top_k: 1, ..plain() }, &p), [1]);
    assert_eq!(drawn(&SamplingParams { top_k: 99, ..plain() }, &p).len(), 5);
}

#[test]
fn top_p_keeps_the_fewest_that_reach_it_and_at_least_one() {
    let p = [0.5, 0.25, 0.15, 0.1];
    let with = |top_p: f32| drawn(&SamplingParams { top_p, ..plain() }, &p);
    assert_eq!(with(0.0), [0]);
    assert_eq!(with(0.49), [0]);
    assert_eq!(with(0.51), [0, 1]);
    assert_eq!(with(0.76), [0, 1, 2]);
    assert_eq!(with(0.99), [0, 1, 2, 3]);
    // Among what top-k left: 0.5 of 0.75 is enough.
    assert_eq!(drawn(&SamplingParams { top_k: 2, top_p: 0.6, ..plain() }, &p), [0]);
}

#[test]
fn top_p_is_taken_before_the_temperature() {
    let p = [0.5, 0.25, 0.15, 0.1];
    let hot = SamplingParams { top_p: 0.7, temperature: 50.0, ..plain() };
    assert_eq!(drawn(&hot, &p), [0, 1]);
}

#[test]
fn min_p_is_a_share_of_the_best() {
    let p = [0.5, 0.26, 0.14, 0.1];
    let with = |min_p: f32| drawn(&SamplingParams { min_p, ..plain() }, &p);
    assert_eq!(with(1.0), [0]);
    assert_eq!(with(0.5), [0, 1]);
    assert_eq!(with(0.19), [0, 1, 2, 3]);
    assert_eq!(with(0.21), [0, 1, 2]);
}

#[test]
fn the_penalty_takes_each_of_the_last_tokens_once() {
    let with = |repeat_penalty| SamplingParams { temperature: 0.0, repeat_penalty, ..plain() };
    let mut values = [2.0, -2.0, 2.0, 0.0];
    let mut sampler = Sampler::new(&with(2.0), 4).unwrap();
    assert_eq!(sampler.sample(&mut values, &[0, 1, 0, 0, 3, 99], None), Ok(2));
    assert_eq!(values, [1.0, -4.0, 2.0, 0.0]);
    let mut history = vec![2];
    history.extend(std::iter::repeat_n(3, PENALTY_TOKENS as usize));
    assert_eq!(sampler.sample(&mut values, &history, None), Ok(2), "beyond the last tokens");
    let listed = |sampler: &Sampler, pending| -> Vec<u32> {
        sampler.penalties(&history, pending).iter().map(|listed| listed.token).collect()
    };
    assert_eq!(listed(&sampler, false), [3]);
    let all = SamplingParams { repeat_last_n: u32::MAX, ..with(2.0) };
    assert_eq!(listed(&Sampler::new(&all, 4).unwrap(), false), [2, 3]);
    let two = SamplingParams { repeat_last_n: 65, ..with(2.0) };
    assert_eq!(listed(&Sampler::new(&two, 4).unwrap(), false), [2, 3]);
    assert_eq!(listed(&Sampler::new(&two, 4).unwrap(), true), [3], "one more is to come");
    let none = SamplingParams { repeat_last_n: 0, ..with(2.0) };
    assert!(listed(&Sampler::new(&none, 4).unwrap(), false).is_empty());
    let mut sampler = Sampler::new(&with(1.5), 2).unwrap();
    assert_eq!(sampler.sample(&mut [3.0, 2.5], &[0], None), Ok(1));
    assert!(Sampler::new(&with(1.0), 2).unwrap().penalties(&history, false).is_empty());
}

#[test]
fn presence_takes_off_once_and_frequency_each_time() {
    let params = SamplingParams {
        temperature: 0.0,
        repeat_penalty: 2.0,
        presence_penalty: 0.25,
        frequency_penalty: 0.5,
        ..plain()
    };
    let mut values = [2.0, -2.0, 2.0, 0.0];
    let mut sampler = Sampler::new(&params, 4).unwrap();
    [0, 1, 0, 0, 99].into_iter().for_each(|token| sampler.note(token));
    assert_eq!(sampler.sample(&mut values, &[0, 1, 0, 0, 99], None), Ok(2));
    assert_eq!(values, [1.0 - 0.25 - 1.5, -4.0 - 0.75, 2.0, 0.0]);
    let params = SamplingParams { repeat_penalty: 1.0, presence_penalty: -1.0, ..params };
    let mut values = [2.0, 2.25, 0.0, 0.0];
    let mut sampler = Sampler::new(&params, 4).unwrap();
    sampler.note(0);
    assert_eq!(
        sampler.sample(&mut values, &[3, 0], None),
        Ok(0),
        "below 0, it makes them likelier"
    );
    assert_eq!(values, [2.5, 2.25, 0.0, 0.0]);
}

#[test]
fn a_bias_comes_first_and_a_mask_last() {
    let params = SamplingParams { temperature: 0.0, repeat_penalty: 2.0, ..plain() };
    let mut sampler = Sampler::new(&params, 4).unwrap();
    sampler.set_bias(&[(1, -3.0), (2, 9.0)]);
    let mut values = [1.0, 2.0, 0.0, -1.0];
    assert_eq!(sampler.sample(&mut values, &[1, 0], Some(&[0b1011])), Ok(0));
    let masked = f32::NEG_INFINITY;
    assert_eq!(values, [0.5, -2.0, masked, -1.0], "a likely token of no mask is out");
    assert_eq!(sampler.sample(&mut [0.0; 4], &[], Some(&[0b1000])), Ok(3));
    let none = sampler.sample(&mut [0.0; 4], &[], Some(&[0]));
    assert_eq!(none, Err(SamplingError::NoCandidates { vocab_size: 4 }));
}

#[test]
fn typical_p_keeps_what_is_close_to_the_entropy() {
    let p = [0.5, 0.3, 0.15, 0.05];
    let with = |typical_p, min_keep| drawn(&SamplingParams { typical_p, min_keep, ..plain() }, &p);
    // Information 0.69, 1.20, 1.90, 3.00 and an entropy of 1.14.
    assert_eq!(with(0.2, 0), [1]);
    assert_eq!(with(0.6, 0), [0, 1]);
    assert_eq!(with(0.9, 0), [0, 1, 2]);
    assert_eq!(with(0.2, 3), [0, 1, 2]);
}

#[test]
fn min_keep_is_kept_by_top_p_and_min_p_but_not_by_top_k() {
    let p = [0.5, 0.25, 0.15, 0.1];
    let keep = |params| drawn(&SamplingParams { min_keep: 3, ..params }, &p);
    assert_eq!(keep(SamplingParams { top_p: 0.0, ..plain() }), [0, 1, 2]);
    assert_eq!(keep(SamplingParams { min_p: 1.0, ..plain() }), [0, 1, 2]);
    assert_eq!(keep(SamplingParams { top_k: 2, top_p: 0.1, ..plain() }), [0, 1]);
}

#[test]
fn bad_logits_are_errors_and_take_no_step() {
    for temperature in [0.0, 1.0] {
        let mut sampler = Sampler::new(&SamplingParams { temperature, ..plain() }, 2).unwrap();
        let nan = sampler.sample(&mut [0.0, f32::NAN], &[], None);
        assert!(matches!(nan, Err(SamplingError::BadLogit { token: 1, .. })), "{nan:?}");
        let infinite = sampler.sample(&mut [f32::INFINITY, 0.0], &[], None);
        assert!(matches!(infinite, Err(SamplingError::BadLogit { token: 0, .. })));
        let none = sampler.sample(&mut [f32::NEG_INFINITY; 2], &[], None);
        assert_eq!(none, Err(SamplingError::NoCandidates { vocab_size: 2 }));
        let few = sampler.sample(&mut [0.0], &[], None);
        assert_eq!(few, Err(SamplingError::LogitCount { found: 1, vocab_size: 2 }));
        assert_eq!(sampler.step(), 0);
    }
    assert!(Sampler::new(&SamplingParams { top_p: 2.0, ..plain() }, 2).is_err());
}

#[test]
fn a_large_vocabulary_is_drawn_from_by_every_filter() {
    let logits: Vec<f32> =
        (0..262_144).map(|i| ((i * 7919 % 262_144) as f32).sqrt() / 50.0).collect();
    for params in [
        SamplingParams { seed: Some(1), ..SamplingParams::default() },
        SamplingParams { top_p: 0.9, ..plain() },
        SamplingParams { min_p: 0.9, ..plain() },
        plain(),
    ] {
        let mut sampler = Sampler::new(&params, logits.len()).unwrap();
        let token = sampler.sample(&mut logits.clone(), &[], None).unwrap();
        assert!((token as usize) < logits.len());
    }
}
