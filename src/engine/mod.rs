//! The engine: one OS thread that owns the executor, the model, the sessions and their caches.
//!
//! Callers hold an [`EngineHandle`]; it sends commands over a bounded channel and each request gets
//! its events over a channel of its own. The engine never waits for a caller.

mod activity;
mod adapters;
mod admission;
mod budget;
mod check;
mod embed_steps;
mod embedding;
mod fetching;
mod fingerprint;
mod flight;
mod heartbeat;
mod open;
mod placed;
mod quota;
mod receive;
mod recovery;
mod request;
mod residence;
mod room;
mod runner;
mod sampling;
mod saving;
mod sessions;
mod sleep;
mod steps;
mod tune;
mod types;
mod warm;
mod worker;

pub use activity::{Activity, Finished, Histogram, KvPages};
pub use adapters::{
    AdapterBase, AdapterError, AdapterInfo, AdapterNames, AdapterSource, NamedAdapter, OpenAdapter,
};
pub use check::{CheckOptions, CheckWhen, KernelFault};
pub use embedding::{EmbedRequest, EmbedResult};
pub use heartbeat::Heartbeat;
pub use open::{EngineOptions, OpenError, Opened, look_at, open, open_with};
pub use placed::{OpenExecutor, Reopen};
pub use quota::{Quota, Quotas};
pub use recovery::EngineFailure;
pub use runner::{Flight, Mix, Results, Runner, Wanted};
pub use saving::StateOptions;
pub use tune::{
    Measured, TuneOptions, TuneProgress, TunedWork, Tuner, Verdict, WorkSize, forget_tuning,
    tuned_on,
};
pub use types::*;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::chat::ChatTemplate;
use crate::tokenizer::Tokenizer;

/// What an engine is asked to do.
#[derive(Debug)]
pub enum EngineCommand {
    /// Creates a session.
    CreateSession {
        /// Caller.
        owner: Owner,
        /// What it is to be.
        options: SessionOptions,
        /// Answer.
        reply: oneshot::Sender<Result<SessionInfo, AdmitError>>,
    },
    /// Does something with one of the owner's sessions; the answer is of the session that came of
    /// it.
    OnSession {
        /// Caller.
        owner: Owner,
        /// Which.
        session: SessionId,
        /// What.
        action: SessionAction,
        /// Answer.
        reply: oneshot::Sender<Result<SessionInfo, AdmitError>>,
    },
    /// Lists the owner's sessions.
    ListSessions {
        /// Caller.
        owner: Owner,
        /// Answer.
        reply: oneshot::Sender<Vec<SessionInfo>>,
    },
    /// Closes a session and cancels what runs on it.
    CloseSession {
        /// Caller.
        owner: Owner,
        /// Which.
        session: SessionId,
        /// Answer.
        reply: oneshot::Sender<Result<(), AdmitError>>,
    },
    /// Generates. Events go to `events`, ending with `Done` or `Refused`; a closed receiver
    /// cancels.
    Generate {
        /// The request.
        request: Box<GenerateRequest>,
        /// Unbounded, because the engine must not wait; bounded in fact by `tokens_max`.
        events: mpsc::UnboundedSender<EngineEvent>,
    },
    /// Makes an embedding of each of some texts. A closed receiver cancels.
    Embed {
        /// The request.
        request: Box<EmbedRequest>,
        /// Answer.
        reply: oneshot::Sender<Result<EmbedResult, AdmitError>>,
    },
    /// Time has passed: looks at the device's memory, and closes sessions that were idle for too
    /// long.
    Tick,
    /// Takes the model off the device, unless requests run or wait.
    Unload {
        /// Whether it is off now.
        reply: oneshot::Sender<bool>,
    },
    /// Puts the model on the device again, where it is not.
    Load {
        /// Answer.
        reply: oneshot::Sender<Result<(), LoadFailure>>,
    },
    /// Asks what adapters are held against: to read one takes a while, and others do it.
    AdapterBase {
        /// Answer.
        reply: oneshot::Sender<AdapterBase>,
    },
    /// Puts an adapter beside the model.
    LoadAdapter {
        /// It was read by this engine's [`AdapterBase`].
        adapter: Box<OpenAdapter>,
        /// Answer.
        reply: oneshot::Sender<Result<AdapterInfo, AdapterError>>,
    },
    /// Takes an adapter away that no session uses.
    UnloadAdapter {
        /// Its name.
        name: String,
        /// Answer.
        reply: oneshot::Sender<Result<(), AdapterError>>,
    },
    /// Lists the adapters.
    ListAdapters {
        /// Answer.
        reply: oneshot::Sender<Vec<AdapterInfo>>,
    },
    /// The machine is about to sleep: frees the device. Requests rest until [`Self::Wake`].
    Sleep {
        /// Answer: the device is free.
        reply: oneshot::Sender<()>,
    },
    /// The machine is awake: the model comes back, and what rested goes on.
    Wake,
    /// Reports the state.
    Status {
        /// Answer.
        reply: oneshot::Sender<EngineStatus>,
    },
    /// Finishes: running requests are cancelled (`FinishReason::Cancelled`), then the thread ends.
    Shutdown,
}

/// Where to reach a running engine; cheap to clone.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    /// Commands, bounded: a full channel is answered with `AdmitError::QueueFull`.
    pub commands: mpsc::Sender<EngineCommand>,
    /// Tokenizer of the loaded model, for any thread.
    pub tokenizer: Arc<Tokenizer>,
    /// Chat template of the loaded model, where the file has one.
    pub chat: Option<Arc<ChatTemplate>>,
    /// The loaded model.
    pub model: Arc<ModelInfo>,
    /// Whether the engine gets on.
    pub heartbeat: Heartbeat,
    /// Whether the model is on the device now; the engine says so itself.
    pub on_device: Arc<AtomicBool>,
}

/// The engine's thread; joining it tells how it ended.
pub type EngineThread = std::thread::JoinHandle<Result<(), EngineFailure>>;

/// Starts the engine on an opened model.
///
/// # Errors
/// If the system refuses a thread.
pub fn start(
    opened: Opened,
    options: &EngineOptions,
) -> std::io::Result<(EngineHandle, EngineThread)> {
    let (commands, receiver) = mpsc::channel(COMMANDS_MAX);
    let heartbeat = Heartbeat::default();
    let on_device = Arc::new(AtomicBool::new(true));
    let handle = EngineHandle {
        commands,
        tokenizer: Arc::clone(&opened.tokenizer),
        chat: opened.chat.clone(),
        model: Arc::clone(&opened.info),
        heartbeat: heartbeat.clone(),
        on_device: Arc::clone(&on_device),
    };
    let worker = worker::Worker::new(opened, options, heartbeat, on_device)?;
    let clock = handle.commands.downgrade();
    let thread =
        std::thread::Builder::new().name("engine".into()).spawn(move || worker.run(receiver))?;
    std::thread::Builder::new().name("clock".into()).spawn(move || {
        // Ends with the last handle.
        while let Some(commands) = clock.upgrade() {
            let _ = commands.try_send(EngineCommand::Tick); // a full channel is no idle engine
            drop(commands);
            std::thread::sleep(TICK);
        }
    })?;
    Ok((handle, thread))
}

/// How often an engine looks at the time while it has nothing to do.
const TICK: Duration = Duration::from_secs(1);

/// Commands that may wait in the channel; the engine empties it between steps.
const COMMANDS_MAX: usize = 256;
