//! A device that fails: streams go on with the tokens that they would have had.

#[path = "common/faults.rs"]
mod faults;
#[path = "common/random.rs"]
mod random;
#[path = "common/streams.rs"]
mod streams;
#[path = "idea/tiny.rs"]
mod tiny;

use std::path::Path;
use std::time::Duration;

use faults::{CALLS, Call, Failing, Fault, Plan};
use hob::engine::{
    self, EngineFailure, EngineHandle, EngineOptions, EngineThread, FinishReason, GenerateRequest,
    GenerateResult,
};
use hob::gpu::DeviceError;
use hob::reference::ReferenceExecutor;
use random::Random;
use streams::{Failure, create_session, finish, generate, join, play, recoveries, request};

/// Random points at which the device is lost.
const POINTS: u64 = 200;

/// An engine on a device that fails by the plan.
fn start(model: &Path, plan: &Plan) -> Result<(EngineHandle, EngineThread), Failure> {
    start_with(model, plan, EngineOptions::default())
}

fn start_with(
    model: &Path,
    plan: &Plan,
    options: EngineOptions,
) -> Result<(EngineHandle, EngineThread), Failure> {
    let options = EngineOptions {
        context_tokens: 96,
        kv_tokens: 288,
        sessions_max: 8,
        reopen_pause: Duration::ZERO,
        ..options
    };
    let opener = plan.clone();
    let open = Box::new(move || opener.open(ReferenceExecutor::new()));
    let opened = engine::open_with(open, model, &options, &mut |_, _| {})?;
    Ok(engine::start(opened, &options)?)
}

fn random_error(random: &mut Random) -> DeviceError {
    match random.below(4) {
        0 => DeviceError::Timeout { waited_ms: 1 },
        1 => DeviceError::OutOfMemory { what: "x".into(), wanted_bytes: 1, free_bytes: 0 },
        2 => DeviceError::Call { call: "x", result: "ERROR_UNKNOWN".into() },
        _ => DeviceError::Lost { call: "x" },
    }
}

/// One or two faults: the second hits whatever comes after the first, the recovery too.
fn random_faults(random: &mut Random, undisturbed: &[(Call, u64)]) -> Vec<Fault> {
    let (call, count) = undisturbed[random.below(undisturbed.len() as u32) as usize];
    let first = Fault {
        call: Some(call),
        nth: random.next() % count,
        failing: Failing::With(random_error(random)),
    };
    let call = CALLS[random.below(CALLS.len() as u32) as usize];
    let nth = match call {
        Call::Open => 0,
        _ => random.next() % 40,
    };
    let second = Fault { call: Some(call), nth, failing: Failing::With(random_error(random)) };
    let count = 1 + random.below(2) as usize;
    [first, second].into_iter().take(count).collect()
}

#[test]
fn streams_go_on_with_the_same_tokens_wherever_the_device_is_lost() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let [model, _] = tiny::write(folder.path());
    let plan = Plan::default();
    let (engine, thread) = start(&model, &plan)?;
    plan.set([]);
    let expected = play(&engine)?;
    let undisturbed: Vec<(Call, u64)> = plan.counts().into_iter().collect();
    join(engine, thread)?;
    let kinds: Vec<Call> = undisturbed.iter().map(|(call, _)| *call).collect();
    assert_eq!(kinds, [Call::Write, Call::Read, Call::Prepare, Call::Submit, Call::Wait]);

    let points = |first: u64| -> Result<usize, Failure> {
        let mut happened = 0;
        for seed in (first..POINTS).step_by(2) {
            let plan = Plan::default();
            let (engine, thread) = start(&model, &plan)?;
            let faults = random_faults(&mut Random::new(seed), &undisturbed);
            plan.set(faults.clone());
            // How many steps there are depends on how early the requests meet.
            for _ in 0..3 {
                assert_eq!(play(&engine)?, expected, "seed {seed}: {faults:?}");
                if plan.left() < faults.len() {
                    break;
                }
            }
            let lost = faults.len() - plan.left();
            assert!(lost > 0, "seed {seed}: {faults:?} did not happen");
            assert!(recoveries(&engine)? > 0, "seed {seed}: {faults:?}");
            join(engine, thread)?;
            happened += lost;
        }
        Ok(happened)
    };
    let lost = std::thread::scope(|scope| {
        let odd = scope.spawn(|| points(1));
        let even = points(0)?;
        Ok::<_, Failure>(even + odd.join().map_err(|_| "a point failed, see above")??)
    })?;
    println!("{POINTS} points, {lost} losses");
    Ok(())
}

#[test]
fn the_third_loss_in_ten_minutes_ends_the_engine() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let [model, _] = tiny::write(folder.path());
    let plan = Plan::default();
    let (engine, thread) = start(&model, &plan)?;
    plan.set([2, 3, 1].map(|nth| Fault::lost(Call::Submit, nth)));
    let result = finish(generate(&engine, request(None, 2))?)?;
    assert_eq!(result.finish_reason, FinishReason::Error);
    assert!(result.error.is_some_and(|text| text.contains("3 times")), "it says why");
    assert_eq!(plan.opened(), 3, "once at the start, and after two losses");
    let ended = thread.join().map_err(|_| "the engine panicked")?;
    assert!(matches!(ended, Err(EngineFailure::Losses(DeviceError::Lost { .. }))), "{ended:?}");
    Ok(())
}

#[test]
fn logits_that_are_no_numbers_once_are_cured_by_a_new_device() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let [model, _] = tiny::write(folder.path());
    let plan = Plan::default();
    let (engine, thread) = start(&model, &plan)?;
    let ask = || finish(generate(&engine, request(None, 1))?);
    let expected = ask()?;
    let spoilt = |nth| Fault { call: Some(Call::Read), nth, failing: Failing::NotANumber };
    plan.set([spoilt(3)]);
    assert_eq!(ask()?, expected);
    assert_eq!((plan.left(), recoveries(&engine)?), (0, 1));
    // Again, and lately: now the request is to blame, and nobody else pays for it.
    plan.set([spoilt(1)]);
    let result = ask()?;
    assert_eq!(result.finish_reason, FinishReason::Error);
    assert_eq!((plan.left(), recoveries(&engine)?), (0, 1));
    join(engine, thread)
}

#[test]
fn where_the_device_chooses_no_token_the_host_does() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let [model, _] = tiny::write(folder.path());
    let plan = Plan::default();
    let (engine, thread) = start(&model, &plan)?;
    for number in [0, 2] {
        let ask = || finish(generate(&engine, request(None, number))?);
        let expected = ask()?;
        for nth in 0..expected.tokens.len() as u64 {
            plan.set([Fault { call: Some(Call::Read), nth, failing: Failing::NotANumber }]);
            assert_eq!(ask()?, expected, "read {nth}");
            assert_eq!((plan.left(), recoveries(&engine)?), (0, 0), "read {nth}");
        }
    }
    join(engine, thread)
}

#[test]
fn a_model_that_nobody_uses_leaves_the_device_and_comes_back() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let [model, _] = tiny::write(folder.path());
    let plan = Plan::default();
    let options =
        EngineOptions { idle_unload: Some(Duration::from_millis(20)), ..EngineOptions::default() };
    let (engine, thread) = start_with(&model, &plan, options)?;
    let session = create_session(&engine)?;
    let expected = finish(generate(&engine, request(Some(session), 1))?)?;
    // Asking does not count as use, so in the end it is gone.
    let gone = loop {
        let status = streams::status(&engine)?;
        if !status.loaded {
            break status;
        }
        std::thread::yield_now();
    };
    assert_eq!((gone.device_bytes, gone.kv_tokens_used, gone.recoveries), (0, 0, 0));
    assert_eq!((gone.device.as_str(), gone.decode_tokens), ("reference", 6));
    assert!(gone.host_cache_bytes > 0, "the session's cache is with the host");
    let again = GenerateRequest { prompt_logprobs: None, ..request(Some(session), 1) };
    let expected = GenerateResult { prompt_logprobs: None, ..expected };
    let prompt_tokens = again.tokens.len() as u64;
    assert_eq!(finish(generate(&engine, again)?)?, expected);
    assert!(plan.opened() > 1, "it was opened again");
    let status = streams::status(&engine)?;
    assert_eq!(status.cached_tokens - gone.cached_tokens, prompt_tokens - 1);
    join(engine, thread)
}
