//! The reference executor's buffers: host words.

use std::collections::HashMap;

use crate::gpu::{BufferHandle, BufferSlice};

/// Buffers by handle, as 32-bit words.
#[derive(Debug, Default)]
pub struct Memory {
    buffers: HashMap<BufferHandle, Vec<u32>>,
    next: u32,
}

impl Memory {
    /// Creates a zeroed buffer of at least `bytes` bytes.
    pub fn create(&mut self, bytes: u64) -> BufferHandle {
        let handle = BufferHandle(self.next);
        self.next += 1;
        let words = usize::try_from(bytes.div_ceil(4)).expect("the caller checked the budget");
        self.buffers.insert(handle, vec![0; words]);
        handle
    }

    /// Forgets a buffer.
    pub fn destroy(&mut self, buffer: BufferHandle) {
        self.buffers.remove(&buffer);
    }

    /// Bytes of all buffers.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.buffers.values().map(|words| 4 * words.len() as u64).sum()
    }

    /// A buffer's bytes.
    pub fn bytes_mut(&mut self, buffer: BufferHandle) -> &mut [u8] {
        let words = self.buffers.get_mut(&buffer).expect("a live buffer");
        bytemuck::cast_slice_mut(words)
    }

    /// The words of a slice.
    #[must_use]
    pub fn words(&self, slice: BufferSlice) -> &[u32] {
        &self.buffers[&slice.buffer][range(slice)]
    }

    /// The floats of a slice.
    #[must_use]
    pub fn floats(&self, slice: BufferSlice) -> &[f32] {
        bytemuck::cast_slice(self.words(slice))
    }

    /// The bytes of a slice.
    #[must_use]
    pub fn bytes_of(&self, slice: BufferSlice) -> &[u8] {
        bytemuck::cast_slice(self.words(slice))
    }

    /// Lets `write` change the floats of `slice` while it reads other buffers.
    pub fn update(&mut self, slice: BufferSlice, write: impl FnOnce(&Self, &mut [f32])) {
        self.update_words(slice, |memory, words| write(memory, bytemuck::cast_slice_mut(words)));
    }

    /// Has `write` change the words of `slice` while it reads other buffers.
    ///
    /// # Panics
    /// If `write` reads the buffer it changes: a kernel binds what it writes once.
    pub fn update_words(&mut self, slice: BufferSlice, write: impl FnOnce(&Self, &mut [u32])) {
        let mut words = self.buffers.remove(&slice.buffer).expect("a live buffer, bound once");
        write(self, &mut words[range(slice)]);
        self.buffers.insert(slice.buffer, words);
    }
}

fn range(slice: BufferSlice) -> std::ops::Range<usize> {
    let first = (slice.offset / 4) as usize;
    first..first + (slice.bytes / 4) as usize
}
