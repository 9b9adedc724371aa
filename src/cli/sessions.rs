//! `hob sessions`: lists the caller's sessions, closes one.

use super::args::{GlobalOptions, SessionsAction, SessionsOptions};
use super::output::{self, Output};
use super::table::{Align, Table};
use super::{CliError, daemon, exit, status};
use crate::protocol::{
    NoParams, SessionCloseParams, SessionCloseResult, SessionListResult, SessionRef, method,
};

pub(crate) fn run(global: &GlobalOptions, options: &SessionsOptions) -> Result<u8, CliError> {
    match &options.action {
        None => list(global, options.json),
        Some(SessionsAction::Close { session }) => close(global, session),
    }
}

fn list(global: &GlobalOptions, json: bool) -> Result<u8, CliError> {
    let mut client = daemon::connect(global)?.client;
    let list: SessionListResult = client.call(method::SESSION_LIST, &NoParams {})?;
    let mut output = Output::stdout();
    if json {
        output.json(&list.sessions)?;
        return Ok(exit::DONE);
    }
    if list.sessions.is_empty() {
        output::note(&"you have no sessions");
        return Ok(exit::DONE);
    }
    let mut table = Table::new(&[
        ("SESSION", Align::Right),
        ("NAME", Align::Left),
        ("CACHED", Align::Right),
        ("CONTEXT", Align::Right),
        ("STATE", Align::Left),
    ]);
    for session in list.sessions {
        let idle = || format!("idle for {}", status::seconds(session.idle_seconds));
        table.row(vec![
            session.session.to_string(),
            session.name.clone().unwrap_or_else(|| "-".into()),
            session.cached_tokens.to_string(),
            session.context_tokens.to_string(),
            if session.busy { "busy".into() } else { idle() },
        ]);
    }
    table.write(&mut output)?;
    Ok(exit::DONE)
}

/// Closes by name; a name that is a number and names no session is taken as a session's number.
fn close(global: &GlobalOptions, name: &str) -> Result<u8, CliError> {
    let mut client = daemon::connect(global)?.client;
    let list: SessionListResult = client.call(method::SESSION_LIST, &NoParams {})?;
    let named = list.sessions.iter().any(|session| session.name.as_deref() == Some(name));
    let session = match name.parse() {
        Ok(number) if !named => SessionRef::Number(number),
        _ => SessionRef::Name(name.to_owned()),
    };
    let params = SessionCloseParams { session };
    let closed: SessionCloseResult = client.call(method::SESSION_CLOSE, &params)?;
    output::note(&format_args!("closed session {}", closed.session));
    Ok(exit::DONE)
}
