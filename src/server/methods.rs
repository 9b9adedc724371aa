//! The methods: what each takes, asks the engine, and returns.

use std::future::pending;
use std::process;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::oneshot;
use tokio::time::sleep_until;

use super::connection::Connection;
use super::conversation::Conversation;
use super::models::InUse;
use super::{embed, generate, lora, metrics, privacy, sessions, text};
use crate::engine::{
    AdmitError, CancelFlag, Control, EngineCommand, EngineHandle, EngineStatus, Owner,
};
use crate::protocol::{
    ApplyTemplateParams, ApplyTemplateResult, CancelParams, DetokenizeParams, DetokenizeResult,
    EmbedParams, ErrorCode, ErrorObject, GenerateParams, InitializeParams, InitializeResult,
    LOGPROBS_MAX, Limits, LoraLoadParams, LoraUnloadParams, MetricsResult, ModelCounts, ModelFacts,
    ModelLoadResult, ModelParams, ModelUnloadResult, NoParams, PROTOCOL_VERSION, Params,
    ParamsError, RequestId, STOP_TEXTS_MAX, ServerInfo, SessionCloseParams, SessionCreateParams,
    SessionForkParams, SessionListParams, SessionParams, SessionTruncateParams, StatusResult,
    TokenizeParams, TokenizeResult, method, nearest,
};

/// A request whose parameters are read.
#[derive(Debug)]
pub(super) enum Call {
    Initialize(InitializeParams),
    SessionCreate(SessionCreateParams),
    SessionList(SessionListParams),
    SessionInfo(SessionParams),
    SessionFork(SessionForkParams),
    SessionTruncate(SessionTruncateParams),
    SessionSave(SessionParams),
    SessionRestore(SessionParams),
    SessionClose(SessionCloseParams),
    Generate(Box<GenerateParams>),
    Embed(Box<EmbedParams>),
    Cancel(CancelParams),
    Tokenize(TokenizeParams),
    Detokenize(DetokenizeParams),
    ApplyTemplate(ApplyTemplateParams),
    ModelList,
    ModelLoad(ModelParams),
    ModelUnload(ModelParams),
    LoraList(ModelParams),
    LoraLoad(LoraLoadParams),
    LoraUnload(LoraUnloadParams),
    Status,
    Metrics,
    StopReport,
}

/// Serialised result of a method.
type Reply = Result<Box<RawValue>, ErrorObject>;

impl Call {
    pub(super) fn read(name: &str, params: Option<&RawValue>) -> Result<Self, ErrorObject> {
        Ok(match name {
            method::INITIALIZE => Self::Initialize(Params::read(params)?),
            method::SESSION_CREATE => Self::SessionCreate(Params::read(params)?),
            method::SESSION_LIST => Self::SessionList(Params::read(params)?),
            method::SESSION_INFO => Self::SessionInfo(Params::read(params)?),
            method::SESSION_FORK => Self::SessionFork(Params::read(params)?),
            method::SESSION_TRUNCATE => Self::SessionTruncate(Params::read(params)?),
            method::SESSION_SAVE => Self::SessionSave(Params::read(params)?),
            method::SESSION_RESTORE => Self::SessionRestore(Params::read(params)?),
            method::SESSION_CLOSE => Self::SessionClose(Params::read(params)?),
            method::GENERATE => Self::Generate(Box::new(Params::read(params)?)),
            method::EMBED => Self::Embed(Box::new(Params::read(params)?)),
            method::CANCEL => Self::Cancel(Params::read(params)?),
            method::TOKENIZE => Self::Tokenize(Params::read(params)?),
            method::DETOKENIZE => Self::Detokenize(Params::read(params)?),
            method::APPLY_TEMPLATE => Self::ApplyTemplate(Params::read(params)?),
            method::MODEL_LIST => NoParams::read(params).map(|_| Self::ModelList)?,
            method::MODEL_LOAD => Self::ModelLoad(Params::read(params)?),
            method::MODEL_UNLOAD => Self::ModelUnload(Params::read(params)?),
            method::LORA_LIST => Self::LoraList(Params::read(params)?),
            method::LORA_LOAD => Self::LoraLoad(Params::read(params)?),
            method::LORA_UNLOAD => Self::LoraUnload(Params::read(params)?),
            method::STATUS => NoParams::read(params).map(|_| Self::Status)?,
            method::METRICS => NoParams::read(params).map(|_| Self::Metrics)?,
            method::STOP_REPORT => NoParams::read(params).map(|_| Self::StopReport)?,
            _ => return Err(unknown_method(name)),
        })
    }

    pub(super) fn method(&self) -> &'static str {
        match self {
            Self::Initialize(_) => method::INITIALIZE,
            Self::SessionCreate(_) => method::SESSION_CREATE,
            Self::SessionList(_) => method::SESSION_LIST,
            Self::SessionInfo(_) => method::SESSION_INFO,
            Self::SessionFork(_) => method::SESSION_FORK,
            Self::SessionTruncate(_) => method::SESSION_TRUNCATE,
            Self::SessionSave(_) => method::SESSION_SAVE,
            Self::SessionRestore(_) => method::SESSION_RESTORE,
            Self::SessionClose(_) => method::SESSION_CLOSE,
            Self::Generate(_) => method::GENERATE,
            Self::Embed(_) => method::EMBED,
            Self::Cancel(_) => method::CANCEL,
            Self::Tokenize(_) => method::TOKENIZE,
            Self::Detokenize(_) => method::DETOKENIZE,
            Self::ApplyTemplate(_) => method::APPLY_TEMPLATE,
            Self::ModelList => method::MODEL_LIST,
            Self::ModelLoad(_) => method::MODEL_LOAD,
            Self::ModelUnload(_) => method::MODEL_UNLOAD,
            Self::LoraList(_) => method::LORA_LIST,
            Self::LoraLoad(_) => method::LORA_LOAD,
            Self::LoraUnload(_) => method::LORA_UNLOAD,
            Self::Status => method::STATUS,
            Self::Metrics => method::METRICS,
            Self::StopReport => method::STOP_REPORT,
        }
    }

    /// True if it may run for long, so that it counts against the limit of those in flight.
    pub(super) fn generates(&self) -> bool {
        matches!(self, Self::Generate(_) | Self::Embed(_))
    }

    /// True if its reply may be so large that two of them do not fit what may wait for a client.
    pub(super) fn has_large_reply(&self) -> bool {
        matches!(self, Self::Embed(_))
    }

    pub(super) async fn run(
        self,
        connection: &Arc<Connection>,
        id: &RequestId,
        cancel: &CancelFlag,
    ) -> Reply {
        match self {
            Self::Initialize(params) => serialise(&initialize(connection, params)?),
            Self::SessionCreate(params) => {
                serialise(&sessions::create(connection, id, params).await?)
            }
            Self::SessionList(params) => serialise(&sessions::list(connection, params).await?),
            Self::SessionInfo(params) => serialise(&sessions::info(connection, params).await?),
            Self::SessionFork(params) => serialise(&sessions::fork(connection, params).await?),
            Self::SessionTruncate(params) => {
                serialise(&sessions::truncate(connection, params).await?)
            }
            Self::SessionSave(params) => serialise(&sessions::save(connection, params).await?),
            Self::SessionRestore(params) => {
                serialise(&sessions::restore(connection, params).await?)
            }
            Self::SessionClose(params) => serialise(&sessions::close(connection, params).await?),
            Self::Generate(params) => {
                serialise(&generate::generate(connection, id, *params, cancel).await?)
            }
            Self::Embed(params) => serialise(&embed::embed(connection, id, *params, cancel).await?),
            Self::Cancel(_) | Self::StopReport => {
                unreachable!("answered by the connection, which has the flags")
            }
            Self::Tokenize(params) => serialise(&tokenize(connection, id, params, cancel).await?),
            Self::Detokenize(params) => {
                serialise(&detokenize(connection, id, params, cancel).await?)
            }
            Self::ApplyTemplate(params) => {
                serialise(&apply_template(connection, id, params, cancel).await?)
            }
            Self::ModelList => serialise(&connection.shared.models.list().await),
            Self::ModelLoad(params) => serialise(&load_model(connection, id, params).await?),
            Self::ModelUnload(params) => {
                let (models, caller) = (&connection.shared.models, connection.caller());
                let name = models.unload(params.model.as_deref(), caller).await?;
                serialise(&ModelUnloadResult { name })
            }
            Self::LoraList(params) => serialise(&lora::list(connection, id, params).await?),
            Self::LoraLoad(params) => serialise(&lora::load(connection, id, params).await?),
            Self::LoraUnload(params) => serialise(&lora::unload(connection, id, params).await?),
            Self::Status => serialise(&status(connection).await?),
            Self::Metrics => serialise(&metrics(connection).await?),
        }
    }
}

fn serialise<R: Serialize>(result: &R) -> Reply {
    Ok(to_raw_value(result).expect("results have text keys and finite numbers"))
}

fn unknown_method(name: &str) -> ErrorObject {
    const SHOWN_CHARS_MAX: usize = 40;
    let nearest = nearest(name, method::ALL);
    let hint = nearest.map_or_else(String::new, |name| format!("; did you mean {name:?}?"));
    let shown: String = name.chars().take(SHOWN_CHARS_MAX).collect();
    ErrorObject::new(ErrorCode::METHOD_NOT_FOUND, format!("no method {shown:?}{hint}"))
        .with_data(json!({"nearest": nearest}))
}

/// A parameter that is out of its range.
pub(super) fn out_of_range(
    field: &'static str,
    wanted: impl Into<String>,
    found: impl ToString,
) -> ErrorObject {
    ParamsError::Invalid { field, wanted: wanted.into(), found: found.to_string() }.into()
}

pub(super) fn engine_stopped() -> ErrorObject {
    ErrorObject::new(ErrorCode::ENGINE_STOPPED, "the engine has stopped; the daemon's log says why")
}

/// Hands the engine a request once there is a place for it among the user's commands, unless the
/// request is cancelled or late before.
pub(super) async fn enqueue(
    engine: &EngineHandle,
    owner: Owner,
    command: EngineCommand,
    (cancel, deadline): (&CancelFlag, Option<Instant>),
) -> Result<(), ErrorObject> {
    let late = async {
        match deadline {
            Some(deadline) => sleep_until(deadline.into()).await,
            None => pending().await,
        }
    };
    tokio::select! {
        biased;
        sent = engine.commands.send(owner, command) => sent.map_err(|_| engine_stopped()),
        () = cancel.raised() => Err(AdmitError::Cancelled.into()),
        () = late => Err(AdmitError::Deadline.into()),
    }
}

/// Asks the engine something for a user, which it answers between two steps.
pub(super) async fn ask<T>(
    engine: &EngineHandle,
    owner: Owner,
    command: impl FnOnce(oneshot::Sender<T>) -> EngineCommand,
) -> Result<T, ErrorObject> {
    let (reply, answer) = oneshot::channel();
    engine.commands.send(owner, command(reply)).await.map_err(|_| engine_stopped())?;
    answer.await.map_err(|_| engine_stopped())
}

/// Asks the engine something for the daemon itself.
pub(super) async fn control<T>(
    engine: &EngineHandle,
    command: impl FnOnce(oneshot::Sender<T>) -> Control,
) -> Result<T, ErrorObject> {
    let (reply, answer) = oneshot::channel();
    engine.commands.control(command(reply)).map_err(|_| engine_stopped())?;
    answer.await.map_err(|_| engine_stopped())
}

fn server_info() -> ServerInfo {
    ServerInfo {
        name: "hobd".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: process::id(),
    }
}

fn initialize(
    connection: &Connection,
    params: InitializeParams,
) -> Result<InitializeResult, ErrorObject> {
    if let Some(found) = params.protocol.filter(|found| *found != PROTOCOL_VERSION) {
        return Err(out_of_range("protocol", PROTOCOL_VERSION.to_string(), found));
    }
    let options = &connection.shared.options;
    let model = &connection.shared.models.default_engine().model;
    let to_u32 = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    Ok(InitializeResult {
        server: server_info(),
        protocol: PROTOCOL_VERSION,
        model: ModelFacts::from(&**model),
        file: connection.shared.models.default_path().filter(|_| connection.is_operator()),
        limits: Limits {
            frame_bytes_max: options.frame_bytes_max as u64,
            connections_max: options.connections_max,
            requests_in_flight_max: to_u32(options.requests_in_flight_max),
            sessions_max: options.sessions_max,
            context_tokens: model.context_tokens,
            stop_max: to_u32(STOP_TEXTS_MAX),
            logprobs_max: LOGPROBS_MAX,
            embed_texts_max: to_u32(embed::texts_max(model, options.outgoing_bytes_max)),
        },
    })
}

async fn load_model(
    connection: &Connection,
    id: &RequestId,
    params: ModelParams,
) -> Result<ModelLoadResult, ErrorObject> {
    let model = connection.model(id, params.model.as_deref()).await?;
    Ok(ModelLoadResult { name: model.name.clone(), facts: ModelFacts::from(&*model.model) })
}

async fn tokenize(
    connection: &Connection,
    id: &RequestId,
    params: TokenizeParams,
    cancel: &CancelFlag,
) -> Result<TokenizeResult, ErrorObject> {
    let TokenizeParams { model, text, add_special, parse_special } = params;
    let (add_special, parse_special) =
        (add_special.unwrap_or(false), parse_special.unwrap_or(false));
    let engine = connection.model_of_text(id, model.as_deref()).await?;
    let tokens =
        text::tokenize(&connection.job(cancel), &engine, text, add_special, parse_special).await?;
    Ok(TokenizeResult { tokens })
}

async fn detokenize(
    connection: &Connection,
    id: &RequestId,
    params: DetokenizeParams,
    cancel: &CancelFlag,
) -> Result<DetokenizeResult, ErrorObject> {
    let engine = connection.model_of_text(id, params.model.as_deref()).await?;
    let text = text::decode(&connection.job(cancel), &engine, params.tokens).await?;
    Ok(DetokenizeResult { text })
}

async fn apply_template(
    connection: &Connection,
    id: &RequestId,
    params: ApplyTemplateParams,
    cancel: &CancelFlag,
) -> Result<ApplyTemplateResult, ErrorObject> {
    let ApplyTemplateParams { model, messages, tools, documents, chat_template_kwargs } = params;
    let conversation = Conversation::read(messages, tools, documents, chat_template_kwargs)?;
    let engine = connection.model_of_text(id, model.as_deref()).await?;
    let prompt = text::render(&connection.job(cancel), &engine, conversation).await?;
    Ok(ApplyTemplateResult { prompt })
}

async fn status(connection: &Connection) -> Result<StatusResult, ErrorObject> {
    let shared = &connection.shared;
    let model = ModelFacts::from(&*shared.models.default_engine().model);
    let connections = shared.connections.count();
    let states = states(connection).await?;
    let counts = states.iter().map(|(model, status)| {
        ModelCounts::new(model.name.clone(), model.model.weights_bytes, status)
    });
    let models = counts.collect();
    let mut states = states.into_iter().map(|(_, status)| status);
    let status = states.next().ok_or_else(engine_stopped)?;
    let mut result = StatusResult::new(server_info(), model, status, connections);
    states.for_each(|status| result.add(status));
    result.models = models;
    if !connection.is_operator() {
        result.users.retain(|user| user.uid == connection.owner.uid);
    }
    Ok(result)
}

async fn metrics(connection: &Connection) -> Result<MetricsResult, ErrorObject> {
    let states = states(connection).await?.into_iter();
    let models = states.map(|(model, status)| (model.name.clone(), status)).collect();
    let connections = connection.shared.connections.count();
    Ok(MetricsResult { text: metrics::text(models, connections) })
}

/// What the engines of all models report, the default's first. One that has stopped is left out,
/// but for the default's. All but operators get totals that tell little of others' requests.
async fn states(connection: &Connection) -> Result<Vec<(InUse, EngineStatus)>, ErrorObject> {
    let mut states = Vec::new();
    for (at, model) in connection.shared.models.known().into_iter().enumerate() {
        match ask(&model, connection.owner, |reply| EngineCommand::Status { reply }).await {
            Ok(status) if connection.is_operator() => states.push((model, status)),
            Ok(status) => states.push((model, privacy::rounded(status))),
            Err(error) if at == 0 => return Err(error),
            Err(_) => {}
        }
    }
    Ok(states)
}
