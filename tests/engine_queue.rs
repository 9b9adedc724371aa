//! The engine's queue: requests that cannot run yet wait, and get their turn whatever else comes.

mod common;
#[path = "common/random.rs"]
mod random;
#[path = "idea/tiny.rs"]
mod tiny;

use std::error::Error;

use hob::engine::{
    self, CancelFlag, EngineCommand, EngineEvent, EngineHandle, EngineOptions, EngineThread,
    GenerateRequest, Owner, SamplingParams, SessionId,
};
use hob::reference::ReferenceExecutor;
use tokio::sync::{mpsc, oneshot};

type Failure = Box<dyn Error>;
type Events = mpsc::UnboundedReceiver<EngineEvent>;

const OWNER: Owner = Owner { uid: 7 };

/// A pool of five pages, of 32 tokens each.
fn start() -> Result<(EngineHandle, EngineThread), Failure> {
    let folder = tempfile::tempdir()?;
    let [model, _] = tiny::write(folder.path());
    let options = EngineOptions {
        context_tokens: 96,
        kv_tokens: 160,
        sessions_max: 8,
        ..EngineOptions::default()
    };
    let executor = Box::new(ReferenceExecutor::new());
    let opened = engine::open(executor, &model, &options, &mut |_, _| {})?;
    Ok(engine::start(opened, &options)?)
}

fn create_session(engine: &EngineHandle) -> Result<SessionId, Failure> {
    let (reply, answer) = oneshot::channel();
    let command =
        EngineCommand::CreateSession { owner: OWNER, name: None, context_tokens: None, reply };
    engine.commands.blocking_send(command)?;
    Ok(answer.blocking_recv()??.id)
}

fn generate(
    engine: &EngineHandle,
    session: Option<SessionId>,
    prompt_tokens: u32,
    tokens_max: u32,
) -> Result<Events, Failure> {
    let (events, incoming) = mpsc::unbounded_channel();
    let request = GenerateRequest {
        owner: OWNER,
        session,
        tokens: (0..prompt_tokens).map(|at| at * 7 % 64 + 4).collect(),
        tokens_max,
        sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
        stop: Vec::new(),
        logprobs: None,
        prompt_logprobs: None,
        stream: true,
        cancel: CancelFlag::default(),
    };
    let request = Box::new(request);
    engine.commands.blocking_send(EngineCommand::Generate { request, events })?;
    Ok(incoming)
}

/// Waits for the end; an error if the request was refused.
fn finish(mut events: Events) -> Result<(), Failure> {
    loop {
        match events.blocking_recv() {
            Some(EngineEvent::Token { .. }) => {}
            Some(EngineEvent::Done(_)) => return Ok(()),
            other => return Err(format!("wanted a result, found {other:?}").into()),
        }
    }
}

/// The caches of sessions whose requests wait must not keep the one in front of them from running.
#[test]
fn a_request_is_not_refused_for_pages_of_those_that_wait_behind_it() -> Result<(), Failure> {
    let (engine, thread) = start()?;
    let (a, b, fresh) =
        (create_session(&engine)?, create_session(&engine)?, create_session(&engine)?);
    for _ in 0..4 {
        // Two pages each, one for the request that runs.
        finish(generate(&engine, Some(a), 50, 1)?)?;
        finish(generate(&engine, Some(b), 50, 1)?)?;
        let mut running = generate(&engine, None, 4, 20)?;
        running.blocking_recv().ok_or("the engine ended")?;
        let all = [
            generate(&engine, Some(fresh), 80, 2)?,
            generate(&engine, Some(a), 50, 1)?,
            generate(&engine, Some(b), 50, 1)?,
        ];
        finish(running)?;
        for events in all {
            finish(events)?;
        }
    }
    drop(engine);
    thread.join().map_err(|_| "the engine panicked")??;
    Ok(())
}

/// Commands are served between steps, but never instead of them.
#[test]
fn a_flood_of_commands_does_not_stop_a_generation() -> Result<(), Failure> {
    let (engine, thread) = start()?;
    let generating = generate(&engine, None, 4, 60)?;
    let stop = std::sync::atomic::AtomicBool::new(false);
    let flood = || {
        while !stop.load(std::sync::atomic::Ordering::Relaxed) {
            let (reply, _) = oneshot::channel();
            let listing = EngineCommand::ListSessions { owner: OWNER, reply };
            engine.commands.blocking_send(listing).expect("the engine lives");
        }
    };
    std::thread::scope(|scope| {
        let floods = [scope.spawn(flood), scope.spawn(flood), scope.spawn(flood)];
        let result = finish(generating);
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        floods.into_iter().for_each(|thread| thread.join().expect("a flood ends"));
        result
    })?;
    drop(engine);
    thread.join().map_err(|_| "the engine panicked")??;
    Ok(())
}
