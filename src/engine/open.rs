//! From a model file to a runner with tokenizer and chat template: what daemon and command line
//! share.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tracing::warn;

use super::adapters::{self, AdapterBase, AdapterNames, AdapterSource, Adapters};
use super::budget;
use super::check::{Check, CheckOptions};
use super::fingerprint;
use super::open_error::OpenError;
use super::placed::{ModelSource, OpenExecutor, Reopen};
use super::quota::Quotas;
use super::runner::Runner;
use super::sampling;
use super::saving::StateOptions;
use super::tune::{TuneOptions, Tuner};
use super::types::ModelInfo;
use crate::chat::{ChatTemplate, named_template};
use crate::config::{KvDtype, MemoryReserve, Numerics, SamplingOverrides};
use crate::gguf::{GgufError, GgufFile};
use crate::gpu::{Capabilities, Executor};
use crate::hf;
use crate::kernels::{KvFormat, PageLayout, matmul_tiled};
use crate::kv_cache::KvConfig;
use crate::model::{
    AdapterFile, HyperParams, Limits, Model, ModelLoadError, Progress, read_hyper_params,
};
use crate::tensor::DType;
use crate::tokenizer::{Tokenizer, VocabSource};

/// Context of a session where the configuration names none: enough for a conversation, and far less
/// memory than what many models were trained for.
const CONTEXT_TOKENS_DEFAULT: usize = 4096;

/// The pool holds this many full contexts where the configuration does not say.
const CONTEXTS_DEFAULT: usize = 2;

/// Share of the free memory that the pool may take by default.
const KV_SHARE: u64 = 2;

/// Bytes of logits of a step, which decide how many tokens may want them.
const LOGIT_BYTES: usize = 8 << 20;

/// Options for opening a model.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Context of a session; 0 takes the model's own up to 4096.
    pub context_tokens: usize,
    /// Positions of all sessions; 0 takes two contexts, or what half the free memory holds.
    pub kv_tokens: usize,
    /// Device memory that is left to other programs.
    pub memory_reserve: MemoryReserve,
    /// Element type of keys and values.
    pub kv_dtype: KvDtype,
    /// Sessions there may be.
    pub sessions_max: usize,
    /// Requests that may wait.
    pub requests_queued_max: usize,
    /// The model leaves the device when nobody has used it for so long; `None`: never.
    pub idle_unload: Option<Duration>,
    /// Quotas of each user.
    pub quotas: Quotas,
    /// Most prompt tokens of a step.
    pub prefill_tokens_max: usize,
    /// LoRA adapters of the model.
    pub adapters: Vec<AdapterSource>,
    /// Type that a folder's matrices are quantised to.
    pub quantize: Option<DType>,
    /// Chat template by name or by the path of its file; empty takes the model's own.
    pub chat_template: String,
    /// True if an unknown pre-tokenizer is taken as the default one.
    pub tokenizer_fallback: bool,
    /// True if the texts of messages may spell special tokens.
    pub special_tokens_in_messages: bool,
    /// Default sampling settings; they override the model file's.
    pub sampling: SamplingOverrides,
    /// Numbers of sessions: engines of one daemon count on together.
    pub session_numbers: Arc<AtomicU64>,
    /// Held by the engine that looks at the device's memory: those of one daemon do so one after
    /// the other, so that a shortage that one has ended is not answered by all.
    pub memory_turn: Arc<Mutex<()>>,
    /// Pause before reopening a lost device again: a driver refuses while it is being reset.
    pub reopen_pause: Duration,
    /// Target time between two tokens while requests decode.
    pub inter_token: Duration,
    /// Bytes of the host's memory for caches that leave the device's.
    pub host_cache_bytes: u64,
    /// Folder for saved sessions and swapped-out caches, if files are used.
    pub state: Option<StateOptions>,
    /// Options of the kernel self-check; `None` disables it.
    pub check: Option<CheckOptions>,
    /// Options of the autotuner; `None` disables it.
    pub tune: Option<TuneOptions>,
    /// True if pipelines of steps to come are built while nobody waits.
    pub warm_up: bool,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            context_tokens: 0,
            kv_tokens: 0,
            memory_reserve: MemoryReserve::default(),
            kv_dtype: KvDtype::Auto,
            sessions_max: 64,
            requests_queued_max: 64,
            idle_unload: None,
            quotas: Quotas::default(),
            prefill_tokens_max: 512,
            adapters: Vec::new(),
            quantize: None,
            chat_template: String::new(),
            tokenizer_fallback: false,
            special_tokens_in_messages: false,
            sampling: SamplingOverrides::default(),
            session_numbers: Arc::default(),
            memory_turn: Arc::default(),
            reopen_pause: Duration::from_secs(1),
            inter_token: Duration::from_millis(100),
            host_cache_bytes: 1 << 30,
            state: None,
            check: None,
            tune: None,
            warm_up: false,
        }
    }
}

/// An opened model.
#[derive(Debug)]
pub struct Opened {
    /// Weights and cache on the device.
    pub runner: Runner,
    /// Tokenizer of the model.
    pub tokenizer: Arc<Tokenizer>,
    /// Chat template, if the file has one.
    pub chat: Option<Arc<ChatTemplate>>,
    /// Facts about it.
    pub info: Arc<ModelInfo>,
    /// LoRA adapters loaded with the model.
    pub(super) adapters: Adapters,
    /// Base that further adapters are validated against.
    pub(super) adapter_base: AdapterBase,
    /// Identifier of caches of this model in this form.
    pub made_by: String,
    /// Source for reloading the model; `None` if a lost device ends the engine.
    pub reopen: Option<Reopen>,
}

/// Opens a model on an executor: tokenizer first, then weights, then the cache. A device that is
/// lost later ends the engine, and a kernel that computes wrongly fails it.
///
/// # Errors
/// [`OpenError`], naming the file and what is wrong with it, or what the device lacks.
pub fn open(
    executor: Box<dyn Executor>,
    path: &Path,
    options: &EngineOptions,
    progress: Progress<'_>,
) -> Result<Opened, OpenError> {
    load(executor, None, path, options, progress).map(|(opened, _)| opened)
}

/// Opens a model on a device that `open_executor` opens, now and whenever it was lost.
///
/// # Errors
/// As [`open`].
pub fn open_with(
    mut open_executor: OpenExecutor,
    path: &Path,
    options: &EngineOptions,
    progress: Progress<'_>,
) -> Result<Opened, OpenError> {
    let executor = open_executor()?;
    let (mut opened, source) = load(executor, Some(&mut open_executor), path, options, progress)?;
    opened.reopen = Some(Reopen { open: open_executor, source });
    Ok(opened)
}

/// Looks whether there is a model at `path` that can be loaded, as far as its header says, and the
/// chat template that is to take the place of its own.
///
/// # Errors
/// [`OpenError`], naming the file and what is wrong with it.
pub fn look_at(path: &Path, options: &EngineOptions) -> Result<(), OpenError> {
    read(path, options.quantize)?;
    let name = &options.chat_template;
    if !name.is_empty() {
        let wrong = |error| OpenError::NamedChat { name: name.clone(), error };
        ChatTemplate::new(&chat_source(name)?, "", "").map_err(wrong)?;
    }
    Ok(())
}

fn read(path: &Path, quantize: Option<DType>) -> Result<(GgufFile, HyperParams), OpenError> {
    let file = hf::open_model(path, quantize)?;
    let key = "general.type";
    if file.metadata().opt_str(key)? == Some("adapter") {
        let found = "\"adapter\": a LoRA adapter, which `hob lora load NAME=PATH` takes".into();
        let (path, key) = (file.path().to_owned(), key.into());
        return Err(ModelLoadError::Value { path, key, wanted: "\"model\"".into(), found }.into());
    }
    let hyper = read_hyper_params(&file)?;
    Ok((file, hyper))
}

fn load(
    executor: Box<dyn Executor>,
    open: Option<&mut OpenExecutor>,
    path: &Path,
    options: &EngineOptions,
    progress: Progress<'_>,
) -> Result<(Opened, ModelSource), OpenError> {
    let (file, hyper) = read(path, options.quantize)?;
    let (tokenizer, chat) = open_text(&file, options)?;
    let sampling = sampling::defaults(file.metadata(), options.sampling)?;
    let vocab = file.tensor("token_embd.weight").map_or(0, |tensor| tensor.rows());
    let caps = executor.capabilities().clone();
    refuse_partial_blocks(&file, &hyper, kv_format(options.kv_dtype, &caps))?;
    let free_bytes = budget::free_bytes(executor.memory(), options.memory_reserve);
    let (adapter_files, adapters) =
        adapters::open_all(&options.adapters, &file, &hyper, caps.lanes)?;
    let of_adapter = |adapter: &AdapterFile| adapter.bytes(caps.lanes.into());
    let adapter_bytes = adapter_files.values().map(of_adapter).sum::<u64>();
    let weights = file.tensors().iter().map(|tensor| tensor.bytes).sum::<u64>() + adapter_bytes;
    let config = kv_config(&hyper, &caps, options, free_bytes.saturating_sub(weights));
    let limits = Limits {
        // An encoder has to take a text whole.
        tokens_max: match hyper.encoder {
            true => options.prefill_tokens_max.max(config.context_tokens),
            false => options.prefill_tokens_max.max(1),
        },
        logit_rows_max: (LOGIT_BYTES / 4 / (vocab as usize).max(1)).clamp(8, 32),
        context_tokens: config.context_tokens,
        kv_bytes: config.bytes(),
        reduced_precision: matmul_tiled::is_any_offered(&caps)
            && options.tune.as_ref().is_some_and(|tune| tune.numerics == Numerics::Fastest),
        adapter_bytes,
    };
    let check = options.check.clone().map(Check::new);
    let tuner = options.tune.clone().map(Tuner::new);
    let mut source = ModelSource {
        identity: file.identity()?, // before the file is moved
        quantize: options.quantize,
        file: file.into(),
        adapters: adapter_files,
        kv: config,
        limits,
        check,
        tuner,
    };
    let runner = source.load(executor, open, None, progress)?;
    // Only now: loading holds the vocabulary against the embedding.
    let file = Arc::get_mut(&mut source.file).expect("nobody else has it yet");
    file.metadata_mut().drop_tokenizer_arrays();
    let adapter_base = AdapterBase(Arc::clone(&source.file), Arc::new(hyper));
    let adapter_names = AdapterNames::default();
    adapter_names.set(&adapters);
    let info = ModelInfo {
        has_chat_template: chat.is_some(),
        special_tokens_in_messages: options.special_tokens_in_messages,
        sampling,
        adapters: adapter_names,
        ..model_info(&source.file, runner.model(), &config)?
    };
    let (info, tokenizer, chat) = (Arc::new(info), Arc::new(tokenizer), chat.map(Arc::new));
    let made_by = fingerprint::of(path, options.quantize, &source.kv).unwrap_or_else(|error| {
        tracing::warn!(%error, "the model's file was not read again: no session outlives this");
        format!("process {}", std::process::id())
    });
    // The fingerprint is of what is at the path, which is to be the file that is open.
    source.check_place()?;
    let opened =
        Opened { runner, tokenizer, chat, info, adapters, adapter_base, made_by, reopen: None };
    Ok((opened, source))
}

/// The tokenizer of a file, and its chat template or that of the options.
fn open_text(
    file: &GgufFile,
    options: &EngineOptions,
) -> Result<(Tokenizer, Option<ChatTemplate>), OpenError> {
    let path = || file.path().display().to_string();
    let mut source = VocabSource::from_metadata(file.metadata())?;
    source.pre_fallback = options.tokenizer_fallback;
    if let Some(name) = source.replaced_pre_tokenizer() {
        warn!(pre_tokenizer = name, "not known: text is cut by the default rule instead");
    }
    let tokenizer =
        Tokenizer::new(source).map_err(|error| OpenError::Tokenizer { path: path(), error })?;
    let text = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id)).unwrap_or_default();
    let (bos, eos) = (text(tokenizer.bos()), text(tokenizer.eos()));
    let name = &options.chat_template;
    let chat = if name.is_empty() {
        let own = |key| -> Result<Option<&str>, GgufError> {
            Ok(file.metadata().opt_str(key)?.filter(|source| !source.trim().is_empty()))
        };
        let with_tools = own("tokenizer.chat_template.tool_use")?;
        own("tokenizer.chat_template")?
            .map(|own| {
                let template = ChatTemplate::new(own, bos, eos)?;
                with_tools.map_or(Ok(template.clone()), |source| template.with_tool_use(source))
            })
            .transpose()
            .map_err(|error| OpenError::Chat { path: path(), error })?
    } else {
        let wrong = |error| OpenError::NamedChat { name: name.clone(), error };
        Some(ChatTemplate::new(&chat_source(name)?, bos, eos).map_err(wrong)?)
    };
    Ok((tokenizer, chat))
}

/// The template of a name, or of a file.
fn chat_source(name: &str) -> Result<String, OpenError> {
    let unknown = match named_template(name) {
        Ok(source) => return Ok(source.to_owned()),
        Err(error) => error,
    };
    let path = Path::new(name);
    if !path.exists() {
        return Err(OpenError::NamedChat { name: name.to_owned(), error: unknown });
    }
    // One byte more than a template may have: what is longer is refused by its length.
    let mut source = String::new();
    let limit = ChatTemplate::SOURCE_BYTES_MAX as u64 + 1;
    File::open(path)
        .and_then(|file| file.take(limit).read_to_string(&mut source))
        .map_err(|error| OpenError::ChatFile { path: name.to_owned(), error })?;
    Ok(source)
}

/// Sizes of the cache, by the options and what the device leaves.
fn kv_config(
    hyper: &HyperParams,
    caps: &Capabilities,
    options: &EngineOptions,
    free_bytes: u64,
) -> KvConfig {
    let (kv_heads, head_dim) = (hyper.kv_heads, hyper.head_dim);
    let layout = PageLayout::new(caps, kv_heads, head_dim, kv_format(options.kv_dtype, caps));
    let trained = hyper.context_trained as usize;
    let bindable = KvConfig::tokens_bindable(&layout, caps);
    let context_tokens = match options.context_tokens {
        0 => trained.min(CONTEXT_TOKENS_DEFAULT),
        wanted => wanted,
    }
    .min(bindable);
    tell_of_context(options.context_tokens, trained, context_tokens);
    let mut config = KvConfig {
        layout,
        layers: hyper.kv_layers(),
        context_tokens,
        tokens_max: options.kv_tokens,
        // Every session may keep a cache, and requests without a session need one as well.
        leases_max: options.sessions_max + 64,
    };
    if config.tokens_max == 0 {
        let fitting = free_bytes / KV_SHARE / config.token_bytes();
        let fitting = usize::try_from(fitting).unwrap_or(usize::MAX);
        config.tokens_max = (context_tokens * CONTEXTS_DEFAULT).min(fitting.max(context_tokens));
    }
    config.tokens_max = config.tokens_max.max(context_tokens).min(bindable);
    config
}

fn kv_format(wanted: KvDtype, caps: &Capabilities) -> KvFormat {
    match wanted {
        KvDtype::Auto if !caps.storage_16bit => KvFormat::F32,
        KvDtype::F32 => KvFormat::F32,
        KvDtype::Auto | KvDtype::F16 => KvFormat::F16,
        KvDtype::Q8_0 => KvFormat::Q8_0,
    }
}

/// A format of blocks holds heads of whole blocks alone.
fn refuse_partial_blocks(
    file: &GgufFile,
    hyper: &HyperParams,
    format: KvFormat,
) -> Result<(), ModelLoadError> {
    if format.holds(hyper.head_dim) {
        return Ok(());
    }
    let (block, name) = (KvFormat::BLOCK, format.name());
    Err(ModelLoadError::Value {
        path: file.path().to_owned(),
        key: format!("{}.attention.key_length", hyper.architecture),
        wanted: format!("a multiple of {block}, for kv_dtype = {name:?}; \"f16\" holds any"),
        found: hyper.head_dim.to_string(),
    })
}

/// Logs where the context that was asked for is more than the model knows or the device can hold.
fn tell_of_context(wanted: usize, trained: usize, context_tokens: usize) {
    if wanted > context_tokens {
        tracing::warn!(
            wanted,
            context_tokens,
            "the context is lowered: a buffer of this device holds no longer one",
        );
    }
    if context_tokens > trained {
        tracing::warn!(
            context_tokens,
            trained,
            "the context is longer than the model was trained for: its answers may get worse there",
        );
    }
}

fn model_info(file: &GgufFile, model: &Model, config: &KvConfig) -> Result<ModelInfo, GgufError> {
    let stem = || file.path().file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let name = file.metadata().opt_str("general.name")?.map_or_else(stem, str::to_owned);
    let mut by_type: Vec<(&str, u64)> = Vec::new();
    for tensor in file.tensors().iter().filter(|tensor| tensor.rows() > 1) {
        let bytes = tensor.bytes;
        match by_type.iter_mut().find(|(known, _)| *known == tensor.dtype.name()) {
            Some((_, sum)) => *sum += bytes,
            None => by_type.push((tensor.dtype.name(), bytes)),
        }
    }
    let quantization = by_type.iter().max_by_key(|(_, bytes)| *bytes).map_or("", |(name, _)| name);
    Ok(ModelInfo {
        name,
        architecture: model.hyper().architecture.clone(),
        parameters: model.parameters(),
        weights_bytes: model.weights_bytes(),
        quantization: quantization.to_owned(),
        context_tokens_trained: model.hyper().context_trained,
        context_tokens: config.context_tokens as u32,
        vocab_size: model.vocab() as u32,
        generates: !model.hyper().encoder,
        embedding_length: model.hyper().embedding as u32,
        ..ModelInfo::default()
    })
}
