//! `hob chat`: a conversation at the terminal, in one session of the daemon, so that each turn
//! evaluates only what is new.

mod commands;
mod input;

use std::fs::OpenOptions;
use std::io::{IsTerminal, Write};
use std::path::Path;

use super::args::{ChatOptions, GlobalOptions, SamplingOptions};
use super::client::{Client, ClientError};
use super::daemon::{self, Connection};
use super::interrupt::Interrupts;
use super::output::{self, Output};
use super::{CliError, exit, generate};
use crate::protocol::{
    FinishReason, GenerateParams, GenerateResult, Message, SessionCloseResult, SessionCreateParams,
    SessionCreateResult, SessionParams, SessionRef, method,
};
use commands::{COMMANDS_HELP, Command};
use input::{Input, Line};

pub(crate) fn run(global: &GlobalOptions, options: &ChatOptions) -> Result<u8, CliError> {
    let Connection { mut client, daemon, model, .. } =
        daemon::connect_or_start(global, options.model.as_deref())?;
    if !daemon.model.has_chat_template {
        return Err(CliError::CannotChat { model: daemon.model.name });
    }
    let params = SessionCreateParams { model, ..SessionCreateParams::default() };
    let created: SessionCreateResult = client.call(method::SESSION_CREATE, &params)?;
    let mut chat = Chat {
        client,
        session: SessionRef::Number(created.session),
        interrupts: Interrupts::catch()?,
        output: Output::stdout(),
        system: options.system.clone(),
        sampling: options.sampling.clone(),
        messages: Vec::new(),
        last: None,
    };
    if std::io::stdin().is_terminal() {
        let name = output::on_one_line(&daemon.model.name);
        output::note(&format_args!("chatting with {name}; /help lists commands, Ctrl-D leaves"));
    }
    let ended = chat.converse();
    chat.close();
    ended.map(|()| exit::DONE)
}

/// A conversation.
struct Chat {
    client: Client,
    session: SessionRef,
    interrupts: Interrupts,
    output: Output,
    system: Option<String>,
    sampling: SamplingOptions,
    /// Conversation so far, without the system message.
    messages: Vec<Message>,
    last: Option<GenerateResult>,
}

impl Chat {
    /// Answers lines until the user leaves.
    fn converse(&mut self) -> Result<(), CliError> {
        let mut input = Input::open()?;
        loop {
            let text = match input.read()? {
                Line::Text(text) => text,
                Line::Cleared => continue,
                Line::End => return Ok(()),
            };
            match Command::parse(&text) {
                Ok(None) if text.trim().is_empty() => {}
                Ok(None) => self.answer(text)?,
                Ok(Some(Command::Quit)) => return Ok(()),
                Ok(Some(command)) => self.obey(command)?,
                Err(error) => output::error(&error),
            }
        }
    }

    /// Generates the answer to `text`. A refusal is told, and the conversation is as it was.
    fn answer(&mut self, text: String) -> Result<(), CliError> {
        self.messages.push(Message::new("user", text));
        let params = GenerateParams {
            session: Some(self.session.clone()),
            messages: Some(self.conversation()),
            ..generate::params(&self.sampling)
        };
        let result = generate::stream(&mut self.client, params, &self.interrupts, &mut self.output);
        match result {
            Ok(result) => {
                if result.finish_reason != FinishReason::Stop {
                    generate::note_early_end(&result);
                }
                self.messages.push(Message::new("assistant", result.text.clone()));
                self.last = Some(result);
                Ok(())
            }
            Err(
                error @ (CliError::Client(ClientError::Refused { .. })
                | CliError::Generation { .. }),
            ) => {
                self.messages.pop();
                output::error(&error);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn obey(&mut self, command: Command) -> Result<(), CliError> {
        match command {
            Command::Help => return self.output.line(COMMANDS_HELP),
            Command::Clear => {
                self.messages.clear();
                output::note(&"the conversation begins anew");
            }
            Command::System(None) => {
                let system = self.system.as_deref().unwrap_or("there is no system message");
                output::note(&system);
            }
            Command::System(Some(text)) => {
                self.system = Some(text);
                output::note(&"the system message is set, for the whole conversation");
            }
            Command::Set(setting) => {
                setting.apply(&mut self.sampling);
                output::note(&setting);
            }
            Command::Stats => match &self.last {
                Some(result) => return self.output.line(&generate::statistics(result)),
                None => output::note(&"nothing was answered yet"),
            },
            Command::Save(path) => match self.save(&path) {
                Ok(()) => output::note(&format_args!("saved to {}", path.display())),
                Err(error) => output::error(&error),
            },
            Command::Quit => {}
        }
        Ok(())
    }

    /// All messages, the system's first.
    fn conversation(&self) -> Vec<Message> {
        let system = self.system.clone().map(|text| Message::new("system", text));
        system.into_iter().chain(self.messages.iter().cloned()).collect()
    }

    /// Writes the conversation to a file that is not there yet.
    fn save(&self, path: &Path) -> Result<(), CliError> {
        let text = serde_json::to_string_pretty(&self.conversation())
            .map_err(|source| CliError::Encode { source })?;
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(path)
            .and_then(|mut file| writeln!(file, "{text}"))
            .map_err(|source| CliError::WriteFile { path: path.to_owned(), source })
    }

    /// Frees the session's cache. Where the daemon is gone, so is the session.
    fn close(&mut self) {
        let params = SessionParams { session: self.session.clone() };
        let _: Result<SessionCloseResult, _> = self.client.call(method::SESSION_CLOSE, &params);
    }
}
