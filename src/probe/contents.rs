//! A dispatch with the contents of its buffers.

use std::collections::HashMap;
use std::time::Duration;

use super::shrink::{Piece, shrink};
use super::values::{Difference, Kind, compare, tolerance};
use crate::gpu::{
    Access, BufferDesc, BufferHandle, BufferSlice, BufferUsage, DeviceError, Dispatch, Executor,
    Recording,
};

/// Time limit of a probe, compilation included.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A small dispatch over buffers of its own, or several that make the same of them.
#[derive(Clone, Debug)]
pub struct Probe {
    /// Their bindings name buffers by their index in `contents`; the last one's outputs count.
    dispatches: Vec<Dispatch>,
    contents: Vec<Vec<u8>>,
}

impl Probe {
    /// Makes a dispatch small and reads what it needs from `executor`.
    ///
    /// `used_bytes`: how much of a buffer from its start on is in use, where that is not all.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn take(
        executor: &mut dyn Executor,
        dispatch: &Dispatch,
        used_bytes: &HashMap<BufferHandle, u64>,
    ) -> Result<Self, DeviceError> {
        let (mut small, pieces) = shrink(dispatch);
        let mut contents: Vec<Vec<u8>> = Vec::new();
        let mut known: Vec<BufferSlice> = Vec::new();
        for (at, pieces) in pieces.into_iter().enumerate() {
            let slice = dispatch.bindings[at];
            let found = known.iter().position(|other| *other == slice);
            let index = match found {
                Some(index) => index,
                None => {
                    let limit = used_bytes.get(&slice.buffer).copied().unwrap_or(u64::MAX);
                    contents.push(read_pieces(executor, slice, &pieces, limit)?);
                    known.push(slice);
                    known.len() - 1
                }
            };
            small.bindings[at] = BufferSlice {
                buffer: BufferHandle(index as u32),
                offset: 0,
                bytes: contents[index].len() as u64,
            };
        }
        Ok(Self { dispatches: vec![small], contents })
    }

    /// Dispatches over contents that need not be those of any buffer.
    #[must_use]
    pub fn over(dispatches: Vec<Dispatch>, contents: Vec<Vec<u8>>) -> Self {
        Self { dispatches, contents }
    }

    /// The dispatch, the last one of several; its bindings name no buffers of an executor.
    #[must_use]
    pub fn dispatch(&self) -> &Dispatch {
        self.dispatches.last().expect("a probe has a dispatch")
    }

    /// Other dispatches over the same contents, which in the end make the same.
    ///
    /// # Panics
    /// If they write other outputs than [`Probe::dispatch`]: a bug of the caller.
    #[must_use]
    pub fn with(&self, dispatches: Vec<Dispatch>) -> Self {
        let other = Self { dispatches, contents: self.contents.clone() };
        assert!(
            other
                .outputs()
                .map(|(at, _)| other.dispatch().bindings[at])
                .eq(self.outputs().map(|(at, _)| self.dispatch().bindings[at])),
            "the same outputs"
        );
        other
    }

    /// Adds a buffer of zeros for dispatches to come.
    pub fn add_workspace(&mut self, bytes: u64) -> BufferSlice {
        self.contents.push(vec![0; bytes as usize]);
        BufferSlice { buffer: BufferHandle(self.contents.len() as u32 - 1), offset: 0, bytes }
    }

    /// Gives a binding these words, as far as it has room for them.
    pub fn set(&mut self, binding: usize, words: &[u32]) {
        let bytes = &mut self.contents[self.dispatches[0].bindings[binding].buffer.0 as usize];
        for (out, word) in bytes.chunks_exact_mut(4).zip(words) {
            out.copy_from_slice(&word.to_le_bytes());
        }
    }

    /// Fills a binding with floats between -1 and 1 from a fixed sequence.
    pub fn fill(&mut self, binding: usize) {
        let bytes = &mut self.contents[self.dispatches[0].bindings[binding].buffer.0 as usize];
        for (word, value) in bytes.chunks_exact_mut(4).zip(floats()) {
            word.copy_from_slice(&value.to_le_bytes());
        }
    }

    /// Runs it on an executor, over buffers that it makes and destroys; returns what is in the
    /// written ones then, in the order of their bindings.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn run(&self, executor: &mut dyn Executor) -> Result<Vec<Vec<u8>>, DeviceError> {
        self.with_buffers(executor, |executor, recording, outputs| {
            let prepared = executor.prepare(recording)?;
            let ended = executor.submit(prepared).and_then(|last| executor.wait(last, TIMEOUT));
            executor.release(prepared);
            ended?;
            let mut found = Vec::with_capacity(outputs.len());
            for slice in outputs {
                let mut bytes = vec![0; slice.bytes as usize];
                executor.read(slice.buffer, 0, &mut bytes)?;
                found.push(bytes);
            }
            Ok(found)
        })
    }

    /// Has `body` do something with the dispatches and their outputs, over buffers that are
    /// destroyed afterwards.
    ///
    /// # Errors
    /// [`DeviceError`], those of `body` included.
    pub fn with_buffers<T>(
        &self,
        executor: &mut dyn Executor,
        body: impl FnOnce(&mut dyn Executor, &Recording, &[BufferSlice]) -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        let mut handles = Vec::with_capacity(self.contents.len());
        let result = self.fill_buffers(executor, &mut handles).and_then(|()| {
            let there = |slice: BufferSlice| BufferSlice {
                buffer: handles[slice.buffer.0 as usize],
                ..slice
            };
            let bindings = &self.dispatch().bindings;
            let outputs: Vec<_> = self.outputs().map(|(at, _)| there(bindings[at])).collect();
            let mut recording = Recording::new();
            for mut dispatch in self.dispatches.iter().cloned() {
                dispatch.bindings.iter_mut().for_each(|slice| *slice = there(*slice));
                recording.dispatch(dispatch);
            }
            body(executor, &recording, &outputs)
        });
        handles.into_iter().for_each(|handle| executor.destroy_buffer(handle));
        result
    }

    fn fill_buffers(
        &self,
        executor: &mut dyn Executor,
        handles: &mut Vec<BufferHandle>,
    ) -> Result<(), DeviceError> {
        for (index, bytes) in self.contents.iter().enumerate() {
            let label = format!("probe of {} {index}", self.dispatch().kernel.name);
            let desc = BufferDesc { label, bytes: bytes.len() as u64, usage: BufferUsage::Scratch };
            let handle = executor.create_buffer(&desc)?;
            handles.push(handle);
            executor.write(handle, 0, bytes.len(), &mut |out| out.copy_from_slice(bytes))?;
        }
        Ok(())
    }

    /// Runs it on both executors; how they differ, if they do by more than two orders of summation
    /// may.
    ///
    /// # Errors
    /// [`DeviceError`] of the device, or of the reference.
    pub fn check(
        &self,
        device: &mut dyn Executor,
        reference: &mut dyn Executor,
    ) -> Result<Option<Difference>, DeviceError> {
        let found = self.run(device)?;
        let wanted = self.run(reference)?;
        Ok(self.compare(&found, &wanted))
    }

    /// Difference between outputs of [`Probe::run`] and the expected ones.
    #[must_use]
    pub fn compare(&self, found: &[Vec<u8>], wanted: &[Vec<u8>]) -> Option<Difference> {
        let pairs = self.outputs().zip(found.iter().zip(wanted));
        pairs.into_iter().find_map(|((binding, before), (found, wanted))| {
            compare(
                Kind::of(self.dispatch(), binding),
                tolerance(self.dispatch()),
                before,
                found,
                wanted,
            )
        })
    }

    /// True if two runs made the same bits, but for what is of no use any more.
    #[must_use]
    pub fn is_same(&self, found: &[Vec<u8>], other: &[Vec<u8>]) -> bool {
        let pairs = self.outputs().zip(found.iter().zip(other));
        let mut counting =
            pairs.filter(|((binding, _), _)| Kind::of(self.dispatch(), *binding) != Kind::Scratch);
        counting.all(|(_, (found, other))| found == other)
    }

    /// Bindings that are written, and what they hold before.
    fn outputs(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let written = |(_, access): &(usize, &Access)| **access == Access::Write;
        let dispatch = self.dispatch();
        dispatch.kernel.bindings.iter().enumerate().filter(written).map(move |(at, _)| {
            let index = dispatch.bindings[at].buffer.0 as usize;
            (at, &self.contents[index][..])
        })
    }
}

/// Floats between -1 and 1, from a fixed sequence.
pub fn floats() -> impl Iterator<Item = f32> {
    let mut state = 0x2545_f491_u32;
    std::iter::repeat_with(move || {
        state ^= state << 13; // xorshift32
        state ^= state >> 17;
        state ^= state << 5;
        (f64::from(state) / f64::from(u32::MAX) * 2.0 - 1.0) as f32
    })
}

/// The pieces of a slice, one behind the other, without what is beyond `limit` bytes of its buffer.
fn read_pieces(
    executor: &mut dyn Executor,
    slice: BufferSlice,
    pieces: &[Piece],
    limit: u64,
) -> Result<Vec<u8>, DeviceError> {
    let mut all = Vec::new();
    for piece in pieces {
        let end = (piece.offset + piece.bytes).min(slice.bytes);
        let end = end.min(limit.saturating_sub(slice.offset));
        let bytes = end.saturating_sub(piece.offset);
        let at = all.len();
        all.resize(at + bytes as usize, 0);
        executor.read(slice.buffer, slice.offset + piece.offset, &mut all[at..])?;
    }
    // An empty buffer cannot be bound.
    all.resize(all.len().max(16), 0);
    Ok(all)
}
