//! Sessions: forks, rollback, and caches that leave the device's memory and come back.
#![allow(clippy::unwrap_used)]

#[path = "engine_support/mod.rs"]
mod engine_support;
#[path = "common/random.rs"]
mod random;
#[path = "idea/tiny.rs"]
mod tiny;

use std::time::Duration;

use engine_support::{Engine, OWNER, finish, prompt, request, small_pool};
use hob::engine::{
    AdmitError, CachePlace, EngineCommand, EngineOptions, Priority, SessionAction, SessionOptions,
};

#[test]
fn a_fork_goes_on_from_what_it_shares_and_neither_side_sees_the_other() {
    let engine = Engine::start(&EngineOptions { kv_tokens: 512, ..small_pool() });
    let origin = engine.session();
    let begun = engine.run(request(origin, &prompt(1, 40), 8));
    let text = [prompt(1, 40), begun.tokens].concat();
    // Two ways to go on, and what each gives alone.
    let ways = [[&text[..], &prompt(2, 9)].concat(), [&text[..36], &prompt(3, 12)].concat()];
    let alone = ways.each_ref().map(|way| engine.run(request(None, way, 10)).tokens);

    let free = engine.status().kv_tokens_used;
    let forks = [47, 36].map(|at| engine.fork(origin, None, Some(at)).unwrap());
    assert_eq!(engine.status().kv_tokens_used, free, "a fork takes no page");
    assert_eq!(forks[0].tokens, 47);
    assert_eq!(forks[1].cached_tokens, 36);
    // All at once, the origin as well.
    let running = [0, 1].map(|at| engine.generate(request(forks[at].id, &ways[at], 10)));
    let other = engine.generate(request(origin, &ways[1], 10));
    for ((events, alone), shared) in running.into_iter().zip(&alone).zip([47, 36]) {
        let result = finish(events);
        assert_eq!(&result.tokens, alone);
        assert_eq!(result.cached_tokens, shared);
    }
    assert_eq!(finish(other).tokens, alone[1]);
    engine.close(origin);
    let again = engine.run(request(forks[0].id, &ways[0], 10));
    assert_eq!(again.tokens, alone[0], "a fork outlives its origin");
    engine.stop();
}

#[test]
fn a_session_is_forked_and_cut_within_its_tokens_alone() {
    let engine = Engine::start(&small_pool());
    let session = engine.create(SessionOptions {
        name: Some("notes".into()),
        priority: Priority::Background,
        ..SessionOptions::default()
    });
    engine.run(request(session, &prompt(1, 40), 1));
    let too_far = AdmitError::NoSuchPosition { wanted: 41, tokens: 40 };
    assert_eq!(engine.fork(session, None, Some(41)), Err(too_far.clone()));
    assert_eq!(engine.act(session, SessionAction::Truncate { tokens: 41 }), Err(too_far));
    assert_eq!(
        engine.fork(session, Some("notes"), None),
        Err(AdmitError::SessionExists("notes".into()))
    );
    assert_eq!(engine.list().len(), 1);

    let used = engine.status().kv_tokens_used;
    let cut = engine.act(session, SessionAction::Truncate { tokens: 30 }).unwrap();
    assert_eq!((cut.tokens, cut.cached_tokens, cut.place), (30, 30, CachePlace::Device));
    assert_eq!(engine.status().kv_tokens_used, used - 32, "a page was given back");
    let result = engine.run(request(session, &prompt(1, 40), 1));
    assert_eq!(result.cached_tokens, 30);
    let fork = engine.fork(session, None, Some(0)).unwrap();
    assert_eq!((fork.tokens, fork.priority), (0, Priority::Background));
    engine.stop();
}

#[test]
fn caches_leave_for_the_host_and_come_back_without_being_computed_again() {
    let engine = Engine::start(&small_pool());
    let sessions: Vec<_> = (0..6).map(|_| engine.session()).collect();
    let mut first = Vec::new();
    for (seed, session) in (0..).zip(&sessions) {
        first.push(engine.run(request(*session, &prompt(seed, 50), 3)));
    }
    let infos = engine.list();
    let parked = infos.iter().filter(|info| info.place == CachePlace::Host).count();
    assert!(parked >= 4, "of six sessions of two pages each, two fit: {infos:?}");
    assert!(engine.status().host_cache_bytes > 0);
    for ((seed, session), first) in (0..).zip(&sessions).zip(&first) {
        let again = engine.run(request(*session, &prompt(seed, 50), 3));
        assert_eq!(again.cached_tokens, 49, "session {seed}");
        assert_eq!(again.tokens, first.tokens, "session {seed}");
    }
    // A fork of a session that is not on the device.
    let parked = engine.list().into_iter().find(|info| info.place == CachePlace::Host).unwrap();
    let fork = engine.fork(parked.id, None, Some(50)).unwrap();
    assert_eq!(fork.cached_tokens, 50);
    engine.stop();
}

#[test]
fn without_room_on_the_host_a_cache_is_computed_again_with_the_same_result() {
    let engine = Engine::start(&EngineOptions { host_cache_bytes: 0, ..small_pool() });
    let sessions: Vec<_> = (0..4).map(|_| engine.session()).collect();
    let run = |seed: usize| engine.run(request(sessions[seed], &prompt(seed as u32, 50), 3));
    let first: Vec<_> = (0..4).map(run).collect();
    let info = engine.info(sessions[0]);
    assert_eq!((info.place, info.cached_tokens, info.tokens), (CachePlace::None, 0, 52));
    let again = run(0);
    assert_eq!((again.cached_tokens, &again.tokens), (0, &first[0].tokens));
    engine.stop();
}

/// To bring a cache back, others move out, and one of them may take its place on the host.
#[test]
fn a_cache_that_is_given_up_for_its_own_return_is_computed_again() {
    // Of five pages, a session takes two, so that the third has the first move out.
    let run = |engine: &Engine, session, seed| engine.run(request(session, &prompt(seed, 50), 3));
    let engine = Engine::start(&small_pool());
    for seed in 0..3 {
        run(&engine, engine.session(), seed);
    }
    let host_cache_bytes = engine.status().host_cache_bytes; // room for one
    engine.stop();

    let engine = Engine::start(&EngineOptions { host_cache_bytes, ..small_pool() });
    let sessions = [engine.session(), engine.session(), engine.session()];
    let first = [0, 1, 2].map(|at| run(&engine, sessions[at], at as u32));
    assert_eq!(engine.info(sessions[0]).place, CachePlace::Host);
    let again = run(&engine, sessions[0], 0);
    assert_eq!((again.cached_tokens, &again.tokens), (0, &first[0].tokens));
    assert_eq!(engine.info(sessions[1]).place, CachePlace::Host);
    engine.act(sessions[0], SessionAction::Truncate { tokens: 50 }).unwrap();
    assert_eq!(run(&engine, sessions[0], 0).tokens, first[0].tokens, "what was computed is good");
    engine.stop();
}

/// Four requests that grow to more than the pool holds: some have to wait again in the middle, and
/// nobody's answer changes.
#[test]
fn a_request_that_gives_up_its_pages_goes_on_where_it_was() {
    for host_cache_bytes in [0, 1 << 20] {
        let options = EngineOptions { host_cache_bytes, ..small_pool() };
        let engine = Engine::start(&options);
        let alone: Vec<_> =
            (0..4).map(|seed| engine.run(request(None, &prompt(seed, 20), 70))).collect();
        assert_eq!(engine.status().preemptions, 0);
        let together: Vec<_> =
            (0..4).map(|seed| engine.generate(request(None, &prompt(seed, 20), 70))).collect();
        for (events, alone) in together.into_iter().zip(alone) {
            let result = finish(events);
            assert_eq!(result.tokens, alone.tokens);
            assert_eq!(result.text, alone.text);
        }
        assert!(engine.status().preemptions > 0, "the pool was full");
        let status = engine.status();
        assert_eq!((status.kv_tokens_used, status.host_cache_bytes), (0, 0), "nothing is left");
        engine.stop();
    }
}

#[test]
fn a_session_goes_when_it_was_idle_for_its_ttl() {
    let engine = Engine::start(&small_pool());
    let ttl = Some(Duration::from_millis(1));
    let short = engine.create(SessionOptions { ttl, ..SessionOptions::default() });
    let long = engine.session();
    engine.run(request(long, &prompt(1, 4), 1));
    std::thread::sleep(Duration::from_millis(2)); // of time passed, whatever the clock's step
    engine.handle.commands.control(hob::engine::Control::Tick).unwrap();
    let listed: Vec<_> = engine.list().into_iter().map(|info| info.id).collect();
    assert_eq!(listed, [long]);
    assert!(engine.act(short, SessionAction::Info).is_err());
    engine.stop();
}

#[test]
fn an_unloaded_model_comes_back_with_its_sessions() {
    let engine = Engine::start_to_reload(&small_pool());
    let session = engine.session();
    let begun = engine.run(request(session, &prompt(1, 40), 6));
    let text = [prompt(1, 40), begun.tokens, prompt(2, 5)].concat();
    let alone = engine.run(request(None, &text, 8)).tokens;

    assert!(engine.unload() && engine.unload(), "off, and off again");
    let status = engine.status();
    assert_eq!((status.loaded, status.device_bytes, status.sessions), (false, 0, 1));
    assert_eq!(engine.info(session).place, CachePlace::Host);
    let fork = engine.fork(session, None, Some(20)).unwrap();
    assert_eq!((fork.tokens, fork.cached_tokens), (20, 0));
    engine.load();
    let again = engine.run(request(session, &text, 8));
    assert_eq!((again.tokens, again.cached_tokens), (alone.clone(), 45));

    // A request that comes after all has the model loaded.
    assert!(engine.unload());
    assert_eq!(engine.run(request(fork.id, &text, 8)).tokens, alone);
    // One that runs keeps it where it is.
    let mut running = engine.generate(request(session, &prompt(3, 8), 60));
    running.blocking_recv().expect("the engine lives");
    assert!(!engine.unload());
    assert_eq!(finish(running).tokens.len(), 60);
    engine.stop();
}

/// More often than there may be sessions, while somebody's answer runs.
#[test]
fn a_session_that_reaches_nobody_is_closed() {
    let engine = Engine::start(&small_pool());
    let origin = engine.session();
    engine.run(request(origin, &prompt(1, 20), 1));
    let mut running = engine.generate(request(None, &prompt(2, 4), 80));
    running.blocking_recv().expect("the engine lives");
    for number in 0..3 * small_pool().sessions_max {
        let name = (number % 2 == 0).then(|| format!("session {number}"));
        engine.create_and_go(SessionOptions { name: name.clone(), ..SessionOptions::default() });
        let (owner, session, at) = (OWNER, origin, None);
        let fork = |reply| EngineCommand::ForkSession { owner, session, name, at, reply };
        let fork = engine.send(owner, fork);
        engine.status(); // it was answered before
        drop(fork);
        // Nor does one appear whose caller was gone before.
        let options = SessionOptions::default();
        drop(engine.send(owner, |reply| EngineCommand::CreateSession { owner, options, reply }));
    }
    let listed: Vec<_> = engine.list().into_iter().map(|info| info.id).collect();
    assert_eq!(listed, [origin]);
    assert_eq!(engine.status().sessions, 1);
    finish(running);
    engine.close(origin);
    assert_eq!(engine.status().kv_tokens_used, 0, "forks gave their pages back");
    engine.stop();
}

#[test]
fn a_guard_closes_its_session_and_knows_when_it_is_over() {
    let engine = Engine::start(&small_pool());
    let create = || {
        let (owner, options) = (OWNER, SessionOptions::default());
        let create = |reply| EngineCommand::CreateSession { owner, options, reply };
        engine.ask(create).expect("room for a session")
    };
    let (owned, closed, kept) = (create(), create(), create());
    assert!(!owned.guard.is_over());
    engine.close(closed.info.id);
    assert!(closed.guard.is_over());
    kept.guard.keep();
    drop((owned.guard, closed.guard));
    let listed: Vec<_> = engine.list().into_iter().map(|info| info.id).collect();
    assert_eq!(listed, [kept.info.id]);
    engine.stop();
}
