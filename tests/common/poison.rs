//! An executor that writes a marker into all pages when a test says so, and looks for it in
//! whatever is read from the device.
#![allow(dead_code, unreachable_pub)] // each test uses a part

use hob::gpu::{
    BufferDesc, BufferHandle, BufferUsage, Command, DeviceError, Executor, PreparedId, Recording,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Not a number in f16, and a huge one in f32: whatever is computed of it shows it.
const MARKER: [u8; 2] = [0x5a, 0x7e];

/// So many bytes of the marker in a row are no accident.
const RUN: usize = 16;

/// What tests and executor share.
#[derive(Clone, Debug, Default)]
pub struct Poison(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// The pages of each layer, and how many bytes they are.
    pages: Vec<(BufferHandle, usize)>,
    write_next: bool,
    watching: bool,
    zeroes_nothing: bool,
    reads: u64,
    seen: u64,
}

impl Poison {
    /// At the next read, every page is filled with the marker, whoever has it.
    pub fn write_at_next_read(&self) {
        self.state().write_next = true;
    }

    /// From now on the device leaves out what it is told to zero.
    pub fn zero_nothing(&self) {
        self.state().zeroes_nothing = true;
    }

    /// From now on reads are looked at.
    pub fn watch(&self) {
        self.state().watching = true;
    }

    /// Reads that were looked at, and those that had the marker in them.
    pub fn seen(&self) -> [u64; 2] {
        let state = self.state();
        [state.reads, state.seen]
    }

    /// The executor under this.
    pub fn on(&self, inner: impl Executor + 'static) -> Box<dyn Executor> {
        Box::new(Poisoned { inner: Box::new(inner), poison: self.clone() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether bytes hold the marker.
pub fn is_marked(bytes: &[u8]) -> bool {
    let marker: Vec<u8> = MARKER.iter().copied().cycle().take(RUN).collect();
    bytes.windows(RUN).any(|window| window == marker)
}

struct Poisoned {
    inner: Box<dyn Executor>,
    poison: Poison,
}

impl Executor for Poisoned {
    hob::delegate!(capabilities avoid write release submit wait memory set_profiling timings);

    fn create_buffer(&mut self, desc: &BufferDesc) -> Result<BufferHandle, DeviceError> {
        let buffer = self.inner.create_buffer(desc)?;
        if desc.usage == BufferUsage::Kv {
            self.poison.state().pages.push((buffer, desc.bytes as usize));
        }
        Ok(buffer)
    }

    fn destroy_buffer(&mut self, buffer: BufferHandle) {
        self.poison.state().pages.retain(|(pages, _)| *pages != buffer);
        self.inner.destroy_buffer(buffer);
    }

    fn read(
        &mut self,
        buffer: BufferHandle,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), DeviceError> {
        if std::mem::take(&mut self.poison.state().write_next) {
            let pages = self.poison.state().pages.clone();
            for (buffer, bytes) in pages {
                self.inner.write(buffer, 0, bytes, &mut |out| {
                    out.iter_mut().zip(MARKER.iter().cycle()).for_each(|(to, from)| *to = *from);
                })?;
            }
        }
        self.inner.read(buffer, offset, out)?;
        let mut state = self.poison.state();
        if state.watching {
            state.reads += 1;
            state.seen += u64::from(is_marked(out));
        }
        Ok(())
    }

    fn prepare(&mut self, recording: &Recording) -> Result<PreparedId, DeviceError> {
        if !self.poison.state().zeroes_nothing {
            return self.inner.prepare(recording);
        }
        let mut without = recording.clone();
        without.commands.retain(|command| !matches!(command, Command::Zero(_)));
        self.inner.prepare(&without)
    }
}
