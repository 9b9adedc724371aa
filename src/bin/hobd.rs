//! The `hobd` daemon: reads its configuration, loads the model onto the device, serves the socket.
//!
//! The order matters: the socket is claimed before the model is loaded, so that a second daemon
//! fails at once, and clients wait in the socket's queue instead of being refused.

#[path = "hobd/library.rs"]
mod library;

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use sd_notify::NotifyState;
use thiserror::Error;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use hob::config::{
    Config, ConfigError, EXIT_CONFIG, Flags, LogFormat, LogLevel, Places, Quantize, SelfCheck, Tune,
};
use hob::engine::{
    self, CheckOptions, CheckWhen, EngineFailure, EngineOptions, OpenError, Opened, StateOptions,
    TuneOptions,
};
use hob::gpu::DeviceError;
use hob::http::Http;
use hob::model::ModelLoadError;
use hob::reference::ReferenceExecutor;
use hob::server::{
    self, Access, AccessError, BoundSocket, Ending, Models, Notice, SaveLimits, ServeEnd, Served,
    ServerOptions, SocketError, StateInUse, StateLock, stop_on_signals,
};
use hob::store::StoreError;
use hob::telemetry::{self, Form, LevelFilter, TelemetryError};
use hob::tensor::DType;

use library::{Library, Located};

/// Exit statuses after sysexits.h; [`EXIT_CONFIG`] is the one of configuration and model.
const EXIT_UNAVAILABLE: u8 = 69;
const EXIT_SYSTEM: u8 = 71;
const EXIT_SOCKET: u8 = 73;
const EXIT_NOT_SAVED: u8 = 74;
const EXIT_DEVICE_FAILED: u8 = 75;

/// From the first signal to the end while the model is being loaded, whatever the device is doing.
const STOP_LOADING_MAX: Duration = Duration::from_millis(4800);

/// How much longer the service manager is asked to wait while sessions are saved: each time that
/// the engines are looked at.
const STOP_EXTENSION: Duration = Duration::from_secs(15);

/// Idle time before the autotuner starts.
const TUNING_QUIET: Duration = Duration::from_secs(2);

/// Interval of loading progress in the log.
const PROGRESS_PERIOD: Duration = Duration::from_secs(1);

/// Threads that serve sockets; the work is done by the engine's thread and the device.
const SERVER_THREADS: usize = 2;

/// Threads that tokenize and render templates.
const TEXT_THREADS_MAX: usize = 8;

/// Reason the daemon did not start or ended.
#[derive(Debug, Error)]
enum DaemonError {
    #[error(transparent)]
    Config(Box<ConfigError>),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error(transparent)]
    Log(#[from] TelemetryError),
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error(transparent)]
    State(#[from] StateInUse),
    #[error("sessions that could not be saved: {0}, named above")]
    NotSaved(usize),
    #[error("{}", about_model(model, source))]
    Model { model: PathBuf, source: Box<OpenError> },
    #[error(transparent)]
    Device(DeviceError),
    #[error(transparent)]
    EngineFailed(EngineFailure),
    #[error("the engine's thread panicked")]
    EnginePanicked,
    #[error("cannot {attempt}: {source}")]
    System { attempt: &'static str, source: io::Error },
}

impl DaemonError {
    fn system(attempt: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { attempt, source }
    }

    fn exit_status(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Access(_) | Self::Store(_) | Self::Log(_) => EXIT_CONFIG,
            Self::Model { source, .. } => match &**source {
                OpenError::Device(error) | OpenError::Model(ModelLoadError::Device(error)) => {
                    device_status(error)
                }
                _ => EXIT_CONFIG,
            },
            Self::Device(error) => device_status(error),
            Self::Socket(_) | Self::State(_) => EXIT_SOCKET,
            Self::NotSaved(_) => EXIT_NOT_SAVED,
            Self::EngineFailed(_) | Self::EnginePanicked => EXIT_DEVICE_FAILED,
            Self::System { .. } => EXIT_SYSTEM,
        }
    }
}

impl From<ConfigError> for DaemonError {
    fn from(error: ConfigError) -> Self {
        Self::Config(Box::new(error))
    }
}

fn device_status(error: &DeviceError) -> u8 {
    match error {
        // The configuration names the device.
        DeviceError::DeviceNotFound { .. } => EXIT_CONFIG,
        _ => EXIT_UNAVAILABLE,
    }
}

/// Names the model's file, which some errors do themselves.
fn about_model(model: &Path, error: &OpenError) -> String {
    let (model, error) = (model.display().to_string(), error.to_string());
    if error.contains(&model) { error } else { format!("{model}: {error}") }
}

fn main() -> ExitCode {
    let flags = Flags::parse();
    let places = Places::of_this_process();
    let config = match prepare(&flags, &places) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("hobd: {error}");
            return ExitCode::from(error.exit_status());
        }
    };
    if flags.check_config {
        return match check(&config, &places) {
            Ok(()) => {
                println!("hobd: the configuration is in order");
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("error: {error}");
                ExitCode::from(error.exit_status())
            }
        };
    }
    match serve(&config, &places) {
        Ok(()) => {
            info!("stopped");
            ExitCode::SUCCESS
        }
        Err(error) => {
            error!("{error}");
            notify(&[NotifyState::Status(&error.to_string())]);
            ExitCode::from(error.exit_status())
        }
    }
}

/// Reads the configuration and sets up the log.
fn prepare(flags: &Flags, places: &Places) -> Result<Config, DaemonError> {
    let config = flags.configuration(places)?;
    let level = match config.log_level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let form = match config.log_format {
        LogFormat::Auto => Form::Auto,
        LogFormat::Text => Form::Text,
        LogFormat::Json => Form::Json,
        LogFormat::Journald => Form::Journald,
    };
    if !flags.check_config {
        telemetry::init(level, form)?;
    }
    Ok(config)
}

/// Looks whether there is what the configuration names: users, models, a chat template.
fn check(config: &Config, places: &Places) -> Result<(), DaemonError> {
    Access::resolve(config)?;
    let options =
        EngineOptions { quotas: server::quotas(config)?, ..engine_options(config, places) };
    Library::new(config, places, options).check(config)
}

fn serve(config: &Config, places: &Places) -> Result<(), DaemonError> {
    // Memory holds prompts: it goes to no core file, and no other process of this user reads it.
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        warn!(%error, "other processes of this user may read hobd's memory");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(SERVER_THREADS)
        .max_blocking_threads(TEXT_THREADS_MAX)
        .thread_name("server")
        .enable_all()
        .build()
        .map_err(DaemonError::system("start the server's threads"))?;
    let result = runtime.block_on(run(config, places));
    // A text that is still being tokenized has nobody waiting for it.
    runtime.shutdown_background();
    result
}

async fn run(config: &Config, places: &Places) -> Result<(), DaemonError> {
    let options =
        EngineOptions { quotas: server::quotas(config)?, ..engine_options(config, places) };
    let library = Arc::new(Library::new(config, places, options));
    let default = library.default_model(config, places)?;
    let stop = stop_on_signals().map_err(DaemonError::system("install signal handlers"))?;
    let in_time = tokio::spawn(end_in_time(stop.clone()));
    let socket = BoundSocket::adopt_or_bind(&places.socket_of(config))?;
    let state = library.state_folder().map(|folder| StateLock::take(folder, socket.path()));
    let state = state.transpose()?;
    let serving = ServerOptions { access: Access::resolve(config)?, ..ServerOptions::from(config) };
    let Some(opened) = load(&library, &default, &stop).await? else {
        return Ok(());
    };
    in_time.abort();
    let (engine, thread) = engine::start(opened, &default.options)
        .map_err(DaemonError::system("start the engine's thread"))?;
    info!(socket = %socket.path().display(), "ready");
    // A first token was evaluated as the model was loaded.
    notify(&[NotifyState::Ready]);
    let watchdog = sd_notify::watchdog_enabled();
    let loaded_max = config.models_loaded_max as usize;
    let models = Models::new(default.spec, engine, library, loaded_max).with_default_thread(thread);
    let watched = models.clone();
    let watched = move || watched.default_engine();
    tokio::spawn(server::watch(watched, watchdog, stop.clone(), |notice| match notice {
        Notice::Alive => notify(&[NotifyState::Watchdog]),
        Notice::Status(line) => notify(&[NotifyState::Status(&line)]),
    }));
    let pinned = models.clone();
    tokio::spawn(async move { pinned.load_pinned().await });
    tokio::spawn(server::follow_sleep(None, models.clone(), stop.clone()));
    let stopping = stop.clone();
    let state = Arc::new(state);
    let held = Arc::clone(&state);
    tokio::spawn(async move {
        stopping.cancelled().await;
        notify(&[NotifyState::Stopping]);
        held.iter().for_each(StateLock::note_stopping);
    });
    let http = Arc::new(Http::default());
    let served = server::serve(socket, models.clone(), Some(http), serving, stop).await;
    let Served { end, farewells } = served;
    let ending = models.shut_down(save_limits(config), ask_for_time).await;
    farewells.tell(&ending.report);
    // The lock is the process's: an engine that was given up may still write.
    std::mem::forget(state);
    outcome(ending, end)
}

fn outcome(ending: Ending, end: ServeEnd) -> Result<(), DaemonError> {
    let lost = ending.lost();
    match (ending.failure, end) {
        (Some(failure), ServeEnd::EngineGone) => return Err(DaemonError::EngineFailed(failure)),
        (Some(failure), ServeEnd::Stopped) => warn!(%failure, "while the daemon was stopping"),
        (None, _) => {}
    }
    match (ending.panicked, lost) {
        (true, _) => Err(DaemonError::EnginePanicked),
        (false, 0) => Ok(()),
        (false, lost) => Err(DaemonError::NotSaved(lost)),
    }
}

fn save_limits(config: &Config) -> SaveLimits {
    let patience = Duration::from_millis(config.save_timeout_ms.into());
    SaveLimits { patience, while_it_moves: std::env::var_os("NOTIFY_SOCKET").is_some() }
}

/// Asks the service manager to wait while sessions are saved.
fn ask_for_time() {
    let extension = u32::try_from(STOP_EXTENSION.as_micros()).unwrap_or(u32::MAX);
    notify(&[
        NotifyState::ExtendTimeoutUsec(extension),
        NotifyState::Watchdog,
        NotifyState::Status("saving sessions"),
    ]);
}

fn engine_options(config: &Config, places: &Places) -> EngineOptions {
    let folder = places.state_dir(config).filter(|_| config.save_sessions);
    let disk_cache_bytes = u64::from(config.disk_cache_mib) << 20;
    EngineOptions {
        context_tokens: config.context_tokens as usize,
        kv_tokens: config.kv_tokens as usize,
        memory_reserve: config.memory_reserve,
        kv_dtype: config.kv_dtype,
        sessions_max: config.sessions_max as usize,
        requests_queued_max: config.requests_queued_max as usize,
        idle_unload: config.idle_unload.0,
        prefill_tokens_max: config.prefill_tokens_max as usize,
        inter_token: Duration::from_millis(config.inter_token_ms.into()),
        host_cache_bytes: u64::from(config.host_cache_mib) << 20,
        quantize: match config.quantize {
            Quantize::None => None,
            Quantize::Q8_0 => Some(DType::Q8_0),
            Quantize::Q6_K => Some(DType::Q6_K),
            Quantize::Q5_K => Some(DType::Q5_K),
            Quantize::Q4_K => Some(DType::Q4_K),
            Quantize::Q4_0 => Some(DType::Q4_0),
        },
        tune: Some(TuneOptions {
            reference: |lanes| Box::new(ReferenceExecutor::with_lanes(lanes)),
            numerics: config.numerics,
            folder: places.cache_dir(config),
            measure: config.tune == Tune::Idle,
            quiet: TUNING_QUIET,
        }),
        check: Some(CheckOptions {
            reference: |lanes| Box::new(ReferenceExecutor::with_lanes(lanes)),
            when: match config.self_check {
                SelfCheck::Auto => CheckWhen::Auto,
                SelfCheck::Always => CheckWhen::Always,
                SelfCheck::Never => CheckWhen::Never,
            },
            folder: places.cache_dir(config),
        }),
        chat_template: config.chat_template.clone(),
        tokenizer_fallback: config.tokenizer_fallback,
        special_tokens_in_messages: config.special_tokens_in_messages,
        sampling: config.sampling,
        warm_up: true,
        state: folder.map(|folder| StateOptions { folder, model: String::new(), disk_cache_bytes }),
        ..EngineOptions::default()
    }
}

/// A load that takes its time cannot be interrupted, and there is nothing to save yet.
async fn end_in_time(stop: CancellationToken) {
    stop.cancelled().await;
    notify(&[NotifyState::Stopping]);
    sleep(STOP_LOADING_MAX).await;
    warn!("the model's loading did not end in time");
    process::exit(0);
}

/// Opens the device and loads the model; `None` if the daemon was told to stop meanwhile.
async fn load(
    library: &Library,
    default: &Located,
    stop: &CancellationToken,
) -> Result<Option<Opened>, DaemonError> {
    let Located { path: model, options, .. } = default.clone();
    info!(model = %model.display(), "loading");
    let (open, stop) = (library.device(), stop.clone());
    let stopping = stop.clone();
    let parked = CancellationToken::new();
    let at_rest = parked.clone();
    let loading = tokio::task::spawn_blocking(move || {
        let mut progress = LoadProgress::new(&model);
        let mut report = |done: u64, total: u64| {
            if stopping.is_cancelled() {
                // The load cannot be given up in between, but it can rest for ever.
                at_rest.cancel();
                loop {
                    std::thread::park();
                }
            }
            progress.report(done, total);
        };
        engine::open_with(open, &model, &options, &mut report).map_err(|error| match error {
            OpenError::Device(error) => DaemonError::Device(error),
            error => DaemonError::Model { model, source: Box::new(error) },
        })
    });
    tokio::select! {
        biased;
        () = parked.cancelled() => Ok(None),
        opened = loading => {
            let opened = opened.map_err(|_| DaemonError::EnginePanicked)??;
            Ok(Some(opened).filter(|_| !stop.is_cancelled()))
        }
    }
}

/// Tells how far the loading is: in the log, to the service manager, and on a terminal by a bar.
struct LoadProgress {
    started: Instant,
    told: Instant,
    bar: Option<ProgressBar>,
}

impl LoadProgress {
    fn new(model: &Path) -> Self {
        let now = Instant::now();
        let bar = io::stderr().is_terminal().then(|| {
            let template = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}";
            let style = ProgressStyle::with_template(template);
            let name = model.file_name().unwrap_or_default().to_string_lossy().into_owned();
            ProgressBar::new(0)
                .with_style(style.expect("the template is constant and well formed"))
                .with_message(name)
        });
        Self { started: now, told: now, bar }
    }

    /// `done` of `total` bytes are on the device.
    fn report(&mut self, done: u64, total: u64) {
        if let Some(bar) = &self.bar {
            bar.set_length(total);
            bar.set_position(done);
            if done == total {
                bar.finish_and_clear();
            }
        }
        let complete = done == total;
        if !complete && self.told.elapsed() < PROGRESS_PERIOD {
            return;
        }
        self.told = Instant::now();
        let seconds = self.started.elapsed().as_secs_f64().max(1e-3);
        let bytes_per_second = (done as f64 / seconds) as u64;
        if complete || self.bar.is_none() {
            info!(bytes_done = done, bytes_total = total, bytes_per_second, "weights loaded");
        }
        let percent = done.saturating_mul(100) / total.max(1);
        notify(&[NotifyState::Status(&format!("loading the model: {percent} %"))]);
    }
}

/// Tells the service manager, where there is one.
fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        warn!(%error, "cannot tell the service manager");
    }
}
