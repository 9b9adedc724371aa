//! What each key of the configuration may be.

use super::Config;
use super::sampling::SAMPLING_WANTED;

/// A key, what its value should be, and whether a value of the right type is in range.
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) wanted: &'static str,
    /// The value, where it is out of range.
    pub(super) out_of_range: fn(&Config) -> Option<u32>,
}

const fn any(name: &'static str, wanted: &'static str) -> Key {
    Key { name, wanted, out_of_range: |_| None }
}

fn outside(value: u32, least: u32, most: u32) -> Option<u32> {
    (!(least..=most).contains(&value)).then_some(value)
}

const MIB: u32 = 1024 * 1024;

/// Every key, in the order of the file.
pub(super) const KEYS: &[Key] = &[
    any("socket", "a path in quotes"),
    any("model", "a name or a path in quotes"),
    any("quantize", "\"none\", \"q8_0\", \"q6_k\", \"q5_k\", \"q4_k\" or \"q4_0\""),
    any("lora", "a list of \"NAME=PATH\" in quotes"),
    any("chat_template", "a name or a path in quotes"),
    any("tokenizer_fallback", "true or false"),
    any("special_tokens_in_messages", "true or false"),
    any("sampling", SAMPLING_WANTED),
    Key {
        name: "models_loaded_max",
        wanted: "an integer from 1 to 64",
        out_of_range: |c| outside(c.models_loaded_max, 1, 64),
    },
    any("device", "an index, name or UUID in quotes"),
    any("validation", "true or false"),
    any("kv_dtype", "\"auto\", \"f32\", \"f16\" or \"q8_0\""),
    Key {
        name: "context_tokens",
        wanted: "an integer from 0 to 1048576",
        out_of_range: |c| outside(c.context_tokens, 0, 1 << 20),
    },
    Key {
        name: "kv_tokens",
        wanted: "an integer from 0 to 16777216",
        out_of_range: |c| outside(c.kv_tokens, 0, 1 << 24),
    },
    any("memory_reserve", "a share or an amount such as \"5%\" or \"512MiB\", or \"\""),
    Key {
        name: "sessions_max",
        wanted: "an integer from 1 to 1024",
        out_of_range: |c| outside(c.sessions_max, 1, 1024),
    },
    Key {
        name: "requests_queued_max",
        wanted: "an integer from 1 to 4096",
        out_of_range: |c| outside(c.requests_queued_max, 1, 4096),
    },
    any("allow_users", "a list of names in quotes and numbers"),
    any("allow_groups", "a list of names in quotes and numbers"),
    Key {
        name: "user_sessions_max",
        wanted: "an integer from 0 to 1024",
        out_of_range: |c| outside(c.user_sessions_max, 0, 1024),
    },
    Key {
        name: "user_kv_mib_max",
        wanted: "an integer from 0 to 16777216",
        out_of_range: |c| outside(c.user_kv_mib_max, 0, 16777216),
    },
    Key {
        name: "user_requests_queued_max",
        wanted: "an integer from 0 to 4096",
        out_of_range: |c| outside(c.user_requests_queued_max, 0, 4096),
    },
    Key {
        name: "user_requests_running_max",
        wanted: "an integer from 0 to 1024",
        out_of_range: |c| outside(c.user_requests_running_max, 0, 1024),
    },
    any(
        "user_limits",
        "tables by user of sessions_max, kv_mib_max, requests_queued_max and requests_running_max",
    ),
    Key {
        name: "requests_in_flight_max",
        wanted: "an integer from 1 to 1024",
        out_of_range: |c| outside(c.requests_in_flight_max, 1, 1024),
    },
    Key {
        name: "connections_max",
        wanted: "an integer from 1 to 4096",
        out_of_range: |c| outside(c.connections_max, 1, 4096),
    },
    Key {
        name: "user_connections_max",
        wanted: "an integer from 0 to 4096",
        out_of_range: |c| outside(c.user_connections_max, 0, 4096),
    },
    Key {
        name: "frame_bytes_max",
        wanted: "an integer from 4096 to 268435456",
        out_of_range: |c| outside(c.frame_bytes_max, 4096, 256 * MIB),
    },
    Key {
        name: "work_mib_max",
        wanted: "an integer from 1 to 1048576",
        out_of_range: |c| outside(c.work_mib_max, 1, 1 << 20),
    },
    Key {
        name: "outgoing_bytes_max",
        wanted: "an integer from 65536 to 268435456",
        out_of_range: |c| outside(c.outgoing_bytes_max, 65536, 256 * MIB),
    },
    Key {
        name: "write_timeout_ms",
        wanted: "an integer from 100 to 600000",
        out_of_range: |c| outside(c.write_timeout_ms, 100, 600_000),
    },
    any("idle_unload", "a time from \"1s\" such as \"90s\", \"10m\" or \"2h\", or \"\""),
    Key {
        name: "prefill_tokens_max",
        wanted: "an integer from 1 to 8192",
        out_of_range: |c| outside(c.prefill_tokens_max, 1, 8192),
    },
    Key {
        name: "inter_token_ms",
        wanted: "an integer from 1 to 10000",
        out_of_range: |c| outside(c.inter_token_ms, 1, 10_000),
    },
    Key {
        name: "host_cache_mib",
        wanted: "an integer from 0 to 1048576",
        out_of_range: |c| outside(c.host_cache_mib, 0, 1 << 20),
    },
    any("state_dir", "a path in quotes"),
    any("save_sessions", "true or false"),
    Key {
        name: "disk_cache_mib",
        wanted: "an integer from 0 to 16777216",
        out_of_range: |c| outside(c.disk_cache_mib, 0, 1 << 24),
    },
    any("cache_dir", "a path in quotes"),
    any("self_check", "\"auto\", \"always\" or \"never\""),
    any("tune", "\"idle\" or \"never\""),
    any("numerics", "\"exact\" or \"fastest\""),
    any("log_level", "\"error\", \"warn\", \"info\", \"debug\" or \"trace\""),
    any("log_format", "\"auto\", \"text\", \"json\" or \"journald\""),
    Key {
        name: "shutdown_timeout_ms",
        wanted: "an integer from 0 to 4500",
        out_of_range: |c| outside(c.shutdown_timeout_ms, 0, 4500),
    },
    Key {
        name: "save_timeout_ms",
        wanted: "an integer from 0 to 3600000",
        out_of_range: |c| outside(c.save_timeout_ms, 0, 3_600_000),
    },
];
