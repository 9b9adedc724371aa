//! One failure, in the shape that each interface's clients read.

use std::time::Duration;

use hyper::StatusCode;
use serde_json::{Map, Value, json};

use super::reply::Reply;
use crate::protocol::{ErrorCode, ErrorObject};

/// Longest part of a path that a message repeats.
const SHOWN_CHARS_MAX: usize = 80;

/// Seconds after which a model that is being loaded may be asked for again.
const LOADING_RETRY_SECONDS: u32 = 5;

/// Seconds after which a queue may have room again, where the engine has no estimate.
const QUEUE_RETRY_SECONDS: u32 = 2;

/// The longest that such a client is told to stay away.
const QUEUE_RETRY_SECONDS_MAX: u32 = 10;

/// Whose clients read an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// `{"error": {message, type, param, code}}`, `code` a text or null.
    OpenAi,
    /// `{"type": "error", "error": {type, message}, "request_id"}`.
    Anthropic,
    /// `{"error": "…"}`.
    Ollama,
    /// As OpenAI's, `code` the status as a number.
    Llama,
}

/// Why a request is not served.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    status: StatusCode,
    kind: &'static str,
    anthropic: &'static str,
    code: Option<&'static str>,
    pub(super) message: Box<str>,
    param: Option<Box<str>>,
    /// Seconds after which it may be tried again.
    retry_after: Option<u32>,
    /// False where a repetition cannot mend it, though the status says so.
    should_retry: Option<bool>,
    /// Methods of a path, for a wrong one.
    allow: Option<Box<str>>,
    /// The prompt's tokens and the context's, where it does not fit.
    context: Option<Box<(u64, u64)>>,
}

impl Failure {
    fn new(
        status: StatusCode,
        (kind, anthropic): (&'static str, &'static str),
        message: impl Into<String>,
    ) -> Self {
        Self {
            status,
            kind,
            anthropic,
            code: None,
            message: message.into().into_boxed_str(),
            param: None,
            retry_after: None,
            should_retry: None,
            allow: None,
            context: None,
        }
    }

    /// A request that is wrong; `param` names the field.
    pub(super) fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        let param = param.into();
        let param = (!param.is_empty()).then(|| param.into_boxed_str());
        Self { param, ..Self::new(StatusCode::BAD_REQUEST, INVALID, message) }
    }

    pub(super) fn unknown_path(path: &str, similar: Option<&str>) -> Self {
        let shown: String = path.chars().take(SHOWN_CHARS_MAX).collect();
        let hint = similar.map_or_else(String::new, |path| format!("; did you mean {path}?"));
        Self::new(StatusCode::NOT_FOUND, NOT_FOUND, format!("nothing is served at {shown}{hint}"))
    }

    pub(super) fn not_found(code: &'static str, message: impl Into<String>) -> Self {
        Self { code: Some(code), ..Self::new(StatusCode::NOT_FOUND, NOT_FOUND, message) }
    }

    pub(super) fn wrong_method(allow: &str) -> Self {
        let message = format!("this path takes {allow} alone");
        let allow = Some(allow.into());
        Self { allow, ..Self::new(StatusCode::METHOD_NOT_ALLOWED, INVALID, message) }
    }

    pub(super) fn body_too_large(limit: usize) -> Self {
        let message = format!("the body is larger than {limit} bytes");
        let kind = ("invalid_request_error", "request_too_large");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, kind, message)
    }

    pub(super) fn body_too_slow(patience: Duration) -> Self {
        let message = format!("the body did not come within {patience:?}");
        Self::new(StatusCode::REQUEST_TIMEOUT, INVALID, message)
    }

    pub(super) fn encoded_body(encoding: &str) -> Self {
        let shown: String = encoding.chars().take(SHOWN_CHARS_MAX).collect();
        let message = format!("Content-Encoding {shown:?} is not supported; send plain JSON");
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, INVALID, message)
    }

    /// A model is being loaded.
    pub(super) fn loading() -> Self {
        Self {
            retry_after: Some(LOADING_RETRY_SECONDS),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, UNAVAILABLE, "Loading model")
        }
    }

    pub(super) fn internal() -> Self {
        let message = "the daemon failed; its log says more";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, SERVER, message)
    }

    /// Where it is no wrong type but a value that this field may not have.
    #[must_use]
    pub(super) fn with_code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    /// The same in an interface's own words.
    #[must_use]
    pub(super) fn with_message(mut self, message: String) -> Self {
        self.message = message.into_boxed_str();
        self
    }

    pub(super) fn status(&self) -> StatusCode {
        self.status
    }

    /// Anthropic has a status of its own for what others call unavailable.
    fn status_in(&self, shape: Shape) -> StatusCode {
        const OVERLOADED: u16 = 529;
        match shape {
            Shape::Anthropic if self.anthropic == "overloaded_error" => {
                StatusCode::from_u16(OVERLOADED).unwrap_or(self.status)
            }
            _ => self.status,
        }
    }

    /// The message as the clients of an interface look for it.
    fn message_in(&self, shape: Shape) -> String {
        match (self.context.as_deref(), shape) {
            (Some((found, limit)), Shape::Anthropic) => {
                format!("prompt is too long: {found} tokens > {limit} maximum")
            }
            (Some(_), Shape::Ollama) => "input length exceeds context length".to_owned(),
            _ => self.message.clone().into_string(),
        }
    }

    /// The error's JSON, whole: of a reply, or of an event in a stream.
    pub(super) fn value(&self, shape: Shape, request_id: &str) -> Value {
        let message = self.message_in(shape);
        match shape {
            Shape::Ollama => json!({"error": message}),
            Shape::Anthropic => json!({
                "type": "error",
                "error": {"type": self.anthropic, "message": message},
                "request_id": request_id,
            }),
            Shape::OpenAi => json!({"error": self.openai(self.code.into(), message)}),
            Shape::Llama => {
                json!({"error": self.openai(self.status.as_u16().into(), message)})
            }
        }
    }

    fn openai(&self, code: Value, message: String) -> Value {
        let mut error = Map::new();
        error.insert("message".to_owned(), message.into());
        error.insert("type".to_owned(), self.kind.into());
        error.insert("param".to_owned(), self.param.as_deref().into());
        error.insert("code".to_owned(), code);
        if let Some((found, limit)) = self.context.as_deref().copied() {
            error.insert("n_prompt_tokens".to_owned(), found.into());
            error.insert("n_ctx".to_owned(), limit.into());
        }
        error.into()
    }

    /// The code and the message, for an event that has its own place for them.
    pub(super) fn code(&self) -> &'static str {
        self.code.unwrap_or(match self.kind {
            "rate_limit_error" => "rate_limit_exceeded",
            "invalid_request_error" => "invalid_prompt",
            _ => "server_error",
        })
    }

    /// The reply.
    pub(super) fn reply(&self, shape: Shape, request_id: &str) -> Reply {
        let mut reply = Reply::json(&self.value(shape, request_id)).status(self.status_in(shape));
        if let Some(seconds) = self.retry_after {
            reply = reply.header("retry-after", &seconds.to_string());
        }
        if let Some(should) = self.should_retry {
            reply = reply.header("x-should-retry", if should { "true" } else { "false" });
        }
        if let Some(allow) = &self.allow {
            reply = reply.header("allow", allow);
        }
        reply
    }
}

type Kinds = (&'static str, &'static str);

const INVALID: Kinds = ("invalid_request_error", "invalid_request_error");
const NOT_FOUND: Kinds = ("invalid_request_error", "not_found_error");
const RATE: Kinds = ("rate_limit_error", "rate_limit_error");
const UNAVAILABLE: Kinds = ("unavailable_error", "overloaded_error");
const SERVER: Kinds = ("server_error", "api_error");

/// The status and the kinds of a code that needs nothing else.
fn kinds_of(code: ErrorCode) -> (StatusCode, Kinds) {
    match code {
        ErrorCode::NOT_ALLOWED => (StatusCode::FORBIDDEN, ("permission_error", "permission_error")),
        ErrorCode::SESSION_BUSY | ErrorCode::MODEL_BUSY => {
            (StatusCode::CONFLICT, ("conflict", "invalid_request_error"))
        }
        ErrorCode::FRAME_TOO_LARGE => {
            (StatusCode::PAYLOAD_TOO_LARGE, ("invalid_request_error", "request_too_large"))
        }
        ErrorCode::QUEUE_FULL | ErrorCode::USER_QUEUE_FULL | ErrorCode::TOO_MANY_REQUESTS => {
            (StatusCode::TOO_MANY_REQUESTS, RATE)
        }
        ErrorCode::UNKNOWN_MODEL => (StatusCode::NOT_FOUND, NOT_FOUND),
        ErrorCode::MODEL_UNAVAILABLE => (StatusCode::SERVICE_UNAVAILABLE, SERVER),
        ErrorCode::KV_FULL
        | ErrorCode::USER_KV_FULL
        | ErrorCode::MEMORY_SHORT
        | ErrorCode::SHUTTING_DOWN
        | ErrorCode::ENGINE_STOPPED
        | ErrorCode::TOO_MANY_SESSIONS
        | ErrorCode::USER_SESSIONS => (StatusCode::SERVICE_UNAVAILABLE, UNAVAILABLE),
        ErrorCode::CONTEXT_FULL => {
            (StatusCode::BAD_REQUEST, ("exceed_context_size_error", "invalid_request_error"))
        }
        ErrorCode::INVALID_PARAMS
        | ErrorCode::EMPTY_PROMPT
        | ErrorCode::UNKNOWN_TOKEN
        | ErrorCode::TOKENIZER_FAILED
        | ErrorCode::TEMPLATE_FAILED
        | ErrorCode::NO_CHAT_TEMPLATE
        | ErrorCode::NO_GENERATION
        | ErrorCode::UNKNOWN_SESSION
        | ErrorCode::NO_SUCH_POSITION => (StatusCode::BAD_REQUEST, INVALID),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, SERVER),
    }
}

impl From<ErrorObject> for Failure {
    fn from(error: ErrorObject) -> Self {
        let ErrorObject { code, message, data } = error;
        let member = |name: &str| data.as_ref().and_then(|data| data.get(name));
        let number = |name: &str| member(name).and_then(Value::as_u64);
        let (status, kinds) = kinds_of(code);
        let mut failure = Self::new(status, kinds, message);
        match code {
            ErrorCode::CONTEXT_FULL => {
                let found = number("prompt_tokens").unwrap_or(0);
                let limit = number("context_tokens").unwrap_or(0);
                failure.message = format!(
                    "the request has {found} tokens, which exceeds the available context size of \
                     {limit} tokens"
                )
                .into_boxed_str();
                failure.code = Some("context_length_exceeded");
                failure.context = Some(Box::new((found, limit)));
                failure.should_retry = Some(false);
            }
            ErrorCode::UNKNOWN_MODEL => {
                failure.code = Some("model_not_found");
                failure.param = Some("model".into());
            }
            ErrorCode::QUEUE_FULL | ErrorCode::USER_QUEUE_FULL | ErrorCode::TOO_MANY_REQUESTS => {
                let seconds = number("retry_after_s").unwrap_or(QUEUE_RETRY_SECONDS.into());
                let seconds = u32::try_from(seconds).unwrap_or(u32::MAX);
                failure.retry_after = Some(seconds.clamp(1, QUEUE_RETRY_SECONDS_MAX));
            }
            ErrorCode::USER_KV_FULL => failure.should_retry = Some(false),
            ErrorCode::KV_FULL | ErrorCode::MEMORY_SHORT => {
                failure.retry_after = Some(LOADING_RETRY_SECONDS);
            }
            _ => failure.param = member("field").and_then(Value::as_str).map(Into::into),
        }
        failure
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::AdmitError;

    #[test]
    fn a_prompt_that_is_too_long_speaks_each_interfaces_words() {
        let error = AdmitError::ContextFull { prompt_tokens: 9000, context_tokens: 4096 };
        let failure = Failure::from(ErrorObject::from(error));
        let openai = failure.value(Shape::OpenAi, "r");
        assert_eq!(openai["error"]["type"], "exceed_context_size_error");
        assert_eq!(openai["error"]["code"], "context_length_exceeded");
        assert_eq!(openai["error"]["n_prompt_tokens"], 9000);
        assert_eq!(openai["error"]["n_ctx"], 4096);
        let message = openai["error"]["message"].as_str().expect("a text");
        assert!(message.contains("exceeds the available context size"), "{message}");
        assert_eq!(failure.value(Shape::Llama, "r")["error"]["code"], 400);
        let anthropic = failure.value(Shape::Anthropic, "r");
        assert_eq!(anthropic["error"]["message"], "prompt is too long: 9000 tokens > 4096 maximum");
        assert_eq!(anthropic["request_id"], "r");
        let ollama = failure.value(Shape::Ollama, "r");
        assert_eq!(ollama, json!({"error": "input length exceeds context length"}));
    }

    #[test]
    fn a_server_without_room_is_overloaded_to_anthropics_clients() {
        let error = AdmitError::KvFull { wanted_tokens: 9, free_tokens: 1 };
        let failure = Failure::from(ErrorObject::from(error));
        assert_eq!(failure.status_in(Shape::OpenAi), 503);
        assert_eq!(failure.status_in(Shape::Anthropic).as_u16(), 529);
        assert_eq!(failure.value(Shape::Anthropic, "r")["error"]["type"], "overloaded_error");
    }
}
