//! What is said of several measurements of one thing.

use serde::Serialize;

/// Mean and sample standard deviation; the deviation of one sample is 0.
pub(super) fn mean_and_deviation(samples: &[f64]) -> (f64, f64) {
    let count = samples.len() as f64;
    let mean = samples.iter().sum::<f64>() / count;
    let squares: f64 = samples.iter().map(|sample| (sample - mean).powi(2)).sum();
    (mean, (squares / (count - 1.0).max(1.0)).sqrt())
}

pub(super) fn median(samples: &[f64]) -> f64 {
    let sorted = sorted(samples);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    }
}

/// The middle and the slow end of a distribution of times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Percentiles {
    pub(super) p50: f64,
    pub(super) p95: f64,
    pub(super) p99: f64,
}

impl Percentiles {
    /// The nearest ranks; `None` of nothing.
    pub(super) fn of(samples: &[f64]) -> Option<Self> {
        if samples.is_empty() {
            return None;
        }
        let sorted = sorted(samples);
        let rank = |percent: usize| sorted[(sorted.len() * percent).div_ceil(100).max(1) - 1];
        Some(Self { p50: rank(50), p95: rank(95), p99: rank(99) })
    }
}

fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_deviations_and_medians() {
        let (mean, deviation) = mean_and_deviation(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]);
        assert!((mean - 5.0).abs() < 1e-12);
        assert!((deviation - (32f64 / 7.0).sqrt()).abs() < 1e-12);
        assert_eq!(mean_and_deviation(&[3.0]), (3.0, 0.0));
        assert_eq!(median(&[9.0, 1.0, 5.0]), 5.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 8.0]), 3.0);
    }

    #[test]
    fn percentiles_are_samples() {
        let samples: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        let wanted = Percentiles { p50: 100.0, p95: 190.0, p99: 198.0 };
        assert_eq!(Percentiles::of(&samples), Some(wanted));
        let one = Percentiles { p50: 7.0, p95: 7.0, p99: 7.0 };
        assert_eq!(Percentiles::of(&[7.0]), Some(one));
        assert_eq!(Percentiles::of(&[]), None);
    }
}
