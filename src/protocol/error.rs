//! Error codes, and the error object of a reply.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::engine::AdmitError;
use crate::sampler::SamplingError;

use super::fields::ParamsError;

/// Number of an error, stable across versions of protocol 1. `config/protocol.md` has the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ErrorCode(pub i64);

impl ErrorCode {
    /// The bytes are not JSON, or not UTF-8.
    pub const PARSE: Self = Self(-32700);
    /// JSON, but not a request.
    pub const INVALID_REQUEST: Self = Self(-32600);
    /// No such method.
    pub const METHOD_NOT_FOUND: Self = Self(-32601);
    /// A parameter is missing, unknown, of the wrong type or out of range.
    pub const INVALID_PARAMS: Self = Self(-32602);
    /// The daemon failed; its log says more.
    pub const INTERNAL: Self = Self(-32603);
    /// The daemon is about to exit.
    pub const SHUTTING_DOWN: Self = Self(-32000);
    /// Too many requests wait.
    pub const QUEUE_FULL: Self = Self(-32001);
    /// The prompt does not fit the session's context.
    pub const CONTEXT_FULL: Self = Self(-32002);
    /// The caller has no such session.
    pub const UNKNOWN_SESSION: Self = Self(-32003);
    /// Another request is running on the session.
    pub const SESSION_BUSY: Self = Self(-32004);
    /// The caller already has a session of this name.
    pub const SESSION_EXISTS: Self = Self(-32005);
    /// Too many sessions.
    pub const TOO_MANY_SESSIONS: Self = Self(-32006);
    /// No room in the KV cache now.
    pub const KV_FULL: Self = Self(-32007);
    /// A token that the vocabulary lacks.
    pub const UNKNOWN_TOKEN: Self = Self(-32008);
    /// The prompt has no token.
    pub const EMPTY_PROMPT: Self = Self(-32009);
    /// The model has no chat template.
    pub const NO_CHAT_TEMPLATE: Self = Self(-32010);
    /// The chat template refused the messages.
    pub const TEMPLATE_FAILED: Self = Self(-32011);
    /// The tokenizer refused the text or the tokens.
    pub const TOKENIZER_FAILED: Self = Self(-32012);
    /// A frame larger than the limit; the connection is closed.
    pub const FRAME_TOO_LARGE: Self = Self(-32013);
    /// A frame header that cannot be read; the connection is closed.
    pub const BAD_FRAME: Self = Self(-32014);
    /// Too many requests in flight on this connection.
    pub const TOO_MANY_REQUESTS: Self = Self(-32015);
    /// A request with this id is in flight on this connection.
    pub const DUPLICATE_ID: Self = Self(-32016);
    /// Too many connections; this one is closed.
    pub const TOO_MANY_CONNECTIONS: Self = Self(-32017);
    /// The session has no such position.
    pub const NO_SUCH_POSITION: Self = Self(-32019);
    /// A session could not be saved or restored.
    pub const NOT_SAVED: Self = Self(-32020);
    /// No model of this name.
    pub const UNKNOWN_MODEL: Self = Self(-32030);
    /// The model cannot be loaded, or there is no room for it now.
    pub const MODEL_UNAVAILABLE: Self = Self(-32031);
    /// The model is in use.
    pub const MODEL_BUSY: Self = Self(-32032);
    /// An adapter of this name is loaded already.
    pub const ADAPTER_EXISTS: Self = Self(-32033);
    /// The adapter does not fit its model, or the device lacks memory for it.
    pub const ADAPTER_UNAVAILABLE: Self = Self(-32034);
    /// Sessions are computed with the adapter.
    pub const ADAPTER_BUSY: Self = Self(-32035);
    /// The engine cannot take on requests any more.
    pub const ENGINE_STOPPED: Self = Self(-32018);
    /// The caller has as many sessions as one user may.
    pub const USER_SESSIONS: Self = Self(-32021);
    /// As many of the caller's requests wait as may.
    pub const USER_QUEUE_FULL: Self = Self(-32022);
    /// More KV cache than one user may have.
    pub const USER_KV_FULL: Self = Self(-32023);
    /// The request was cancelled before it had anything to hand over.
    pub const CANCELLED: Self = Self(-32040);
    /// `deadline_ms` had passed before there was anything to hand over.
    pub const DEADLINE: Self = Self(-32041);
    /// The model makes embeddings and generates no text.
    pub const NO_GENERATION: Self = Self(-32042);
    /// The configuration does not let the caller in, and the connection is closed; or the method is
    /// for root and the daemon's own user.
    pub const NOT_ALLOWED: Self = Self(-32024);
    /// The reply would be larger than what may wait for a client.
    pub const REPLY_TOO_LARGE: Self = Self(-32043);
    /// Other programs have the device's memory; try again later.
    pub const MEMORY_SHORT: Self = Self(-32025);
}

/// Most characters of a message, and of a text in `data`, that reach the wire.
const TEXT_CHARS_MAX: usize = 2000;

/// Most characters of a message of serde's, which may repeat as much of the input as there is.
const SERDE_CHARS_MAX: usize = 200;

/// A foreign error's message, cut: it may repeat what a client sent.
#[must_use]
pub fn brief(error: impl fmt::Display) -> String {
    let mut text = Cut { text: String::new(), left: SERDE_CHARS_MAX };
    if fmt::write(&mut text, format_args!("{error}")).is_err() {
        text.text.push('…');
    }
    text.text
}

/// Takes so many characters, then fails.
struct Cut {
    text: String,
    left: usize,
}

impl fmt::Write for Cut {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        for c in more.chars() {
            self.left = self.left.checked_sub(1).ok_or(fmt::Error)?;
            self.text.push(c);
        }
        Ok(())
    }
}

/// Cuts every text of a value.
fn cut_texts(value: &mut Value) {
    match value {
        Value::String(text) => cut(text),
        Value::Array(values) => values.iter_mut().for_each(cut_texts),
        Value::Object(members) => members.values_mut().for_each(cut_texts),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn cut(text: &mut String) {
    if let Some((end, _)) = text.char_indices().nth(TEXT_CHARS_MAX) {
        text.truncate(end);
        text.push('…');
    }
}

/// The `error` of a reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ErrorObject {
    /// Kind of error.
    pub code: ErrorCode,
    /// For a person.
    pub message: String,
    /// The facts of the message, for a program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}

impl ErrorObject {
    /// An error without `data`.
    #[must_use]
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    /// The same error with every text cut to a bound: whatever it repeats of a request, an error is
    /// no larger than that.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        cut(&mut self.message);
        self.data.iter_mut().for_each(cut_texts);
        self
    }

    /// The same error with `data`.
    #[must_use]
    pub fn with_data(mut self, data: Value) -> Self {
        self.data = Some(data);
        self
    }
}

impl fmt::Display for ErrorObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ErrorObject {}

impl From<AdmitError> for ErrorObject {
    fn from(error: AdmitError) -> Self {
        let message = error.to_string();
        let (code, data) = match error {
            AdmitError::QueueFull { waiting, limit } => {
                (ErrorCode::QUEUE_FULL, json!({"waiting": waiting, "limit": limit}))
            }
            AdmitError::ContextFull { prompt_tokens, context_tokens } => (
                ErrorCode::CONTEXT_FULL,
                json!({"prompt_tokens": prompt_tokens, "context_tokens": context_tokens}),
            ),
            AdmitError::UnknownSession(number) => unknown_session(&json!(number)),
            AdmitError::UnknownSessionName(name) => unknown_session(&json!(name)),
            AdmitError::SessionBusy(session) => {
                (ErrorCode::SESSION_BUSY, json!({"session": session}))
            }
            AdmitError::SessionExists(name) => (ErrorCode::SESSION_EXISTS, json!({"name": name})),
            AdmitError::TooManySessions { limit } => {
                (ErrorCode::TOO_MANY_SESSIONS, json!({"limit": limit}))
            }
            AdmitError::KvFull { wanted_tokens, free_tokens } => (
                ErrorCode::KV_FULL,
                json!({"wanted_tokens": wanted_tokens, "free_tokens": free_tokens}),
            ),
            AdmitError::MemoryShort { wanted_tokens, tokens_max } => (
                ErrorCode::MEMORY_SHORT,
                json!({"wanted_tokens": wanted_tokens, "tokens_max": tokens_max}),
            ),
            AdmitError::NoSuchPosition { wanted, tokens } => {
                (ErrorCode::NO_SUCH_POSITION, json!({"wanted": wanted, "tokens": tokens}))
            }
            AdmitError::NoStateFolder | AdmitError::NotSaved(_) | AdmitError::FileStays(_) => {
                (ErrorCode::NOT_SAVED, Value::Null)
            }
            AdmitError::UserSessions { limit } => {
                (ErrorCode::USER_SESSIONS, json!({"limit": limit}))
            }
            AdmitError::UserQueueFull { waiting, limit } => {
                (ErrorCode::USER_QUEUE_FULL, json!({"waiting": waiting, "limit": limit}))
            }
            AdmitError::UserKvFull { wanted_bytes, limit_bytes } => (
                ErrorCode::USER_KV_FULL,
                json!({"wanted_bytes": wanted_bytes, "limit_bytes": limit_bytes}),
            ),
            AdmitError::UnknownToken { token, vocab_size } => {
                (ErrorCode::UNKNOWN_TOKEN, json!({"token": token, "vocab_size": vocab_size}))
            }
            AdmitError::Sampling(error) => (ErrorCode::INVALID_PARAMS, sampling_data(&error)),
            AdmitError::NoGeneration { architecture } => {
                (ErrorCode::NO_GENERATION, json!({"architecture": architecture}))
            }
            AdmitError::UnknownAdapter { name, known } => (
                ErrorCode::INVALID_PARAMS,
                json!({"field": "lora", "wanted": known, "found": name}),
            ),
            AdmitError::AdapterTwice(name) => {
                (ErrorCode::INVALID_PARAMS, json!({"field": "lora", "found": name}))
            }
            AdmitError::Cancelled => (ErrorCode::CANCELLED, Value::Null),
            AdmitError::Deadline => (ErrorCode::DEADLINE, Value::Null),
            AdmitError::Failed(_) => (ErrorCode::INTERNAL, Value::Null),
            AdmitError::EmptyPrompt => (ErrorCode::EMPTY_PROMPT, Value::Null),
            AdmitError::NotLoaded(_) => (ErrorCode::MODEL_UNAVAILABLE, Value::Null),
            AdmitError::ShuttingDown => (ErrorCode::SHUTTING_DOWN, Value::Null),
        };
        let data = (!data.is_null()).then_some(data);
        Self { code, message, data }
    }
}

fn unknown_session(session: &Value) -> (ErrorCode, Value) {
    (ErrorCode::UNKNOWN_SESSION, json!({"session": session}))
}

fn sampling_data(error: &SamplingError) -> Value {
    match error {
        SamplingError::OutOfRange { field, least, most, found } => {
            json!({"field": field, "wanted": format!("{least} to {most}"), "found": found.to_string()})
        }
        // Of logits, not of parameters.
        _ => Value::Null,
    }
}

impl From<ParamsError> for ErrorObject {
    fn from(error: ParamsError) -> Self {
        let message = error.to_string();
        let data = match error {
            ParamsError::Unknown { field, nearest } => json!({"field": field, "nearest": nearest}),
            ParamsError::Missing { field, wanted } => json!({"field": field, "wanted": wanted}),
            ParamsError::Invalid { field, wanted, found } => {
                json!({"field": field, "wanted": wanted, "found": found})
            }
            ParamsError::Duplicate { field } => json!({"field": field}),
            ParamsError::NotAnObject { found } => json!({"wanted": "an object", "found": found}),
            ParamsError::TooMany { limit } => json!({"limit": limit}),
        };
        Self { code: ErrorCode::INVALID_PARAMS, message, data: Some(data) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_message_is_cut_at_200_characters() {
        assert_eq!(brief("short"), "short");
        assert_eq!(brief("é".repeat(200)), "é".repeat(200));
        assert_eq!(brief("é".repeat(1 << 20)), format!("{}…", "é".repeat(200)));
    }

    #[test]
    fn an_error_is_bounded_whatever_it_repeats() {
        let huge = "x".repeat(1 << 20);
        let data = json!({"session": huge, "names": [huge], "limit": 3});
        let error = ErrorObject::new(ErrorCode::UNKNOWN_SESSION, huge.clone()).with_data(data);
        let error = error.bounded();
        assert!(error.message.len() < 2100 && error.to_string().starts_with("xxx"));
        assert!(serde_json::to_string(&error).expect("serialises").len() < 7000);
        assert_eq!(error.data.expect("it stays")["limit"], 3);
    }
}
