//! Grammars, biases and forbidden tokens of a generation: the same tokens whoever chooses them.

#![allow(clippy::unwrap_used)]

#[path = "engine_support/mod.rs"]
mod engine_support;
#[path = "common/faults.rs"]
mod faults;
#[path = "common/random.rs"]
mod random;
#[path = "idea/tiny.rs"]
mod tiny;

use engine_support::{Engine, finish, prompt, request, small_pool};
use faults::Plan;
use hob::engine::{Constraints, FinishReason, GenerateRequest, SamplingParams};
use hob::grammar::{BeginsAfter, GrammarKind, GrammarSource};
use hob::reference::ReferenceExecutor;

fn start() -> (Engine, Plan) {
    let plan = Plan::default();
    let opener = plan.clone();
    let open = Box::new(move || opener.open(ReferenceExecutor::new()));
    (Engine::start_with(open, &small_pool()), plan)
}

/// Tokens 10 to 19, at least one, and behind them one of 30 and 31.
const LARK: &str = "start: <[10-19]>+ <[30-31]>";

fn constraints(engine: &Engine, after: Option<BeginsAfter>) -> Constraints {
    let source = GrammarSource::new(GrammarKind::Lark, LARK);
    let grammar = engine.handle.grammars.compile(&source).unwrap();
    Constraints { grammar: Some(grammar), begins_after: after, ..Constraints::default() }
}

fn drawing(seed: u64, constraints: Constraints) -> GenerateRequest {
    let sampling = SamplingParams {
        temperature: 3.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        seed: Some(seed),
        ..SamplingParams::default()
    };
    let request = request(None, &prompt(seed as u32, 5), 30);
    GenerateRequest { sampling, constraints, ..request }
}

#[test]
fn host_and_device_follow_a_grammar_alike_alone_and_beside_others() {
    let (engine, plan) = start();
    let of =
        |seed, logprobs| GenerateRequest { logprobs, ..drawing(seed, constraints(&engine, None)) };
    let on_host: Vec<_> = (0..8).map(|seed| engine.run(of(seed, Some(1)))).collect();
    for result in &on_host {
        let (last, before) = result.tokens.split_last().unwrap();
        assert!(before.iter().all(|token| (10..20).contains(token)), "{:?}", result.tokens);
        match result.finish_reason {
            FinishReason::Stop => assert!([30, 31].contains(last) && !before.is_empty()),
            reason => assert_eq!((reason, result.tokens.len()), (FinishReason::Length, 30)),
        }
    }
    assert!(on_host.iter().any(|result| result.finish_reason == FinishReason::Stop));
    plan.take_ran();
    for (seed, wanted) in (0..).zip(&on_host) {
        let result = engine.run(of(seed, None));
        assert_eq!((&result.tokens, result.finish_reason), (&wanted.tokens, wanted.finish_reason));
    }
    assert!(plan.take_ran().contains("mask"), "the device chose");
    // Beside requests without a grammar, whose steps are submitted ahead.
    let free: Vec<_> =
        (20..22).map(|seed| engine.run(drawing(seed, Constraints::default())).tokens).collect();
    let others: Vec<_> =
        (20..22).map(|seed| engine.generate(drawing(seed, Constraints::default()))).collect();
    let all: Vec<_> = (0..4).map(|seed| engine.generate(of(seed, None))).collect();
    for (events, wanted) in all.into_iter().zip(&on_host) {
        assert_eq!(finish(events).tokens, wanted.tokens);
    }
    for (events, wanted) in others.into_iter().zip(free) {
        assert_eq!(finish(events).tokens, wanted);
    }
    engine.stop();
}

#[test]
fn a_grammar_begins_behind_a_token_or_a_text() {
    let (engine, _) = start();
    for after in [BeginsAfter::Token(12), BeginsAfter::Text("t12".into())] {
        for logprobs in [None, Some(1)] {
            let request = drawing(1, constraints(&engine, Some(after.clone())));
            // Without the bias, the token might not come at all.
            let bias = vec![(12, 20.0)];
            let biased = Constraints { bias, ..request.constraints.clone() };
            let result = engine.run(GenerateRequest { logprobs, constraints: biased, ..request });
            let at = result.tokens.iter().position(|token| *token == 12);
            let (_, behind) = result.tokens.split_at(at.expect("the bias brings it") + 1);
            let inside = &behind[..behind.len().saturating_sub(1)];
            assert!(!inside.is_empty(), "{:?}", result.tokens);
            assert!(inside.iter().all(|token| (10..20).contains(token)), "{:?}", result.tokens);
        }
    }
    engine.stop();
}

#[test]
fn forbidden_tokens_do_not_come_and_biases_count_on_host_and_device() {
    let (engine, _) = start();
    let plain = engine.run(drawing(3, Constraints::default())).tokens;
    let forbidden = plain.clone();
    let constraints = Constraints { forbidden: forbidden.clone(), ..Constraints::default() };
    let ask = |logprobs, constraints: &Constraints| {
        let request = drawing(3, constraints.clone());
        engine.run(GenerateRequest { logprobs, ..request }).tokens
    };
    let without = ask(None, &constraints);
    assert!(without.iter().all(|token| !forbidden.contains(token)));
    assert_eq!(ask(Some(1), &constraints), without);
    let constraints = Constraints { bias: vec![(40, 90.0)], ..Constraints::default() };
    assert_eq!(ask(None, &constraints), [40; 30]);
    assert_eq!(ask(Some(1), &constraints), [40; 30]);
    engine.stop();
}
