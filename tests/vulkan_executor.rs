//! The Vulkan executor's own duties: buffers, recordings that are replayed, hazards, timings,
//! refusals; under the validation layer with synchronization validation.
#![allow(clippy::unwrap_used)]

#[path = "common/device.rs"]
mod device;
#[path = "common/random.rs"]
mod random;

use std::time::Duration;

use hob::gpu::{
    BufferDesc, BufferHandle, BufferSlice, BufferUsage, DeviceError, Executor, Recording,
};
use hob::kernels::gather_rows;
use hob::kernels::glu::{self, Glu};
use hob::kernels::rms_norm::{self, RmsNorm};
use hob::reference::ReferenceExecutor;
use hob::vulkan::{VulkanConfig, VulkanExecutor};
use random::Random;

const TIMEOUT: Duration = Duration::from_secs(60);

const USAGES: [BufferUsage; 5] = [
    BufferUsage::Weights,
    BufferUsage::Kv,
    BufferUsage::Scratch,
    BufferUsage::Upload,
    BufferUsage::Readback,
];

/// Opens the device, runs `body`, drops the executor with all that is left in it, and looks for
/// messages.
fn with_device(body: impl FnOnce(&mut VulkanExecutor)) {
    let mut executor = device::open(false);
    let messages = executor.messages();
    body(&mut executor);
    drop(executor);
    device::assert_silent(&messages);
}

fn create(executor: &mut dyn Executor, bytes: u64, usage: BufferUsage) -> BufferSlice {
    let desc = BufferDesc { label: format!("{usage:?} of {bytes}"), bytes, usage };
    BufferSlice { buffer: executor.create_buffer(&desc).unwrap(), offset: 0, bytes }
}

fn write(executor: &mut dyn Executor, buffer: BufferHandle, offset: u64, bytes: &[u8]) {
    executor.write(buffer, offset, bytes.len(), &mut |out| out.copy_from_slice(bytes)).unwrap();
}

fn read(executor: &mut dyn Executor, buffer: BufferHandle, offset: u64, count: usize) -> Vec<u8> {
    let mut out = vec![0xee; count];
    executor.read(buffer, offset, &mut out).unwrap();
    out
}

fn upload(executor: &mut dyn Executor, values: &[f32]) -> BufferSlice {
    let bytes: &[u8] = bytemuck::cast_slice(values);
    let slice = create(executor, bytes.len() as u64, BufferUsage::Scratch);
    write(executor, slice.buffer, 0, bytes);
    slice
}

fn download(executor: &mut dyn Executor, slice: BufferSlice) -> Vec<f32> {
    let bytes = read(executor, slice.buffer, slice.offset, slice.bytes as usize);
    bytes.chunks_exact(4).map(|word| f32::from_le_bytes(word.try_into().unwrap())).collect()
}

fn run(executor: &mut dyn Executor, recording: &Recording) {
    let prepared = executor.prepare(recording).unwrap();
    let ticket = executor.submit(prepared).unwrap();
    executor.wait(ticket, TIMEOUT).unwrap();
    executor.release(prepared);
}

fn random_bytes(seed: u64, count: usize) -> Vec<u8> {
    println!("seed {seed}");
    let mut random = Random::new(seed);
    (0..count).map(|_| random.next() as u8).collect()
}

#[test]
fn what_is_written_is_read_back_from_any_offset() {
    with_device(|executor| {
        for usage in USAGES {
            let slice = create(executor, 4001, usage);
            let mut expected = random_bytes(1, 4001);
            write(executor, slice.buffer, 0, &expected);
            for (offset, count) in [(0, 5), (4, 1), (1024, 333), (3996, 5), (100, 0)] {
                let piece = random_bytes(offset as u64, count);
                write(executor, slice.buffer, offset as u64, &piece);
                expected[offset..offset + count].copy_from_slice(&piece);
            }
            assert_eq!(read(executor, slice.buffer, 0, 4001), expected, "{usage:?}");
            assert_eq!(read(executor, slice.buffer, 1020, 77), expected[1020..1097], "{usage:?}");
        }
    });
}

#[test]
fn buffers_begin_as_zeros_even_where_memory_was_used_before() {
    with_device(|executor| {
        for usage in [BufferUsage::Scratch, BufferUsage::Upload, BufferUsage::Readback] {
            for round in 0..3 {
                let slice = create(executor, 100_000, usage);
                let found = read(executor, slice.buffer, 0, 100_000);
                assert!(found.iter().all(|byte| *byte == 0), "{usage:?}, round {round}");
                write(executor, slice.buffer, 0, &vec![0xa5; 100_000]);
                executor.destroy_buffer(slice.buffer);
            }
        }
    });
}

#[test]
fn more_than_a_staging_buffer_is_written_and_read_at_once() {
    const BYTES: usize = (40 << 20) + 12;
    with_device(|executor| {
        let slice = create(executor, BYTES as u64 + 64, BufferUsage::Weights);
        let expected: Vec<u8> = (0..BYTES as u32 / 4)
            .flat_map(|word| word.wrapping_mul(2_654_435_761).to_le_bytes())
            .collect();
        write(executor, slice.buffer, 64, &expected);
        assert!(
            read(executor, slice.buffer, 64, BYTES) == expected,
            "40 MiB come back as they were"
        );
    });
}

#[test]
fn a_recording_is_replayed_over_new_contents() {
    with_device(|executor| {
        let caps = executor.capabilities().clone();
        let x = upload(executor, &[[1.0; 4], [2.0; 4], [3.0; 4]].concat());
        let rows = create(executor, 8, BufferUsage::Upload);
        let y = create(executor, 32, BufferUsage::Readback);
        let mut recording = Recording::new();
        gather_rows::record(&mut recording, &caps, x, rows, y, 4, 2);
        let prepared = executor.prepare(&recording).unwrap();
        for wanted in [[0_u32, 1], [2, 0], [1, 1]] {
            write(executor, rows.buffer, 0, bytemuck::cast_slice(&wanted));
            let ticket = executor.submit(prepared).unwrap();
            executor.wait(ticket, TIMEOUT).unwrap();
            let expected: Vec<f32> = wanted.iter().flat_map(|row| [*row as f32 + 1.0; 4]).collect();
            assert_eq!(download(executor, y), expected);
        }
    });
}

#[test]
fn fences_tell_of_completion_where_there_are_no_timeline_semaphores() {
    let config = VulkanConfig { disable_timeline: true, ..VulkanConfig::default() };
    let mut executor = device::open_as(&config);
    let messages = executor.messages();
    let x = upload(&mut executor, &[1.0, 2.0]);
    let y = create(&mut executor, x.bytes, BufferUsage::Scratch);
    let mut recording = Recording::new();
    recording.copy(x, y);
    let prepared = executor.prepare(&recording).unwrap();
    let tickets: Vec<_> = (0..5).map(|_| executor.submit(prepared).unwrap()).collect();
    // In no order, and again: a ticket completes with all before it.
    for at in [2, 0, 4, 4, 1] {
        executor.wait(tickets[at], TIMEOUT).unwrap();
    }
    assert_eq!(download(&mut executor, y), [1.0, 2.0]);
    executor.submit(prepared).unwrap();
    drop(executor);
    device::assert_silent(&messages);
}

#[test]
fn submissions_run_in_the_order_of_their_tickets() {
    with_device(|executor| {
        let caps = executor.capabilities().clone();
        let x = upload(executor, &[1.0; 64]);
        let gain = upload(executor, &[1.0; 64]);
        let y = create(executor, 256, BufferUsage::Scratch);
        // Every submission adds 1 (x is normal already) to what the one before left.
        let mut recording = Recording::new();
        let args = RmsNorm { x, gain, y, dim: 64, epsilon: 0.0, residual: true };
        rms_norm::record(&mut recording, &caps, &args, 1);
        let prepared = executor.prepare(&recording).unwrap();
        let tickets: Vec<_> = (0..50).map(|_| executor.submit(prepared).unwrap()).collect();
        assert!(tickets.is_sorted(), "{tickets:?}");
        executor.wait(tickets[49], TIMEOUT).unwrap();
        executor.wait(tickets[0], Duration::ZERO).unwrap();
        let found = download(executor, y);
        assert!(found.iter().all(|value| (value - 50.0).abs() < 1e-3), "{found:?}");
    });
}

/// Reads after writes, writes after reads and writes after writes, of dispatches, copies and fills,
/// over whole buffers and parts of them.
fn tangle(executor: &mut dyn Executor) -> Vec<f32> {
    const DIM: u64 = 256;
    let caps = executor.capabilities().clone();
    let mut random = Random::new(9);
    let [a, b, c] =
        [0, 1, 2].map(|_| upload(executor, &random.floats(2 * DIM as usize, -1.0, 1.0)));
    let gain = upload(executor, &random.floats(DIM as usize, 0.5, 1.0));
    let half = |slice: BufferSlice, part: u64| BufferSlice {
        offset: part * DIM * 4,
        bytes: DIM * 4,
        ..slice
    };
    let mut recording = Recording::new();
    for round in 0..40 {
        let norm = |x, y, residual| RmsNorm { x, gain, y, dim: DIM, epsilon: 1e-5, residual };
        rms_norm::record(&mut recording, &caps, &norm(a, b, true), 2);
        recording.copy(half(b, 0), half(c, 1));
        recording.copy(half(b, 1), half(a, 0));
        rms_norm::record(&mut recording, &caps, &norm(c, a, false), 2);
        glu::record(&mut recording, &caps, &Glu::apart(a, half(c, 0), DIM, round % 2 == 0), 1);
        if round % 8 == 7 {
            recording.zero(half(b, round / 8 % 2));
        }
    }
    run(executor, &recording);
    [a, b, c].into_iter().flat_map(|slice| download(executor, slice)).collect()
}

#[test]
fn commands_see_the_writes_of_those_before_them() {
    // Differences of one place grow a little in 120 norms of norms.
    const TOLERANCE: f32 = 1e-3;
    let expected = tangle(&mut ReferenceExecutor::new());
    with_device(|executor| {
        let found = tangle(executor);
        assert_eq!(tangle(executor), found, "nothing depends on chance");
        for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert!((found - expected).abs() < TOLERANCE, "{found} at {index}, {expected} wanted");
        }
    });
}

#[test]
fn timings_name_every_command_and_only_while_profiling() {
    with_device(|executor| {
        let caps = executor.capabilities().clone();
        let x = upload(executor, &[1.0; 4096]);
        let y = create(executor, 8192, BufferUsage::Scratch);
        let z = create(executor, 8192, BufferUsage::Scratch);
        let mut recording = Recording::new();
        glu::record(&mut recording, &caps, &Glu::apart(x, y, 2048, false), 1);
        recording.copy(y, z);
        recording.zero(y);
        for profiling in [true, false] {
            executor.set_profiling(profiling);
            let prepared = executor.prepare(&recording).unwrap();
            for _ in 0..2 {
                let ticket = executor.submit(prepared).unwrap();
                executor.wait(ticket, TIMEOUT).unwrap();
                let timings = executor.timings(prepared).unwrap();
                let names: Vec<&str> = timings.iter().map(|timing| timing.name.as_str()).collect();
                if profiling && caps.timestamp_period_ns > 0.0 {
                    assert_eq!(names, ["glu", "copy", "fill"]);
                    let total: f64 = timings.iter().map(|timing| timing.nanoseconds).sum();
                    assert!((0.0..60e9).contains(&total), "{timings:?}");
                } else {
                    assert!(names.is_empty(), "{names:?}");
                }
            }
        }
    });
}

#[test]
fn a_wait_ends_in_time_and_can_be_repeated() {
    with_device(|executor| {
        let caps = executor.capabilities().clone();
        let x = upload(executor, &vec![1.0; 1 << 20]);
        let y = create(executor, 4 << 20, BufferUsage::Scratch);
        let gain = upload(executor, &[1.0; 1024]);
        let mut recording = Recording::new();
        for _ in 0..200 {
            let args = RmsNorm { x, gain, y, dim: 1024, epsilon: 1e-5, residual: true };
            rms_norm::record(&mut recording, &caps, &args, 1024);
        }
        let prepared = executor.prepare(&recording).unwrap();
        let ticket = executor.submit(prepared).unwrap();
        let refused = executor.wait(ticket, Duration::from_nanos(1));
        assert!(matches!(refused, Err(DeviceError::Timeout { .. })), "{refused:?}");
        executor.wait(ticket, TIMEOUT).unwrap();
        executor.wait(ticket, Duration::ZERO).unwrap();
    });
}

#[test]
fn a_buffer_too_large_is_refused_with_numbers() {
    with_device(|executor| {
        let small = create(executor, 1 << 20, BufferUsage::Kv);
        let before = executor.memory();
        assert_eq!(before.used_bytes, 1 << 20);
        assert!(before.budget_bytes > before.used_bytes, "{before:?}");
        for usage in USAGES {
            let desc = BufferDesc { label: "a lake".into(), bytes: 1 << 50, usage };
            match executor.create_buffer(&desc) {
                Err(DeviceError::OutOfMemory { what, wanted_bytes, free_bytes }) => {
                    assert_eq!((what.as_str(), wanted_bytes), ("a lake", 1 << 50));
                    assert!((1..1 << 50).contains(&free_bytes), "{free_bytes} are free");
                }
                other => panic!("{usage:?}: {other:?}"),
            }
        }
        assert_eq!(executor.memory().used_bytes, before.used_bytes, "nothing is kept");
        executor.destroy_buffer(small.buffer);
        assert_eq!(executor.memory().used_bytes, 0);
        create(executor, 1 << 20, BufferUsage::Kv);
    });
}

#[test]
fn recordings_beyond_the_devices_limits_are_refused() {
    with_device(|executor| {
        let caps = executor.capabilities().clone();
        let (x, y) = (upload(executor, &[1.0; 256]), upload(executor, &[1.0; 256]));
        let refused = |executor: &mut VulkanExecutor, recording: &Recording| match executor
            .prepare(recording)
        {
            Err(DeviceError::Unsupported { device, what, .. }) => {
                assert_eq!(device, caps.device_name);
                println!("refused: {what}");
            }
            other => panic!("{other:?}"),
        };
        if let Some(tokens) = caps.workgroup_count_max[0].checked_add(1) {
            let mut recording = Recording::new();
            glu::record(&mut recording, &caps, &Glu::apart(x, y, 4, false), tokens);
            refused(executor, &recording);
        }
        if caps.storage_align > 4 {
            let mut recording = Recording::new();
            let x = BufferSlice { offset: 4, bytes: x.bytes - 4, ..x };
            glu::record(&mut recording, &caps, &Glu::apart(x, y, 4, false), 1);
            refused(executor, &recording);
        }
        let mut recording = Recording::new();
        glu::record(&mut recording, &caps, &Glu::apart(x, y, 4, false), 1);
        recording.commands.iter_mut().for_each(|command| {
            let hob::gpu::Command::Dispatch(dispatch) = command else { panic!("a dispatch") };
            dispatch.spec[0] = caps.workgroup_invocations_max + 1;
        });
        refused(executor, &recording);
    });
}

#[test]
fn an_executor_that_is_busy_can_be_dropped_with_all_it_holds() {
    with_device(|executor| {
        let caps = executor.capabilities().clone();
        let x = upload(executor, &vec![1.0; 1 << 18]);
        let y = create(executor, 1 << 20, BufferUsage::Scratch);
        let gain = upload(executor, &[1.0; 256]);
        let mut recording = Recording::new();
        let args = RmsNorm { x, gain, y, dim: 256, epsilon: 1e-5, residual: true };
        rms_norm::record(&mut recording, &caps, &args, 1024);
        for profiling in [true, false] {
            executor.set_profiling(profiling);
            let prepared = executor.prepare(&recording).unwrap();
            for _ in 0..5 {
                executor.submit(prepared).unwrap();
            }
        }
        // A buffer in use, and a recording that names it, go while other work is under way.
        let other = create(executor, 1 << 20, BufferUsage::Upload);
        let mut copies = Recording::new();
        copies.copy(y, other);
        let prepared = executor.prepare(&copies).unwrap();
        executor.submit(prepared).unwrap();
        executor.destroy_buffer(other.buffer);
        let prepared = executor.prepare(&recording).unwrap();
        executor.submit(prepared).unwrap();
    });
}
