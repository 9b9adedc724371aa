//! What crosses the engine's channels.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use thiserror::Error;
use tokio::sync::Notify;

use super::activity::{Activity, KvPages};
use super::adapters::{AdapterNames, NamedAdapter};
use super::check::KernelFault;
use super::constraints::Constraints;
use crate::sampler::SamplingError;

pub use crate::sampler::{PENALTY_TOKENS, SamplingParams, TokenLogprob};
pub use crate::scheduler::Priority;
pub use crate::session::{CachePlace, Owner, SessionId, UsedAdapter};

/// A checked generation request: its prompt is already tokens.
#[derive(Clone, Debug)]
pub struct GenerateRequest {
    /// User that made the request.
    pub owner: Owner,
    /// Session to continue; without one, a session for this call alone.
    pub session: Option<SessionId>,
    /// The whole prompt; the longest prefix that the session's cache holds is not computed again.
    pub tokens: Vec<u32>,
    /// Most tokens to generate; 0 only evaluates the prompt.
    pub tokens_max: u32,
    /// Sampling settings.
    pub sampling: SamplingParams,
    /// Texts that end the generation; they are not part of the result.
    pub stop: Vec<String>,
    /// Per generated token, report this many of the most likely.
    pub logprobs: Option<u32>,
    /// Per prompt token but the first, report this many of the most likely.
    pub prompt_logprobs: Option<u32>,
    /// Send [`EngineEvent::Token`] as tokens come.
    pub stream: bool,
    /// Send [`EngineEvent::Started`] as soon as it runs.
    pub report_start: bool,
    /// LoRA adapters, where it has no session: those of a session are its own.
    pub adapters: Vec<NamedAdapter>,
    /// Priority; defaults to the session's.
    pub priority: Option<Priority>,
    /// When it ends whatever it has; looked at between steps.
    pub deadline: Option<Instant>,
    /// Raised by whoever gives up on the request; looked at between steps.
    pub cancel: CancelFlag,
    /// What it may generate, and what is likelier.
    pub constraints: Constraints,
}

/// Raised once to cancel a request.
#[derive(Clone, Debug, Default)]
pub struct CancelFlag(Arc<Raised>);

#[derive(Debug, Default)]
struct Raised {
    raised: AtomicBool,
    told: Notify,
}

impl CancelFlag {
    /// Asks for the request to stop at the next step.
    pub fn raise(&self) {
        self.0.raised.store(true, Ordering::Release);
        self.0.told.notify_waiters();
    }

    /// True if it was raised.
    #[must_use]
    pub fn is_raised(&self) -> bool {
        self.0.raised.load(Ordering::Acquire)
    }

    /// Waits until it is raised.
    pub async fn raised(&self) {
        let mut told = pin!(self.0.told.notified());
        told.as_mut().enable();
        if !self.is_raised() {
            told.await;
        }
    }
}

/// Reason a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token of the model or a stop text.
    Stop,
    /// `tokens_max` or the context's end.
    Length,
    /// Cancelled by its caller.
    Cancelled,
    /// Deadline reached.
    Deadline,
    /// The engine failed; the result holds what was generated before.
    Error,
}

/// Timings of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timings {
    /// From arrival to the first step it was part of.
    pub queue_ms: f64,
    /// From then to its first token.
    pub prefill_ms: f64,
    /// From then to its last.
    pub decode_ms: f64,
    /// Time spent in device steps since the first step, in ms.
    pub device_ms: f64,
    /// Time spent sampling since the first token, in ms.
    pub sampling_ms: f64,
    /// Steps it was part of.
    pub steps: u64,
    /// Tokens of the prompt that were evaluated, those of a lost device twice.
    pub computed_tokens: u64,
}

/// The result of a generation.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateResult {
    /// Generated text, whole UTF-8, without the stop text.
    pub text: String,
    /// Generated tokens, without the stop token.
    pub tokens: Vec<u32>,
    /// Reason it ended.
    pub finish_reason: FinishReason,
    /// The stop text that ended it, where one did.
    pub stop_text: Option<String>,
    /// With `FinishReason::Error`, what failed.
    pub error: Option<String>,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Prompt tokens found in the cache.
    pub cached_tokens: u32,
    /// Per generated token, where asked for.
    pub logprobs: Option<Vec<TokenLogprob>>,
    /// Per prompt token but the first, where asked for.
    pub prompt_logprobs: Option<Vec<TokenLogprob>>,
    /// Timings.
    pub timings: Timings,
}

/// Event of a generation.
#[derive(Clone, Debug, PartialEq)]
pub enum EngineEvent {
    /// The request has its place and its memory. Where asked for, the first event.
    Started {
        /// Tokens of the prompt found in the cache.
        cached_tokens: u32,
    },
    /// One more token, with the text that became certain with it (may be empty inside a character).
    Token {
        /// Text of the piece, whole UTF-8 characters.
        text: String,
        /// Token id.
        token: u32,
        /// Log probability, if requested.
        logprob: Option<TokenLogprob>,
    },
    /// The end; nothing follows.
    Done(Box<GenerateResult>),
    /// The request could not be served; nothing follows.
    Refused(AdmitError),
}

/// A valid request that cannot be served now, or names what is not there.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum AdmitError {
    /// Too many requests wait.
    #[error("the queue is full: {waiting} requests wait, the limit is {limit}")]
    QueueFull {
        /// Number of waiting requests.
        waiting: usize,
        /// Most that may.
        limit: usize,
    },
    /// The prompt does not fit.
    #[error("the prompt has {prompt_tokens} tokens; the context holds {context_tokens}")]
    ContextFull {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Context of the session.
        context_tokens: usize,
    },
    /// No such session for this caller.
    #[error("no session {0}")]
    UnknownSession(u64),
    /// No such session for this caller.
    #[error("no session {0:?}")]
    UnknownSessionName(String),
    /// The session is generating for another request.
    #[error("session {0} is busy with another request")]
    SessionBusy(u64),
    /// The caller already has a session of this name.
    #[error("a session named {0:?} exists already")]
    SessionExists(String),
    /// Too many sessions.
    #[error("there are {limit} sessions, the most there may be; close one")]
    TooManySessions {
        /// Limit that was reached.
        limit: usize,
    },
    /// No room for the cache now.
    #[error("the KV cache is full: {wanted_tokens} tokens wanted, {free_tokens} free")]
    KvFull {
        /// Number of tokens requested.
        wanted_tokens: usize,
        /// Number of tokens free.
        free_tokens: usize,
    },
    /// Other programs have the device's memory.
    #[error(
        "the device is short of memory: {wanted_tokens} tokens wanted, {tokens_max} fit now; other \
         programs use it, try again later"
    )]
    MemoryShort {
        /// Number of tokens requested.
        wanted_tokens: usize,
        /// Tokens that the pool has now.
        tokens_max: usize,
    },
    /// A position that a session does not have.
    #[error("token {wanted} of a session that has {tokens}")]
    NoSuchPosition {
        /// Position requested.
        wanted: usize,
        /// Tokens of the session.
        tokens: usize,
    },
    /// The daemon has no folder for sessions.
    #[error("this daemon saves no sessions")]
    NoStateFolder,
    /// A session could not be saved, or what was saved is of no use.
    #[error("the saved session: {0}")]
    NotSaved(String),
    /// A closed session's file cannot be removed.
    #[error(
        "the session is closed, but its file cannot be removed ({0}): it comes back when hobd \
         starts again"
    )]
    FileStays(String),
    /// The caller has as many sessions as one user may.
    #[error("you have {limit} sessions, the most that one user may have; close one")]
    UserSessions {
        /// Limit that was reached.
        limit: usize,
    },
    /// As many of the caller's requests wait as may.
    #[error("{waiting} requests of yours wait, the limit of one user is {limit}")]
    UserQueueFull {
        /// Number of waiting requests.
        waiting: usize,
        /// Most that may.
        limit: usize,
    },
    /// More cache than one user may have.
    #[error("the request needs {wanted_bytes} bytes of KV cache; one user may have {limit_bytes}")]
    UserKvFull {
        /// Bytes of the prompt and all that may be generated.
        wanted_bytes: u64,
        /// Limit that was reached.
        limit_bytes: u64,
    },
    /// A token that the vocabulary lacks.
    #[error("token {token} is not in the vocabulary of {vocab_size}")]
    UnknownToken {
        /// Token id.
        token: u32,
        /// Size of the vocabulary.
        vocab_size: u32,
    },
    /// Sampling parameters out of range.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// The model only makes embeddings.
    #[error("{architecture} models make embeddings and generate no text; use embed")]
    NoGeneration {
        /// The model's architecture.
        architecture: String,
    },
    /// No adapter of this name.
    #[error("no adapter {name:?}; the model has {}", list(known))]
    UnknownAdapter {
        /// Name in question.
        name: String,
        /// Known names.
        known: Vec<String>,
    },
    /// An adapter is named more than once.
    #[error("the adapter {0:?} is named twice")]
    AdapterTwice(String),
    /// The caller gave up, and there is nothing to hand over.
    #[error("the request was cancelled")]
    Cancelled,
    /// The time was over, and there is nothing to hand over.
    #[error("deadline_ms had passed before the result was complete")]
    Deadline,
    /// The device or the model failed.
    #[error("{0}")]
    Failed(String),
    /// An empty prompt.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// The model is not on the device, and cannot be put there now.
    #[error("the model cannot be loaded now: {0}")]
    NotLoaded(String),
    /// The daemon is about to exit.
    #[error("the daemon is shutting down")]
    ShuttingDown,
}

pub(super) fn list(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Settings of a new session.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SessionOptions {
    /// Name, unique among the owner's.
    pub name: Option<String>,
    /// Context; `None` takes the model's default.
    pub context_tokens: Option<u32>,
    /// Default priority of its requests.
    pub priority: Priority,
    /// Idle time after which it is closed.
    pub ttl: Option<Duration>,
    /// LoRA adapters that its texts are computed with.
    pub adapters: Vec<NamedAdapter>,
}

/// Action on a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionAction {
    /// No change; reports the session.
    Info,
    /// Keeps it in a file.
    Save,
    /// Takes it back to what was saved.
    Restore,
    /// Forgets what is behind the first tokens.
    Truncate {
        /// Number of tokens to keep.
        tokens: u32,
    },
}

/// Reason a model could not be loaded onto the device.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct LoadFailure {
    /// Message: wanted and found.
    pub message: String,
    /// The device lacks memory: it may help to unload another model.
    pub no_room: bool,
    /// The engine's file has changed, or is another one: another engine can load it.
    pub replaced: bool,
}

/// One session, as its owner sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionInfo {
    /// Number of the session.
    pub id: SessionId,
    /// Owner.
    pub owner: Owner,
    /// Name its owner gave it.
    pub name: Option<String>,
    /// Context, in tokens.
    pub context_tokens: u32,
    /// Tokens it has, from its prompts and what was generated.
    pub tokens: u32,
    /// Tokens held in its cache.
    pub cached_tokens: u32,
    /// Location of its cache.
    pub place: CachePlace,
    /// Default priority of its requests.
    pub priority: Priority,
    /// Seconds of idleness after which it is closed.
    pub ttl_seconds: Option<u64>,
    /// LoRA adapters that it is computed with.
    pub adapters: Vec<UsedAdapter>,
    /// A request is running on it.
    pub busy: bool,
    /// Seconds since it was last used.
    pub idle_seconds: u64,
}

/// Usage of the engine by one user: counts, never text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserCounts {
    /// Uid of the user.
    pub uid: u32,
    /// Number of sessions.
    pub sessions: usize,
    /// Requests in the batch.
    pub running: usize,
    /// Number of waiting requests.
    pub queued: usize,
    /// Bytes of leased pages.
    pub kv_bytes: u64,
}

/// The engine's state, for `status`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineStatus {
    /// Name of the device.
    pub device: String,
    /// Driver's name and version.
    pub driver: String,
    /// `f32` or `f16`.
    pub kv_dtype: String,
    /// Sessions of all owners.
    pub sessions: usize,
    /// Requests in the batch.
    pub running: usize,
    /// Number of waiting requests.
    pub queued: usize,
    /// Tokens the KV cache holds in all; fewer than configured while the device is short of memory.
    pub kv_tokens_max: u64,
    /// KV capacity in use, in tokens.
    pub kv_tokens_used: u64,
    /// Requests that had to wait again since start, for others or for memory.
    pub preemptions: u64,
    /// Bytes of caches in the host's memory.
    pub host_cache_bytes: u64,
    /// Bytes of caches in files.
    pub disk_cache_bytes: u64,
    /// Bytes on the device.
    pub device_bytes: u64,
    /// Bytes the device may give, as its driver has it now.
    pub device_budget_bytes: u64,
    /// Device memory left to other programs, in bytes.
    pub device_reserve_bytes: u64,
    /// Tokens prefilled since start.
    pub prefill_tokens: u64,
    /// Prompt tokens taken from a cache since start.
    pub cached_tokens: u64,
    /// Tokens generated since start.
    pub decode_tokens: u64,
    /// Steps since start.
    pub steps: u64,
    /// True if the model is on the device: it leaves when nobody uses it.
    pub loaded: bool,
    /// Usage of each user.
    pub users: Vec<UserCounts>,
    /// Kernels that compute wrongly here, with safer ones in their place.
    pub kernel_faults: Vec<KernelFault>,
    /// Pages of the cache by state.
    pub kv_pages: KvPages,
    /// Times, batches and ends since start.
    pub activity: Activity,
    /// Times that the device was opened again since start.
    pub recoveries: u64,
    /// Seconds since start.
    pub uptime_seconds: u64,
}

/// Facts about the loaded model, for `initialize` and `status`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelInfo {
    /// `general.name`, or the file's stem.
    pub name: String,
    /// `general.architecture`.
    pub architecture: String,
    /// Number of weights.
    pub parameters: u64,
    /// Bytes of the weights.
    pub weights_bytes: u64,
    /// The most common tensor type.
    pub quantization: String,
    /// Context it was trained for.
    pub context_tokens_trained: u32,
    /// Default and most context of a session here.
    pub context_tokens: u32,
    /// Size of the vocabulary.
    pub vocab_size: u32,
    /// True if the file has a chat template.
    pub has_chat_template: bool,
    /// True if the texts of messages may spell special tokens.
    pub special_tokens_in_messages: bool,
    /// True if it generates text, not embeddings alone.
    pub generates: bool,
    /// Values of an embedding.
    pub embedding_length: u32,
    /// Default sampling settings.
    pub sampling: SamplingParams,
    /// Names of its LoRA adapters.
    pub adapters: AdapterNames,
}
