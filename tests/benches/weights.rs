//! Speed of one token's matmul with a matrix of each type, beside Q4_0's.
//!
//!     cargo bench --bench weights [-- ROWSxLENGTH] [TYPE...]
//!
//! Every round runs all types, one after the other; a type's ratio is the median of its rounds'
//! ratios, so that what slows the machine for a while slows both sides. The driver is the system's,
//! or the one that the environment names (`tests/drivers/README.md`).
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use hob::gpu::{BufferDesc, BufferSlice, BufferUsage, Executor, PreparedId, Recording};
use hob::kernels::PackedMatrix;
use hob::kernels::matmul::{self, Epilogue, Matmul};
use hob::tensor::layout::Layout;
use hob::tensor::{DType, Packing};
use hob::vulkan::{VulkanConfig, VulkanExecutor};

#[path = "../common/blocks.rs"]
mod blocks;
#[path = "../common/random.rs"]
mod random;

/// Rows and their length: few enough for a matrix of every type to stay in memory, enough to pass
/// the processor's caches.
const SHAPE: [u64; 2] = [4096, 2048];
const ROUNDS: usize = 15;
const TIMEOUT: Duration = Duration::from_secs(120);

/// The least ratios wanted: a grid may cost more than a shift and a mask.
fn wanted(dtype: DType) -> f64 {
    if ["IQ1", "IQ2", "IQ3"].iter().any(|family| dtype.name().starts_with(family)) {
        0.3
    } else {
        0.6
    }
}

fn main() {
    let mut names: Vec<String> = std::env::args().skip(1).filter(|n| n != "--bench").collect();
    let shape = names.first().and_then(|name| {
        let (rows, row_len) = name.split_once('x')?;
        Some([rows.parse().ok()?, row_len.parse().ok()?])
    });
    if shape.is_some() {
        names.remove(0);
    }
    let shape = shape.unwrap_or(SHAPE);
    let mut types = vec![DType::Q4_0];
    types.extend(DType::ALL.into_iter().filter(|dtype| {
        *dtype != DType::Q4_0 && (names.is_empty() || names.iter().any(|n| n == dtype.name()))
    }));
    let mut executor = VulkanExecutor::new(&VulkanConfig::default()).expect("a device");
    println!("{}, {} x {}", executor.capabilities().device_name, shape[0], shape[1]);
    let prepared: Vec<_> =
        types.iter().map(|dtype| prepare(&mut executor, *dtype, shape)).collect();
    let mut rounds = vec![Vec::new(); types.len()];
    for round in 0..=ROUNDS {
        for (prepared, times) in prepared.iter().zip(&mut rounds) {
            let started = Instant::now();
            let ticket = executor.submit(*prepared).unwrap();
            executor.wait(ticket, TIMEOUT).unwrap();
            if round > 0 {
                times.push(started.elapsed().as_secs_f64()); // the first compiles
            }
        }
    }
    println!("{:8} {:>14} {:>9} {:>7}", "type", "Mweights/s", "of Q4_0", "wanted");
    for (dtype, times) in types.iter().zip(&rounds) {
        let ratios = rounds[0].iter().zip(times).map(|(base, time)| base / time);
        let speed = (shape[0] * shape[1]) as f64 / median(times.iter().copied()) / 1e6;
        let ratio = median(ratios);
        let mark = if ratio < wanted(*dtype) { "  short" } else { "" };
        println!("{dtype:8} {speed:14.0} {ratio:9.2} {:7.1}{mark}", wanted(*dtype));
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// One token's matmul with a random matrix.
fn prepare(
    executor: &mut VulkanExecutor,
    dtype: DType,
    [total_rows, row_len]: [u64; 2],
) -> PreparedId {
    let caps = executor.capabilities().clone();
    let layout = Layout { dtype, rows: total_rows, row_len, lanes: caps.lanes.into() };
    let mut random = random::Random::new(1);
    let rows = blocks::random_rows(&mut random, dtype, total_rows, row_len);
    let packing = Packing::new(layout, caps.slices_weights());
    let (quad_bytes, word_bytes) = (packing.group_quad_bytes(), packing.group_word_bytes());
    let mut quads = vec![0; (quad_bytes * packing.groups()) as usize];
    let mut words = vec![0; (word_bytes * packing.groups()) as usize];
    let group_bytes = rows.len() / packing.groups() as usize;
    for (group, rows) in rows.chunks_exact(group_bytes).enumerate() {
        let (q, w) = (quad_bytes as usize, word_bytes as usize);
        packing.pack_group(rows, &mut quads[group * q..][..q], &mut words[group * w..][..w]);
    }
    let quads = buffer(executor, &quads).buffer;
    let words = (!words.is_empty()).then(|| buffer(executor, &words).buffer);
    let x = random.floats(row_len as usize, -1.0, 1.0);
    let x = buffer(executor, bytemuck::cast_slice(&x));
    let y = buffer(executor, &vec![0; total_rows as usize * 4]);
    let matmul = Matmul {
        weights: &PackedMatrix { layout, sliced: packing.sliced, quads, words },
        x,
        x_stride: row_len,
        y,
        y_stride: total_rows,
        y_offset: 0,
        tokens: 1,
        norm: None,
        bias: None,
        scale: 1.0,
        epilogue: Epilogue::Store,
        workspace: None,
    };
    let mut recording = Recording::new();
    matmul::record(&mut recording, &caps, &matmul);
    executor.prepare(&recording).unwrap()
}

fn buffer(executor: &mut VulkanExecutor, bytes: &[u8]) -> BufferSlice {
    let size = bytes.len() as u64;
    let desc = BufferDesc { label: "bench".to_owned(), bytes: size, usage: BufferUsage::Scratch };
    let buffer = executor.create_buffer(&desc).unwrap();
    executor.write(buffer, 0, bytes.len(), &mut |out| out.copy_from_slice(bytes)).unwrap();
    BufferSlice { buffer, offset: 0, bytes: size }
}
