//! How much work a submission may carry: drivers reset a device that is busy with one for long, and
//! nothing can be cancelled within it.

use std::time::Duration;

/// A submission should take about a third of this at most, which no estimate is wrong by.
const SUBMISSION_MAX: Duration = Duration::from_millis(300);
const SAFETY: f64 = 3.0;

/// Multiplications and additions that take as long as a byte of memory; 3 to 14 on the devices that
/// were measured.
const FLOPS_A_BYTE: f64 = 8.0;

/// Assumed speed of an unknown device, in FLOP/s: a slow processor and a slow GPU.
const RATE_FIRST_CPU: f64 = 5e9;
const RATE_FIRST_GPU: f64 = 50e9;

/// A step changes the estimate by at most this much: the first one may be spent in a compiler.
const GROWTH_MAX: f64 = 8.0;
const DECLINE_MAX: f64 = 0.5;

/// Estimated cost of a command, in FLOP.
#[must_use]
pub fn cost(bytes: u64, flops: u64) -> f64 {
    bytes as f64 * FLOPS_A_BYTE + flops as f64
}

/// The pace of a device, learned from the steps it has taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Cost done in a second.
    rate: f64,
}

impl Pace {
    /// The pace to begin with.
    #[must_use]
    pub fn new(software: bool) -> Self {
        Self { rate: if software { RATE_FIRST_CPU } else { RATE_FIRST_GPU } }
    }

    /// Most cost of a submission.
    #[must_use]
    pub fn cost_max(&self) -> f64 {
        self.rate * SUBMISSION_MAX.as_secs_f64() / SAFETY
    }

    /// Learns from a step.
    pub fn learn(&mut self, cost: f64, elapsed: Duration) {
        let seconds = elapsed.as_secs_f64();
        if seconds > 0.0 && cost > 0.0 {
            let bounds = (self.rate * DECLINE_MAX, self.rate * GROWTH_MAX);
            self.rate = (cost / seconds).clamp(bounds.0, bounds.1);
        }
    }

    /// Divides a sequence of commands into as few submissions as possible, none costing more than
    /// [`Pace::cost_max`] unless it is a single command; returns the number of commands in each.
    #[must_use]
    pub fn cut(&self, costs: &[f64]) -> Vec<usize> {
        let cost_max = self.cost_max();
        let (mut parts, mut count, mut sum) = (Vec::new(), 0, 0.0);
        for cost in costs {
            if count > 0 && sum + cost > cost_max {
                parts.push(count);
                (count, sum) = (0, 0.0);
            }
            count += 1;
            sum += cost;
        }
        parts.push(count);
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_device_gets_little_and_a_fast_one_all_at_once() {
        let mut pace = Pace::new(true);
        let costs = [pace.cost_max() * 0.6; 5];
        assert_eq!(pace.cut(&costs), [1, 1, 1, 1, 1]);
        let all: f64 = costs.iter().sum();
        for _ in 0..3 {
            pace.learn(all, Duration::from_millis(10));
        }
        assert_eq!(pace.cut(&costs), [5]);
        // 10 ms for that cost: a tenth of a second holds ten times as much.
        assert!((pace.cost_max() / (10.0 * all) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_step_that_took_long_halves_what_is_trusted_at_most() {
        let mut pace = Pace::new(false);
        let before = pace.cost_max();
        pace.learn(before, Duration::from_secs(60));
        assert!((pace.cost_max() / before - 0.5).abs() < 1e-9);
        pace.learn(before, Duration::ZERO);
        assert!((pace.cost_max() / before - 0.5).abs() < 1e-9, "no time says nothing");
    }

    #[test]
    fn one_command_is_never_cut_and_none_is_lost() {
        let pace = Pace::new(true);
        let huge = pace.cost_max() * 100.0;
        assert_eq!(pace.cut(&[huge, 1.0, 1.0, huge]), [1, 2, 1]);
        assert_eq!(pace.cut(&[1.0]), [1]);
    }
}
