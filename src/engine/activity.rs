//! What the engine has done, counted for `status` and `metrics`: numbers only, never a text.

use std::time::{Duration, Instant};

use super::types::FinishReason;

/// Bounds of step times, in seconds: from an idle GPU to the deadline of a step.
const STEP_SECONDS: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0];

/// Bounds of the requests of a step.
const BATCH_REQUESTS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0];

/// Bounds of the tokens of a step.
const BATCH_TOKENS: &[f64] =
    &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 4096.0];

/// Histogram: counts of values between bounds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    /// Upper bounds, ascending; one more range is open.
    pub bounds: &'static [f64],
    /// Values in each range, one more than the bounds.
    pub counts: Vec<u64>,
    /// Sum of the values.
    pub sum: f64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    fn note(&mut self, value: f64) {
        self.counts[self.bounds.partition_point(|bound| *bound < value)] += 1;
        self.sum += value;
    }

    /// Counts and the sum in whole multiples alone.
    fn rounded(mut self, sum_step: f64) -> Self {
        for count in &mut self.counts {
            *count -= *count % COUNT_STEP;
        }
        self.sum = (self.sum / sum_step).floor() * sum_step;
        self
    }
}

/// Multiples that [`Activity::rounded`] tells counts, seconds and tokens in.
const COUNT_STEP: u64 = 1000;
const SECONDS_STEP: f64 = 60.0;
const TOKENS_STEP: f64 = 16384.0;
/// Multiples of the tokens that its rates are of.
const RATE_TOKENS_STEP: u64 = 1024;

/// Counts of ended generations, by finish reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Finished {
    /// At a stop token or text.
    pub stop: u64,
    /// At their limit.
    pub length: u64,
    /// Generations cancelled.
    pub cancelled: u64,
    /// Out of time.
    pub deadline: u64,
    /// Generations that failed.
    pub error: u64,
}

/// Pages of the KV cache by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvPages {
    /// Held by sessions.
    pub leased: u64,
    /// Zeroed and ready.
    pub free: u64,
    /// Given back and not zeroed yet.
    pub soiled: u64,
}

/// Counts since the start.
#[derive(Clone, Debug, PartialEq)]
pub struct Activity {
    /// Time of each step.
    pub step_seconds: Histogram,
    /// Requests in each step.
    pub batch_requests: Histogram,
    /// Tokens in each step.
    pub batch_tokens: Histogram,
    /// Caches that left the device's memory for others'.
    pub evictions: u64,
    /// Counts of ended generations, by finish reason.
    pub finished: Finished,
    prefilled: Rate,
    decoded: Rate,
}

impl Default for Activity {
    fn default() -> Self {
        let now = Instant::now();
        Self {
            step_seconds: Histogram::new(STEP_SECONDS),
            batch_requests: Histogram::new(BATCH_REQUESTS),
            batch_tokens: Histogram::new(BATCH_TOKENS),
            evictions: 0,
            finished: Finished::default(),
            prefilled: Rate::new(now),
            decoded: Rate::new(now),
        }
    }
}

impl Activity {
    /// Notes a step that has ended.
    pub(super) fn note_step(&mut self, elapsed: Duration, requests: usize, tokens: [usize; 2]) {
        let [prefilled, decoded] = tokens;
        self.step_seconds.note(elapsed.as_secs_f64());
        self.batch_requests.note(requests as f64);
        self.batch_tokens.note((prefilled + decoded) as f64);
        let now = Instant::now();
        self.prefilled.note(now, prefilled as u64);
        self.decoded.note(now, decoded as u64);
    }

    /// Notes the end of a generation.
    pub(super) fn note_end(&mut self, reason: FinishReason) {
        let count = match reason {
            FinishReason::Stop => &mut self.finished.stop,
            FinishReason::Length => &mut self.finished.length,
            FinishReason::Cancelled => &mut self.finished.cancelled,
            FinishReason::Deadline => &mut self.finished.deadline,
            FinishReason::Error => &mut self.finished.error,
        };
        *count += 1;
    }

    /// The same without the digits that a single request could be read from.
    #[must_use]
    pub fn rounded(self) -> Self {
        Self {
            step_seconds: self.step_seconds.rounded(SECONDS_STEP),
            batch_requests: self.batch_requests.rounded(TOKENS_STEP),
            batch_tokens: self.batch_tokens.rounded(TOKENS_STEP),
            prefilled: self.prefilled.rounded(),
            decoded: self.decoded.rounded(),
            ..self
        }
    }

    /// Tokens prefilled and generated per second, over the last seconds.
    #[must_use]
    pub fn tokens_per_second(&self) -> [f64; 2] {
        let now = Instant::now();
        [self.prefilled.per_second(now), self.decoded.per_second(now)]
    }
}

/// Seconds that a rate looks back.
const RATE_SECONDS: usize = 5;

/// Events per second over the last few seconds.
#[derive(Clone, Debug, PartialEq)]
struct Rate {
    started: Instant,
    /// One for each second, in turn, and one for the second that is not over yet.
    counts: [u64; RATE_SECONDS + 1],
    /// The second that was noted last.
    second: u64,
}

impl Rate {
    fn new(now: Instant) -> Self {
        Self { started: now, counts: [0; RATE_SECONDS + 1], second: 0 }
    }

    fn note(&mut self, now: Instant, count: u64) {
        let second = now.duration_since(self.started).as_secs();
        // Those passed over since the last time had none.
        for passed in (self.second + 1..=second).take(self.counts.len()) {
            self.counts[passed as usize % self.counts.len()] = 0;
        }
        if second > self.second + self.counts.len() as u64 {
            self.counts = [0; RATE_SECONDS + 1];
        }
        self.second = second;
        self.counts[second as usize % self.counts.len()] += count;
    }

    /// The rate of as many whole multiples of tokens.
    fn rounded(mut self) -> Self {
        let sum: u64 = self.counts.iter().sum();
        self.counts = [0; RATE_SECONDS + 1];
        self.counts[self.second as usize % self.counts.len()] = sum - sum % RATE_TOKENS_STEP;
        self
    }

    fn per_second(&self, now: Instant) -> f64 {
        let mut current = self.clone();
        current.note(now, 0);
        let since = now.duration_since(self.started).as_secs_f64();
        let over = since.fract() + (RATE_SECONDS as f64).min(since.floor());
        if over < 0.1 {
            return 0.0; // too early to tell
        }
        current.counts.iter().sum::<u64>() as f64 / over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_counted_at_the_first_bound_that_holds_it() {
        let mut histogram = Histogram::new(&[1.0, 2.0, 4.0]);
        for value in [0.5, 1.0, 1.5, 4.0, 5.0] {
            histogram.note(value);
        }
        assert_eq!(histogram.counts, [2, 1, 1, 1]);
        assert_eq!(histogram.sum, 12.0);
    }

    #[test]
    fn a_rate_forgets_what_is_long_ago() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut rate = Rate::new(start);
        for ms in (0..10_000).step_by(100) {
            rate.note(at(ms), 3);
        }
        assert!((rate.per_second(at(9_999)) - 30.0).abs() < 0.1, "{}", rate.per_second(at(9_999)));
        assert!(rate.per_second(at(12_500)) < 20.0);
        assert_eq!(rate.per_second(at(16_000)), 0.0);
        assert_eq!(rate.per_second(at(3_600_000)), 0.0);
    }
}
