//! The fuzz targets' bodies on stable: over their corpus, and over changes of it for a while.
//!
//! `HOB_FUZZ_SECONDS` says how long each target is fuzzed (1 without it), `HOB_FUZZ_TARGET` which,
//! `HOB_FUZZ_SEED` from which seed. No input may make a target panic, take more than a second, or
//! take memory out of proportion. What fails is written to `target/fuzz/`.

#![allow(clippy::unwrap_used, unsafe_code)]

#[path = "fuzz/mutate.rs"]
mod mutate;

use std::alloc::{GlobalAlloc, Layout, System};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mutate::Mutator;
use rustix::time::{ClockId, clock_gettime};

/// The system's allocator, and what it has given out.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn count(bytes: usize) {
    let live = LIVE.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(live, Ordering::Relaxed);
}

// SAFETY: every call goes to the system's allocator as it came; the counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's obligations are handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's obligations are handed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // Grown in place, where it can be: the peak is that of the new size.
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        count(bytes);
        // SAFETY: the caller's obligations are handed on.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Processor time that an input may take.
const TIME_MAX: Duration = Duration::from_secs(1);

/// Memory that any input may take: tables of the matchers and of the template engine.
const SMALL_BYTES: usize = 64 << 10;

/// A target, and the memory it may take for an input.
struct Target {
    name: &'static str,
    run: fn(&[u8]),
    /// Bytes for each byte of the input.
    factor: usize,
    /// Bytes beside.
    fixed: usize,
}

const TARGETS: [Target; 7] = [
    Target { name: "gguf", run: hob::gguf::fuzz_gguf, factor: 4, fixed: SMALL_BYTES },
    Target { name: "safetensors", run: hob::hf::fuzz_safetensors, factor: 4, fixed: SMALL_BYTES },
    // Ranks are padded.
    Target { name: "adapter", run: hob::model::fuzz_adapter, factor: 4, fixed: 8 << 20 },
    // A rule's patterns take some megabytes, when they are first used.
    Target { name: "tokenizer", run: hob::tokenizer::fuzz_tokenizer, factor: 200, fixed: 24 << 20 },
    // A template's output may be long: its steps bound it, not its length.
    Target { name: "template", run: hob::chat::fuzz_template, factor: 400, fixed: 400 << 20 },
    // A grammar's lexer may have many states: its fuel bounds it, not its length.
    Target { name: "gbnf", run: hob::grammar::fuzz_gbnf, factor: 400, fixed: 400 << 20 },
    Target { name: "schema", run: hob::grammar::fuzz_schema, factor: 400, fixed: 400 << 20 },
];

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

impl Target {
    /// Runs one input; what is wrong, if something is.
    fn check(&self, input: &[u8]) -> Result<(), String> {
        let (start, before) = (processor_time(), LIVE.load(Ordering::Relaxed));
        PEAK.store(before, Ordering::Relaxed);
        let outcome = catch_unwind(AssertUnwindSafe(|| (self.run)(input)));
        let took = processor_time().saturating_sub(start);
        let peak = PEAK.load(Ordering::Relaxed).saturating_sub(before);
        if outcome.is_err() {
            return Err("it panicked".to_owned());
        }
        if took > TIME_MAX {
            return Err(format!("it took {took:?}"));
        }
        let most = input.len() * self.factor + self.fixed;
        if peak > most {
            return Err(format!("it took {peak} bytes, at most {most} are right"));
        }
        Ok(())
    }

    /// Runs one input; writes it down where something is wrong.
    fn hold(&self, input: &[u8], origin: &str) {
        let Err(wrong) = self.check(input) else { return };
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/fuzz");
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join(format!("{}-failure", self.name));
        std::fs::write(&path, input).unwrap();
        panic!("{} on {origin} ({} bytes): {wrong}; {}", self.name, input.len(), path.display());
    }

    fn corpus(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
        let mut folders = vec![root.join("fuzz/corpus").join(self.name)];
        if self.name == "template" {
            folders.push(root.join("data/chat"));
        }
        let mut inputs = Vec::new();
        for folder in folders {
            for entry in std::fs::read_dir(&folder).unwrap() {
                let path = entry.unwrap().path();
                if path.extension().is_none_or(|ending| ending != "json" && ending != "py") {
                    inputs.push((path.clone(), std::fs::read(&path).unwrap()));
                }
            }
        }
        inputs.sort();
        assert!(!inputs.is_empty(), "no corpus of {}", self.name);
        inputs
    }
}

fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().and_then(|value| value.parse().ok()).unwrap_or(otherwise)
}

// One test, since what is measured is the whole process's.
#[test]
fn no_input_crashes_hangs_or_takes_the_memory() {
    let wanted = std::env::var("HOB_FUZZ_TARGET").ok();
    let seed = number("HOB_FUZZ_SEED", 1);
    let time = Duration::from_secs(number("HOB_FUZZ_SECONDS", 1));
    // Tables that are made once are no input's memory.
    TARGETS.iter().for_each(|target| (target.run)(b"bert\na b\n\na b"));
    for target in TARGETS.iter().filter(|target| wanted.as_deref().is_none_or(|w| w == target.name))
    {
        let corpus = target.corpus();
        for (path, input) in &corpus {
            target.hold(input, &path.display().to_string());
        }
        let mut mutator = Mutator::new(seed, corpus.into_iter().map(|(_, input)| input).collect());
        let (start, mut inputs) = (Instant::now(), 0_u64);
        while start.elapsed() < time {
            let input = mutator.next_input();
            target.hold(&input, &format!("input {inputs} of seed {seed}"));
            inputs += 1;
        }
        println!("{}: {inputs} inputs of seed {seed}", target.name);
    }
}
