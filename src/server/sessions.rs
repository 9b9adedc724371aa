//! The `session.` methods.

use std::time::Duration;

use tracing::info;

use super::connection::Connection;
use super::methods::{ask, out_of_range};
use crate::engine::SessionOptions;
use crate::engine::{AdmitError, EngineCommand, SessionAction, SessionId, SessionInfo};
use crate::protocol::{
    ErrorObject, SessionCloseResult, SessionCreateParams, SessionCreateResult, SessionEntry,
    SessionForkParams, SessionListResult, SessionParams, SessionRef, SessionTruncateParams,
};

/// Longest name of a session.
const SESSION_NAME_BYTES_MAX: usize = 128;

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

pub(super) async fn create(
    connection: &Connection,
    params: SessionCreateParams,
) -> Result<SessionCreateResult, ErrorObject> {
    let SessionCreateParams { name, context_tokens, priority, ttl } = params;
    check_name(name.as_deref())?;
    let most = connection.shared.engine.model.context_tokens;
    if let Some(found) = context_tokens.filter(|found| !(1..=most).contains(found)) {
        return Err(out_of_range("context_tokens", format!("1 to {most}"), found));
    }
    if let Some(found) = ttl.filter(|found| !(1..=TTL_SECONDS_MAX).contains(found)) {
        return Err(out_of_range("ttl", format!("1 to {TTL_SECONDS_MAX} seconds"), found));
    }
    let options = SessionOptions {
        name,
        context_tokens,
        priority: priority.unwrap_or_default().into(),
        ttl: ttl.map(Duration::from_secs),
    };
    let owner = connection.owner;
    let created = ask(connection, |reply| EngineCommand::CreateSession { owner, options, reply });
    let session = created.await??;
    info!(uid = owner.uid, session = session.id.0, "session created");
    let SessionInfo { id, name, context_tokens, .. } = session;
    Ok(SessionCreateResult { session: id.0, name, context_tokens })
}

async fn sessions(connection: &Connection) -> Result<Vec<SessionInfo>, ErrorObject> {
    let owner = connection.owner;
    ask(connection, |reply| EngineCommand::ListSessions { owner, reply }).await
}

pub(super) async fn list(connection: &Connection) -> Result<SessionListResult, ErrorObject> {
    let sessions = sessions(connection).await?.into_iter().map(Into::into).collect();
    Ok(SessionListResult { sessions })
}

/// The session that a caller means. A number is for the engine to look up.
pub(super) async fn find_session(
    connection: &Connection,
    session: SessionRef,
) -> Result<SessionId, ErrorObject> {
    let name = match session {
        SessionRef::Number(number) => return Ok(SessionId(number)),
        SessionRef::Name(name) => name,
    };
    let sessions = sessions(connection).await?;
    let found = sessions.into_iter().find(|session| session.name.as_ref() == Some(&name));
    match found {
        Some(session) => Ok(session.id),
        None => Err(AdmitError::UnknownSession(format!("{name:?}")).into()),
    }
}

/// Has the engine do something with a session.
pub(super) async fn act(
    connection: &Connection,
    session: SessionId,
    action: SessionAction,
) -> Result<SessionInfo, ErrorObject> {
    let owner = connection.owner;
    let command = |reply| EngineCommand::OnSession { owner, session, action, reply };
    Ok(ask(connection, command).await??)
}

pub(super) async fn info(
    connection: &Connection,
    params: SessionParams,
) -> Result<SessionEntry, ErrorObject> {
    let session = find_session(connection, params.session).await?;
    Ok(act(connection, session, SessionAction::Info).await?.into())
}

pub(super) async fn fork(
    connection: &Connection,
    params: SessionForkParams,
) -> Result<SessionEntry, ErrorObject> {
    let SessionForkParams { session, name, at } = params;
    check_name(name.as_deref())?;
    let from = find_session(connection, session).await?;
    let fork = act(connection, from, SessionAction::Fork { name, at }).await?;
    info!(uid = connection.owner.uid, from = from.0, session = fork.id.0, "session forked");
    Ok(fork.into())
}

pub(super) async fn truncate(
    connection: &Connection,
    params: SessionTruncateParams,
) -> Result<SessionEntry, ErrorObject> {
    let session = find_session(connection, params.session).await?;
    let action = SessionAction::Truncate { tokens: params.tokens };
    Ok(act(connection, session, action).await?.into())
}

pub(super) async fn save(
    connection: &Connection,
    params: SessionParams,
) -> Result<SessionEntry, ErrorObject> {
    let session = find_session(connection, params.session).await?;
    Ok(act(connection, session, SessionAction::Save).await?.into())
}

pub(super) async fn restore(
    connection: &Connection,
    params: SessionParams,
) -> Result<SessionEntry, ErrorObject> {
    let session = find_session(connection, params.session).await?;
    Ok(act(connection, session, SessionAction::Restore).await?.into())
}

pub(super) async fn close(
    connection: &Connection,
    params: SessionParams,
) -> Result<SessionCloseResult, ErrorObject> {
    let session = find_session(connection, params.session).await?;
    let owner = connection.owner;
    ask(connection, |reply| EngineCommand::CloseSession { owner, session, reply }).await??;
    info!(uid = owner.uid, session = session.0, "session closed");
    Ok(SessionCloseResult { session: session.0 })
}
