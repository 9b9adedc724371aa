//! Who chooses tokens, the device or the host, and when: nobody can tell by the tokens.

#[path = "engine_support/mod.rs"]
mod engine_support;
#[path = "common/faults.rs"]
mod faults;
#[path = "common/random.rs"]
mod random;
#[path = "idea/tiny.rs"]
mod tiny;

use engine_support::{Engine, finish, prompt, request, small_pool};
use faults::{Call, Plan};
use hob::engine::{self, EngineEvent, FinishReason, GenerateRequest, SamplingParams};
use hob::reference::ReferenceExecutor;
use std::time::Instant;

/// An engine, and what its executor is asked.
fn start() -> (Engine, Plan) {
    let plan = Plan::default();
    let opener = plan.clone();
    let open = Box::new(move || opener.open(ReferenceExecutor::new()));
    (Engine::start_with(open, &small_pool()), plan)
}

/// How often something was submitted while what was submitted before had not been waited for.
fn submitted_ahead(order: &[Call]) -> usize {
    let (mut submitted, mut complete, mut ahead) = (0, 0, 0);
    for call in order {
        match call {
            Call::Submit => {
                ahead += usize::from(submitted > complete);
                submitted += 1;
            }
            Call::Wait => complete += 1,
            _ => {}
        }
    }
    ahead
}

fn params(kind: u64) -> SamplingParams {
    let plain = SamplingParams {
        temperature: 1.2,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repeat_penalty: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        seed: Some(kind),
        ..SamplingParams::default()
    };
    match kind % 6 {
        0 => SamplingParams { temperature: 0.0, ..plain },
        1 => {
            let presence_penalty = 0.2 * (kind / 6) as f32;
            SamplingParams { temperature: 0.0, repeat_penalty: 1.3, presence_penalty, ..plain }
        }
        2 => plain,
        3 => SamplingParams { top_k: 20, top_p: 0.9, repeat_penalty: 1.1, ..plain },
        4 => SamplingParams { top_p: 0.7, min_p: 0.02, frequency_penalty: 0.4, ..plain },
        _ => SamplingParams { seed: Some(kind), ..SamplingParams::default() },
    }
}

#[test]
fn host_and_device_choose_the_same_tokens_alone_and_together() {
    let (engine, plan) = start();
    let of = |kind: u64, logprobs| GenerateRequest {
        sampling: params(kind),
        logprobs,
        ..request(None, &prompt(kind as u32, 5), 14)
    };
    let on_host: Vec<Vec<u32>> = (0..12).map(|kind| engine.run(of(kind, Some(1))).tokens).collect();
    assert_ne!(on_host[2], on_host[8], "the seed matters");
    plan.take_ran();
    for (kind, wanted) in (0..).zip(&on_host) {
        assert_eq!(&engine.run(of(kind, None)).tokens, wanted, "{:?}", params(kind));
    }
    let ran = plan.take_ran();
    assert!(["maxima", "penalise", "sample"].iter().all(|kernel| ran.contains(*kernel)));
    // Together, with one among them that needs its logits, and beside one that needs no token.
    for first in (0..12).step_by(3) {
        let kinds = first..first + 3;
        let all: Vec<_> = kinds
            .clone()
            .map(|kind| engine.generate(of(kind, (kind % 3 == 1).then_some(1))))
            .collect();
        let evaluated = engine.generate(request(None, &prompt(9, 40), 0));
        for (kind, events) in kinds.zip(all) {
            assert_eq!(finish(events).tokens, on_host[kind as usize], "{:?}", params(kind));
        }
        assert_eq!(finish(evaluated).finish_reason, FinishReason::Length);
    }
    engine.stop();
}

#[test]
fn each_step_is_submitted_before_the_token_of_the_last_is_read() {
    let (engine, plan) = start();
    // The engine zeroes pages before it rests: what it answers at rest comes behind that, and calls
    // are counted from there on.
    let count_from_rest = || {
        engine.status();
        plan.set([]);
    };
    // A second request of the same shape has nothing left to prepare.
    for _ in 0..2 {
        count_from_rest();
        let started = Instant::now();
        let result = engine.run(request(None, &prompt(1, 9), 20));
        assert_eq!((result.tokens.len(), result.timings.steps), (20, 20));
        // What ends by its length is known to, and one page holds it all: only the first step has
        // none before it, and only a tick of the clock comes between two others. Ticks are at least
        // TICK apart, however slow the machine is.
        let ticks_max = 1 + (started.elapsed().as_secs_f64() / engine::TICK.as_secs_f64()) as usize;
        let order: Vec<Call> = plan.order();
        let ahead = submitted_ahead(&order);
        assert!(ahead <= 19 && ahead + 1 + ticks_max >= 20, "{ahead} {ticks_max} {order:?}");
    }
    count_from_rest();
    let needs_logits = GenerateRequest { logprobs: Some(1), ..request(None, &prompt(1, 9), 20) };
    engine.run(needs_logits);
    assert_eq!(submitted_ahead(&plan.order()), 0, "the host chooses, and is waited for");
    engine.stop();
}

#[test]
fn a_step_too_many_leaves_no_trace() {
    let (engine, _) = start();
    let text = prompt(3, 9);
    let whole = engine.run(request(None, &text, 24));
    for length in [1, 4, 9] {
        let stopping = |session| GenerateRequest {
            stop: vec![format!("t{}", whole.tokens[length])],
            ..request(session, &text, 24)
        };
        let session = engine.session();
        let stopped = engine.run(stopping(Some(session)));
        assert_eq!(stopped.finish_reason, FinishReason::Stop);
        let count = stopped.tokens.len();
        assert!(count <= length + 1, "{count} tokens");
        assert_eq!(stopped.tokens, whole.tokens[..count]);
        let computed = (text.len() + count - 1) as u32;
        assert_eq!(engine.info(session).tokens, computed);
        // The session goes on from a cache that a surplus token was written behind.
        let mut longer = text.clone();
        longer.extend(&stopped.tokens);
        longer.extend([7, 8, 9]);
        let again = engine.run(request(session, &longer, 8));
        assert!(again.cached_tokens >= computed);
        assert_eq!(again.tokens, engine.run(request(None, &longer, 8)).tokens);
    }
    engine.stop();
}

#[test]
fn a_cancelled_request_leaves_its_session_whole() {
    let (engine, _) = start();
    let text = prompt(5, 9);
    let whole = engine.run(request(None, &text, 60));
    let session = engine.session();
    let cancelled = request(session, &text, 60);
    let flag = cancelled.cancel.clone();
    let mut events = engine.generate(cancelled);
    let mut heard = 0;
    let result = loop {
        match events.blocking_recv() {
            Some(EngineEvent::Token { .. }) => {
                heard += 1;
                if heard == 5 {
                    flag.raise();
                }
            }
            Some(EngineEvent::Done(result)) => break result,
            other => panic!("wanted a result, found {other:?}"),
        }
    };
    let count = result.tokens.len();
    assert_eq!(result.tokens, whole.tokens[..count]);
    let mut longer = text;
    longer.extend(&result.tokens);
    let again = engine.run(request(session, &longer, 60 - count as u32));
    assert_eq!(again.tokens, whole.tokens[count..]);
    engine.stop();
}
