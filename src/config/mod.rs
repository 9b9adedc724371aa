//! Configuration of the daemon: the file `hobd.toml`, its defaults, and where things are.
//!
//! A leaf: it imports nothing of hob. `config/hobd.toml` shows every key at its default; a test
//! holds it against [`Config::default`].

mod error;
mod flags;
mod keys;
mod load;
mod lora;
mod models;
mod paths;
mod reserve;
mod sampling;

pub use error::ConfigError;
pub use flags::Flags;
pub use load::{SOCKET_BYTES_MAX, load, parse};
pub use lora::Lora;
pub use models::ModelTable;
pub use paths::Places;
pub use reserve::MemoryReserve;
pub use sampling::{
    FREQUENCY_PENALTY, MIN_P, PRESENCE_PENALTY, REPEAT_PENALTY, SAMPLING_SETTINGS,
    SamplingOverrides, SamplingSetting, TEMPERATURE, TOP_K, TOP_P,
};

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Exit status for a wrong configuration or model, after sysexits.h.
pub const EXIT_CONFIG: u8 = 78;

/// Number format of the KV cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(non_camel_case_types)] // as the field writes them
pub enum KvDtype {
    /// `f16` where the device has 16-bit storage, else `f32`.
    #[default]
    Auto,
    /// 4 bytes a number: exact.
    F32,
    /// 2 bytes a number: half the memory.
    F16,
    /// 8 bits a number and a scale for 32: a quarter of the memory. Heads of whole blocks alone.
    #[serde(rename = "q8_0")]
    Q8_0,
}

/// Type that the matrices of a Hugging Face folder are quantised to as they are loaded.
#[allow(non_camel_case_types)] // as the field writes them
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Quantize {
    /// As they are in the folder.
    #[default]
    None,
    /// 8 bits and a scale for 32: nearly lossless.
    #[serde(rename = "q8_0")]
    Q8_0,
    /// 6 bits, with scales for 16 of 256.
    #[serde(rename = "q6_k")]
    Q6_K,
    /// 5 bits, with scales and minima for 32 of 256.
    #[serde(rename = "q5_k")]
    Q5_K,
    /// 4 bits, with scales and minima for 32 of 256.
    #[serde(rename = "q4_k")]
    Q4_K,
    /// 4 bits and a scale for 32.
    #[serde(rename = "q4_0")]
    Q4_0,
}

/// When the device's kernels are checked against the reference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SelfCheck {
    /// Check if the device, its driver or the build is new.
    #[default]
    Auto,
    /// At every start.
    Always,
    /// Never.
    Never,
}

/// When shapes of kernels are measured on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tune {
    /// While nobody waits.
    #[default]
    Idle,
    /// Never; what was measured before is used all the same.
    Never,
}

/// Numerics setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Numerics {
    /// A token's sums have one order, whatever is measured and whatever else is in the batch.
    #[default]
    Exact,
    /// Speed alone, as long as the results are those of the reference but for rounding; products of
    /// many tokens may be of f16, or of bytes.
    Fastest,
}

/// Log level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Only failures.
    Error,
    /// Also what is odd.
    Warn,
    /// Also what the daemon does.
    #[default]
    Info,
    /// Also each request.
    Debug,
    /// Everything.
    Trace,
}

/// Form of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// `journald` where standard error is the journal, else `text`.
    #[default]
    Auto,
    /// Lines for a person on standard error, in colour on a terminal.
    Text,
    /// One JSON object a line on standard error.
    Json,
    /// Structured entries in systemd's journal.
    Journald,
}

/// A time such as `10m`; empty: never.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct IdleTime(pub Option<Duration>);

impl TryFrom<String> for IdleTime {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        const WANTED: &str = "a number from 1 with s, m or h behind it";
        if text.is_empty() {
            return Ok(Self(None));
        }
        let unit = text.chars().next_back().ok_or(WANTED)?;
        let seconds = match unit {
            's' => 1,
            'm' => 60,
            'h' => 3600,
            _ => return Err(WANTED),
        };
        let count: NonZeroU32 = text[..text.len() - unit.len_utf8()].parse().map_err(|_| WANTED)?;
        Ok(Self(Some(Duration::from_secs(u64::from(count.get()) * seconds))))
    }
}

impl From<IdleTime> for String {
    fn from(time: IdleTime) -> Self {
        time.0.map_or_else(Self::new, |time| format!("{}s", time.as_secs()))
    }
}

/// A user or a group, by name or number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Who {
    /// uid or gid.
    Number(u32),
    /// Name.
    Name(String),
}

/// Limits of one user; what is absent is as for everybody, and 0 is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UserLimits {
    /// Number of sessions.
    pub sessions_max: Option<u32>,
    /// KV cache, in MiB.
    pub kv_mib_max: Option<u32>,
    /// Requests that wait.
    pub requests_queued_max: Option<u32>,
    /// Requests in the batch.
    pub requests_running_max: Option<u32>,
}

/// Every setting of the daemon.
///
/// Empty strings and zeros that mean "choose for me" are said so on the field.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Path of the Unix socket; empty: [`Places::socket`].
    pub socket: PathBuf,
    /// The model: a name of the store, a GGUF file, or a Hugging Face folder; empty: the store's
    /// default.
    pub model: PathBuf,
    /// Type that a folder's matrices are quantised to; a GGUF file's stay as they are.
    pub quantize: Quantize,
    /// LoRA adapters of the model to begin with.
    pub lora: Vec<Lora>,
    /// Chat template by name or by the path of its file; empty: the model's own.
    pub chat_template: String,
    /// True if a pre-tokenizer that is not known is taken as the default one.
    pub tokenizer_fallback: bool,
    /// True if the texts of messages may spell special tokens; else they stay text.
    pub special_tokens_in_messages: bool,
    /// Default sampling settings; they override the model file's.
    pub sampling: SamplingOverrides,
    /// The `[[model]]` tables, which a file may have instead of `model`.
    #[serde(skip)]
    pub models: Vec<ModelTable>,
    /// Models on the device at once.
    pub models_loaded_max: u32,
    /// Device by index, name, part of a name, or UUID; empty: the best there is.
    pub device: String,
    /// True if to run under the Vulkan validation layer.
    pub validation: bool,
    /// Number format of the KV cache.
    pub kv_dtype: KvDtype,
    /// Default and most context of a session, in tokens; 0: the model's own, at most 4096.
    pub context_tokens: u32,
    /// Tokens the KV caches of all sessions hold together; 0: two full contexts, or what half of
    /// the device's free memory holds.
    pub kv_tokens: u32,
    /// Device memory that is left to other programs.
    pub memory_reserve: MemoryReserve,
    /// Sessions at once, of all users.
    pub sessions_max: u32,
    /// Requests that may wait.
    pub requests_queued_max: u32,
    /// Users that may connect; with `allow_groups` empty as well, everybody.
    pub allow_users: Vec<Who>,
    /// Groups whose members may connect.
    pub allow_groups: Vec<Who>,
    /// Sessions of one user; 0: half for others than root and the daemon's user.
    pub user_sessions_max: u32,
    /// KV cache of one user, in MiB; 0: half for others than root and the daemon's user.
    pub user_kv_mib_max: u32,
    /// Requests of one user that may wait; 0: half for others than root and the daemon's user.
    pub user_requests_queued_max: u32,
    /// Requests of one user in the batch, more wait; 0: half for others than root and the
    /// daemon's user.
    pub user_requests_running_max: u32,
    /// Limits of single users, by name or number, in place of those above.
    pub user_limits: BTreeMap<String, UserLimits>,
    /// Generations in flight on one connection.
    pub requests_in_flight_max: u32,
    /// Connections at once.
    pub connections_max: u32,
    /// Connections of one user; 0: a quarter of all.
    pub user_connections_max: u32,
    /// Largest message, in bytes.
    pub frame_bytes_max: u32,
    /// Requests and replies in work, of all clients, in MiB.
    pub work_mib_max: u32,
    /// Bytes that may wait for one client to read them; past it, its connection is dropped.
    pub outgoing_bytes_max: u32,
    /// Longest time that one client may leave what waits for it unread, in milliseconds.
    pub write_timeout_ms: u32,
    /// The model leaves the device when nobody has used it for so long.
    pub idle_unload: IdleTime,
    /// Most prompt tokens in one step of the engine.
    pub prefill_tokens_max: u32,
    /// Target duration of a step while requests decode, in milliseconds.
    pub inter_token_ms: u32,
    /// Host memory for caches that leave the device's, in MiB; 0: none.
    pub host_cache_mib: u32,
    /// Folder of saved sessions; empty: [`Places::state_dir`].
    pub state_dir: PathBuf,
    /// True if sessions are kept in files when the daemon stops.
    pub save_sessions: bool,
    /// Disk space for caches that leave the host's memory, in MiB; 0: none.
    pub disk_cache_mib: u32,
    /// Folder of the pipeline cache and of the results of checks; empty: [`Places::cache_dir`].
    pub cache_dir: PathBuf,
    /// When the device's kernels are checked.
    pub self_check: SelfCheck,
    /// When kernels are tuned to the device.
    pub tune: Tune,
    /// Numerics setting.
    pub numerics: Numerics,
    /// Log level.
    pub log_level: LogLevel,
    /// Form of the log.
    pub log_format: LogFormat,
    /// Grace period of running requests when the daemon stops, in milliseconds.
    pub shutdown_timeout_ms: u32,
    /// How long sessions may be saved for when the daemon is told to stop, in milliseconds.
    pub save_timeout_ms: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            socket: PathBuf::new(),
            model: PathBuf::new(),
            quantize: Quantize::None,
            lora: Vec::new(),
            chat_template: String::new(),
            tokenizer_fallback: false,
            special_tokens_in_messages: false,
            sampling: SamplingOverrides::default(),
            models: Vec::new(),
            models_loaded_max: 3,
            device: String::new(),
            validation: false,
            kv_dtype: KvDtype::Auto,
            context_tokens: 0,
            kv_tokens: 0,
            memory_reserve: MemoryReserve::default(),
            sessions_max: 16,
            requests_queued_max: 64,
            allow_users: Vec::new(),
            allow_groups: Vec::new(),
            user_sessions_max: 0,
            user_kv_mib_max: 0,
            user_requests_queued_max: 0,
            user_requests_running_max: 0,
            user_limits: BTreeMap::new(),
            requests_in_flight_max: 16,
            connections_max: 64,
            user_connections_max: 0,
            frame_bytes_max: 8 * 1024 * 1024,
            work_mib_max: 256,
            outgoing_bytes_max: 8 * 1024 * 1024,
            write_timeout_ms: 30_000,
            idle_unload: IdleTime::default(),
            prefill_tokens_max: 512,
            inter_token_ms: 100,
            host_cache_mib: 1024,
            state_dir: PathBuf::new(),
            save_sessions: true,
            disk_cache_mib: 4096,
            cache_dir: PathBuf::new(),
            self_check: SelfCheck::Auto,
            tune: Tune::Idle,
            numerics: Numerics::Exact,
            log_level: LogLevel::Info,
            log_format: LogFormat::Auto,
            shutdown_timeout_ms: 4_000,
            save_timeout_ms: 30_000,
        }
    }
}
