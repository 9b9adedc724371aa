//! An engine with a tiny model on the reference executor, and what is asked of it.

// Each test program uses a part of this.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use hob::engine::{
    self, AdmitError, CancelFlag, Constraints, Control, EngineCommand, EngineEvent, EngineHandle,
    EngineOptions, EngineStatus, EngineThread, GenerateRequest, GenerateResult, NewSession,
    OpenExecutor, Owner, SamplingParams, SessionAction, SessionId, SessionInfo, SessionOptions,
};
use hob::gpu::Executor;
use hob::reference::ReferenceExecutor;
use tokio::sync::{mpsc, oneshot};

use crate::tiny;

pub type Events = mpsc::UnboundedReceiver<EngineEvent>;

pub const OWNER: Owner = Owner { uid: 7 };

/// A pool of five pages, of 32 tokens each.
pub fn small_pool() -> EngineOptions {
    EngineOptions {
        context_tokens: 96,
        kv_tokens: 160,
        sessions_max: 8,
        ..EngineOptions::default()
    }
}

/// A running engine.
pub struct Engine {
    pub handle: EngineHandle,
    pub thread: EngineThread,
    /// Where its model's file is.
    pub folder: Option<tempfile::TempDir>,
}

impl Engine {
    pub fn start(options: &EngineOptions) -> Self {
        Self::start_on(Box::new(ReferenceExecutor::new()), options)
    }

    pub fn start_on(executor: Box<dyn Executor>, options: &EngineOptions) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let [model, _] = tiny::write(folder.path());
        let opened = engine::open(executor, &model, options, &mut |_, _| {}).unwrap();
        let (handle, thread) = engine::start(opened, options).unwrap();
        Self { handle, thread, folder: Some(folder) }
    }

    /// One that can put its model on a device again.
    pub fn start_to_reload(options: &EngineOptions) -> Self {
        let open = || Ok(Box::new(ReferenceExecutor::new()) as Box<dyn Executor>);
        Self::start_with(Box::new(open), options)
    }

    /// The same on devices of the caller's.
    pub fn start_with(open: OpenExecutor, options: &EngineOptions) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let [model, _] = tiny::write(folder.path());
        let opened = engine::open_with(open, &model, options, &mut |_, _| {}).unwrap();
        let (handle, thread) = engine::start(opened, options).unwrap();
        Self { handle, thread, folder: Some(folder) }
    }

    /// Has the engine free its device, as for the machine's sleep.
    pub fn sleep(&self) {
        self.control(|reply| Control::Sleep { reply });
    }

    /// Whether the model is off the device now.
    pub fn unload(&self) -> bool {
        self.control(|reply| Control::Unload { reply })
    }

    pub fn load(&self) {
        self.control(|reply| Control::Load { reply }).expect("it was loaded before");
    }

    /// Ends the engine; it must not have failed.
    pub fn stop(self) {
        self.handle.commands.control(Control::Shutdown).unwrap();
        self.thread.join().expect("no panic").expect("no failure");
    }

    pub fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> EngineCommand) -> T {
        self.send(OWNER, command).blocking_recv().expect("an answer")
    }

    /// Sends a user's command, and returns where the answer will be.
    pub fn send<T>(
        &self,
        owner: Owner,
        command: impl FnOnce(oneshot::Sender<T>) -> EngineCommand,
    ) -> oneshot::Receiver<T> {
        let (reply, answer) = oneshot::channel();
        self.handle.commands.blocking_send(owner, command(reply)).expect("the engine lives");
        answer
    }

    pub fn control<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Control) -> T {
        let (reply, answer) = oneshot::channel();
        self.handle.commands.control(command(reply)).expect("the engine lives");
        answer.blocking_recv().expect("an answer")
    }

    pub fn create(&self, options: SessionOptions) -> SessionId {
        let create = |reply| EngineCommand::CreateSession { owner: OWNER, options, reply };
        keep(self.ask(create)).expect("room for a session").id
    }

    /// A session with a name, which is saved when the engine ends.
    pub fn named(&self, name: &str) -> SessionId {
        self.create(SessionOptions { name: Some(name.into()), ..SessionOptions::default() })
    }

    /// Asks for a session as somebody who goes away before the answer is taken.
    pub fn create_and_go(&self, options: SessionOptions) {
        let create = |reply| EngineCommand::CreateSession { owner: OWNER, options, reply };
        let answer = self.send(OWNER, create);
        self.status(); // it was answered before
        drop(answer);
    }

    pub fn fork(
        &self,
        session: SessionId,
        name: Option<&str>,
        at: Option<u32>,
    ) -> Result<SessionInfo, AdmitError> {
        let (owner, name) = (OWNER, name.map(str::to_owned));
        keep(self.ask(|reply| EngineCommand::ForkSession { owner, session, name, at, reply }))
    }

    pub fn session(&self) -> SessionId {
        self.create(SessionOptions::default())
    }

    pub fn act(
        &self,
        session: SessionId,
        action: SessionAction,
    ) -> Result<SessionInfo, AdmitError> {
        self.ask(|reply| EngineCommand::OnSession { owner: OWNER, session, action, reply })
    }

    pub fn info(&self, session: SessionId) -> SessionInfo {
        self.act(session, SessionAction::Info).expect("a session")
    }

    pub fn list(&self) -> Vec<SessionInfo> {
        self.ask(|reply| EngineCommand::ListSessions { owner: Some(OWNER), reply })
    }

    pub fn close(&self, session: SessionId) {
        self.ask(|reply| EngineCommand::CloseSession { owner: OWNER, session, reply })
            .expect("a session");
    }

    pub fn status(&self) -> EngineStatus {
        self.ask(|reply| EngineCommand::Status { reply })
    }

    pub fn generate(&self, request: GenerateRequest) -> Events {
        let (events, incoming) = mpsc::unbounded_channel();
        let request = Box::new(request);
        self.handle
            .commands
            .blocking_send(request.owner, EngineCommand::Generate { request, events })
            .unwrap();
        incoming
    }

    pub fn run(&self, request: GenerateRequest) -> GenerateResult {
        finish(self.generate(request))
    }
}

/// Leaves a new session open.
pub fn keep(made: Result<NewSession, AdmitError>) -> Result<SessionInfo, AdmitError> {
    let NewSession { info, guard } = made?;
    guard.keep();
    Ok(info)
}

/// A greedy request.
pub fn request(
    session: impl Into<Option<SessionId>>,
    tokens: &[u32],
    tokens_max: u32,
) -> GenerateRequest {
    GenerateRequest {
        owner: OWNER,
        session: session.into(),
        tokens: tokens.to_vec(),
        tokens_max,
        sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
        stop: Vec::new(),
        logprobs: None,
        prompt_logprobs: None,
        stream: true,
        report_start: false,
        adapters: Vec::new(),
        priority: None,
        deadline: None,
        cancel: CancelFlag::default(),
        constraints: Constraints::default(),
    }
}

/// A prompt that begins like no other of another seed.
pub fn prompt(seed: u32, tokens: u32) -> Vec<u32> {
    (0..tokens).map(|at| (at * 7 + seed * 13 + at * at % 5) % 64 + 4).collect()
}

/// Waits for the end.
pub fn finish(mut events: Events) -> GenerateResult {
    loop {
        match events.blocking_recv() {
            Some(EngineEvent::Token { .. }) => {}
            Some(EngineEvent::Done(result)) => return *result,
            other => panic!("wanted a result, found {other:?}"),
        }
    }
}
