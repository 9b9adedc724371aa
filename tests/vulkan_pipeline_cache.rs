//! The pipeline cache on disk: kept between runs, never trusted, never needed.
#![allow(clippy::unwrap_used)]

#[path = "common/device.rs"]
mod device;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hob::gpu::{BufferDesc, BufferSlice, BufferUsage, Capabilities, Executor, Recording};
use hob::kernels::gather_rows;
use hob::kernels::glu::{self, Glu};
use hob::vulkan::{VulkanConfig, VulkanExecutor};

/// Vulkan's header in front, and the checksum that hob puts behind.
const HEADER_BYTES: usize = 32;
const CHECKSUM_BYTES: usize = 8;

type Record = fn(&mut Recording, &Capabilities, BufferSlice, BufferSlice);

fn gather(recording: &mut Recording, caps: &Capabilities, x: BufferSlice, y: BufferSlice) {
    gather_rows::record(recording, caps, x, x, y, 4, 1);
}

fn gate(recording: &mut Recording, caps: &Capabilities, x: BufferSlice, y: BufferSlice) {
    glu::record(recording, caps, &Glu::apart(x, y, 4, false), 1);
}

/// Opens the device with the cache in `folder`, runs a kernel, and drops the executor.
fn run(folder: &Path, record: Record) {
    let pipeline_cache_dir = Some(folder.to_owned());
    let mut executor = device::open_as(&VulkanConfig { pipeline_cache_dir, ..Default::default() });
    let messages = executor.messages();
    run_kernel(&mut executor, record);
    drop(executor);
    device::assert_silent(&messages);
}

fn run_kernel(executor: &mut VulkanExecutor, record: Record) {
    let mut slice = |label: &str| {
        let desc = BufferDesc { label: label.into(), bytes: 256, usage: BufferUsage::Scratch };
        BufferSlice { buffer: executor.create_buffer(&desc).unwrap(), offset: 0, bytes: 256 }
    };
    let (x, y) = (slice("x"), slice("y"));
    let mut recording = Recording::new();
    record(&mut recording, &executor.capabilities().clone(), x, y);
    let prepared = executor.prepare(&recording).unwrap();
    let ticket = executor.submit(prepared).unwrap();
    executor.wait(ticket, Duration::from_secs(60)).unwrap();
}

/// The one file in `folder`, with its bytes.
fn only_file(folder: &Path) -> (PathBuf, Vec<u8>) {
    let files: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "one file and nothing temporary: {files:?}");
    (files[0].clone(), std::fs::read(&files[0]).unwrap())
}

/// What is logged while `body` runs on this thread.
fn logged(body: impl FnOnce()) -> String {
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);
    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let log = Log::default();
    let writer = log.clone();
    let subscriber =
        tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    tracing::subscriber::with_default(subscriber, body);
    let bytes = log.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap()
}

#[test]
fn pipelines_are_saved_and_loaded_again() {
    let folder = tempfile::tempdir().unwrap();
    let below = folder.path().join("made/on/demand");
    run(&below, gather);
    let (file, first) = only_file(&below);
    let name = file.file_name().unwrap().to_string_lossy().into_owned();
    assert!(name.starts_with("pipelines-") && name.ends_with(".bin"), "{name}");
    assert!(first.len() >= HEADER_BYTES + CHECKSUM_BYTES);
    assert_eq!(first[..4], (HEADER_BYTES as u32).to_le_bytes());
    // A run of another kernel keeps what the first one compiled.
    let log = logged(|| run(&below, gate));
    assert!(!log.contains("rebuilt") && !log.contains("cannot"), "{log}");
    let (again, second) = only_file(&below);
    assert_eq!(again, file);
    assert!(second.len() >= first.len(), "{} bytes, {} before", second.len(), first.len());
}

#[test]
fn pipelines_are_saved_while_the_executor_lives() {
    let folder = tempfile::tempdir().unwrap();
    let pipeline_cache_dir = Some(folder.path().to_owned());
    let mut executor = device::open_as(&VulkanConfig { pipeline_cache_dir, ..Default::default() });
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing to save yet");
    run_kernel(&mut executor, gate);
    let (_, saved) = only_file(folder.path());
    assert!(saved.len() >= HEADER_BYTES + CHECKSUM_BYTES);
}

#[test]
fn files_that_are_damaged_or_foreign_are_replaced() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), gate);
    let (file, good) = only_file(folder.path());
    let flipped = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 0x40;
        bytes
    };
    let cases = [
        ("empty", Vec::new()),
        ("cut in the header", good[..10].to_vec()),
        ("cut behind the header", good[..HEADER_BYTES].to_vec()),
        ("cut by a byte", good[..good.len() - 1].to_vec()),
        ("longer", [good.as_slice(), &[0; 9]].concat()),
        ("of another vendor", flipped(8)),
        ("of another build of the driver", flipped(20)),
        ("with a bit turned at the end", flipped(good.len() - 1)),
        ("not a cache", b"<html>".repeat(100)),
    ];
    for (what, bytes) in cases {
        std::fs::write(&file, bytes).unwrap();
        let log = logged(|| run(folder.path(), gate));
        assert!(log.contains("it is rebuilt"), "{what}: {log}");
        let (_, rebuilt) = only_file(folder.path());
        assert_eq!(rebuilt[..HEADER_BYTES], good[..HEADER_BYTES], "{what}");
        let log = logged(|| run(folder.path(), gate));
        assert!(!log.contains("rebuilt"), "{what}: the new file is a good one: {log}");
    }
}

#[test]
fn a_folder_that_cannot_be_written_costs_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "in the way").unwrap();
    // Not by permissions: the tests may run as root, whom those do not stop.
    for unwritable in [file.join("below"), PathBuf::from("/proc/self")] {
        let log = logged(|| run(&unwritable, gate));
        assert!(log.contains("WARN") && log.contains("cannot save compiled pipelines"), "{log}");
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "in the way");
}

#[test]
fn a_folder_in_the_files_place_costs_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), gate);
    let (file, _) = only_file(folder.path());
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir_all(file.join("not empty")).unwrap();
    let log = logged(|| run(folder.path(), gate));
    assert!(log.contains("cannot read the pipeline cache"), "{log}");
    assert!(log.contains("cannot save compiled pipelines"), "{log}");
}
