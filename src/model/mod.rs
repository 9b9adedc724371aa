//! Models: what a GGUF file's weights mean, and the recording that runs them.
//!
//! [`Model::load`] checks the file against its architecture, packs the weights onto the device, and
//! keeps what [`Model::record_forward`] needs. A family (`families/`) says only how it differs.

mod adapter;
mod error;
mod experts;
mod families;
mod feed_forward;
mod forward;
mod fuzz;
mod hyper;
mod keys;
mod layers;
mod loader;
mod lora_deltas;
mod pooling;
mod rope;
mod rows;
mod scratch;

pub use adapter::{ADAPTERS_MAX, AdapterFile};
pub use error::ModelLoadError;
pub use experts::Mixture;
pub use families::{FAMILIES, Family, family, read_hyper_params};
pub use forward::{BatchShape, Choosing};
pub use fuzz::fuzz_adapter;
pub use hyper::{HyperParams, LayerSpec, Logits, Mlp, NormKind, Pooling, QkNorm, Residual};
pub use pooling::{Pool, normalise};
pub use rope::{RopeFactors, RopeSpec, Yarn};
pub use scratch::{Inputs, Limits};

use crate::gguf::GgufFile;
use std::collections::BTreeMap;

use crate::gpu::{BufferSlice, Capabilities, Choice, Executor, Work};
use layers::{Embeddings, Head, Layer};
use lora_deltas::AdapterScratch;
use rope::RopeTable;
use scratch::Scratch;

/// Told of progress while weights are loaded: bytes done and bytes in all.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// A model whose weights are on the device.
#[derive(Debug)]
pub struct Model {
    hyper: HyperParams,
    capabilities: Capabilities,
    layers: Vec<Layer>,
    embeddings: Embeddings,
    head: Option<Head>,
    ropes: Vec<RopeTable>,
    scratch: Scratch,
    adapter_scratch: Option<AdapterScratch>,
    /// By the bits of their numbers.
    adapters: u32,
    weights_bytes: u64,
    parameters: u64,
}

impl Model {
    /// Loads a model's weights onto the device.
    ///
    /// # Errors
    /// [`ModelLoadError`], naming the file and the key or tensor, or what the device lacks.
    pub fn load(
        executor: &mut dyn Executor,
        file: &GgufFile,
        limits: Limits,
        progress: Progress<'_>,
    ) -> Result<Self, ModelLoadError> {
        let hyper = read_hyper_params(file)?;
        check_positions(file, &hyper, limits.context_tokens)?;
        let capabilities = executor.capabilities().clone();
        let mut loader = loader::Loader::new(executor, file, progress);
        loader.check_fits(&limits, &hyper)?;
        let embeddings = Embeddings::load(&mut loader, &hyper)?;
        let head = match hyper.encoder {
            false => Some(Head::load(&mut loader, &hyper, &embeddings)?),
            true => None,
        };
        let layers = (0..hyper.layers.len())
            .map(|index| Layer::load(&mut loader, &hyper, index))
            .collect::<Result<Vec<_>, _>>()?;
        let context_tokens = limits.context_tokens;
        let factors = rope::load_factors(&mut loader, &hyper, context_tokens)?;
        loader.check_all_used()?;
        let (weights_bytes, parameters) = loader.totals();
        let mut ropes = Vec::with_capacity(hyper.ropes.len());
        for spec in &hyper.ropes {
            ropes.push(RopeTable::create(
                loader.executor(),
                *spec,
                hyper.rope_dim,
                context_tokens,
                factors.as_deref().filter(|_| spec.factors != RopeFactors::None),
            )?);
        }
        let scratch = Scratch::create(loader.executor(), &hyper, embeddings.vocab(), limits)?;
        Ok(Self {
            hyper,
            capabilities,
            layers,
            embeddings,
            head,
            ropes,
            scratch,
            adapter_scratch: None,
            adapters: 0,
            weights_bytes,
            parameters,
        })
    }

    /// Sets the tile configurations measured by the autotuner; later recordings use them.
    pub fn set_tuned(&mut self, tuned: BTreeMap<Work, Choice>) {
        self.capabilities.tuned = tuned;
    }

    /// Room for what is made of a matmul's x before.
    #[must_use]
    pub fn matmul_workspace(&self, is_sliced: bool) -> Option<BufferSlice> {
        self.scratch.matmul_workspace(is_sliced)
    }

    /// Capabilities of the device, with the tile configurations that recordings use.
    #[must_use]
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// The network's shape.
    #[must_use]
    pub fn hyper(&self) -> &HyperParams {
        &self.hyper
    }

    /// Size of the vocabulary: width of the logits.
    #[must_use]
    pub fn vocab(&self) -> usize {
        usize::try_from(self.embeddings.vocab()).expect("checked at load")
    }

    /// Bytes of the weights in the file.
    #[must_use]
    pub fn weights_bytes(&self) -> u64 {
        self.weights_bytes
    }

    /// Bytes of the buffers beside weights and cache.
    #[must_use]
    pub fn scratch_bytes(&self) -> u64 {
        let vocab = self.embeddings.vocab();
        Scratch::bytes(&self.capabilities, &self.hyper, vocab, &self.scratch.limits)
    }

    /// Number of weights.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        self.parameters
    }

    /// Most tokens and logit rows of a step, as given to [`Model::load`].
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.scratch.limits
    }

    /// Bit set of the loaded adapters' numbers.
    #[must_use]
    pub fn adapters(&self) -> u32 {
        self.adapters
    }

    /// Buffer of one adapter's scales for the tokens of a step: f32 `[tokens]`.
    ///
    /// # Panics
    /// If there is no such adapter: a bug of the caller.
    #[must_use]
    pub fn adapter_scales(&self, adapter: usize) -> BufferSlice {
        assert!(self.adapters >> adapter & 1 == 1, "an adapter of the model");
        self.adapter_scratch.expect("there are adapters").scales_of(adapter)
    }

    /// The buffers that carry what changes from step to step, of a [`BatchShape::buffer_set`].
    #[must_use]
    pub fn inputs(&self, buffer_set: usize) -> Inputs {
        self.scratch.inputs[buffer_set]
    }
}

/// Refuses a context of more positions than the model has, or than hob can compute.
fn check_positions(
    file: &GgufFile,
    hyper: &HyperParams,
    context_tokens: usize,
) -> Result<(), ModelLoadError> {
    match hyper.context_max {
        Some(context_max) if context_tokens > context_max as usize => {
            Err(ModelLoadError::Context {
                path: file.path().to_owned(),
                context_tokens,
                context_max,
            })
        }
        _ => Ok(()),
    }
}
