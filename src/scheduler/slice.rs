//! How many prompt tokens a step takes: as many as fit a time, learned from the steps before.

use std::time::Duration;

/// Smallest slice, and the first one on an unknown device.
const TOKENS_MIN: usize = 32;

/// Chooses the slice of prefill in each step: cancelling, and the next token of everybody who
/// decodes, wait for it.
///
/// Sizes are powers of two from 32, so that their recordings are used again.
#[derive(Debug)]
pub struct PrefillSlice {
    tokens: usize,
    tokens_max: usize,
    /// Target duration of a step with a full prefill chunk.
    target: Duration,
}

impl PrefillSlice {
    /// Slices of at most `tokens_max` tokens, the batch's limit, whose steps take about `target`.
    #[must_use]
    pub fn new(tokens_max: usize, target: Duration) -> Self {
        Self { tokens: TOKENS_MIN.min(tokens_max), tokens_max, target }
    }

    /// Prompt tokens for the next step.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Learns from a step that took `prefilled` prompt tokens and `elapsed` in all.
    pub fn learn(&mut self, prefilled: usize, elapsed: Duration) {
        if prefilled < self.tokens {
            return; // the tail of a prompt says little
        }
        if elapsed > self.target * 3 / 2 {
            self.tokens = (self.tokens / 2).max(TOKENS_MIN.min(self.tokens_max));
        } else if elapsed < self.target / 2 {
            self.tokens = (self.tokens * 2).min(self.tokens_max);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slice_settles_where_a_step_takes_the_target() {
        // 0.2 ms a token: 1024 tokens would take 205 ms; then the device slows down to 4 ms a
        // token.
        let mut slice = PrefillSlice::new(1024, Duration::from_millis(250));
        for _ in 0..20 {
            slice.learn(slice.tokens(), Duration::from_micros(200) * slice.tokens() as u32);
        }
        assert_eq!(slice.tokens(), 1024);
        for _ in 0..20 {
            slice.learn(slice.tokens(), Duration::from_millis(4) * slice.tokens() as u32);
        }
        assert_eq!(slice.tokens(), 64);
        slice.learn(3, Duration::from_micros(1));
        assert_eq!(slice.tokens(), 64, "a tail changes nothing");
    }
}
