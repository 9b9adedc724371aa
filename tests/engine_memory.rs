//! The device's memory is wanted elsewhere: its budget changes while the engine runs, or the
//! machine sleeps. The engine gives way, and nothing that was streamed is lost.
#![allow(clippy::unwrap_used)]

#[path = "engine_support/mod.rs"]
mod engine_support;
#[path = "common/faults.rs"]
mod faults;
#[path = "common/random.rs"]
mod random;
#[path = "idea/tiny.rs"]
mod tiny;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use engine_support::{Engine, finish, prompt, request, small_pool};
use faults::Plan;
use hob::config::MemoryReserve;
use hob::engine::{
    AdmitError, CachePlace, Control, EngineEvent, EngineOptions, FinishReason, GenerateRequest,
};
use hob::reference::ReferenceExecutor;

/// What is kept for others.
const RESERVE: u64 = 3 << 20;

/// Positions of a page.
const PAGE: u64 = 32;

/// An engine whose device says what the plan tells it to.
fn start(plan: &Plan) -> Engine {
    start_with(plan, EngineOptions::default())
}

fn start_with(plan: &Plan, options: EngineOptions) -> Engine {
    let options = EngineOptions {
        memory_reserve: MemoryReserve::Mib(3),
        context_tokens: small_pool().context_tokens,
        kv_tokens: small_pool().kv_tokens,
        ..options
    };
    let plan = plan.clone();
    Engine::start_with(Box::new(move || plan.open(ReferenceExecutor::new())), &options)
}

/// Bytes of a page in the engine's pool: what a page more or less makes of what is used.
fn page_bytes(engine: &Engine, plan: &Plan) -> u64 {
    let before = engine.status();
    plan.set_budget(Some(before.device_bytes + RESERVE - 1));
    look(engine, 1);
    let after = engine.status();
    assert_eq!(before.kv_tokens_max - after.kv_tokens_max, PAGE);
    plan.set_budget(None);
    look(engine, 5);
    assert_eq!(engine.status().kv_tokens_max, before.kv_tokens_max);
    before.device_bytes - after.device_bytes
}

/// Has the engine look at the memory so many times.
fn look(engine: &Engine, times: usize) {
    for _ in 0..times {
        engine.handle.commands.control(Control::Tick).unwrap();
    }
}

fn refusal(engine: &Engine, request: GenerateRequest) -> AdmitError {
    match engine.generate(request).blocking_recv() {
        Some(EngineEvent::Refused(error)) => error,
        other => panic!("wanted a refusal, found {other:?}"),
    }
}

#[test]
fn engines_of_one_daemon_answer_a_shortage_one_after_the_other() {
    let plan = Plan::default();
    let turn: Arc<Mutex<()>> = Arc::default();
    let options = EngineOptions { memory_turn: Arc::clone(&turn), ..EngineOptions::default() };
    let engine = start_with(&plan, options);
    let before = engine.status();
    plan.set_budget(Some(before.device_bytes + RESERVE - 1));
    let held = turn.lock().unwrap();
    look(&engine, 3);
    assert_eq!(engine.status().kv_tokens_max, before.kv_tokens_max, "it is another's turn");
    drop(held);
    look(&engine, 1);
    assert_eq!(engine.status().kv_tokens_max, before.kv_tokens_max - PAGE);
    look(&engine, 3);
    assert_eq!(engine.status().kv_tokens_max, before.kv_tokens_max - PAGE, "it is over");
    engine.stop();
}

#[test]
fn caches_at_rest_move_out_as_far_as_the_budget_shrinks() {
    let plan = Plan::default();
    let engine = start(&plan);
    let page = page_bytes(&engine, &plan);
    let sessions = [engine.session(), engine.session()];
    let run = |at: usize| engine.run(request(sessions[at], &prompt(at as u32, 40), 3));
    let first = [run(0), run(1)];
    let before = engine.status();
    assert_eq!((before.kv_tokens_max, before.kv_tokens_used), (160, 128));

    plan.set_budget(Some(before.device_bytes + RESERVE - 3 * page));
    look(&engine, 1);
    let after = engine.status();
    assert_eq!((after.kv_tokens_max, after.kv_tokens_used), (64, 64));
    assert_eq!(before.device_bytes - after.device_bytes, 3 * page);
    assert_eq!(after.device_reserve_bytes, RESERVE);
    assert!(after.device_bytes + RESERVE <= after.device_budget_bytes);
    assert_eq!(engine.info(sessions[0]).place, CachePlace::Host, "unused for longest");
    assert_eq!(engine.info(sessions[1]).place, CachePlace::Device);
    for at in [1, 0, 1] {
        let again = run(at);
        assert_eq!((&again.tokens, again.cached_tokens), (&first[at].tokens, 39));
    }

    // Room for a moment is none yet.
    plan.set_budget(None);
    look(&engine, 1);
    plan.set_budget(Some(after.device_bytes + RESERVE));
    look(&engine, 4);
    assert_eq!(engine.status().kv_tokens_max, 64);
    plan.set_budget(None);
    look(&engine, 5);
    let grown = engine.status();
    assert_eq!((grown.kv_tokens_max, grown.device_bytes), (160, before.device_bytes));
    assert_eq!(run(1).tokens, first[1].tokens);
    assert_eq!(grown.recoveries, 0);
    engine.stop();
}

#[test]
fn a_request_without_room_is_told_that_memory_is_short() {
    let plan = Plan::default();
    let engine = start(&plan);
    plan.set_budget(Some(0)); // less than the weights take
    look(&engine, 1);
    assert_eq!(engine.status().kv_tokens_max, PAGE, "one page always stays");
    let error = refusal(&engine, request(None, &prompt(1, 50), 3));
    assert_eq!(error, AdmitError::MemoryShort { wanted_tokens: 51, tokens_max: 32 });
    assert_eq!(engine.run(request(None, &prompt(1, 20), 3)).tokens.len(), 3);
    plan.set_budget(None);
    look(&engine, 5);
    assert_eq!(engine.run(request(None, &prompt(1, 50), 3)).tokens.len(), 3);
    engine.stop();
}

#[test]
fn who_runs_ends_undisturbed_while_the_budget_swings() {
    let plan = Plan::default();
    let engine = start(&plan);
    let alone = engine.run(request(None, &prompt(1, 20), 70));
    let background = engine.session();
    engine.run(request(background, &prompt(2, 30), 1));
    let mut running = engine.generate(request(None, &prompt(1, 20), 70));
    for round in 0..6 {
        let token = running.blocking_recv().unwrap();
        assert!(matches!(token, EngineEvent::Token { .. }), "{token:?}");
        plan.set_budget((round % 2 == 0).then_some(0));
        look(&engine, 5);
    }
    let result = finish(running);
    assert_eq!((result.finish_reason, result.tokens), (FinishReason::Length, alone.tokens));
    engine.stop();
}

#[test]
fn a_model_that_finds_no_room_again_stays_off_and_says_so() {
    let plan = Plan::default();
    let idle_unload = Some(Duration::from_millis(20));
    let engine = start_with(&plan, EngineOptions { idle_unload, ..EngineOptions::default() });
    let full = engine.status().device_bytes;
    let first = engine.run(request(None, &prompt(1, 50), 3));
    while engine.status().loaded {
        std::thread::yield_now();
    }
    plan.set_budget(Some(full / 8));
    let error = refusal(&engine, request(None, &prompt(1, 50), 3));
    assert!(matches!(error, AdmitError::NotLoaded(_)), "{error}");
    // Room for the model and a part of the pool, of which a page has 16 KiB.
    plan.set_budget(Some(full + RESERVE - (16 << 10)));
    let again = engine.run(request(None, &prompt(1, 50), 3));
    assert_eq!(again.tokens, first.tokens);
    let status = engine.status();
    assert!(!status.loaded || status.kv_tokens_max < 160, "{status:?}");
    assert_eq!(status.recoveries, 0);
    engine.stop();
}

#[test]
fn a_sleep_frees_the_device_and_requests_go_on_where_they_were() {
    let plan = Plan::default();
    let engine = start(&plan);
    let (long, short) = (request(None, &prompt(1, 20), 60), request(None, &prompt(2, 30), 3));
    let alone = [engine.run(long.clone()), engine.run(short.clone())];
    let notes = engine.session();
    let before = engine.run(request(notes, &prompt(3, 40), 1));
    let mut running = engine.generate(long);
    running.blocking_recv().unwrap();

    engine.sleep();
    let asleep = engine.status();
    assert_eq!((asleep.loaded, asleep.device_bytes, asleep.kv_tokens_used), (false, 0, 0));
    assert_eq!((asleep.running, asleep.queued), (0, 1));
    assert_eq!(engine.info(notes).place, CachePlace::Host);
    let mut postponed = engine.generate(short);
    engine.sleep(); // once more changes nothing
    assert_eq!((engine.status().loaded, plan.opened()), (false, 1));
    assert!(postponed.try_recv().is_err(), "nothing runs");

    engine.handle.commands.control(Control::Wake).unwrap();
    let results = [finish(running), finish(postponed)];
    for (result, alone) in results.iter().zip(&alone) {
        assert_eq!((&result.tokens, result.finish_reason), (&alone.tokens, FinishReason::Length));
        assert_eq!(result.timings.computed_tokens, alone.timings.computed_tokens, "none twice");
    }
    let again = engine.run(request(notes, &prompt(3, 40), 1));
    assert_eq!((again.tokens, again.cached_tokens), (before.tokens, 39));
    assert_eq!((engine.status().recoveries, plan.opened()), (0, 2));
    engine.stop();
}
