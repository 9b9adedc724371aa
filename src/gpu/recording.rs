//! Buffers, kernels, dispatches and the recording that orders them.

/// A device buffer, by the number its executor gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferHandle(pub u32);

/// Purpose of a buffer; it decides the memory type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BufferUsage {
    /// Written once at load, read by every step.
    Weights,
    /// The sessions' keys and values.
    Kv,
    /// Activations, alive within a step.
    Scratch,
    /// Written by the host before each step, read by the device.
    Upload,
    /// Written by the device, read by the host after each step.
    Readback,
}

/// A buffer to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferDesc {
    /// Debug name, shown by validation messages and profilers.
    pub label: String,
    /// Size; executors round it up to a multiple of 4.
    pub bytes: u64,
    /// Purpose.
    pub usage: BufferUsage,
}

/// A range of a buffer. `offset` must be a multiple of `Capabilities::storage_align` where the
/// slice is bound, and of 4 where it is copied or filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferSlice {
    /// The buffer.
    pub buffer: BufferHandle,
    /// First byte.
    pub offset: u64,
    /// Bytes; at most `Capabilities::storage_range_max` where the slice is bound.
    pub bytes: u64,
}

/// Access of a kernel to one of its bindings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Loads only.
    Read,
    /// Stores only, or both.
    Write,
}

/// One compiled shader module with the interface that the build reflected from its SPIR-V.
///
/// Bindings are storage buffers of descriptor set 0, numbered from 0 without gaps. Specialization
/// constants are 32 bits wide, numbered from 0; the constants 0, 1 and 2 are the local size.
#[derive(Debug)]
pub struct Kernel {
    /// Shader file and variant, such as `matmul_q4_1`.
    pub name: &'static str,
    /// SPIR-V module.
    pub words: &'static [u32],
    /// Access of each binding.
    pub bindings: &'static [Access],
    /// Size of the push constants.
    pub push_bytes: u32,
    /// Number of specialization constants.
    pub spec_count: u32,
    /// True if it uses subgroup operations: it then runs with one full subgroup of
    /// `Capabilities::lanes` invocations in x.
    pub uses_subgroups: bool,
    /// True if it uses cooperative matrices: it then runs with full subgroups of
    /// `MatrixUnits::subgroup` invocations.
    pub uses_matrices: bool,
}

/// One run of a kernel over a grid of workgroups.
#[derive(Clone, Debug)]
pub struct Dispatch {
    /// The kernel.
    pub kernel: &'static Kernel,
    /// Values of its specialization constants, `kernel.spec_count` of them.
    pub spec: Vec<u32>,
    /// Buffers for its bindings, `kernel.bindings.len()` of them.
    pub bindings: Vec<BufferSlice>,
    /// Push constants, `kernel.push_bytes` bytes.
    pub push: Vec<u8>,
    /// How many addresses the push constants begin with: 64 bits each, of the first bindings in
    /// order, filled in by the executor. Only where `Capabilities::buffer_pointers`.
    pub pointers: u32,
    /// Workgroups in x, y, z.
    pub groups: [u32; 3],
}

/// One step of a recording.
#[derive(Clone, Debug)]
pub enum Command {
    /// Runs a kernel.
    Dispatch(Dispatch),
    /// Copies `bytes` of `from` to `to`; both have the same length and do not overlap.
    Copy {
        /// Source.
        from: BufferSlice,
        /// Destination.
        to: BufferSlice,
    },
    /// Fills a slice with zeros.
    Zero(BufferSlice),
}

/// Commands that run in order: each sees the writes of those before it. Commands without a hazard
/// between them may overlap.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// The commands.
    pub commands: Vec<Command>,
}

impl Recording {
    /// An empty recording.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a dispatch.
    ///
    /// # Panics
    /// If its bindings, constants or parameters do not fit the kernel's interface: a bug of the
    /// caller.
    pub fn dispatch(&mut self, dispatch: Dispatch) {
        let kernel = dispatch.kernel;
        assert_eq!(dispatch.bindings.len(), kernel.bindings.len(), "bindings of {}", kernel.name);
        assert_eq!(dispatch.push.len(), kernel.push_bytes as usize, "push of {}", kernel.name);
        assert_eq!(dispatch.spec.len(), kernel.spec_count as usize, "constants of {}", kernel.name);
        self.commands.push(Command::Dispatch(dispatch));
    }

    /// Appends a copy.
    pub fn copy(&mut self, from: BufferSlice, to: BufferSlice) {
        assert_eq!(from.bytes, to.bytes, "a copy keeps the length");
        self.commands.push(Command::Copy { from, to });
    }

    /// Appends a zero fill.
    pub fn zero(&mut self, slice: BufferSlice) {
        self.commands.push(Command::Zero(slice));
    }
}
