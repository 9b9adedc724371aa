//! One module a shader, and the helper they share: a [`Case`] collects buffers and dispatches, runs
//! them on both executors and compares what they leave behind.

mod attention;
mod attention_tiled;
mod block_sums;
mod embed;
mod fma_peak;
mod gather_rows;
mod glu;
mod layer_norm;
mod mask;
mod matmul;
mod matmul_bytes;
mod matmul_experts;
mod matmul_sliced;
mod matmul_tiled;
mod maxima;
mod moe_combine;
mod moe_lists;
mod moe_route;
mod penalise;
mod qkv_post;
mod quantize_x;
mod read_stream;
mod rms_norm;
mod sample;
mod weights;

use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use half::f16;
use hob::gpu::{
    BufferDesc, BufferHandle, BufferSlice, BufferUsage, Capabilities, Command, Executor, Recording,
};
use hob::kernels::PageLayout;
use hob::reference::ReferenceExecutor;
use hob::vulkan::VulkanExecutor;

use crate::device;
use crate::random::Random;

/// Fill of all memory that no kernel may read: NaN as f32 and as f16.
const GARBAGE: u8 = 0xff;

/// Garbage bytes in front of each slice and, bound with it, behind it.
const GUARD_BYTES: usize = 256;

/// How long one case may take; drivers compile within it only on their first submission.
const TIMEOUT: Duration = Duration::from_secs(600);

/// What the values of an output are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    F32,
    F16,
    /// Blocks of 32 bytes with their scale, and the sums of both halves.
    Blocks,
    /// All positions of whole pages, as values; a scale of garbage makes all of a block NaN.
    Pages(PageLayout),
}

/// A buffer to compare after the run.
struct Output {
    name: String,
    slice: BufferSlice,
    kind: Kind,
    /// Values that must be finite at the end; all others must still be garbage.
    finite: usize,
    /// Largest difference.
    tolerance: f32,
    /// Whether that is a part of the value itself.
    relative: bool,
}

/// Dispatches over buffers that start with the same contents on both executors. Slices name buffers
/// by their index here.
pub(crate) struct Case {
    caps: Capabilities,
    random: Random,
    buffers: Vec<Vec<u8>>,
    outputs: Vec<Output>,
    recording: Recording,
}

impl Case {
    fn new(caps: &Capabilities, seed: u64) -> Self {
        println!("seed {seed}"); // shown where a test fails
        Self {
            caps: caps.clone(),
            random: Random::new(seed),
            buffers: Vec::new(),
            outputs: Vec::new(),
            recording: Recording::new(),
        }
    }

    /// A buffer that holds `bytes` alone.
    fn plane(&mut self, bytes: Vec<u8>) -> BufferHandle {
        self.buffers.push(bytes);
        BufferHandle(self.buffers.len() as u32 - 1)
    }

    /// A slice with `values` at its start and garbage around them.
    fn slice<T: bytemuck::NoUninit>(&mut self, values: &[T]) -> BufferSlice {
        let guard = GUARD_BYTES.next_multiple_of(self.caps.storage_align as usize);
        let mut bytes = vec![GARBAGE; guard];
        bytes.extend_from_slice(bytemuck::cast_slice(values));
        bytes.extend([GARBAGE; GUARD_BYTES]);
        let (offset, bytes_bound) = (guard as u64, (bytes.len() - guard) as u64);
        BufferSlice { buffer: self.plane(bytes), offset, bytes: bytes_bound }
    }

    /// Random floats between -1 and 1.
    fn floats(&mut self, count: usize) -> BufferSlice {
        let values = self.random.floats(count, -1.0, 1.0);
        self.slice(&values)
    }

    /// `count` floats of garbage.
    fn garbage(&mut self, count: usize) -> BufferSlice {
        self.slice(&vec![u32::from_le_bytes([GARBAGE; 4]); count])
    }

    /// Compares `slice` at the end: `finite` of its values must be finite, and as the twin's within
    /// `tolerance`; the rest must still be garbage.
    fn expect(
        &mut self,
        name: String,
        slice: BufferSlice,
        kind: Kind,
        finite: usize,
        tolerance: f32,
    ) {
        self.outputs.push(Output { name, slice, kind, finite, tolerance, relative: false });
    }

    /// The same with a tolerance that is a part of each value.
    fn expect_relative(
        &mut self,
        name: String,
        slice: BufferSlice,
        kind: Kind,
        finite: usize,
        tolerance: f32,
    ) {
        self.expect(name, slice, kind, finite, tolerance);
        self.outputs.last_mut().expect("it was added").relative = true;
    }

    /// The outputs' bytes after a run on `executor`.
    fn run_on(&self, executor: &mut dyn Executor) -> Vec<Vec<u8>> {
        let handles: Vec<BufferHandle> = self
            .buffers
            .iter()
            .enumerate()
            .map(|(index, bytes)| {
                let label = format!("buffer {index}");
                let desc =
                    BufferDesc { label, bytes: bytes.len() as u64, usage: BufferUsage::Scratch };
                let handle = executor.create_buffer(&desc).unwrap();
                executor
                    .write(handle, 0, bytes.len(), &mut |out| out.copy_from_slice(bytes))
                    .unwrap();
                handle
            })
            .collect();
        let there =
            |slice: BufferSlice| BufferSlice { buffer: handles[slice.buffer.0 as usize], ..slice };
        let mut recording = self.recording.clone();
        for command in &mut recording.commands {
            let Command::Dispatch(dispatch) = command else { panic!("cases dispatch") };
            dispatch.bindings.iter_mut().for_each(|slice| *slice = there(*slice));
        }
        let prepared = executor.prepare(&recording).unwrap();
        let ticket = executor.submit(prepared).unwrap();
        executor.wait(ticket, TIMEOUT).unwrap();
        executor.release(prepared);
        let read = |output: &Output| {
            let slice = there(output.slice);
            let mut bytes = vec![0; slice.bytes as usize];
            executor.read(slice.buffer, slice.offset, &mut bytes).unwrap();
            bytes
        };
        let found = self.outputs.iter().map(read).collect();
        handles.into_iter().for_each(|handle| executor.destroy_buffer(handle));
        found
    }

    /// Runs on the device and on the twin and compares all outputs; returns the device's.
    fn check(&self, device: &mut dyn Executor) -> Vec<Vec<f32>> {
        let found = self.run_on(device);
        let wanted = self.run_on(&mut ReferenceExecutor::with_lanes(self.caps.lanes));
        let mut worst = 0.0_f32;
        let mut values = Vec::new();
        for ((output, found), wanted) in self.outputs.iter().zip(&found).zip(&wanted) {
            let (found, wanted) = (decode(found, output.kind), decode(wanted, output.kind));
            worst = worst.max(output.compare(&found, &wanted));
            values.push(found);
        }
        println!("largest difference, as a part of what is allowed: {worst:.3}");
        values
    }
}

impl Output {
    /// Largest difference over the tolerance.
    fn compare(&self, found: &[f32], wanted: &[f32]) -> f32 {
        let name = &self.name;
        let finite = wanted.iter().filter(|value| value.is_finite()).count();
        assert_eq!(finite, self.finite, "{name}: finite values of the twin");
        let mut worst = 0.0_f32;
        for (index, (found, wanted)) in found.iter().zip(wanted).enumerate() {
            if found.to_bits() == wanted.to_bits() {
                continue; // infinities too
            }
            if wanted.is_nan() {
                assert!(
                    found.is_nan(),
                    "{name}: {found} at {index}, where nothing is to be written"
                );
                continue;
            }
            let off = (found - wanted).abs();
            let tolerance = self.tolerance * if self.relative { wanted.abs() } else { 1.0 };
            assert!(
                off <= tolerance,
                "{name}: {found} at {index}, {wanted} wanted: off by {off}, {tolerance} allowed"
            );
            worst = worst.max(off / tolerance.max(f32::MIN_POSITIVE));
        }
        worst
    }
}

fn decode(bytes: &[u8], kind: Kind) -> Vec<f32> {
    match kind {
        Kind::F32 => bytes
            .chunks_exact(4)
            .map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]]))
            .collect(),
        Kind::F16 => bytes
            .chunks_exact(2)
            .map(|pair| f16::from_le_bytes([pair[0], pair[1]]).to_f32())
            .collect(),
        Kind::Blocks => bytes.chunks_exact(48).flat_map(decode_block).collect(),
        Kind::Pages(layout) => decode_pages(bytes, &layout),
    }
}

/// Values of a block, then the sums of its halves.
fn decode_block(bytes: &[u8]) -> Vec<f32> {
    let floats: Vec<f32> = decode(&bytes[32..], Kind::F32);
    let values = bytes[..32].iter().map(|byte| f32::from(byte.cast_signed()) * floats[0]);
    values.chain(floats[1..3].iter().copied()).collect()
}

/// Heads of keys, then of values, of each position of each whole page.
fn decode_pages(bytes: &[u8], layout: &PageLayout) -> Vec<f32> {
    let words: &[u32] = bytemuck::cast_slice(bytes);
    let pages = bytes.len() as u64 / layout.page_bytes();
    let heads = pages as u32 * PageLayout::TOKENS * 2 * layout.kv_heads;
    let mut values = vec![0.0; (heads * layout.head_dim) as usize];
    for (index, head) in (0..).zip(values.chunks_exact_mut(layout.head_dim as usize)) {
        let (at, kv_head) = (index / layout.kv_heads, index % layout.kv_heads);
        let (slot, page) = (at / 2 % PageLayout::TOKENS, at / 2 / PageLayout::TOKENS);
        layout.load(words, page, slot, kv_head, at % 2 == 1, head);
    }
    values
}

/// Runs `body` with a device as it is, and with one whose shaders do without subgroup operations.
///
/// All tests share the two, because compiling pipelines takes most of their time.
fn on_both_variants(body: impl Fn(&mut dyn Executor, &Capabilities)) {
    static OPEN: [OnceLock<Mutex<VulkanExecutor>>; 2] = [OnceLock::new(), OnceLock::new()];
    for (disable_subgroup_ops, executor) in [false, true].into_iter().zip(&OPEN) {
        let executor = executor.get_or_init(|| Mutex::new(device::open(disable_subgroup_ops)));
        // A test that failed leaves an executor that others can still use.
        let mut executor = executor.lock().unwrap_or_else(PoisonError::into_inner);
        println!("subgroup operations: {}", executor.capabilities().subgroup_ops);
        let caps = executor.capabilities().clone();
        body(&mut *executor, &caps);
        device::assert_silent(&executor.messages());
    }
}

/// Whether the driver takes too long to compile large shaders of this variant.
fn compiles_slowly(caps: &Capabilities) -> bool {
    !caps.subgroup_ops && device::compiles_variants_slowly()
}
