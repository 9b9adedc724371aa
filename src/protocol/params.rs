//! Parameters of the methods. Optional ones may be absent or null.
//!
//! A client builds and serialises them; the server reads them with [`Params::read`], which refuses
//! unknown fields. Ranges are the server's to check.

use crate::config::{
    FREQUENCY_PENALTY, MIN_P, PRESENCE_PENALTY, REPEAT_PENALTY, TEMPERATURE, TOP_K, TOP_P,
};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use super::constraints::{
    BIAS_WANTED, GRAMMAR_WANTED, GrammarParams, LogitBias, SEED_WANTED, Seed,
};
use super::fields::{Fields, ParamsError};
use super::message::RequestId;
use super::models::MODEL_WANTED;
use super::sessions::{LORA_WANTED, Lora, PRIORITY_WANTED, Priority, SESSION_WANTED, SessionRef};

/// Parameters that can be read from a request.
pub trait Params: Sized {
    /// Reads raw parameters.
    ///
    /// # Errors
    /// An unknown, missing or wrongly typed field.
    fn read(params: Option<&RawValue>) -> Result<Self, ParamsError>;
}

/// Parameters of a method that has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NoParams {}

impl Params for NoParams {
    fn read(params: Option<&RawValue>) -> Result<Self, ParamsError> {
        Fields::new(params, &[]).map(|_| Self {})
    }
}

/// Parameters of `initialize`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct InitializeParams {
    /// User that calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<ClientInfo>,
    /// The protocol the client speaks; the server refuses one that it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<u32>,
}

/// A client's name and version, for the server's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientInfo {
    /// Name.
    pub name: String,
    /// Version.
    #[serde(default)]
    pub version: String,
}

impl Params for InitializeParams {
    fn read(params: Option<&RawValue>) -> Result<Self, ParamsError> {
        let fields = Fields::new(params, &["client", "protocol"])?;
        Ok(Self {
            client: fields.objects("client", "an object {name, version?} of strings")?,
            protocol: fields.optional("protocol", "an integer")?,
        })
    }
}

/// One message of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`, or what else the model's template knows.
    pub role: String,
    /// What it says; a message that calls tools may have none, or null.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub content: Option<MessageContent>,
    /// What an assistant thought before it said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// The calls of an assistant's message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<TemplateJson>,
    /// The call that a tool's message answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// The tool that answers, or who else speaks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl Message {
    /// A message of text alone.
    #[must_use]
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        let content = Some(MessageContent::Text(content.into()));
        Self { role: role.into(), content, ..Self::default() }
    }
}

/// The content of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageContent {
    /// Said to be none.
    Null,
    /// A text.
    Text(String),
    /// An array of parts, such as `{type: "text", text}`.
    Parts(TemplateJson),
}

impl Serialize for MessageContent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_none(),
            Self::Text(text) => serializer.serialize_str(text),
            Self::Parts(parts) => parts.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for MessageContent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        match raw.get().as_bytes().first() {
            Some(b'n') => Ok(Self::Null),
            Some(b'"') => serde_json::from_str(raw.get()).map(Self::Text).map_err(D::Error::custom),
            Some(b'[') => Ok(Self::Parts(TemplateJson(raw))),
            _ => Err(D::Error::custom("content is a text, an array of parts, or null")),
        }
    }
}

/// A field that is there, null or not.
fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(field: D) -> Result<Option<T>, D::Error> {
    T::deserialize(field).map(Some)
}

/// JSON for the chat template. It stays text until the template is rendered: who reads it then
/// knows its size.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TemplateJson(pub Box<RawValue>);

impl PartialEq for TemplateJson {
    fn eq(&self, other: &Self) -> bool {
        self.0.get() == other.0.get()
    }
}

impl Eq for TemplateJson {}

/// Expected form of a list of [`Message`]s.
const MESSAGES_WANTED: &str = "an array of {role, content, reasoning_content?, tool_calls?, tool_call_id?, name?}: content a \
     string or an array of parts, tool_calls an array, the others strings";

/// Expected form of tools and documents.
pub const OBJECTS_WANTED: &str = "an array of objects";

/// Texts that end a generation: one, or several. Serialised as an array.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "OneOrMany")]
pub struct StopTexts(pub Vec<String>);

#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    pub(super) fn into_vec(self) -> Vec<String> {
        match self {
            Self::One(text) => vec![text],
            Self::Many(texts) => texts,
        }
    }
}

impl From<OneOrMany> for StopTexts {
    fn from(texts: OneOrMany) -> Self {
        Self(texts.into_vec())
    }
}

/// Handling of `messages` that exceed the context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnContextFull {
    /// The request is refused.
    #[default]
    Error,
    /// The oldest turns behind the system prompt are left out.
    Shift,
}

/// Parameters of `generate`. Exactly one of `prompt`, `tokens` and `messages` is to be there.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GenerateParams {
    /// Model, by name or alias; without it, the session's, or the daemon's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Session to continue; without one, a session for this call alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionRef>,
    /// Text; the model's begin token is put before it, special tokens in it are recognised.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// Token ids, taken as they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Vec<u32>>,
    /// A conversation, put through the model's chat template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub messages: Option<Vec<Message>>,
    /// Tools that the model may call, as its template wants them: `{type, function}` objects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<TemplateJson>,
    /// Documents that the model may look at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub documents: Option<TemplateJson>,
    /// Further variables of the template, such as `enable_thinking`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chat_template_kwargs: Option<TemplateJson>,
    /// Most tokens to generate; 0 only evaluates the prompt. Without it, what remains of the
    /// context, at most [`MAX_TOKENS_DEFAULT`](super::MAX_TOKENS_DEFAULT).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    /// 0 takes the most likely token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f32>,
    /// Keep the k most likely; 0 keeps all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u32>,
    /// Keep the smallest set whose probability reaches this; 1 keeps all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f32>,
    /// Drop tokens less likely than this share of the best; 0 drops none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f32>,
    /// Above 1, makes tokens seen lately less likely; 1 is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repeat_penalty: Option<f32>,
    /// Lowers the logits of tokens seen lately by so much; 0 is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub presence_penalty: Option<f32>,
    /// Lowers them by so much for each time that they were seen; 0 is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frequency_penalty: Option<f32>,
    /// Number of the last tokens that `repeat_penalty` looks at; -1: all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repeat_last_n: Option<i32>,
    /// Keep the most typical tokens whose probability reaches this; 1 keeps all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub typical_p: Option<f32>,
    /// `top_p`, `min_p` and `typical_p` keep this many at least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_keep: Option<u32>,
    /// Added to the logits of tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logit_bias: Option<LogitBias>,
    /// The model's end tokens do not come.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ignore_eos: Option<bool>,
    /// Grammar of the text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grammar: Option<GrammarParams>,
    /// JSON Schema of the text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub json_schema: Option<TemplateJson>,
    /// Seed; without it, one from the system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Texts that end the generation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<StopTexts>,
    /// Report this many of the most likely tokens at each step, 0 to 20.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<u32>,
    /// The same for each prompt token but the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<u32>,
    /// Send `generate.token` as tokens come.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// LoRA adapters, where there is no session: those of a session are its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lora: Option<Vec<Lora>>,
    /// Priority; defaults to the session's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// Milliseconds after which it ends with what it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// Handling of `messages` that exceed the context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_context_full: Option<OnContextFull>,
}

/// Fields of `generate`.
const GENERATE_FIELDS: &[&str] = &[
    "model",
    "session",
    "prompt",
    "tokens",
    "messages",
    "tools",
    "documents",
    "chat_template_kwargs",
    "max_tokens",
    TEMPERATURE.name,
    TOP_K.name,
    TOP_P.name,
    MIN_P.name,
    REPEAT_PENALTY.name,
    PRESENCE_PENALTY.name,
    FREQUENCY_PENALTY.name,
    "repeat_last_n",
    "typical_p",
    "min_keep",
    "logit_bias",
    "ignore_eos",
    "grammar",
    "json_schema",
    "seed",
    "stop",
    "logprobs",
    "prompt_logprobs",
    "stream",
    "lora",
    "priority",
    "deadline_ms",
    "on_context_full",
];

impl Params for GenerateParams {
    fn read(params: Option<&RawValue>) -> Result<Self, ParamsError> {
        let fields = Fields::new(params, GENERATE_FIELDS)?;
        Ok(Self {
            model: fields.optional("model", MODEL_WANTED)?,
            session: fields.optional("session", SESSION_WANTED)?,
            prompt: fields.optional("prompt", "a string")?,
            tokens: fields.optional("tokens", "an array of token ids")?,
            messages: fields.objects("messages", MESSAGES_WANTED)?,
            tools: fields.optional("tools", OBJECTS_WANTED)?,
            documents: fields.optional("documents", OBJECTS_WANTED)?,
            chat_template_kwargs: fields.optional("chat_template_kwargs", "an object")?,
            max_tokens: fields.optional("max_tokens", "an integer from 0")?,
            temperature: fields.optional(TEMPERATURE.name, TEMPERATURE.wanted)?,
            top_k: fields.optional(TOP_K.name, TOP_K.wanted)?,
            top_p: fields.optional(TOP_P.name, TOP_P.wanted)?,
            min_p: fields.optional(MIN_P.name, MIN_P.wanted)?,
            repeat_penalty: fields.optional(REPEAT_PENALTY.name, REPEAT_PENALTY.wanted)?,
            presence_penalty: fields.optional(PRESENCE_PENALTY.name, PRESENCE_PENALTY.wanted)?,
            frequency_penalty: fields.optional(FREQUENCY_PENALTY.name, FREQUENCY_PENALTY.wanted)?,
            repeat_last_n: fields.optional("repeat_last_n", "an integer from -1")?,
            typical_p: fields.optional("typical_p", "a number from 0 to 1")?,
            min_keep: fields.optional("min_keep", "an integer from 0")?,
            logit_bias: fields.optional("logit_bias", BIAS_WANTED)?,
            ignore_eos: fields.optional("ignore_eos", "true or false")?,
            grammar: fields.optional("grammar", GRAMMAR_WANTED)?,
            json_schema: fields.optional("json_schema", "a JSON Schema")?,
            seed: fields.optional::<Seed>("seed", SEED_WANTED)?.and_then(Seed::value),
            stop: fields.optional("stop", "a string or an array of strings")?,
            logprobs: fields.optional("logprobs", "an integer from 0 to 20")?,
            prompt_logprobs: fields.optional("prompt_logprobs", "an integer from 0 to 20")?,
            stream: fields.optional("stream", "true or false")?,
            lora: fields.objects("lora", LORA_WANTED)?,
            priority: fields.optional("priority", PRIORITY_WANTED)?,
            deadline_ms: fields.optional("deadline_ms", "an integer from 1")?,
            on_context_full: fields.optional("on_context_full", "\"error\" or \"shift\"")?,
        })
    }
}

/// Parameters of `cancel`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CancelParams {
    /// Id of a request of the same connection.
    pub id: RequestId,
}

impl Params for CancelParams {
    fn read(params: Option<&RawValue>) -> Result<Self, ParamsError> {
        let fields = Fields::new(params, &["id"])?;
        Ok(Self { id: fields.required("id", "the id of a request: an integer or a string")? })
    }
}

/// Parameters of `tokenize`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TokenizeParams {
    /// Model, by name or alias; without it, the daemon's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Text.
    pub text: String,
    /// Put the model's begin (and end) tokens around it, where it has them. Default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub add_special: Option<bool>,
    /// Recognise special tokens in the text. Default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parse_special: Option<bool>,
}

impl Params for TokenizeParams {
    fn read(params: Option<&RawValue>) -> Result<Self, ParamsError> {
        let fields = Fields::new(params, &["model", "text", "add_special", "parse_special"])?;
        Ok(Self {
            model: fields.optional("model", MODEL_WANTED)?,
            text: fields.required("text", "a string")?,
            add_special: fields.optional("add_special", "true or false")?,
            parse_special: fields.optional("parse_special", "true or false")?,
        })
    }
}

/// Parameters of `detokenize`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DetokenizeParams {
    /// Model, by name or alias; without it, the daemon's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Token ids.
    pub tokens: Vec<u32>,
}

impl Params for DetokenizeParams {
    fn read(params: Option<&RawValue>) -> Result<Self, ParamsError> {
        let fields = Fields::new(params, &["model", "tokens"])?;
        Ok(Self {
            model: fields.optional("model", MODEL_WANTED)?,
            tokens: fields.required("tokens", "an array of token ids")?,
        })
    }
}

/// Parameters of `apply_template`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ApplyTemplateParams {
    /// Model, by name or alias; without it, the daemon's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// A conversation.
    pub messages: Vec<Message>,
    /// Tools that the model may call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<TemplateJson>,
    /// Documents that the model may look at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub documents: Option<TemplateJson>,
    /// Further variables of the template, such as `enable_thinking`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chat_template_kwargs: Option<TemplateJson>,
}

impl Params for ApplyTemplateParams {
    fn read(params: Option<&RawValue>) -> Result<Self, ParamsError> {
        let fields = Fields::new(
            params,
            &["model", "messages", "tools", "documents", "chat_template_kwargs"],
        )?;
        Ok(Self {
            model: fields.optional("model", MODEL_WANTED)?,
            messages: fields.required("messages", MESSAGES_WANTED)?,
            tools: fields.optional("tools", OBJECTS_WANTED)?,
            documents: fields.optional("documents", OBJECTS_WANTED)?,
            chat_template_kwargs: fields.optional("chat_template_kwargs", "an object")?,
        })
    }
}
