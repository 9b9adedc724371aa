//! Protocol 1: JSON-RPC 2.0 over one Unix socket. The only serialised request and response types.
//!
//! Owns the shapes on the wire, their framing ([`FrameDecoder`]) and the error codes
//! ([`ErrorCode`]). It does no I/O and knows nothing of sockets or tasks; `config/protocol.md` is
//! its manual. Server and client share it: [`decode_request`] and [`encode_response`] serve one,
//! [`encode_request`] and [`decode_server_message`] the other.

mod codec;
mod constraints;
mod embed;
mod error;
mod fields;
mod lora;
mod message;
mod models;
mod params;
mod results;
mod sessions;
mod status;
mod stop;

pub use codec::*;
pub use constraints::{GrammarParams, LogitBias};
pub use embed::*;
pub use error::*;
pub use fields::*;
pub use lora::*;
pub use message::*;
pub use models::*;
pub use params::*;
pub use results::*;
pub use sessions::*;
pub use status::*;
pub use stop::*;

/// Version of this protocol, as `initialize` reports it.
pub const PROTOCOL_VERSION: u32 = 1;

/// Most entries of `stop`.
pub const STOP_TEXTS_MAX: usize = 16;

/// Most alternatives that `logprobs` and `prompt_logprobs` report per token.
pub const LOGPROBS_MAX: u32 = 20;

/// `max_tokens` of a `generate` that does not say, where the context has this much left.
pub const MAX_TOKENS_DEFAULT: u32 = 512;

/// Most bytes of JSON that one request may have for the chat template: `tools`, `documents` and
/// the `tool_calls` of its messages together.
pub const TEMPLATE_JSON_BYTES_MAX: usize = 1 << 20;

/// Names of the methods.
pub mod method {
    /// Says who is there: server, protocol, model, limits.
    pub const INITIALIZE: &str = "initialize";
    /// Creates a session.
    pub const SESSION_CREATE: &str = "session.create";
    /// Lists the caller's sessions.
    pub const SESSION_LIST: &str = "session.list";
    /// Tells about one session of the caller's.
    pub const SESSION_INFO: &str = "session.info";
    /// Makes a session that begins as another one.
    pub const SESSION_FORK: &str = "session.fork";
    /// Forgets the end of a session.
    pub const SESSION_TRUNCATE: &str = "session.truncate";
    /// Keeps a session in a file.
    pub const SESSION_SAVE: &str = "session.save";
    /// Takes a session back to what was saved.
    pub const SESSION_RESTORE: &str = "session.restore";
    /// Closes a session of the caller's.
    pub const SESSION_CLOSE: &str = "session.close";
    /// Waits for the daemon's end, and tells what it could not save.
    pub const STOP_REPORT: &str = "stop.report";
    /// Generates text.
    pub const GENERATE: &str = "generate";
    /// Makes vectors of texts.
    pub const EMBED: &str = "embed";
    /// Cancels a request of the same connection.
    pub const CANCEL: &str = "cancel";
    /// Text to tokens.
    pub const TOKENIZE: &str = "tokenize";
    /// Tokens to text.
    pub const DETOKENIZE: &str = "detokenize";
    /// Messages to the prompt text that the model was trained on.
    pub const APPLY_TEMPLATE: &str = "apply_template";
    /// The models there are.
    pub const MODEL_LIST: &str = "model.list";
    /// Loads a model, and tells about it.
    pub const MODEL_LOAD: &str = "model.load";
    /// Takes a model off the device.
    pub const MODEL_UNLOAD: &str = "model.unload";
    /// Notification to the client: its request waits for a model to be loaded.
    pub const MODEL_LOADING: &str = "model.loading";
    /// The LoRA adapters of a model.
    pub const LORA_LIST: &str = "lora.list";
    /// Puts a LoRA adapter beside its model.
    pub const LORA_LOAD: &str = "lora.load";
    /// Takes a LoRA adapter away.
    pub const LORA_UNLOAD: &str = "lora.unload";
    /// State of the daemon.
    pub const STATUS: &str = "status";
    /// The daemon's counts, for Prometheus.
    pub const METRICS: &str = "metrics";
    /// Notification to the client: one more token of a streaming `generate`.
    pub const GENERATE_TOKEN: &str = "generate.token";

    /// Every method a client may call.
    pub const ALL: [&str; 24] = [
        INITIALIZE,
        SESSION_CREATE,
        SESSION_LIST,
        SESSION_INFO,
        SESSION_FORK,
        SESSION_TRUNCATE,
        SESSION_SAVE,
        SESSION_RESTORE,
        SESSION_CLOSE,
        GENERATE,
        EMBED,
        CANCEL,
        TOKENIZE,
        DETOKENIZE,
        APPLY_TEMPLATE,
        MODEL_LIST,
        MODEL_LOAD,
        MODEL_UNLOAD,
        LORA_LIST,
        LORA_LOAD,
        LORA_UNLOAD,
        STATUS,
        METRICS,
        STOP_REPORT,
    ];
}
