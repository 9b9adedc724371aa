//! Results of the methods, and the notification. Clients ignore fields they do not know.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::engine;

use super::message::RequestId;

/// Result of `initialize`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InitializeResult {
    /// Server that answered.
    pub server: ServerInfo,
    /// Version of the protocol.
    pub protocol: u32,
    /// The loaded model.
    pub model: ModelFacts,
    /// Its file or folder, for the daemon's own user and for root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// Limits of the daemon.
    pub limits: Limits,
}

/// A server's name and version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerInfo {
    /// `hobd`.
    pub name: String,
    /// Version of the program.
    pub version: String,
    /// Process id.
    pub pid: u32,
}

/// Facts about the loaded model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelFacts {
    /// Name.
    pub name: String,
    /// Architecture, as GGUF names it.
    pub architecture: String,
    /// Number of weights.
    pub parameters: u64,
    /// Bytes of the weights.
    pub weights_bytes: u64,
    /// The most common tensor type.
    pub quantization: String,
    /// Context the model was trained for.
    pub context_tokens_trained: u32,
    /// Default and most context of a session.
    pub context_tokens: u32,
    /// Size of the vocabulary.
    pub vocab_size: u32,
    /// True if `messages` and `apply_template` work.
    pub has_chat_template: bool,
    /// True if `generate` works; `embed` always does.
    #[serde(default)]
    pub generates: bool,
    /// Values of an embedding.
    #[serde(default)]
    pub embedding_length: u32,
    /// Default sampling settings.
    #[serde(default)]
    pub sampling: SamplingDefaults,
    /// Names of the LoRA adapters that requests may use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub adapters: Vec<String>,
}

/// Default sampling settings of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SamplingDefaults {
    /// 0 takes the most likely token.
    pub temperature: f32,
    /// The k most likely are kept; 0: all.
    pub top_k: u32,
    /// The smallest set is kept whose probability reaches this; 1: all.
    pub top_p: f32,
    /// Tokens less likely than this share of the best are dropped; 0: none.
    pub min_p: f32,
    /// Above 1, tokens seen lately are less likely; 1 is off.
    pub repeat_penalty: f32,
    /// Tokens seen lately lose so much of their logits; 0 is off.
    #[serde(default)]
    pub presence_penalty: f32,
    /// They lose so much for each time that they were seen; 0 is off.
    #[serde(default)]
    pub frequency_penalty: f32,
}

impl From<&engine::SamplingParams> for SamplingDefaults {
    fn from(params: &engine::SamplingParams) -> Self {
        Self {
            temperature: params.temperature,
            top_k: params.top_k,
            top_p: params.top_p,
            min_p: params.min_p,
            repeat_penalty: params.repeat_penalty,
            presence_penalty: params.presence_penalty,
            frequency_penalty: params.frequency_penalty,
        }
    }
}

impl From<&engine::ModelInfo> for ModelFacts {
    fn from(model: &engine::ModelInfo) -> Self {
        Self {
            name: model.name.clone(),
            architecture: model.architecture.clone(),
            parameters: model.parameters,
            weights_bytes: model.weights_bytes,
            quantization: model.quantization.clone(),
            context_tokens_trained: model.context_tokens_trained,
            context_tokens: model.context_tokens,
            vocab_size: model.vocab_size,
            has_chat_template: model.has_chat_template,
            generates: model.generates,
            embedding_length: model.embedding_length,
            sampling: SamplingDefaults::from(&model.sampling),
            adapters: model.adapters.list(),
        }
    }
}

/// Limits of the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Largest frame, in bytes.
    pub frame_bytes_max: u64,
    /// Connections at once.
    pub connections_max: u32,
    /// Requests in flight on one connection.
    pub requests_in_flight_max: u32,
    /// Sessions at once.
    pub sessions_max: u32,
    /// Context of a session, in tokens.
    pub context_tokens: u32,
    /// Entries of `stop`.
    pub stop_max: u32,
    /// `logprobs` and `prompt_logprobs`.
    pub logprobs_max: u32,
    /// Texts of one `embed`.
    #[serde(default)]
    pub embed_texts_max: u32,
}

/// Reason a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FinishReason {
    /// A stop token of the model or a stop text.
    Stop,
    /// `max_tokens` or the context's end.
    Length,
    /// Cancelled.
    Cancelled,
    /// `deadline_ms` had passed.
    Deadline,
    /// The engine failed; the result holds what was generated before.
    Error,
}

impl From<engine::FinishReason> for FinishReason {
    fn from(reason: engine::FinishReason) -> Self {
        match reason {
            engine::FinishReason::Stop => Self::Stop,
            engine::FinishReason::Length => Self::Length,
            engine::FinishReason::Cancelled => Self::Cancelled,
            engine::FinishReason::Deadline => Self::Deadline,
            engine::FinishReason::Error => Self::Error,
        }
    }
}

/// Log-probability of a token, and of the most likely ones at its place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprob {
    /// The token that was chosen, or that stood there.
    pub id: u32,
    /// Natural-log probability before any sampling setting is applied.
    pub logprob: f32,
    /// The most likely tokens, best first, as `[id, logprob]`.
    pub top: Vec<(u32, f32)>,
}

/// JSON has no infinity: a probability of 0 becomes the least number there is.
fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { f32::MIN }
}

impl From<engine::TokenLogprob> for TokenLogprob {
    fn from(item: engine::TokenLogprob) -> Self {
        Self {
            id: item.id,
            logprob: finite(item.logprob),
            top: item.top.into_iter().map(|(id, logprob)| (id, finite(logprob))).collect(),
        }
    }
}

/// Tokens that a request took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens found in the session's cache.
    pub cached_tokens: u32,
    /// Tokens generated.
    pub completion_tokens: u32,
}

/// Messages dropped from `messages` to fit the context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shifted {
    /// Messages, the oldest behind the system prompt.
    pub messages: u32,
    /// Tokens by which the prompt became shorter.
    pub tokens: u32,
}

/// Timings of a request, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timings {
    /// From arrival to the first step it was part of.
    pub queue_ms: f64,
    /// From then to its first token.
    pub prefill_ms: f64,
    /// From then to its last.
    pub decode_ms: f64,
    /// Time spent in device steps since the first step.
    #[serde(default)]
    pub device_ms: f64,
    /// Time spent sampling since the first token.
    #[serde(default)]
    pub sampling_ms: f64,
    /// Steps it was part of.
    #[serde(default)]
    pub steps: u64,
    /// Prompt tokens evaluated; more than those not cached where a lost device had to be opened
    /// again.
    #[serde(default)]
    pub computed_tokens: u64,
}

/// Result of `generate`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GenerateResult {
    /// Generated text, without the stop text.
    pub text: String,
    /// Generated tokens, without the stop token.
    pub tokens: Vec<u32>,
    /// Reason it ended.
    pub finish_reason: FinishReason,
    /// With the reason `error`, what failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Tokens it took.
    pub usage: Usage,
    /// Messages dropped from the prompt, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shifted: Option<Shifted>,
    /// Time it took.
    pub timings: Timings,
    /// Per generated token, where asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Vec<TokenLogprob>>,
    /// Per prompt token but the first, where asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<Vec<TokenLogprob>>,
}

impl From<engine::GenerateResult> for GenerateResult {
    fn from(result: engine::GenerateResult) -> Self {
        let convert = |items: Option<Vec<engine::TokenLogprob>>| {
            items.map(|items| items.into_iter().map(TokenLogprob::from).collect())
        };
        // Token counts are bounded by the context, which is a u32.
        let completion_tokens = u32::try_from(result.tokens.len()).unwrap_or(u32::MAX);
        Self {
            text: result.text,
            tokens: result.tokens,
            finish_reason: result.finish_reason.into(),
            error: result.error,
            usage: Usage {
                prompt_tokens: result.prompt_tokens,
                cached_tokens: result.cached_tokens,
                completion_tokens,
            },
            shifted: None,
            timings: Timings {
                queue_ms: result.timings.queue_ms,
                prefill_ms: result.timings.prefill_ms,
                decode_ms: result.timings.decode_ms,
                device_ms: result.timings.device_ms,
                sampling_ms: result.timings.sampling_ms,
                steps: result.timings.steps,
                computed_tokens: result.timings.computed_tokens,
            },
            logprobs: convert(result.logprobs),
            prompt_logprobs: convert(result.prompt_logprobs),
        }
    }
}

/// The notification `generate.token`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GenerateToken {
    /// Id of the `generate` request.
    pub id: RequestId,
    /// Text that became certain with this token; empty inside a character or a stop text's start.
    pub text: String,
    /// Token id.
    pub token: u32,
    /// Its natural-log probability, where `logprobs` was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprob: Option<f32>,
    /// The most likely tokens at its place, where `logprobs` was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top: Option<Vec<(u32, f32)>>,
}

/// Result of `cancel`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelResult {
    /// True if the request was in flight. Its own reply follows, with what it has until then.
    pub cancelled: bool,
}

/// Result of `tokenize`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenizeResult {
    /// Token ids.
    pub tokens: Vec<u32>,
}

/// Result of `detokenize`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DetokenizeResult {
    /// Text.
    pub text: String,
}

/// Result of `apply_template`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApplyTemplateResult {
    /// The prompt, up to where the model's answer begins.
    pub prompt: String,
}
