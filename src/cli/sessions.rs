//! `hob sessions`: lists the caller's sessions, and does what can be done with one.

use super::args::{GlobalOptions, SessionsAction, SessionsOptions};
use super::client::Client;
use super::output::{self, Output};
use super::table::{Align, Table};
use super::{CliError, daemon, exit, status};
use crate::protocol::{
    CachePlace, SessionCloseParams, SessionCloseResult, SessionCreateParams, SessionCreateResult,
    SessionEntry, SessionForkParams, SessionListParams, SessionListResult, SessionParams,
    SessionRef, SessionTruncateParams, method,
};

pub(crate) fn run(global: &GlobalOptions, options: &SessionsOptions) -> Result<u8, CliError> {
    let mut client = daemon::connect(global)?.client;
    match &options.action {
        None => list(&mut client, options)?,
        Some(action) => act(&mut client, action)?,
    }
    Ok(exit::DONE)
}

fn act(client: &mut Client, action: &SessionsAction) -> Result<(), CliError> {
    match action {
        SessionsAction::Create { name, context_tokens, priority, ttl, lora } => {
            let params = SessionCreateParams {
                model: None,
                name: Some(name.clone()),
                context_tokens: *context_tokens,
                priority: *priority,
                ttl: *ttl,
                lora: (!lora.is_empty()).then(|| lora.clone()),
            };
            let made: SessionCreateResult = client.call(method::SESSION_CREATE, &params)?;
            output::note(&format_args!("created session {}", made.session));
        }
        SessionsAction::Info { session } => {
            let params = SessionParams { session: find(client, session)? };
            let entry: SessionEntry = client.call(method::SESSION_INFO, &params)?;
            Output::stdout().json(&entry)?;
        }
        SessionsAction::Fork { session, name, at } => {
            let session = find(client, session)?;
            let params = SessionForkParams { session, name: name.clone(), at: *at };
            let made: SessionEntry = client.call(method::SESSION_FORK, &params)?;
            let (number, tokens) = (made.session, made.tokens);
            output::note(&format_args!("created session {number} with {tokens} tokens"));
        }
        SessionsAction::Truncate { session, tokens } => {
            let session = find(client, session)?;
            let params = SessionTruncateParams { session, tokens: *tokens };
            let left: SessionEntry = client.call(method::SESSION_TRUNCATE, &params)?;
            let (number, tokens) = (left.session, left.tokens);
            output::note(&format_args!("session {number} has {tokens} tokens"));
        }
        SessionsAction::Save { session } => {
            let params = SessionParams { session: find(client, session)? };
            let saved: SessionEntry = client.call(method::SESSION_SAVE, &params)?;
            let (number, tokens) = (saved.session, saved.tokens);
            output::note(&format_args!("saved session {number} with {tokens} tokens"));
        }
        SessionsAction::Restore { session } => {
            let params = SessionParams { session: find(client, session)? };
            let back: SessionEntry = client.call(method::SESSION_RESTORE, &params)?;
            let (number, tokens) = (back.session, back.tokens);
            output::note(&format_args!("session {number} has {tokens} tokens"));
        }
        SessionsAction::Close { sessions, uid } => {
            for session in sessions {
                let session = find_of(client, session, *uid)?;
                let params = SessionCloseParams { session, uid: *uid };
                let closed: SessionCloseResult = client.call(method::SESSION_CLOSE, &params)?;
                output::note(&format_args!("closed session {}", closed.session));
            }
        }
    }
    Ok(())
}

fn list(client: &mut Client, options: &SessionsOptions) -> Result<(), CliError> {
    let params = SessionListParams { all: options.all.then_some(true) };
    let list: SessionListResult = client.call(method::SESSION_LIST, &params)?;
    let mut output = Output::stdout();
    if options.json {
        return output.json(&list.sessions);
    }
    if list.sessions.is_empty() {
        output::note(&if options.all { "there are no sessions" } else { "you have no sessions" });
        return Ok(());
    }
    let mut columns = vec![("SESSION", Align::Right)];
    columns.extend(options.all.then_some(("UID", Align::Right)));
    columns.extend([
        ("NAME", Align::Left),
        ("MODEL", Align::Left),
        ("TOKENS", Align::Right),
        ("CONTEXT", Align::Right),
        ("CACHE", Align::Left),
        ("STATE", Align::Left),
    ]);
    let mut table = Table::new(&columns);
    for session in list.sessions {
        let idle = || format!("idle for {}", status::seconds(session.idle_seconds));
        let uid = session.uid.map_or_else(|| "-".into(), |uid| uid.to_string());
        let mut row = vec![session.session.to_string()];
        row.extend(options.all.then_some(uid));
        row.extend([
            session.name.clone().unwrap_or_else(|| "-".into()),
            session.model.clone().unwrap_or_else(|| "-".into()),
            session.tokens.to_string(),
            session.context_tokens.to_string(),
            place(session.cache).into(),
            if session.busy { "busy".into() } else { idle() },
        ]);
        table.row(row);
    }
    table.write(&mut output)
}

fn place(place: CachePlace) -> &'static str {
    match place {
        CachePlace::Device => "device",
        CachePlace::Host => "host",
        CachePlace::Disk => "disk",
        CachePlace::None => "-",
    }
}

/// The session of a name; a name that is a number and names no session is a session's number.
fn find(client: &mut Client, name: &str) -> Result<SessionRef, CliError> {
    find_of(client, name, None)
}

/// The same of another user's.
fn find_of(client: &mut Client, name: &str, uid: Option<u32>) -> Result<SessionRef, CliError> {
    let params = SessionListParams { all: uid.map(|_| true) };
    let mut list: SessionListResult = client.call(method::SESSION_LIST, &params)?;
    list.sessions.retain(|session| session.uid == uid);
    let named = list.sessions.iter().any(|session| session.name.as_deref() == Some(name));
    Ok(match name.parse() {
        Ok(number) if !named => SessionRef::Number(number),
        _ => SessionRef::Name(name.to_owned()),
    })
}
