//! A Vulkan device whose calls fail: the engine opens it again, and the streams go on.

#[path = "common/random.rs"]
mod random;
#[path = "common/streams.rs"]
mod streams;
#[path = "idea/tiny.rs"]
mod tiny;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hob::engine::{self, EngineHandle, EngineOptions, EngineThread};
use hob::gpu::Executor;
use hob::scheduler::{Batch, TokenSpan};
use hob::vulkan::{Faults, VulkanConfig, VulkanExecutor};
use streams::{Failure, finish, generate, join, recoveries, request};

const TIMEOUT: i32 = 2;
const ERROR_OUT_OF_HOST_MEMORY: i32 = -1;
const ERROR_OUT_OF_DEVICE_MEMORY: i32 = -2;
const ERROR_INITIALIZATION_FAILED: i32 = -3;
const ERROR_DEVICE_LOST: i32 = -4;

/// A call, how many of it come before, and its VkResult.
type Point = (&'static str, u64, i32);

/// Each has a failure while the engine serves, and one that follows it: later, or in the recovery.
const SCENES: [[Point; 2]; 3] = [
    [("vkQueueSubmit", 3, ERROR_DEVICE_LOST), ("vkWaitSemaphores", 10, TIMEOUT)],
    [
        ("vkAllocateCommandBuffers", 0, ERROR_OUT_OF_HOST_MEMORY),
        ("vkCreateDevice", 0, ERROR_INITIALIZATION_FAILED),
    ],
    [
        ("vkCreateDescriptorPool", 1, ERROR_OUT_OF_DEVICE_MEMORY),
        ("vmaCreateBuffer", 5, ERROR_OUT_OF_DEVICE_MEMORY),
    ],
];

fn start(
    model: &Path,
    cache: &Path,
    faults: &Arc<Faults>,
) -> Result<(EngineHandle, EngineThread), Failure> {
    let options = EngineOptions {
        context_tokens: 96,
        kv_tokens: 192,
        reopen_pause: Duration::ZERO,
        ..EngineOptions::default()
    };
    let config = VulkanConfig {
        pipeline_cache_dir: Some(cache.to_owned()),
        faults: Some(Arc::clone(faults)),
        ..VulkanConfig::default()
    };
    let open = Box::new(move || Ok(Box::new(VulkanExecutor::new(&config)?) as Box<dyn Executor>));
    let opened = engine::open_with(open, model, &options, &mut |_, _| {})?;
    Ok(engine::start(opened, &options)?)
}

#[test]
fn streams_survive_calls_that_fail() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let [model, _] = tiny::write(folder.path());
    let play = |engine: &EngineHandle| {
        let both = [generate(engine, request(None, 1))?, generate(engine, request(None, 2))?];
        both.into_iter().map(finish).collect::<Result<Vec<_>, Failure>>()
    };
    let faults = Arc::new(Faults::default());
    let (engine, thread) = start(&model, folder.path(), &faults)?;
    let expected = play(&engine)?;
    join(engine, thread)?;
    for scene in SCENES {
        let (engine, thread) = start(&model, folder.path(), &faults)?;
        for (call, after, result) in scene {
            faults.add(call, after, result);
        }
        assert_eq!(play(&engine)?, expected, "{scene:?}");
        if faults.left() > 0 {
            assert_eq!(play(&engine)?, expected, "{scene:?}");
        }
        assert_eq!(faults.left(), 0, "{scene:?} did not happen");
        assert!(recoveries(&engine)? > 0, "{scene:?}");
        join(engine, thread)?;
    }
    Ok(())
}

#[test]
fn a_step_that_was_warmed_up_compiles_nothing() -> Result<(), Failure> {
    const TOKENS: usize = 17;
    let folder = tempfile::tempdir()?;
    let [model, _] = tiny::write(folder.path());
    let options = EngineOptions { context_tokens: 96, ..EngineOptions::default() };
    let mut found = Vec::new();
    for warm in [false, true] {
        let faults = Arc::new(Faults::default());
        let config = VulkanConfig { faults: Some(Arc::clone(&faults)), ..VulkanConfig::default() };
        let executor = Box::new(VulkanExecutor::new(&config)?);
        let runner = &mut engine::open(executor, &model, &options, &mut |_, _| {})?.runner;
        if warm {
            runner.warm_up(TOKENS)?;
        }
        let (kv, executor) = runner.kv_mut();
        let mut lease = kv.lease()?;
        kv.grow(executor, &mut lease, 0, TOKENS)??;
        let tokens = (0..TOKENS as u32).collect();
        let span = TokenSpan { table: lease.table(), position: 0, tokens, logits: 1 };
        let batch = Batch { spans: vec![span] };
        faults.add("vkCreateComputePipelines", 0, ERROR_OUT_OF_HOST_MEMORY);
        let first = runner.step(&batch);
        assert_eq!((first.is_ok(), faults.left()), (warm, usize::from(warm)), "{first:?}");
        runner.step(&batch)?; // nothing was left behind by what came before
        found.push(runner.logits(0).to_vec());
    }
    assert_eq!(found[0], found[1]);
    Ok(())
}
