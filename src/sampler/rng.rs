//! Random numbers by seed and step: no state, so that a stream can be taken up again anywhere.

/// SplitMix64's increment: 2^64 divided by the golden ratio, odd.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// SplitMix64's output function (Steele, Lea and Flood 2014).
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// The uniform number of `step` in the stream of `seed`.
pub(super) fn random(seed: u64, step: u64) -> u32 {
    // The seed is mixed first: the streams of neighbouring seeds would else be shifts of each
    // other.
    let state = mix(seed.wrapping_add(GOLDEN)).wrapping_add(step.wrapping_mul(GOLDEN));
    (mix(state.wrapping_add(GOLDEN)) >> 32) as u32
}

/// A seed that nobody knows beforehand.
pub(super) fn system_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_uniform_and_depend_on_seed_and_step() {
        for seed in [0, 1, u64::MAX] {
            let part = |step| f64::from(random(seed, step)) / f64::from(u32::MAX);
            let mean = (0..10_000).map(part).sum::<f64>() / 10_000.0;
            // Four standard deviations of the mean of 10,000 uniform numbers.
            assert!((mean - 0.5).abs() < 4.0 * 0.2887 / 100.0, "seed {seed}: {mean}");
        }
        assert_eq!(random(7, 3), random(7, 3));
        assert_ne!(random(7, 3), random(7, 4));
        assert_ne!(random(7, 4), random(8, 3));
        assert_ne!(system_seed(), system_seed());
    }
}
