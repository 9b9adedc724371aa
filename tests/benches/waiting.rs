//! How long an interactive request waits for its first token: alone, and while a long prompt of the
//! background is computed.
//!
//!     cargo bench --bench waiting [-- MODEL [BACKGROUND_TOKENS]]
//!
//! The model is SmolLM2-135M of `make models` unless one is named; the driver is the system's, or
//! the one that the environment names (`tests/drivers/README.md`).
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use hob::engine::{
    self, CancelFlag, Constraints, Control, EngineCommand, EngineEvent, EngineHandle,
    EngineOptions, GenerateRequest, Owner, Priority, SamplingParams,
};
use hob::vulkan::{VulkanConfig, VulkanExecutor};
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

const MODEL: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/target/models/SmolLM2-135M-Instruct.Q4_1.gguf");
const BACKGROUND_TOKENS: usize = 8000;
const PROMPT_TOKENS: usize = 32;
const ALONE: u64 = 20;

/// Between two requests: somebody reads and types.
const PAUSE: Duration = Duration::from_millis(100);

type Events = UnboundedReceiver<EngineEvent>;

fn main() {
    let mut args = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let model = args.next().map_or_else(|| PathBuf::from(MODEL), PathBuf::from);
    let background = args.next().map_or(BACKGROUND_TOKENS, |count| count.parse().unwrap());
    let options = EngineOptions { context_tokens: background + 64, ..EngineOptions::default() };
    let executor = Box::new(VulkanExecutor::new(&VulkanConfig::default()).expect("a device"));
    let opened = engine::open(executor, &model, &options, &mut |_, _| {}).expect("a model");
    let (engine, thread) = engine::start(opened, &options).unwrap();

    wait(&engine, 0); // what the driver compiles is compiled now
    println!("first token of an interactive prompt of {PROMPT_TOKENS} tokens, in ms");
    println!("                         requests      p50      p99      max");
    report("alone", (1..=ALONE).map(|seed| wait(&engine, seed)).collect());
    let mut long = ask(&engine, prompt(background, ALONE + 1), Priority::Background);
    let (started, mut beside) = (Instant::now(), Vec::new());
    while matches!(long.try_recv(), Err(TryRecvError::Empty)) {
        beside.push(wait(&engine, ALONE + 2 + beside.len() as u64));
    }
    let seconds = started.elapsed().as_secs_f64();
    report(&format!("beside {background} tokens"), beside);
    println!("the long prompt took {seconds:.0} s");
    engine.commands.control(Control::Shutdown).unwrap();
    thread.join().unwrap().unwrap();
}

/// Asks for one token and waits for it.
fn wait(engine: &EngineHandle, seed: u64) -> Duration {
    std::thread::sleep(PAUSE);
    let started = Instant::now();
    let mut events = ask(engine, prompt(PROMPT_TOKENS, seed), Priority::Interactive);
    let first = events.blocking_recv();
    assert!(matches!(first, Some(EngineEvent::Token { .. })), "{first:?}");
    started.elapsed()
}

fn ask(engine: &EngineHandle, tokens: Vec<u32>, priority: Priority) -> Events {
    let (events, incoming) = unbounded_channel();
    let request = GenerateRequest {
        owner: Owner { uid: 1000 + u32::from(priority == Priority::Background) },
        session: None,
        tokens,
        tokens_max: 1,
        sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
        stop: Vec::new(),
        logprobs: None,
        prompt_logprobs: None,
        stream: true,
        report_start: false,
        adapters: Vec::new(),
        priority: Some(priority),
        deadline: None,
        cancel: CancelFlag::default(),
        constraints: Constraints::default(),
    };
    let request = Box::new(request);
    engine
        .commands
        .blocking_send(request.owner, EngineCommand::Generate { request, events })
        .unwrap();
    incoming
}

/// A prompt that begins like no other.
fn prompt(tokens: usize, seed: u64) -> Vec<u32> {
    (0..tokens as u64).map(|at| ((at * 7919 + seed * 104_729) % 40_000 + 100) as u32).collect()
}

fn report(name: &str, mut times: Vec<Duration>) {
    times.sort();
    let ms = |at: f64| times[((times.len() - 1) as f64 * at).round() as usize].as_secs_f64() * 1e3;
    println!("{name:<24} {:>8} {:>8.0} {:>8.0} {:>8.0}", times.len(), ms(0.5), ms(0.99), ms(1.0));
}
