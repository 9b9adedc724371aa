//! The engine's queue: requests that cannot run yet wait, and get their turn whatever else comes.
#![allow(clippy::unwrap_used)]

#[path = "engine_support/mod.rs"]
mod engine_support;
#[path = "common/random.rs"]
mod random;
#[path = "idea/tiny.rs"]
mod tiny;

use std::time::{Duration, Instant};

use engine_support::{Engine, OWNER, finish, prompt, request, small_pool};
use hob::engine::{EngineCommand, EngineEvent, EngineOptions, FinishReason, Priority};
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
            let (reply, _) = oneshot::channel();
            let listing = EngineCommand::ListSessions { owner: OWNER, reply };
            commands.blocking_send(listing).expect("the engine lives");
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
