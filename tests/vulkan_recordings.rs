//! What the Vulkan executor makes of recordings, with kernels written for the tests: constants,
//! offsets, hazards, subgroups, staging and misuse, under the validation layer.
#![allow(clippy::unwrap_used)]

#[path = "common/device.rs"]
mod device;
#[path = "common/glsl.rs"]
mod glsl;
#[path = "common/random.rs"]
mod random;

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hob::gpu::{
    Access, BufferDesc, BufferHandle, BufferSlice, BufferUsage, Command, DeviceError, Dispatch,
    Executor, Kernel, PreparedId, Recording,
};
use hob::vulkan::{VulkanConfig, VulkanExecutor};
use random::Random;

/// Software drivers compile within the first submission.
const TIMEOUT: Duration = Duration::from_secs(120);

const ALL_USAGES: [BufferUsage; 5] = [
    BufferUsage::Weights,
    BufferUsage::Kv,
    BufferUsage::Scratch,
    BufferUsage::Upload,
    BufferUsage::Readback,
];

/// An executor whose validation messages are looked at once it is gone, so that leaks count too.
struct Checked {
    executor: Option<VulkanExecutor>,
    messages: Arc<Mutex<Vec<String>>>,
}

impl Checked {
    fn new(executor: VulkanExecutor) -> Self {
        let messages = executor.messages();
        Self { executor: Some(executor), messages }
    }

    fn open() -> Self {
        Self::new(device::open(false))
    }

    fn buffer(&mut self, bytes: u64, usage: BufferUsage) -> BufferHandle {
        let label = format!("{usage:?} of {bytes}");
        self.create_buffer(&BufferDesc { label, bytes, usage }).unwrap()
    }

    fn filled(&mut self, values: &[u32]) -> BufferSlice {
        let bytes = 4 * values.len() as u64;
        let buffer = self.buffer(bytes, BufferUsage::Scratch);
        self.put(buffer, 0, bytemuck::cast_slice(values));
        BufferSlice { buffer, offset: 0, bytes }
    }

    fn put(&mut self, buffer: BufferHandle, offset: u64, bytes: &[u8]) {
        let mut fill = |out: &mut [u8]| out.copy_from_slice(bytes);
        self.write(buffer, offset, bytes.len(), &mut fill).unwrap();
    }

    fn bytes(&mut self, slice: BufferSlice) -> Vec<u8> {
        let mut out = vec![0xa5; slice.bytes as usize];
        self.read(slice.buffer, slice.offset, &mut out).unwrap();
        out
    }

    fn words(&mut self, slice: BufferSlice) -> Vec<u32> {
        self.bytes(slice)
            .chunks_exact(4)
            .map(|w| u32::from_le_bytes(w.try_into().unwrap()))
            .collect()
    }

    fn run(&mut self, recording: &Recording) -> PreparedId {
        let prepared = self.prepare(recording).unwrap();
        let ticket = self.submit(prepared).unwrap();
        self.wait(ticket, TIMEOUT).unwrap();
        prepared
    }
}

impl Deref for Checked {
    type Target = VulkanExecutor;

    fn deref(&self) -> &VulkanExecutor {
        self.executor.as_ref().unwrap()
    }
}

impl DerefMut for Checked {
    fn deref_mut(&mut self) -> &mut VulkanExecutor {
        self.executor.as_mut().unwrap()
    }
}

impl Drop for Checked {
    fn drop(&mut self) {
        self.executor = None;
        if !std::thread::panicking() {
            device::assert_silent(&self.messages);
        }
    }
}

/// `to[i] = factor * from[i] + plus`.
fn scale(kernel: &'static Kernel, from: BufferSlice, to: BufferSlice, by: (u32, u32)) -> Dispatch {
    let count = (from.bytes / 4) as u32;
    Dispatch {
        kernel,
        spec: vec![32, 1, 1, by.0],
        bindings: vec![from, to],
        push: [count.to_le_bytes(), by.1.to_le_bytes()].concat(),
        pointers: 0,
        groups: [count.div_ceil(32), 1, 1],
    }
}

#[test]
fn what_is_written_is_read_back_at_any_offset_and_size() {
    // More than one piece of staging, and not a whole number of words.
    const LARGE: usize = (33 << 20) + 3;
    let mut random = Random::new(7);
    let data: Vec<u8> = (0..LARGE).map(|_| random.next() as u8).collect();
    let config = VulkanConfig { validation: true, ..Default::default() };
    let staged = VulkanExecutor::with_separate_memory(&config).unwrap();
    assert!(!staged.capabilities().unified_memory);
    for mut device in [Checked::open(), Checked::new(staged)] {
        for usage in ALL_USAGES {
            let buffer = device.buffer(4099, usage);
            let fresh = device.bytes(BufferSlice { buffer, offset: 0, bytes: 4099 });
            let undefined = matches!(usage, BufferUsage::Weights | BufferUsage::Kv);
            assert!(undefined || fresh.iter().all(|byte| *byte == 0), "{usage:?} starts at zero");
            device.put(buffer, 0, &data[..4099]);
            device.put(buffer, 0, &[]);
            device.put(buffer, 4099, &[]);
            for (offset, bytes) in [(0, 4099), (1, 4098), (4098, 1), (17, 40), (100, 0)] {
                let slice = BufferSlice { buffer, offset, bytes };
                let at = offset as usize;
                assert_eq!(device.bytes(slice), data[at..at + bytes as usize], "{usage:?}");
            }
            device.put(buffer, 3, &[1, 2, 3]);
            let found = device.bytes(BufferSlice { buffer, offset: 0, bytes: 8 });
            let wanted = [&data[..3], &[1, 2, 3], &data[6..8]].concat();
            assert_eq!(found, wanted, "{usage:?}: neighbours stay");
        }
        let buffer = device.buffer(LARGE as u64 + 64, BufferUsage::Weights);
        device.put(buffer, 61, &data);
        let found = device.bytes(BufferSlice { buffer, offset: 61, bytes: LARGE as u64 });
        assert!(found == data, "a large write comes back");
    }
}

#[test]
fn a_dispatch_sees_constants_parameters_and_offsets() {
    let mut device = Checked::open();
    let kernel = glsl::scale();
    let align = device.capabilities().storage_align;
    let values: Vec<u32> = (0..1000).collect();
    let source = device.buffer(align + 4000, BufferUsage::Upload);
    device.put(source, align, bytemuck::cast_slice(&values));
    let target = device.buffer(2 * align + 4000, BufferUsage::Readback);
    let from = BufferSlice { buffer: source, offset: align, bytes: 4000 };
    let to = BufferSlice { buffer: target, offset: 2 * align, bytes: 4000 };
    for by in [(3, 5), (7, 1)] {
        let mut recording = Recording::new();
        recording.dispatch(scale(kernel, from, to, by));
        let prepared = device.run(&recording);
        let wanted: Vec<u32> = values.iter().map(|value| by.0 * value + by.1).collect();
        assert_eq!(device.words(to), wanted);
        device.release(prepared);
    }
    let before = BufferSlice { buffer: target, offset: 0, bytes: 2 * align };
    assert!(device.bytes(before).iter().all(|byte| *byte == 0), "nothing before the offset");
}

/// One random command, on the device's recording and on the host's copy of the buffers.
fn random_command(
    random: &mut Random,
    kernel: &'static Kernel,
    slices: &[BufferSlice],
    host: &mut [Vec<u32>],
) -> Command {
    let from = random.below(slices.len() as u32) as usize;
    let to = (from + 1 + random.below(slices.len() as u32 - 1) as usize) % slices.len();
    match random.below(4) {
        0 => {
            host[to].fill(0);
            Command::Zero(slices[to])
        }
        1 => {
            host[to] = host[from].clone();
            Command::Copy { from: slices[from], to: slices[to] }
        }
        _ => {
            let by = (1 + random.below(3), random.below(1000));
            let scaled = |value: &u32| value.wrapping_mul(by.0).wrapping_add(by.1);
            host[to] = host[from].iter().map(scaled).collect();
            Command::Dispatch(scale(kernel, slices[from], slices[to], by))
        }
    }
}

#[test]
fn commands_see_the_writes_of_those_before_them() {
    let kernel = glsl::scale();
    let mut device = Checked::open();
    for seed in 0..8 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        // Slices side by side in one buffer, and one in another.
        let values: Vec<u32> = (0..64).map(|_| random.next() as u32).collect();
        let stride = device.capabilities().storage_align.max(256);
        let buffer = device.buffer(4 * stride, BufferUsage::Scratch);
        let mut slices: Vec<BufferSlice> =
            (0..4).map(|i| BufferSlice { buffer, offset: i * stride, bytes: 256 }).collect();
        slices.push(device.filled(&values));
        let mut host = vec![vec![0; 64]; 4];
        host.push(values);
        let mut recording = Recording::new();
        for _ in 0..60 {
            let command = random_command(&mut random, kernel, &slices, &mut host);
            recording.commands.push(command);
        }
        let prepared = device.run(&recording);
        for (slice, wanted) in slices.iter().zip(&host) {
            assert_eq!(device.words(*slice), *wanted);
        }
        device.release(prepared);
    }
}

#[test]
fn validation_catches_a_kernel_that_lies_about_its_writes() {
    let honest = glsl::scale();
    let liar = Box::leak(Box::new(Kernel {
        name: "liar",
        bindings: &[Access::Read, Access::Read],
        ..*honest
    }));
    let mut device = Checked::open();
    let a = device.filled(&[1; 64]);
    let b = device.filled(&[2; 64]);
    let mut recording = Recording::new();
    recording.dispatch(scale(liar, a, b, (1, 0)));
    recording.dispatch(scale(liar, b, a, (1, 0)));
    device.run(&recording);
    let said = std::mem::take(&mut *device.messages.lock().unwrap());
    assert!(said.iter().any(|text| text.to_lowercase().contains("hazard")), "{said:?}");
}

#[test]
fn subgroup_kernels_run_with_full_subgroups_of_the_lanes() {
    let body = "#extension GL_KHR_shader_subgroup_shuffle : require
        layout(binding = 0) buffer A { uint a[]; };
        void main() {
            uint sum = gl_LocalInvocationID.x;
            for (uint step = gl_SubgroupSize / 2; step > 0; step /= 2)
                sum += subgroupShuffleXor(sum, step);
            a[2 * gl_LocalInvocationID.x] = gl_SubgroupSize;
            a[2 * gl_LocalInvocationID.x + 1] = sum;
        }";
    let kernel = glsl::kernel("sum", body);
    assert!(kernel.uses_subgroups);
    let mut device = Checked::open();
    let caps = device.capabilities().clone();
    assert!(caps.subgroup_ops, "the drivers of the tests all have subgroup operations");
    let lanes = caps.lanes;
    let out = device.filled(&vec![0; 2 * lanes as usize]);
    let mut recording = Recording::new();
    recording.dispatch(Dispatch {
        kernel,
        spec: vec![lanes, 1, 1],
        bindings: vec![out],
        push: Vec::new(),
        pointers: 0,
        groups: [1, 1, 1],
    });
    device.run(&recording);
    let pair = [lanes, lanes * (lanes - 1) / 2];
    assert_eq!(device.words(out), pair.repeat(lanes as usize));

    let without = Checked::new(device::open(true));
    assert!(!without.capabilities().subgroup_ops);
    assert!(without.capabilities().lanes.is_power_of_two());
}

#[test]
fn memory_that_runs_out_is_an_error_and_then_comes_back() {
    let mut device = Checked::open();
    let report = device.memory();
    let piece = device.capabilities().allocation_bytes_max.min(report.budget_bytes / 3) / 4 * 4;
    let desc = BufferDesc { label: "piece".into(), bytes: piece, usage: BufferUsage::Weights };
    let mut pieces = Vec::new();
    let error = loop {
        // Weights are not touched when they are created, so this takes no real memory.
        match device.create_buffer(&desc) {
            Ok(buffer) => pieces.push(buffer),
            Err(error) => break error,
        }
        assert!(pieces.len() < 10_000, "a budget of {} bytes never ends", report.budget_bytes);
        assert!(device.memory().used_bytes >= pieces.len() as u64 * piece);
    };
    let DeviceError::OutOfMemory { what, wanted_bytes, .. } = error else { panic!("{error}") };
    assert_eq!((what.as_str(), wanted_bytes), ("piece", piece));
    pieces.into_iter().for_each(|buffer| device.destroy_buffer(buffer));
    assert_eq!(device.memory().used_bytes, report.used_bytes);
    device.filled(&[1; 64]);
}

#[test]
#[should_panic(expected = "of 256 bytes")]
fn a_slice_past_its_buffer_is_a_bug() {
    let mut device = Checked::open();
    let slice = BufferSlice { bytes: 260, ..device.filled(&[0; 64]) };
    let mut recording = Recording::new();
    recording.zero(slice);
    let _ = device.prepare(&recording);
}

#[test]
fn timings_are_those_of_the_last_submission() {
    let mut device = Checked::open();
    let (a, b) = (device.filled(&[1; 4096]), device.filled(&[0; 4096]));
    let mut recording = Recording::new();
    recording.dispatch(scale(glsl::scale(), a, b, (2, 0)));
    recording.copy(b, a);
    recording.zero(b);
    let plain = device.run(&recording);
    assert_eq!(device.timings(plain).unwrap(), [], "profiling was off");
    device.set_profiling(true);
    let profiled = device.prepare(&recording).unwrap();
    assert_eq!(device.timings(profiled).unwrap(), [], "never submitted");
    for _ in 0..3 {
        device.submit(profiled).unwrap();
    }
    let timings = device.timings(profiled).unwrap();
    if device.capabilities().timestamp_period_ns > 0.0 {
        let names: Vec<_> = timings.iter().map(|timing| timing.name.as_str()).collect();
        assert_eq!(names, ["scale", "copy", "fill"]);
        assert!(timings.iter().all(|timing| timing.nanoseconds >= 0.0), "{timings:?}");
    } else {
        assert_eq!(timings, [], "this device has no timestamps");
    }
}

#[test]
fn destroying_a_buffer_forgets_the_recordings_that_name_it() {
    let mut device = Checked::open();
    let (a, b) = (device.filled(&[1; 64]), device.filled(&[2; 64]));
    let mut recording = Recording::new();
    recording.copy(a, b);
    let prepared = device.prepare(&recording).unwrap();
    device.submit(prepared).unwrap();
    device.destroy_buffer(a.buffer);
    assert_eq!(device.words(b), [1; 64], "what was submitted before is done");
    device.release(prepared);
    let submitted =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| device.submit(prepared)));
    assert!(submitted.is_err(), "a recording that is gone cannot be submitted");
}
