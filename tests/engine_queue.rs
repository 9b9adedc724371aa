//! The engine's queue: requests that cannot run yet wait, and get their turn whatever else comes.
#![allow(clippy::unwrap_used)]

#[path = "engine_support/mod.rs"]
mod engine_support;
#[path = "common/random.rs"]
mod random;
#[path = "idea/tiny.rs"]
mod tiny;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use engine_support::{Engine, OWNER, finish, prompt, request, small_pool};
use hob::engine::{
    AdmitError, EngineCommand, EngineEvent, EngineOptions, FinishReason, GenerateRequest, Owner,
    Priority, Quota, Quotas,
};
use tokio::sync::oneshot;

/// The caches of sessions whose requests wait must not keep the one in front of them from running.
#[test]
fn a_request_is_not_refused_for_pages_of_those_that_wait_behind_it() {
    let engine = Engine::start(&small_pool());
    let (a, b, fresh) = (engine.session(), engine.session(), engine.session());
    for _ in 0..4 {
        // Two pages each, one for the request that runs.
        engine.run(request(a, &prompt(0, 50), 1));
        engine.run(request(b, &prompt(0, 50), 1));
        let mut running = engine.generate(request(None, &prompt(0, 4), 20));
        running.blocking_recv().expect("the engine lives");
        let all = [
            engine.generate(request(fresh, &prompt(0, 80), 2)),
            engine.generate(request(a, &prompt(0, 50), 1)),
            engine.generate(request(b, &prompt(0, 50), 1)),
        ];
        finish(running);
        all.into_iter().for_each(|events| drop(finish(events)));
    }
    engine.stop();
}

/// Commands are served between steps, but never instead of them.
#[test]
fn a_flood_of_commands_does_not_stop_a_generation() {
    let engine = Engine::start(&small_pool());
    let generating = engine.generate(request(None, &prompt(0, 4), 60));
    let stop = std::sync::atomic::AtomicBool::new(false);
    let commands = &engine.handle.commands;
    let flood = || {
        while !stop.load(std::sync::atomic::Ordering::Relaxed) {
            let (reply, _answer) = oneshot::channel();
            let listing = EngineCommand::ListSessions { owner: Some(OWNER), reply };
            commands.blocking_send(OWNER, listing).expect("the engine lives");
        }
    };
    std::thread::scope(|scope| {
        let floods = [scope.spawn(flood), scope.spawn(flood), scope.spawn(flood)];
        finish(generating);
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        floods.into_iter().for_each(|thread| thread.join().expect("a flood ends"));
    });
    engine.stop();
}

/// However many commands of one user wait, those between two steps are few; a command of another
/// user, and one of the daemon itself, comes before most of them.
#[test]
fn a_flood_of_one_user_delays_that_user_alone() {
    const FLOOD: usize = 64;
    const A_ROUND: usize = 16;
    let engine = Engine::start(&EngineOptions { context_tokens: 240, ..EngineOptions::default() });
    let mut generating = engine.generate(request(None, &prompt(0, 4), 200));
    generating.blocking_recv().expect("the engine lives");
    let flooder = Owner { uid: 8 };
    let status = |reply| EngineCommand::Status { reply };
    let flood: Vec<_> = (0..FLOOD).map(|_| engine.send(flooder, status)).collect();
    let mut at_step = BTreeMap::new();
    for answer in flood {
        let status = answer.blocking_recv().expect("an answer");
        if status.running == 1 {
            *at_step.entry(status.steps).or_insert(0) += 1;
        }
    }
    assert!(at_step.values().all(|count| *count <= A_ROUND), "{at_step:?}");
    drop(generating);
    engine.stop();
}

/// Where all places to wait are taken, they are those of the user who has the most.
#[test]
fn a_user_who_fills_the_queue_makes_room_for_others() {
    let blocked = Quota { requests_running_max: Some(0), ..Quota::default() };
    let options = EngineOptions {
        requests_queued_max: 4,
        quotas: Quotas { of: [(OWNER.uid, blocked)].into(), ..Quotas::default() },
        ..small_pool()
    };
    let engine = Engine::start(&options);
    let mut greedy: Vec<_> =
        (0..5).map(|seed| engine.generate(request(None, &prompt(seed, 8), 1))).collect();
    let refused = greedy.pop().unwrap().blocking_recv();
    let full = AdmitError::QueueFull { waiting: 4, limit: 4 };
    assert_eq!(refused, Some(EngineEvent::Refused(full)), "not in place of its own");
    // Somebody else is served at once, at the cost of what came last.
    for (left, seed) in [(4, 7), (4, 8)] {
        let other =
            GenerateRequest { owner: Owner { uid: 8 }, ..request(None, &prompt(seed, 8), 1) };
        assert_eq!(engine.run(other).tokens.len(), 1);
        if greedy.len() == left {
            let refused = greedy.pop().unwrap().blocking_recv();
            let share = AdmitError::UserQueueFull { waiting: 4, limit: 3 };
            assert_eq!(refused, Some(EngineEvent::Refused(share)));
        }
    }
    assert!(greedy.iter_mut().all(|events| events.try_recv().is_err()), "the others wait");
    drop(greedy);
    engine.stop();
}

#[test]
fn the_urgent_are_answered_while_a_long_background_prompt_is_computed() {
    let options = EngineOptions { prefill_tokens_max: 8, ..EngineOptions::default() };
    let engine = Engine::start(&options);
    let mut long = request(None, &prompt(1, 250), 1);
    long.priority = Some(Priority::Background);
    let mut long = engine.generate(long);
    let mut urgent = request(None, &prompt(2, 8), 1);
    urgent.priority = Some(Priority::Interactive);
    let result = engine.run(urgent);
    assert_eq!(result.tokens.len(), 1);
    assert!(long.try_recv().is_err(), "the long prompt is not done yet");
    // One step that ran, and the slice that has it.
    let steps = engine.status().steps;
    assert!(steps < 20, "{steps} steps, of 32 that the long prompt takes");
    finish(long);
    engine.stop();
}

#[test]
fn a_deadline_ends_a_request_with_what_it_has() {
    let engine = Engine::start(&small_pool());
    let session = engine.session();
    let mut late = request(session, &prompt(1, 20), 70);
    late.deadline = Some(Instant::now() + Duration::from_millis(20));
    let result = engine.run(late);
    assert_eq!(result.finish_reason, FinishReason::Deadline);
    // What was computed is good: all of it is found again.
    let cached = engine.info(session).cached_tokens;
    let again = engine.run(request(session, &prompt(1, 20), 70));
    assert_eq!(again.cached_tokens, cached.min(19));
    assert_eq!(again.tokens[..result.tokens.len()], result.tokens);
    engine.stop();
}

#[test]
fn a_cancelled_prompt_ends_within_a_step_and_its_cache_stays_good() {
    let options = EngineOptions { prefill_tokens_max: 8, ..EngineOptions::default() };
    let engine = Engine::start(&options);
    let session = engine.session();
    let long = request(session, &prompt(3, 240), 4);
    let cancel = long.cancel.clone();
    let mut events = engine.generate(long.clone());
    while engine.status().steps < 3 {}
    let before = engine.status().steps;
    cancel.raise();
    let Some(EngineEvent::Done(result)) = events.blocking_recv() else { panic!("a result") };
    assert_eq!(result.finish_reason, FinishReason::Cancelled);
    // One may have run while the flag was raised, and one while the count was asked for.
    assert!(engine.status().steps <= before + 3);
    let cached = engine.info(session).cached_tokens;
    assert!((24..240).contains(&cached), "{cached}");
    let alone = engine.run(request(None, &prompt(3, 240), 4));
    let resumed = engine.run(request(session, &prompt(3, 240), 4));
    assert_eq!(resumed.cached_tokens, cached);
    assert_eq!(resumed.tokens, alone.tokens);
    engine.stop();
}
