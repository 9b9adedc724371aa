//! Uploads to memory that the host does not see take turns with recordings, and nobody waits but
//! the device; under the validation layer with synchronization validation.
//!
//! No driver of the tests that executes anything has a second queue. So contents are held against
//! what they should be where uploads and recordings share a queue, which they do by the same
//! submissions and semaphores as elsewhere; and on the mock driver, which has a second queue and
//! computes nothing, the validation layer follows both.
#![allow(clippy::unwrap_used)]

#[path = "common/device.rs"]
mod device;

use std::env;
use std::process::Command;

use hob::gpu::{BufferDesc, BufferSlice, BufferUsage, Executor, Recording};
use hob::vulkan::{VulkanConfig, VulkanExecutor};

/// Where the mock driver has a queue besides the one that computes; it decodes video as well.
const MOCK_FAMILY: u32 = 1;

const ROUNDS: u8 = 12;
/// Not a whole number of words, so that the end is looked at as well.
const BYTES: u64 = (1 << 20) + 3;

fn create(executor: &mut VulkanExecutor, label: &str) -> BufferSlice {
    let desc = BufferDesc { label: label.into(), bytes: BYTES, usage: BufferUsage::Kv };
    BufferSlice { buffer: executor.create_buffer(&desc).unwrap(), offset: 0, bytes: BYTES }
}

/// Overwrites one buffer again and again, while recordings copy it elsewhere: each copy, and the
/// buffer as the last recording leaves it.
fn take_turns(executor: &mut VulkanExecutor) -> Vec<Vec<u8>> {
    let source = create(executor, "source");
    let copies: Vec<_> = (0..ROUNDS).map(|_| create(executor, "copy")).collect();
    for (round, copy) in (1..).zip(&copies) {
        let mut recording = Recording::new();
        recording.copy(source, *copy);
        recording.zero(BufferSlice { bytes: 8, ..source });
        let prepared = executor.prepare(&recording).unwrap();
        executor.write(source.buffer, 0, BYTES as usize, &mut |out| out.fill(round)).unwrap();
        // Over what the last upload wrote.
        executor.write(source.buffer, 16, 8, &mut |out| out.fill(100 + round)).unwrap();
        executor.submit(prepared).unwrap();
    }
    executor.write(source.buffer, 4, 8, &mut |out| out.fill(200)).unwrap();
    let read = |slice: &BufferSlice| {
        let mut out = vec![0xee; BYTES as usize];
        executor.read(slice.buffer, 0, &mut out).unwrap();
        out
    };
    copies.iter().chain([&source]).map(read).collect()
}

/// Opens a device whose memory the host does not see, plays, and looks for messages; the families
/// in use and what was read.
fn play(disable_timeline: bool, transfer_family: Option<u32>) -> (Vec<u32>, Vec<Vec<u8>>) {
    let config = VulkanConfig {
        validation: true,
        disable_timeline,
        transfer_family,
        ..VulkanConfig::default()
    };
    let mut executor = VulkanExecutor::with_separate_memory(&config).unwrap();
    let messages = executor.messages();
    let families = executor.queue_families();
    let found = take_turns(&mut executor);
    drop(executor);
    // The mock driver says that nothing can be allocated, and allocates.
    messages.lock().unwrap().retain(|text| !text.contains("than maxMemoryAllocationSize (0)"));
    device::assert_silent(&messages);
    (families, found)
}

#[test]
fn recordings_see_the_uploads_before_them_and_no_later_ones() {
    for disable_timeline in [false, true] {
        let (_, found) = play(disable_timeline, None);
        for (round, copy) in (1..=ROUNDS).zip(&found) {
            let mut wanted = vec![round; BYTES as usize];
            wanted[16..24].fill(100 + round);
            assert!(*copy == wanted, "round {round}, timeline {}", !disable_timeline);
        }
        let source = &found[usize::from(ROUNDS)];
        let wanted = [[0, 200, 200], [ROUNDS, 100 + ROUNDS, 100 + ROUNDS]].concat();
        let words: Vec<u8> = source[..24].chunks_exact(4).map(|word| word[0]).collect();
        assert_eq!(words, wanted, "timeline {}", !disable_timeline);
        assert!(source[24..].iter().all(|byte| *byte == ROUNDS));
    }
}

#[test]
fn memory_that_the_host_sees_is_written_without_a_copy() {
    // Every driver of the tests is one of these.
    let straight = VulkanExecutor::new(&VulkanConfig::default()).unwrap();
    assert!(straight.capabilities().unified_memory);
    let staged = VulkanExecutor::with_separate_memory(&VulkanConfig::default()).unwrap();
    for (mut executor, copies) in [(straight, false), (staged, true)] {
        let buffer = create(&mut executor, "written").buffer;
        let before = executor.memory().used_bytes;
        executor.write(buffer, 1, 7, &mut |out| out.copy_from_slice(b"written")).unwrap();
        let mut found = [0; 9];
        executor.read(buffer, 0, &mut found).unwrap();
        assert_eq!(&found, b"\0written\0");
        assert_eq!(executor.memory().used_bytes > before, copies, "buffers to copy through");
    }
}

#[test]
fn uploads_go_through_a_queue_of_their_own() {
    if env::var_os("HOB_DRIVER").is_some_and(|driver| driver == "mock") {
        for disable_timeline in [false, true] {
            let (families, _) = play(disable_timeline, Some(MOCK_FAMILY));
            assert_eq!(families, [0, MOCK_FAMILY], "timeline {}", !disable_timeline);
        }
        return;
    }
    let mock = concat!(env!("CARGO_MANIFEST_DIR"), "/target/drivers/mock/run.sh");
    let this = env::args().next().expect("the program's own path");
    let name = "uploads_go_through_a_queue_of_their_own";
    let played = Command::new(mock).args([&this, "--exact", name]).output();
    let played = played.unwrap_or_else(|error| panic!("{mock}: {error}; run `make drivers`"));
    let said = String::from_utf8_lossy(&played.stdout);
    assert!(played.status.success() && said.contains("1 passed"), "{said}");
}
