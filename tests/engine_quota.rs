//! What one user may take, and that others do not notice who is at a limit.

#[path = "common/faults.rs"]
mod faults;
#[path = "common/random.rs"]
mod random;
#[path = "common/streams.rs"]
mod streams;
#[path = "idea/tiny.rs"]
mod tiny;

use std::sync::{Arc, Mutex};

use faults::{Call, Failing, Fault, Plan};
use hob::engine::{
    self, AdmitError, CachePlace, EngineCommand, EngineEvent, EngineHandle, EngineOptions,
    EngineThread, GenerateRequest, GenerateResult, NewSession, Owner, Quota, Quotas, SessionInfo,
    SessionOptions,
};
use hob::reference::ReferenceExecutor;
use streams::{Events, Failure, generate, join, request, status};
use tokio::sync::oneshot;

const ANNA: Owner = Owner { uid: 1000 };
const BEN: Owner = Owner { uid: 1001 };
/// May have no cache at all.
const CARL: Owner = Owner { uid: 1002 };

fn create(engine: &EngineHandle, owner: Owner) -> Result<Result<SessionInfo, AdmitError>, Failure> {
    let (reply, answer) = oneshot::channel();
    let options = SessionOptions::default();
    let command = EngineCommand::CreateSession { owner, options, reply };
    engine.commands.blocking_send(owner, command)?;
    Ok(answer.blocking_recv()?.map(|NewSession { info, guard }| {
        guard.keep();
        info
    }))
}

fn of(owner: Owner, tokens_max: u32) -> GenerateRequest {
    GenerateRequest { owner, tokens_max, ..request(None, 0) }
}

/// The result, or why there is none.
fn end(mut events: Events) -> Result<Result<GenerateResult, AdmitError>, Failure> {
    loop {
        match events.blocking_recv().ok_or("the engine ended")? {
            EngineEvent::Started { .. } | EngineEvent::Token { .. } => {}
            EngineEvent::Done(result) => return Ok(Ok(*result)),
            EngineEvent::Refused(error) => return Ok(Err(error)),
        }
    }
}

/// An engine on the reference executor, and the plan of its failures.
fn start(quotas: Quotas) -> Result<(EngineHandle, EngineThread, Plan), Failure> {
    let folder = tempfile::tempdir()?;
    let [model, _] = tiny::write(folder.path());
    let options =
        EngineOptions { context_tokens: 96, kv_tokens: 384, quotas, ..EngineOptions::default() };
    let plan = Plan::default();
    let executor = plan.open(ReferenceExecutor::new())?;
    let opened = engine::open(executor, &model, &options, &mut |_, _| {})?;
    let (engine, thread) = engine::start(opened, &options)?;
    Ok((engine, thread, plan))
}

/// Where the caches of a user's sessions are.
fn places(engine: &EngineHandle, owner: Owner) -> Result<Vec<CachePlace>, Failure> {
    let (reply, answer) = oneshot::channel();
    engine
        .commands
        .blocking_send(owner, EngineCommand::ListSessions { owner: Some(owner), reply })?;
    Ok(answer.blocking_recv()?.into_iter().map(|info| info.place).collect())
}

/// Ben's session and three of Anna's each cache a page, one after the other.
fn fill(engine: &EngineHandle) -> Result<[u64; 2], Failure> {
    for owner in [BEN, ANNA, ANNA, ANNA] {
        let session = create(engine, owner)??.id;
        let request = GenerateRequest { session: Some(session), ..of(owner, 4) };
        end(generate(engine, request)?)??;
    }
    let users = status(engine)?.users;
    assert_eq!(users.iter().map(|user| user.uid).collect::<Vec<_>>(), [ANNA.uid, BEN.uid]);
    Ok([users[0].kv_bytes, users[1].kv_bytes])
}

#[test]
fn a_user_with_too_much_cache_makes_room_among_his_own_sessions() -> Result<(), Failure> {
    let (engine, thread, _) = start(Quotas::default())?;
    let [annas, page] = fill(&engine)?;
    assert_eq!(annas, 3 * page);
    join(engine, thread)?;

    let default = Quota { kv_bytes_max: Some(2 * page), ..Quota::default() };
    let (engine, thread, _) = start(Quotas { default, ..Quotas::default() })?;
    assert_eq!(fill(&engine)?, [2 * page, page]);
    let annas = places(&engine, ANNA)?;
    assert_eq!(annas, [CachePlace::Host, CachePlace::Device, CachePlace::Device]);
    assert_eq!(places(&engine, BEN)?, [CachePlace::Device], "he is older, and within his limit");
    join(engine, thread)
}

#[test]
fn a_user_at_a_limit_waits_or_is_refused_and_others_go_on() -> Result<(), Failure> {
    let default = Quota {
        sessions_max: Some(2),
        kv_bytes_max: None,
        requests_queued_max: Some(2),
        requests_running_max: Some(1),
    };
    let none = Quota { kv_bytes_max: Some(1), ..default };
    let quotas = Quotas { default, of: [(CARL.uid, none)].into(), ..Quotas::default() };
    let (engine, thread, plan) = start(quotas)?;

    for _ in 0..2 {
        create(&engine, ANNA)??;
    }
    assert_eq!(create(&engine, ANNA)?, Err(AdmitError::UserSessions { limit: 2 }));
    create(&engine, BEN)??;
    let users = status(&engine)?.users;
    let sessions: Vec<_> = users.iter().map(|user| (user.uid, user.sessions)).collect();
    assert_eq!(sessions, [(ANNA.uid, 2), (BEN.uid, 1)]);
    let refused = end(generate(&engine, of(CARL, 4))?)?;
    assert!(matches!(refused, Err(AdmitError::UserKvFull { limit_bytes: 1, .. })), "{refused:?}");

    // While the first of Anna's is in a step, all others arrive.
    let until = Arc::new(Mutex::new(()));
    let held = until.lock().map_err(|_| "poisoned")?;
    let hang = Failing::Hang(Arc::clone(&until));
    plan.set([Fault { call: Some(Call::Wait), nth: 0, failing: hang }]);
    let first = generate(&engine, of(ANNA, 20))?;
    while plan.left() > 0 {
        std::thread::yield_now();
    }
    let second = generate(&engine, of(ANNA, 1))?;
    let third = generate(&engine, of(ANNA, 1))?;
    let bens = generate(&engine, of(BEN, 1))?;
    let fourth = generate(&engine, of(ANNA, 1))?;
    drop(held);
    assert_eq!(end(fourth)?, Err(AdmitError::UserQueueFull { waiting: 2, limit: 2 }));
    let [first, second, third, bens] =
        [end(first)??, end(second)??, end(third)??, end(bens)??].map(|result| result.timings);
    // It arrives while the first is in its first step: one that did not wait would start in the
    // next.
    assert!(second.queue_ms >= first.decode_ms / 2.0, "it waited for the first one's end");
    assert!(third.queue_ms >= second.queue_ms);
    assert!(bens.queue_ms < second.queue_ms, "Ben passed what Anna waits for");
    join(engine, thread)
}
