//! Parameters and results of the `session.` methods.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::fields::{Fields, ParamsError};
use super::models::MODEL_WANTED;
use super::params::Params;
use crate::engine;

/// Priority of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// Somebody waits for each word.
    Interactive,
    /// Default value.
    #[default]
    Normal,
    /// Nobody waits.
    Background,
}

/// Expected form of a [`Priority`].
pub(super) const PRIORITY_WANTED: &str = "\"interactive\", \"normal\" or \"background\"";

impl From<Priority> for engine::Priority {
    fn from(priority: Priority) -> Self {
        match priority {
            Priority::Interactive => Self::Interactive,
            Priority::Normal => Self::Normal,
            Priority::Background => Self::Background,
        }
    }
}

impl From<engine::Priority> for Priority {
    fn from(priority: engine::Priority) -> Self {
        match priority {
            engine::Priority::Interactive => Self::Interactive,
            engine::Priority::Normal => Self::Normal,
            engine::Priority::Background => Self::Background,
        }
    }
}

/// A session, by the number that `session.create` returned or by its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SessionRef {
    /// Number.
    Number(u64),
    /// Name.
    Name(String),
}

/// Expected form of a [`SessionRef`].
pub(super) const SESSION_WANTED: &str = "a session's number or name";

/// Expected form of `lora`.
pub(super) const LORA_WANTED: &str = "an array of {name, scale?}";

/// A LoRA adapter, and how much of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lora {
    /// Its name, as the model's facts list it.
    pub name: String,
    /// Factor of what it adds.
    #[serde(default = "one")]
    pub scale: f32,
}

fn one() -> f32 {
    1.0
}

/// Parameters of `session.create`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SessionCreateParams {
    /// Model, by name or alias; without it, the daemon's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Name, unique among the caller's sessions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Context; without it, the daemon's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_tokens: Option<u32>,
    /// Default priority of its requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// Seconds of idleness after which it is closed; without it, never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl: Option<u64>,
    /// LoRA adapters that its texts are computed with, from its first token to its last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lora: Option<Vec<Lora>>,
}

impl Params for SessionCreateParams {
    fn read(params: Option<&RawValue>) -> Result<Self, ParamsError> {
        let fields =
            Fields::new(params, &["model", "name", "context_tokens", "priority", "ttl", "lora"])?;
        Ok(Self {
            model: fields.optional("model", MODEL_WANTED)?,
            name: fields.optional("name", "a string")?,
            context_tokens: fields.optional("context_tokens", "an integer from 1")?,
            priority: fields.optional("priority", PRIORITY_WANTED)?,
            ttl: fields.optional("ttl", "seconds, an integer from 1")?,
            lora: fields.objects("lora", LORA_WANTED)?,
        })
    }
}

/// Parameters of `session.list`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SessionListParams {
    /// List the sessions of all users: for root and the daemon's own user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub all: Option<bool>,
}

impl Params for SessionListParams {
    fn read(params: Option<&RawValue>) -> Result<Self, ParamsError> {
        let fields = Fields::new(params, &["all"])?;
        Ok(Self { all: fields.optional("all", "true or false")? })
    }
}

/// Parameters of `session.close`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SessionCloseParams {
    /// Item in question.
    pub session: SessionRef,
    /// User whose session it is, where it is not the caller's: for root and the daemon's own user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
}

impl Params for SessionCloseParams {
    fn read(params: Option<&RawValue>) -> Result<Self, ParamsError> {
        let fields = Fields::new(params, &["session", "uid"])?;
        Ok(Self {
            session: fields.required("session", SESSION_WANTED)?,
            uid: fields.optional("uid", "a user's number")?,
        })
    }
}

/// Parameters of `session.info`, `session.save` and `session.restore`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SessionParams {
    /// Item in question.
    pub session: SessionRef,
}

impl Params for SessionParams {
    fn read(params: Option<&RawValue>) -> Result<Self, ParamsError> {
        let fields = Fields::new(params, &["session"])?;
        Ok(Self { session: fields.required("session", SESSION_WANTED)? })
    }
}

/// Parameters of `session.fork`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SessionForkParams {
    /// The session to begin as.
    pub session: SessionRef,
    /// Name of the new session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Number of tokens; all by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<u32>,
}

impl Params for SessionForkParams {
    fn read(params: Option<&RawValue>) -> Result<Self, ParamsError> {
        let fields = Fields::new(params, &["session", "name", "at"])?;
        Ok(Self {
            session: fields.required("session", SESSION_WANTED)?,
            name: fields.optional("name", "a string")?,
            at: fields.optional("at", "an integer from 0")?,
        })
    }
}

/// Parameters of `session.truncate`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SessionTruncateParams {
    /// Item in question.
    pub session: SessionRef,
    /// Number of tokens to keep.
    pub tokens: u32,
}

impl Params for SessionTruncateParams {
    fn read(params: Option<&RawValue>) -> Result<Self, ParamsError> {
        let fields = Fields::new(params, &["session", "tokens"])?;
        Ok(Self {
            session: fields.required("session", SESSION_WANTED)?,
            tokens: fields.required("tokens", "an integer from 0")?,
        })
    }
}

/// Result of `session.create`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionCreateResult {
    /// The session's number.
    pub session: u64,
    /// Name, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its context, in tokens.
    pub context_tokens: u32,
}

/// Result of `session.list`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionListResult {
    /// The sessions, by their numbers.
    pub sessions: Vec<SessionEntry>,
}

/// Location of a session's cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CachePlace {
    /// In the device's memory.
    Device,
    /// In the host's memory.
    Host,
    /// In a file.
    Disk,
    /// Nowhere: it is computed when it is needed.
    #[default]
    None,
}

impl From<engine::CachePlace> for CachePlace {
    fn from(place: engine::CachePlace) -> Self {
        match place {
            engine::CachePlace::Device => Self::Device,
            engine::CachePlace::Host => Self::Host,
            engine::CachePlace::Disk => Self::Disk,
            engine::CachePlace::None => Self::None,
        }
    }
}

/// One session: in `session.list`, and the result of `session.info`, `session.fork` and
/// `session.truncate`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionEntry {
    /// Number.
    pub session: u64,
    /// Name, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// User that it belongs to; in `session.list` with `all` alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Name of its model; in `session.list` alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Context, in tokens.
    pub context_tokens: u32,
    /// Tokens it has, from its prompts and what was generated.
    #[serde(default)]
    pub tokens: u32,
    /// Tokens held in its cache.
    pub cached_tokens: u32,
    /// Location of its cache.
    #[serde(default)]
    pub cache: CachePlace,
    /// Default priority of its requests.
    #[serde(default)]
    pub priority: Priority,
    /// Seconds of idleness after which it is closed, if ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<u64>,
    /// A request is running on it.
    pub busy: bool,
    /// Seconds since it was last used.
    pub idle_seconds: u64,
    /// LoRA adapters that it is computed with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lora: Vec<Lora>,
}

impl From<engine::SessionInfo> for SessionEntry {
    fn from(session: engine::SessionInfo) -> Self {
        Self {
            session: session.id.0,
            name: session.name,
            uid: None,
            model: None,
            context_tokens: session.context_tokens,
            tokens: session.tokens,
            cached_tokens: session.cached_tokens,
            cache: session.place.into(),
            priority: session.priority.into(),
            ttl: session.ttl_seconds,
            busy: session.busy,
            idle_seconds: session.idle_seconds,
            lora: session
                .adapters
                .iter()
                .map(|used| Lora { name: used.name.clone(), scale: used.scale() })
                .collect(),
        }
    }
}

/// Result of `session.close`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionCloseResult {
    /// Number of the session that was closed.
    pub session: u64,
}
