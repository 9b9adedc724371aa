//! Requests to an engine, whose streams are then compared.
#![allow(dead_code, unreachable_pub)] // each test uses a part

use std::error::Error;

use hob::engine::{
    CancelFlag, Constraints, EngineCommand, EngineEvent, EngineHandle, EngineStatus, EngineThread,
    GenerateRequest, GenerateResult, NewSession, Owner, SamplingParams, SessionId, SessionOptions,
};
use tokio::sync::{mpsc, oneshot};

pub type Failure = Box<dyn Error + Send + Sync>;
pub type Events = mpsc::UnboundedReceiver<EngineEvent>;

pub const OWNER: Owner = Owner { uid: 7 };

pub fn create_session(engine: &EngineHandle) -> Result<SessionId, Failure> {
    let (reply, answer) = oneshot::channel();
    let options = SessionOptions::default();
    let command = EngineCommand::CreateSession { owner: OWNER, options, reply };
    engine.commands.blocking_send(OWNER, command)?;
    let NewSession { info, guard } = answer.blocking_recv()??;
    guard.keep();
    Ok(info.id)
}

/// A request of its own kind for each `number`: length, randomness and log probabilities differ.
pub fn request(session: Option<SessionId>, number: u32) -> GenerateRequest {
    GenerateRequest {
        owner: OWNER,
        session,
        tokens: (0..9 + number * 7).map(|at| (at * 7 + number) % 64 + 4).collect(),
        tokens_max: 5 + number,
        sampling: SamplingParams {
            temperature: number as f32,
            seed: Some(u64::from(number)),
            ..SamplingParams::default()
        },
        stop: Vec::new(),
        // With them the host chooses tokens, and else the device.
        logprobs: (number == 1).then_some(2),
        prompt_logprobs: (number == 1).then_some(1),
        stream: true,
        report_start: false,
        adapters: Vec::new(),
        priority: None,
        deadline: None,
        cancel: CancelFlag::default(),
        constraints: Constraints::default(),
    }
}

pub fn generate(engine: &EngineHandle, request: GenerateRequest) -> Result<Events, Failure> {
    let (events, incoming) = mpsc::unbounded_channel();
    let request = Box::new(request);
    engine.commands.blocking_send(request.owner, EngineCommand::Generate { request, events })?;
    Ok(incoming)
}

/// The result, which must be what was streamed; times and cache hits are a matter of luck.
pub fn finish(mut events: Events) -> Result<GenerateResult, Failure> {
    let (mut texts, mut tokens) = (String::new(), Vec::new());
    loop {
        match events.blocking_recv() {
            Some(EngineEvent::Token { text, token, .. }) => {
                texts.push_str(&text);
                tokens.push(token);
            }
            Some(EngineEvent::Done(result)) => {
                assert_eq!((&texts, &tokens), (&result.text, &result.tokens));
                return Ok(GenerateResult {
                    timings: Default::default(),
                    cached_tokens: 0,
                    ..*result
                });
            }
            other => return Err(format!("wanted a result, found {other:?}").into()),
        }
    }
}

/// A session is used twice, the second time beside two other requests.
pub fn play(engine: &EngineHandle) -> Result<Vec<GenerateResult>, Failure> {
    let session = create_session(engine)?;
    let mut results = vec![finish(generate(engine, request(Some(session), 2))?)?];
    let mut longer = request(Some(session), 2);
    longer.tokens.extend(&results[0].tokens);
    let mut running = vec![generate(engine, longer)?];
    for number in 0..2 {
        running.push(generate(engine, request(None, number))?);
    }
    for events in running {
        results.push(finish(events)?);
    }
    Ok(results)
}

pub fn join(engine: EngineHandle, thread: EngineThread) -> Result<(), Failure> {
    drop(engine);
    thread.join().map_err(|_| "the engine panicked")??;
    Ok(())
}

/// The engine's state.
pub fn status(engine: &EngineHandle) -> Result<EngineStatus, Failure> {
    let (reply, answer) = oneshot::channel();
    engine.commands.blocking_send(OWNER, EngineCommand::Status { reply })?;
    Ok(answer.blocking_recv()?)
}

/// Recoveries, as the status tells them.
pub fn recoveries(engine: &EngineHandle) -> Result<u64, Failure> {
    Ok(status(engine)?.recoveries)
}
