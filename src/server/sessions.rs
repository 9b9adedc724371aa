//! The `session.` methods.

use std::time::Duration;

use tracing::info;

use super::connection::Connection;
use super::methods::{ask, out_of_range};
use super::models::InUse;
use crate::engine::{
    AdmitError, EngineCommand, EngineHandle, NamedAdapter, NewSession, Owner, SessionAction,
    SessionGuard, SessionId, SessionInfo, SessionOptions,
};
use crate::model::ADAPTERS_MAX;
use crate::protocol::{
    ErrorObject, Lora, RequestId, SessionCloseParams, SessionCloseResult, SessionCreateParams,
    SessionCreateResult, SessionEntry, SessionForkParams, SessionListParams, SessionListResult,
    SessionParams, SessionRef, SessionTruncateParams,
};

/// Longest name of a session.
const SESSION_NAME_BYTES_MAX: usize = 128;

/// Largest scale of an adapter, either way.
const LORA_SCALE_MAX: f32 = 100.0;

/// Longest idleness that a session may be kept for, in seconds: a year.
const TTL_SECONDS_MAX: u64 = 365 * 24 * 60 * 60;

fn check_name(name: Option<&str>) -> Result<(), ErrorObject> {
    match name {
        Some(name) if !(1..=SESSION_NAME_BYTES_MAX).contains(&name.len()) => {
            let wanted = format!("a string of 1 to {SESSION_NAME_BYTES_MAX} bytes");
            Err(out_of_range("name", wanted, format_args!("{} bytes", name.len())))
        }
        _ => Ok(()),
    }
}

/// The adapters of a request.
pub(super) fn read_lora(lora: Option<Vec<Lora>>) -> Result<Vec<NamedAdapter>, ErrorObject> {
    let lora = lora.unwrap_or_default();
    if lora.len() > ADAPTERS_MAX {
        return Err(out_of_range("lora", format!("at most {ADAPTERS_MAX}"), lora.len()));
    }
    lora.into_iter()
        .map(|Lora { name, scale }| match scale.abs() <= LORA_SCALE_MAX {
            true => Ok(NamedAdapter { name, scale }),
            false => {
                let wanted = format!("scales of -{LORA_SCALE_MAX} to {LORA_SCALE_MAX}");
                Err(out_of_range("lora", wanted, scale))
            }
        })
        .collect()
}

pub(super) async fn create(
    connection: &Connection,
    request: &RequestId,
    params: SessionCreateParams,
) -> Result<SessionCreateResult, ErrorObject> {
    let SessionCreateParams { model, name, context_tokens, priority, ttl, lora } = params;
    let adapters = read_lora(lora)?;
    check_name(name.as_deref())?;
    let engine = connection.model_of_text(request, model.as_deref()).await?;
    let most = engine.model.context_tokens;
    if let Some(found) = context_tokens.filter(|found| !(1..=most).contains(found)) {
        return Err(out_of_range("context_tokens", format!("1 to {most}"), found));
    }
    if let Some(found) = ttl.filter(|found| !(1..=TTL_SECONDS_MAX).contains(found)) {
        return Err(out_of_range("ttl", format!("1 to {TTL_SECONDS_MAX} seconds"), found));
    }
    check_free(connection, &engine, name.as_deref()).await?;
    let options = SessionOptions {
        name,
        context_tokens,
        priority: priority.unwrap_or_default().into(),
        ttl: ttl.map(Duration::from_secs),
        adapters,
    };
    let owner = connection.owner;
    let create = |reply| EngineCommand::CreateSession { owner, options, reply };
    let NewSession { info, guard } = ask(&engine, owner, create).await??;
    info!(uid = owner.uid, session = info.id.0, "session created");
    hand_over(connection, &info, guard);
    Ok(SessionCreateResult {
        session: info.id.0,
        name: info.name,
        context_tokens: info.context_tokens,
    })
}

/// A session with a name is its user's from now on; one without is the connection's.
fn hand_over(connection: &Connection, session: &SessionInfo, guard: SessionGuard) {
    match session.name {
        Some(_) => guard.keep(),
        None => connection.own_session(guard),
    }
}

/// Refuses a name that a session of another model has: `model` looks at its own.
async fn check_free(
    connection: &Connection,
    model: &InUse,
    name: Option<&str>,
) -> Result<(), ErrorObject> {
    let Some(name) = name else { return Ok(()) };
    for other in connection.shared.models.known() {
        let taken = |session: &SessionInfo| session.name.as_deref() == Some(name);
        if other.name != model.name && sessions(connection, &other).await?.iter().any(taken) {
            return Err(AdmitError::SessionExists(name.to_owned()).into());
        }
    }
    Ok(())
}

async fn sessions(
    connection: &Connection,
    engine: &EngineHandle,
) -> Result<Vec<SessionInfo>, ErrorObject> {
    let owner = connection.owner;
    sessions_of(connection, engine, Some(owner)).await
}

/// Sessions of a user, or of all.
async fn sessions_of(
    connection: &Connection,
    engine: &EngineHandle,
    owner: Option<Owner>,
) -> Result<Vec<SessionInfo>, ErrorObject> {
    ask(engine, connection.owner, |reply| EngineCommand::ListSessions { owner, reply }).await
}

pub(super) async fn list(
    connection: &Connection,
    params: SessionListParams,
) -> Result<SessionListResult, ErrorObject> {
    let all_users = params.all.unwrap_or(false);
    if all_users {
        connection.check_operator("session.list with all")?;
    }
    let owner = (!all_users).then_some(connection.owner);
    let mut all: Vec<SessionEntry> = Vec::new();
    for model in connection.shared.models.known() {
        let entry = |info: SessionInfo| SessionEntry {
            model: Some(model.name.clone()),
            uid: all_users.then_some(info.owner.uid),
            ..SessionEntry::from(info)
        };
        all.extend(sessions_of(connection, &model, owner).await?.into_iter().map(entry));
    }
    all.sort_by_key(|entry| entry.session);
    Ok(SessionListResult { sessions: all })
}

/// The session that a caller means, and the model that it is of.
pub(super) async fn find_session(
    connection: &Connection,
    session: SessionRef,
    model: Option<&str>,
) -> Result<(InUse, SessionId), ErrorObject> {
    let models = &connection.shared.models;
    let mut known = models.known();
    if let Some(name) = model {
        let named = models.get_text(Some(name), connection.caller(), |_| {}).await?;
        known.retain(|model| model.name == named.name);
    }
    if let (1, SessionRef::Number(number)) = (known.len(), &session)
        && models.why_ended(connection.owner, &session).is_none()
    {
        // The engine looks it up.
        return Ok((known.swap_remove(0), SessionId(*number)));
    }
    for model in known {
        let own = sessions(connection, &model).await?;
        if let Some(found) = own.into_iter().find(|found| is_called(found, &session)) {
            return Ok((model, found.id));
        }
    }
    Err(models.why_ended(connection.owner, &session).unwrap_or_else(|| unknown(session)))
}

fn is_called(found: &SessionInfo, session: &SessionRef) -> bool {
    match session {
        SessionRef::Number(number) => found.id.0 == *number,
        SessionRef::Name(name) => found.name.as_ref() == Some(name),
    }
}

fn unknown(session: SessionRef) -> ErrorObject {
    match session {
        SessionRef::Number(number) => AdmitError::UnknownSession(number),
        SessionRef::Name(name) => AdmitError::UnknownSessionName(name),
    }
    .into()
}

/// Sends a session action to the engine.
pub(super) async fn act(
    connection: &Connection,
    engine: &EngineHandle,
    session: SessionId,
    action: SessionAction,
) -> Result<SessionInfo, ErrorObject> {
    let owner = connection.owner;
    let command = |reply| EngineCommand::OnSession { owner, session, action, reply };
    Ok(ask(engine, owner, command).await??)
}

pub(super) async fn info(
    connection: &Connection,
    params: SessionParams,
) -> Result<SessionEntry, ErrorObject> {
    let (model, session) = find_session(connection, params.session, None).await?;
    Ok(act(connection, &model, session, SessionAction::Info).await?.into())
}

pub(super) async fn fork(
    connection: &Connection,
    params: SessionForkParams,
) -> Result<SessionEntry, ErrorObject> {
    let SessionForkParams { session, name, at } = params;
    check_name(name.as_deref())?;
    let (model, from) = find_session(connection, session, None).await?;
    check_free(connection, &model, name.as_deref()).await?;
    let owner = connection.owner;
    let fork = |reply| EngineCommand::ForkSession { owner, session: from, name, at, reply };
    let NewSession { info, guard } = ask(&model, owner, fork).await??;
    info!(uid = owner.uid, from = from.0, session = info.id.0, "session forked");
    hand_over(connection, &info, guard);
    Ok(info.into())
}

pub(super) async fn truncate(
    connection: &Connection,
    params: SessionTruncateParams,
) -> Result<SessionEntry, ErrorObject> {
    let (model, session) = find_session(connection, params.session, None).await?;
    let action = SessionAction::Truncate { tokens: params.tokens };
    Ok(act(connection, &model, session, action).await?.into())
}

pub(super) async fn save(
    connection: &Connection,
    params: SessionParams,
) -> Result<SessionEntry, ErrorObject> {
    let (model, session) = find_session(connection, params.session, None).await?;
    Ok(act(connection, &model, session, SessionAction::Save).await?.into())
}

pub(super) async fn restore(
    connection: &Connection,
    params: SessionParams,
) -> Result<SessionEntry, ErrorObject> {
    let (model, session) = find_session(connection, params.session, None).await?;
    Ok(act(connection, &model, session, SessionAction::Restore).await?.into())
}

pub(super) async fn close(
    connection: &Connection,
    params: SessionCloseParams,
) -> Result<SessionCloseResult, ErrorObject> {
    let SessionCloseParams { session, uid } = params;
    let (model, owner, session) = match (&session, uid) {
        (_, Some(uid)) if uid != connection.owner.uid => {
            connection.check_operator("session.close with another user's uid")?;
            find_for_operator(connection, session, Some(Owner { uid })).await?
        }
        (SessionRef::Number(_), None) if connection.is_operator() => {
            find_for_operator(connection, session, None).await?
        }
        _ => {
            let (model, session) = find_session(connection, session, None).await?;
            (model, connection.owner, session)
        }
    };
    let close = |reply| EngineCommand::CloseSession { owner, session, reply };
    ask(&model, connection.owner, close).await??;
    info!(uid = connection.owner.uid, of = owner.uid, session = session.0, "session closed");
    Ok(SessionCloseResult { session: session.0 })
}

/// A session of `owner`, or of anybody.
async fn find_for_operator(
    connection: &Connection,
    session: SessionRef,
    owner: Option<Owner>,
) -> Result<(InUse, Owner, SessionId), ErrorObject> {
    for model in connection.shared.models.known() {
        let all = sessions_of(connection, &model, owner).await?;
        if let Some(found) = all.into_iter().find(|found| is_called(found, &session)) {
            return Ok((model, found.owner, found.id));
        }
    }
    Err(unknown(session))
}
