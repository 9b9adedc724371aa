//! Results of `status` and `metrics`: counts, never a text.

use serde::{Deserialize, Serialize};

use super::results::{ModelFacts, ServerInfo};
use crate::engine::{self, EngineStatus};

/// Result of `status`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatusResult {
    /// Server that answered.
    pub server: ServerInfo,
    /// The default model; what is not said of all models is of this one.
    pub model: ModelFacts,
    /// Device's name.
    pub device: String,
    /// Driver's name and version.
    pub driver: String,
    /// `f32` or `f16`.
    pub kv_dtype: String,
    /// Connections now.
    pub connections: u32,
    /// Sessions of all owners, of all models, as are the requests and what users have.
    pub sessions: u64,
    /// Requests in the batch.
    pub running: u64,
    /// Number of waiting requests.
    pub queued: u64,
    /// Tokens the KV cache holds in all.
    pub kv_tokens_max: u64,
    /// KV capacity in use, in tokens.
    pub kv_tokens_used: u64,
    /// Bytes used on the device.
    pub device_bytes: u64,
    /// Bytes the device may give.
    pub device_budget_bytes: u64,
    /// Bytes left to other programs.
    #[serde(default)]
    pub device_reserve_bytes: u64,
    /// Prompt tokens evaluated since start.
    pub prefill_tokens: u64,
    /// Prompt tokens taken from a cache since start.
    pub cached_tokens: u64,
    /// Tokens generated since start.
    pub decode_tokens: u64,
    /// Steps since start.
    pub steps: u64,
    /// Seconds since start.
    pub uptime_seconds: u64,
    /// Prompt tokens evaluated per second, lately.
    #[serde(default)]
    pub prefill_tokens_per_second: f64,
    /// Tokens generated per second, lately.
    #[serde(default)]
    pub decode_tokens_per_second: f64,
    /// Caches that left the device's memory for others'.
    #[serde(default)]
    pub evictions: u64,
    /// Requests that had to wait again, for others or for memory.
    #[serde(default)]
    pub preemptions: u64,
    /// Bytes of caches in the host's memory.
    #[serde(default)]
    pub host_cache_bytes: u64,
    /// Bytes of caches in files.
    #[serde(default)]
    pub disk_cache_bytes: u64,
    /// Times that a lost device was opened again.
    #[serde(default)]
    pub recoveries: u64,
    /// Pages of the KV cache by state.
    #[serde(default)]
    pub kv_pages: KvPages,
    /// Counts of ended generations, by finish reason.
    #[serde(default)]
    pub finished: Finished,
    /// Times of the steps.
    #[serde(default)]
    pub step_seconds: Histogram,
    /// Requests in the steps.
    #[serde(default)]
    pub batch_requests: Histogram,
    /// True if the model is on the device: it leaves when nobody uses it.
    #[serde(default)]
    pub loaded: bool,
    /// Usage per user: all users for root, else the caller alone.
    #[serde(default)]
    pub users: Vec<UserCounts>,
    /// Kernels that compute wrongly on the device, with safer ones in their place.
    #[serde(default)]
    pub kernel_faults: Vec<KernelFault>,
    /// Every model that was loaded so far, the default first.
    #[serde(default)]
    pub models: Vec<ModelCounts>,
}

/// Load of one model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelCounts {
    /// Name.
    pub name: String,
    /// True if it is on the device.
    pub loaded: bool,
    /// Sessions of all owners.
    pub sessions: u64,
    /// Requests in the batch.
    pub running: u64,
    /// Number of waiting requests.
    pub queued: u64,
    /// Tokens its KV cache holds in all.
    pub kv_tokens_max: u64,
    /// KV capacity in use, in tokens.
    pub kv_tokens_used: u64,
    /// Bytes of its weights.
    pub weights_bytes: u64,
    /// Prompt tokens evaluated per second, lately.
    pub prefill_tokens_per_second: f64,
    /// Tokens generated per second, lately.
    pub decode_tokens_per_second: f64,
}

impl ModelCounts {
    /// Status of the engine of the named model.
    #[must_use]
    pub fn new(name: String, weights_bytes: u64, status: &EngineStatus) -> Self {
        let [prefill_tokens_per_second, decode_tokens_per_second] =
            status.activity.tokens_per_second();
        Self {
            name,
            loaded: status.loaded,
            sessions: status.sessions as u64,
            running: status.running as u64,
            queued: status.queued as u64,
            kv_tokens_max: status.kv_tokens_max,
            kv_tokens_used: status.kv_tokens_used,
            weights_bytes,
            prefill_tokens_per_second,
            decode_tokens_per_second,
        }
    }
}

/// A kernel that computes wrongly on the device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelFault {
    /// Name.
    pub kernel: String,
    /// Computed and expected values.
    pub difference: String,
}

impl From<engine::KernelFault> for KernelFault {
    fn from(fault: engine::KernelFault) -> Self {
        let engine::KernelFault { kernel, difference } = fault;
        Self { kernel, difference }
    }
}

/// Usage of the daemon by one user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserCounts {
    /// Uid of the user.
    pub uid: u32,
    /// Number of sessions.
    pub sessions: u64,
    /// Requests in the batch.
    pub running: u64,
    /// Number of waiting requests.
    pub queued: u64,
    /// Bytes of cached keys and values.
    pub kv_bytes: u64,
}

impl From<engine::UserCounts> for UserCounts {
    fn from(counts: engine::UserCounts) -> Self {
        let engine::UserCounts { uid, sessions, running, queued, kv_bytes } = counts;
        Self {
            uid,
            sessions: sessions as u64,
            running: running as u64,
            queued: queued as u64,
            kv_bytes,
        }
    }
}

/// Pages of the KV cache by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvPages {
    /// Held by sessions.
    pub leased: u64,
    /// Zeroed and ready.
    pub free: u64,
    /// Given back and not zeroed yet.
    pub soiled: u64,
}

/// Counts of generations ended since the start, by finish reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finished {
    /// At a stop token or text.
    pub stop: u64,
    /// At their limit.
    pub length: u64,
    /// Cancelled.
    pub cancelled: u64,
    /// Out of time.
    #[serde(default)]
    pub deadline: u64,
    /// Failed.
    pub error: u64,
}

/// Histogram: counts of values between bounds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Histogram {
    /// Upper bounds, ascending; one more range is open.
    pub bounds: Vec<f64>,
    /// Values in each range, one more than the bounds.
    pub counts: Vec<u64>,
    /// Sum of the values.
    pub sum: f64,
}

impl From<engine::Histogram> for Histogram {
    fn from(histogram: engine::Histogram) -> Self {
        let engine::Histogram { bounds, counts, sum } = histogram;
        Self { bounds: bounds.to_vec(), counts, sum }
    }
}

impl StatusResult {
    /// Status of the default model's engine, with the number of connections.
    #[must_use]
    pub fn new(
        server: ServerInfo,
        model: ModelFacts,
        status: EngineStatus,
        connections: u32,
    ) -> Self {
        let [prefill_tokens_per_second, decode_tokens_per_second] =
            status.activity.tokens_per_second();
        let (pages, finished) = (status.kv_pages, status.activity.finished);
        Self {
            server,
            model,
            device: status.device,
            driver: status.driver,
            kv_dtype: status.kv_dtype,
            connections,
            sessions: status.sessions as u64,
            running: status.running as u64,
            queued: status.queued as u64,
            kv_tokens_max: status.kv_tokens_max,
            kv_tokens_used: status.kv_tokens_used,
            device_bytes: status.device_bytes,
            device_budget_bytes: status.device_budget_bytes,
            device_reserve_bytes: status.device_reserve_bytes,
            prefill_tokens: status.prefill_tokens,
            cached_tokens: status.cached_tokens,
            decode_tokens: status.decode_tokens,
            steps: status.steps,
            uptime_seconds: status.uptime_seconds,
            prefill_tokens_per_second,
            decode_tokens_per_second,
            evictions: status.activity.evictions,
            preemptions: status.preemptions,
            host_cache_bytes: status.host_cache_bytes,
            disk_cache_bytes: status.disk_cache_bytes,
            recoveries: status.recoveries,
            kv_pages: KvPages { leased: pages.leased, free: pages.free, soiled: pages.soiled },
            finished: Finished {
                stop: finished.stop,
                length: finished.length,
                cancelled: finished.cancelled,
                deadline: finished.deadline,
                error: finished.error,
            },
            step_seconds: status.activity.step_seconds.into(),
            batch_requests: status.activity.batch_requests.into(),
            loaded: status.loaded,
            users: status.users.into_iter().map(UserCounts::from).collect(),
            kernel_faults: status.kernel_faults.into_iter().map(KernelFault::from).collect(),
            models: Vec::new(),
        }
    }

    /// Adds what another model's engine reports to what is of all models.
    pub fn add(&mut self, status: EngineStatus) {
        if self.device.is_empty() {
            (self.device, self.driver) = (status.device, status.driver);
            self.kv_dtype = status.kv_dtype;
            self.device_budget_bytes = status.device_budget_bytes;
            self.device_reserve_bytes = status.device_reserve_bytes;
        }
        self.device_bytes += status.device_bytes;
        self.sessions += status.sessions as u64;
        self.running += status.running as u64;
        self.queued += status.queued as u64;
        for more in status.users.into_iter().map(UserCounts::from) {
            match self.users.iter_mut().find(|user| user.uid == more.uid) {
                None => self.users.push(more),
                Some(user) => {
                    user.sessions += more.sessions;
                    user.running += more.running;
                    user.queued += more.queued;
                    user.kv_bytes += more.kv_bytes;
                }
            }
        }
    }
}

/// Result of `metrics`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetricsResult {
    /// The counts in the text format that Prometheus reads (OpenMetrics 1.0).
    pub text: String,
}
