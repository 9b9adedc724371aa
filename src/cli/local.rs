//! A model in this process, for the commands that need no daemon.

use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

use super::output;
use crate::config::{Config, KvDtype, Numerics, Places};
use crate::engine::{
    CheckOptions, CheckWhen, EngineOptions, OpenError, OpenExecutor, Opened, TuneOptions, open,
    open_with,
};
use crate::gpu::{DeviceError, Executor};
use crate::kernels::PageLayout;
use crate::kv_cache::{KvLease, LeaseError};
use crate::model::{ModelLoadError, Progress};
use crate::reference::ReferenceExecutor;
use crate::scheduler::{Batch, TokenSpan};
use crate::tokenizer::Tokenizer;
use crate::vulkan::{VulkanConfig, VulkanExecutor};

/// One model with one context of its own.
pub trait LocalModel {
    /// The model's tokenizer.
    fn tokenizer(&self) -> &Tokenizer;

    /// Logits of a row.
    fn vocab_size(&self) -> usize;

    /// Most tokens the context holds.
    fn context_tokens(&self) -> usize;

    /// The device's name.
    fn device(&self) -> String;

    /// Empties the context.
    ///
    /// # Errors
    /// The device failed.
    fn reset(&mut self) -> Result<(), LocalError>;

    /// Appends `tokens` to the context. Returns the logits of the tokens whose place in
    /// `want_logits` (as long as `tokens`) is true, in order: `[vocab_size]` each.
    ///
    /// # Errors
    /// [`LocalError::ContextFull`], or the device failed.
    fn evaluate(
        &mut self,
        tokens: &[u32],
        want_logits: &[bool],
    ) -> Result<Vec<Vec<f32>>, LocalError>;
}

/// Model to open, and the device.
#[derive(Clone, Debug)]
pub struct LocalOptions {
    /// GGUF file.
    pub model: PathBuf,
    /// Index, name or UUID; `None` takes the best.
    pub device: Option<String>,
    /// Element type of the KV cache.
    pub kv_dtype: KvDtype,
    /// Tokens the context must hold.
    pub context_tokens: u32,
    /// Numerics setting.
    pub numerics: Numerics,
}

/// A model in this process failed.
#[derive(Debug, Error)]
pub enum LocalError {
    /// The device failed, or there is none.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// More tokens than the context holds.
    #[error("{wanted_tokens} tokens in a context of {context_tokens}")]
    ContextFull {
        /// Tokens there would be.
        wanted_tokens: usize,
        /// Tokens that fit.
        context_tokens: usize,
    },
    /// The model cannot be loaded.
    #[error(transparent)]
    Open(Box<OpenError>),
    /// The model only makes embeddings.
    #[error("{}: {architecture} models make embeddings and predict no text", .model.display())]
    NoGeneration {
        /// The model's file.
        model: PathBuf,
        /// Its architecture.
        architecture: String,
    },
    /// The cache has no room for the context.
    #[error(transparent)]
    Lease(#[from] LeaseError),
}

impl From<OpenError> for LocalError {
    fn from(error: OpenError) -> Self {
        Self::Open(Box::new(error))
    }
}

impl LocalError {
    /// True if the model file is at fault, where the device is not.
    pub(crate) fn is_model(&self) -> bool {
        matches!(self, Self::Open(_) | Self::NoGeneration { .. })
    }

    /// Failure of the device.
    pub(crate) fn device(&self) -> Option<&DeviceError> {
        match self {
            Self::Device(error) => Some(error),
            Self::Open(error) => match &**error {
                OpenError::Device(error) | OpenError::Model(ModelLoadError::Device(error)) => {
                    Some(error)
                }
                _ => None,
            },
            _ => None,
        }
    }
}

/// Loads a model on a device of this machine.
///
/// # Errors
/// The file or the device is not usable.
pub fn open_local(options: &LocalOptions) -> Result<Box<dyn LocalModel>, LocalError> {
    let device = options.device.clone();
    let open: OpenExecutor = Box::new(move || Ok(Box::new(open_device(device.as_deref())?)));
    let opened = load(options, 1, Some(check_new()), |engine, progress| {
        open_with(open, &options.model, engine, progress)
    })?;
    let mut local = RunnerModel { opened, lease: None, tokens: 0 };
    local.reset()?;
    Ok(Box::new(local))
}

/// Opens a device by index, name or UUID, or the best one; its compiled pipelines are kept.
pub(super) fn open_device(device: Option<&str>) -> Result<VulkanExecutor, DeviceError> {
    VulkanExecutor::new(&VulkanConfig {
        device: device.map(str::to_owned),
        pipeline_cache_dir: cache_dir(),
        ..VulkanConfig::default()
    })
}

/// Folder of compiled pipelines, and of what was found out about devices.
pub(super) fn cache_dir() -> Option<PathBuf> {
    Places::of_this_process().cache_dir(&Config::default())
}

/// Uses the shapes of kernels that were measured, and with `measure` measures the others.
pub(super) fn tune_options(
    measure: bool,
    numerics: Numerics,
    folder: Option<PathBuf>,
) -> TuneOptions {
    let reference: fn(u32) -> Box<dyn Executor> =
        |lanes| Box::new(ReferenceExecutor::with_lanes(lanes));
    TuneOptions { reference, numerics, folder, measure, quiet: Duration::ZERO }
}

/// Checks kernels that were not checked yet, as the daemon does.
pub(super) fn check_new() -> CheckOptions {
    CheckOptions {
        reference: |lanes| Box::new(ReferenceExecutor::with_lanes(lanes)),
        when: CheckWhen::Auto,
        folder: cache_dir(),
    }
}

/// Loads a model onto `executor`, its kernels unchecked, and makes room for `sessions` contexts of
/// `options.context_tokens`.
pub(super) fn open_model(
    executor: Box<dyn Executor>,
    options: &LocalOptions,
    sessions: usize,
) -> Result<Opened, LocalError> {
    load(options, sessions, None, |engine, progress| {
        open(executor, &options.model, engine, progress)
    })
}

/// Loads a model by `open`, with a progress bar on the terminal.
pub(super) fn load(
    options: &LocalOptions,
    sessions: usize,
    check: Option<CheckOptions>,
    open: impl FnOnce(&EngineOptions, Progress<'_>) -> Result<Opened, OpenError>,
) -> Result<Opened, LocalError> {
    let context_tokens = options.context_tokens as usize;
    let engine = EngineOptions {
        context_tokens,
        // A session's pages are whole.
        kv_tokens: sessions * context_tokens.next_multiple_of(PageLayout::TOKENS as usize),
        kv_dtype: options.kv_dtype,
        sessions_max: sessions,
        check,
        tune: Some(tune_options(false, options.numerics, cache_dir())),
        ..EngineOptions::default()
    };
    let bar = output::load_bar();
    let opened = open(&engine, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    })?;
    bar.finish_and_clear();
    if !opened.info.generates {
        let (model, architecture) = (options.model.clone(), opened.info.architecture.clone());
        return Err(LocalError::NoGeneration { model, architecture });
    }
    Ok(opened)
}

/// A runner with one lease.
struct RunnerModel {
    opened: Opened,
    lease: Option<KvLease>,
    /// Positions in use.
    tokens: usize,
}

impl RunnerModel {
    /// Number of remaining tokens that fit a step within the batch's limits.
    fn step_tokens(&self, want_logits: &[bool]) -> usize {
        let limits = self.opened.runner.model().limits();
        let mut rows = 0;
        let fits = |wanted: &&bool| {
            rows += usize::from(**wanted);
            rows <= limits.logit_rows_max
        };
        want_logits.iter().take(limits.tokens_max).take_while(fits).count()
    }
}

impl LocalModel for RunnerModel {
    fn tokenizer(&self) -> &Tokenizer {
        &self.opened.tokenizer
    }

    fn vocab_size(&self) -> usize {
        self.opened.runner.model().vocab()
    }

    fn context_tokens(&self) -> usize {
        self.opened.runner.kv().config().context_tokens
    }

    fn device(&self) -> String {
        self.opened.runner.executor().capabilities().device_name.clone()
    }

    fn reset(&mut self) -> Result<(), LocalError> {
        self.tokens = 0;
        if self.lease.is_none() {
            let context_tokens = self.context_tokens();
            let (kv, executor) = self.opened.runner.kv_mut();
            let mut lease = kv.lease()?;
            kv.grow(executor, &mut lease, 0, context_tokens)??;
            self.lease = Some(lease);
        }
        Ok(())
    }

    fn evaluate(
        &mut self,
        tokens: &[u32],
        want_logits: &[bool],
    ) -> Result<Vec<Vec<f32>>, LocalError> {
        let (wanted_tokens, context_tokens) = (self.tokens + tokens.len(), self.context_tokens());
        if wanted_tokens > context_tokens {
            return Err(LocalError::ContextFull { wanted_tokens, context_tokens });
        }
        let table = self.lease.as_ref().expect("leased when opened").table();
        let mut out = Vec::new();
        let mut at = 0;
        while at < tokens.len() {
            let count = self.step_tokens(&want_logits[at..]);
            let wanted = &want_logits[at..at + count];
            // Rows are the last tokens of a span: from the first that is wanted on.
            let logits = wanted.iter().position(|wanted| *wanted).map_or(0, |first| count - first);
            let span = TokenSpan {
                table,
                position: self.tokens as u32,
                tokens: tokens[at..at + count].to_vec(),
                logits,
            };
            self.opened.runner.step(&Batch { spans: vec![span] })?;
            for (row, _) in
                wanted[count - logits..].iter().enumerate().filter(|(_, wanted)| **wanted)
            {
                out.push(self.opened.runner.logits(row).to_vec());
            }
            self.tokens += count;
            at += count;
        }
        Ok(out)
    }
}

#[cfg(test)]
pub(crate) mod fake {
    use super::{LocalError, LocalModel};
    use crate::tokenizer::Tokenizer;

    /// Predicts that each token is followed by the next id: its logit is 1, all others' are 0.
    #[derive(Debug)]
    pub(crate) struct FakeModel {
        vocab_size: usize,
        /// Tokens since the last reset.
        pub(crate) context: Vec<u32>,
        pub(crate) resets: usize,
        pub(crate) evaluations: usize,
        pub(crate) rows_at_once_max: usize,
    }

    impl FakeModel {
        pub(crate) fn new(vocab_size: usize) -> Self {
            Self { vocab_size, context: vec![], resets: 0, evaluations: 0, rows_at_once_max: 0 }
        }

        fn logits_after(&self, token: u32) -> Vec<f32> {
            let next = (token as usize + 1) % self.vocab_size;
            (0..self.vocab_size).map(|id| if id == next { 1.0 } else { 0.0 }).collect()
        }
    }

    impl LocalModel for FakeModel {
        fn tokenizer(&self) -> &Tokenizer {
            unreachable!("what is tested starts with tokens")
        }

        fn vocab_size(&self) -> usize {
            self.vocab_size
        }

        fn context_tokens(&self) -> usize {
            1024
        }

        fn device(&self) -> String {
            "fake".into()
        }

        fn reset(&mut self) -> Result<(), LocalError> {
            self.context.clear();
            self.resets += 1;
            Ok(())
        }

        fn evaluate(
            &mut self,
            tokens: &[u32],
            want_logits: &[bool],
        ) -> Result<Vec<Vec<f32>>, LocalError> {
            assert_eq!(tokens.len(), want_logits.len());
            self.evaluations += 1;
            self.context.extend(tokens);
            let wanted = tokens.iter().zip(want_logits).filter(|(_, wanted)| **wanted);
            let rows: Vec<_> = wanted.map(|(&token, _)| self.logits_after(token)).collect();
            self.rows_at_once_max = self.rows_at_once_max.max(rows.len());
            Ok(rows)
        }
    }
}
