//! Totals as users get them: exact ones would tell how long other users' prompts and answers are.

use crate::engine::EngineStatus;

/// Tokens and steps are told in multiples of this, or of the power of two that is about a hundredth
/// of their number.
const TOKENS: u64 = 16 << 10;

/// Bytes are told in multiples of this.
const BYTES: u64 = 64 << 20;

/// Uses of the cache are told in sixteenths of it.
const SHARES: u64 = 16;

/// A state without the digits that a single request could be read from.
pub(super) fn rounded(status: EngineStatus) -> EngineStatus {
    let tokens = |count: u64| down(count, TOKENS.max((count / 128).next_power_of_two()));
    let mut pages = status.kv_pages;
    let all_pages = pages.leased + pages.free + pages.soiled;
    pages.leased = down(pages.leased, all_pages / SHARES);
    pages.soiled = 0;
    pages.free = all_pages - pages.leased;
    EngineStatus {
        kv_tokens_used: down(status.kv_tokens_used, status.kv_tokens_max / SHARES),
        host_cache_bytes: down(status.host_cache_bytes, BYTES),
        disk_cache_bytes: down(status.disk_cache_bytes, BYTES),
        device_bytes: down(status.device_bytes, BYTES),
        prefill_tokens: tokens(status.prefill_tokens),
        cached_tokens: tokens(status.cached_tokens),
        decode_tokens: tokens(status.decode_tokens),
        steps: tokens(status.steps),
        kv_pages: pages,
        activity: status.activity.rounded(),
        ..status
    }
}

/// The largest multiple of `step` that is not above `count`.
fn down(count: u64, step: u64) -> u64 {
    count - count % step.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_more_does_not_show_in_the_totals() {
        let before = EngineStatus {
            kv_tokens_max: 65_536,
            kv_tokens_used: 5_000,
            prefill_tokens: 5_000_000,
            decode_tokens: 1_000,
            ..EngineStatus::default()
        };
        let mut after = before.clone();
        after.kv_tokens_used += 1_234;
        after.prefill_tokens += 1_234;
        after.decode_tokens += 321;
        let (before, after) = (rounded(before), rounded(after));
        assert_eq!(before.prefill_tokens, after.prefill_tokens);
        assert_eq!((before.prefill_tokens, before.decode_tokens), (76 << 16, 0));
        assert_eq!(before.kv_tokens_used, after.kv_tokens_used);
        assert_eq!(before.decode_tokens, after.decode_tokens);
    }
}
