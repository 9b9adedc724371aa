//! Why a model cannot be loaded.

use std::path::PathBuf;

use thiserror::Error;

use crate::gguf::GgufError;
use crate::gpu::DeviceError;

/// A model file that hob will not run, or a device that cannot hold it.
#[derive(Debug, Error)]
pub enum ModelLoadError {
    /// The file itself is at fault.
    #[error(transparent)]
    File(#[from] GgufError),
    /// An architecture hob does not know.
    #[error(
        "{path}: architecture {found:?} is not supported; supported: {supported}",
        path = .path.display()
    )]
    Architecture {
        /// Path of the file.
        path: PathBuf,
        /// Value of `general.architecture`.
        found: String,
        /// The names hob knows.
        supported: String,
    },
    /// A metadata value that makes no sense.
    #[error("{path}: key {key}: wanted {wanted}, found {found}", path = .path.display())]
    Value {
        /// Path of the file.
        path: PathBuf,
        /// Metadata key.
        key: String,
        /// Acceptable value.
        wanted: String,
        /// Value found.
        found: String,
    },
    /// A tensor that is missing, or has another shape or type than its place needs.
    #[error("{path}: tensor {tensor}: wanted {wanted}, found {found}", path = .path.display())]
    Tensor {
        /// Path of the file.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// Acceptable value.
        wanted: String,
        /// Value found.
        found: String,
    },
    /// A tensor that this architecture, as hob computes it, would ignore.
    #[error(
        "{path}: tensor {tensor} is not part of {architecture} as hob knows it: \
         ignoring it would give wrong results",
        path = .path.display()
    )]
    UnknownTensor {
        /// Path of the file.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// The file's architecture.
        architecture: String,
    },
    /// A context past the model's last position, or the last that hob can compute.
    #[error(
        "{path}: a context of {context_tokens} tokens is too long: the model has {context_max} \
         positions; set context_tokens",
        path = .path.display()
    )]
    Context {
        /// Path of the file.
        path: PathBuf,
        /// The context that was asked for.
        context_tokens: usize,
        /// Longest context the model supports, in tokens.
        context_max: u32,
    },
    /// More than the device can take.
    #[error(
        "{path}: the model needs {needed} on the device ({weights} of weights and adapters, {kv} of \
         KV cache for {context_tokens} tokens, {scratch} beside), {free} are free; take a smaller \
         model, fewer context_tokens, or another device",
        path = .path.display(),
        needed = Mib(*.needed_bytes), weights = Mib(*.weights_bytes), kv = Mib(*.kv_bytes),
        scratch = Mib(*.scratch_bytes), free = Mib(*.free_bytes),
    )]
    TooLarge {
        /// Path of the file.
        path: PathBuf,
        /// Sum of the three below.
        needed_bytes: u64,
        /// Weights, and those of adapters.
        weights_bytes: u64,
        /// Size of the KV cache, in bytes.
        kv_bytes: u64,
        /// Context that the cache is for.
        context_tokens: usize,
        /// Activations and step buffers.
        scratch_bytes: u64,
        /// Bytes the device may still give.
        free_bytes: u64,
    },
    /// An adapter that the device has no room for.
    #[error(
        "{path}: the adapter needs {needed} on the device, {free} are free",
        path = .path.display(), needed = Mib(*.needed_bytes), free = Mib(*.free_bytes),
    )]
    AdapterTooLarge {
        /// Path of the file.
        path: PathBuf,
        /// Device memory the model needs, in bytes.
        needed_bytes: u64,
        /// Bytes the device may still give.
        free_bytes: u64,
    },
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A byte count as people read it.
struct Mib(u64);

impl std::fmt::Display for Mib {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.1} MiB", self.0 as f64 / f64::from(1 << 20))
    }
}
