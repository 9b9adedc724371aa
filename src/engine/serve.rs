//! Commands: which part of the engine serves each.

use std::time::Instant;

use tokio::sync::oneshot;

use super::queue::{CommandReceiver, Received};
use super::sessions::{SessionCall, SessionTask};
use super::types::Owner;
use super::worker::Worker;
use super::{Control, EngineCommand};
use crate::gpu::DeviceError;

impl Worker {
    /// Serves what came, and charges the user for the time that it took.
    pub(super) fn serve_next(
        &mut self,
        received: Received,
        commands: &mut CommandReceiver,
    ) -> Result<(), DeviceError> {
        self.heartbeat.beat();
        self.take_fetched()?;
        match received {
            Received::Control(control) => self.obey(control),
            Received::Command(owner, command) => {
                let started = Instant::now();
                let Some(command) = self.postpone(owner, command) else { return Ok(()) };
                let done = self.serve(command);
                commands.note_spent(owner, started.elapsed());
                done
            }
        }
    }

    fn obey(&mut self, control: Control) -> Result<(), DeviceError> {
        // A reply whose caller has gone away is dropped.
        match control {
            Control::Tick => {
                self.close_expired();
                return self.follow_budget();
            }
            Control::CloseSession { owner, session } => {
                if self.sessions.of_owner(owner, session).is_some() {
                    tracing::info!(session = session.0, "session closed: its client is gone");
                }
                self.close_session(owner, session, oneshot::channel().0); // which nobody waits for
            }
            Control::ListSessions { reply } => {
                let list = self.sessions.list(None::<Owner>).map(|(id, _)| self.session_info(id));
                let _ = reply.send(list.collect());
            }
            Control::Status { reply } => drop(reply.send(self.status())),
            Control::Unload { reply } => {
                let done = self.unload();
                let _ = reply.send(!self.runner.is_on_device());
                return done;
            }
            Control::Load { reply } => self.load_when_awake(reply),
            Control::Sleep { reply } => {
                let done = self.fall_asleep();
                let _ = reply.send(());
                return done;
            }
            Control::Wake => return self.wake_up(),
            Control::Shutdown => unreachable!("handled by the loop"),
        }
        Ok(())
    }

    pub(super) fn serve(&mut self, command: EngineCommand) -> Result<(), DeviceError> {
        if command.is_abandoned() {
            return Ok(());
        }
        // A reply whose caller has gone away is dropped; a session with it is closed.
        match command {
            EngineCommand::CreateSession { owner, options, reply } => {
                let _ = reply.send(self.create_session(owner, options));
            }
            EngineCommand::ForkSession { owner, session, name, at, reply } => {
                let task = SessionTask::Fork { name, at, reply };
                return self.on_session(SessionCall { owner, session, task });
            }
            EngineCommand::OnSession { owner, session, action, reply } => {
                let task = SessionTask::Act { action, reply };
                return self.on_session(SessionCall { owner, session, task });
            }
            EngineCommand::ListSessions { owner, reply } => {
                let list = self.sessions.list(owner).map(|(id, _)| self.session_info(id));
                let _ = reply.send(list.collect());
            }
            EngineCommand::CloseSession { owner, session, reply } => {
                self.close_session(owner, session, reply);
            }
            EngineCommand::Generate { request, events } => self.arrive(*request, events),
            EngineCommand::Embed { request, reply } => self.arrive_to_embed(*request, reply),
            EngineCommand::AdapterBase { reply } => drop(reply.send(self.adapter_base.clone())),
            EngineCommand::LoadAdapter { adapter, reply } => {
                let (answer, done) = self.load_adapter(*adapter);
                let _ = reply.send(answer);
                return done;
            }
            EngineCommand::UnloadAdapter { name, reply } => {
                let _ = reply.send(self.unload_adapter(&name));
            }
            EngineCommand::ListAdapters { reply } => drop(reply.send(self.list_adapters())),
            EngineCommand::Status { reply } => drop(reply.send(self.status())),
        }
        Ok(())
    }
}
