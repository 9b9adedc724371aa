//! The engine: one OS thread that owns the executor, the model, the sessions and their caches.
//!
//! Callers hold an [`EngineHandle`]; it sends commands through a queue in which each user has a
//! lane, and each request gets its events over a channel of its own. The engine never waits for a
//! caller.

mod activity;
mod adapters;
mod admission;
mod budget;
mod check;
mod constraints;
mod embed_steps;
mod embedding;
mod fetching;
mod fingerprint;
mod flight;
mod heartbeat;
mod new_session;
mod open;
mod open_error;
mod placed;
mod queue;
mod quota;
mod receive;
mod recovery;
mod request;
mod residence;
mod room;
mod runner;
mod sampling;
mod saver;
mod saving;
mod serve;
mod sessions;
mod sleep;
mod steps;
mod tune;
mod types;
mod warm;
mod worker;

pub use crate::session::Unsaved;
pub use activity::{Activity, Finished, Histogram, KvPages};
pub use adapters::{
    AdapterBase, AdapterError, AdapterInfo, AdapterNames, AdapterSource, NamedAdapter, OpenAdapter,
};
pub use check::{CheckOptions, CheckWhen, KernelFault};
pub use constraints::Constraints;
pub use embedding::{EmbedRequest, EmbedResult};
pub use heartbeat::Heartbeat;
pub use new_session::{Closer, NewSession, SessionGuard};
pub use open::{EngineOptions, Opened, look_at, open, open_with};
pub use open_error::OpenError;
pub use placed::{OpenExecutor, Reopen};
pub use queue::{CommandReceiver, CommandSender, EngineGone, Received, command_queue};
pub use quota::{Quota, Quotas};
pub use recovery::EngineFailure;
pub use runner::{Flight, Mix, Results, Runner, Wanted};
pub use saver::Saver;
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
use crate::grammar::GrammarCompiler;
use crate::tokenizer::Tokenizer;

/// What a user asks an engine to do. One whose answer nobody waits for any more is passed over.
#[derive(Debug)]
pub enum EngineCommand {
    /// Creates a session. It is closed if the answer reaches nobody.
    CreateSession {
        /// User that made the request.
        owner: Owner,
        /// Description of the session.
        options: SessionOptions,
        /// Channel for the answer.
        reply: oneshot::Sender<Result<NewSession, AdmitError>>,
    },
    /// Creates a session that begins with the tokens of another and shares their cache. It is
    /// closed if the answer reaches nobody.
    ForkSession {
        /// User that made the request.
        owner: Owner,
        /// Session to begin as.
        session: SessionId,
        /// Name of the new one.
        name: Option<String>,
        /// Number of tokens to begin with; all of them without it.
        at: Option<u32>,
        /// Channel for the answer.
        reply: oneshot::Sender<Result<NewSession, AdmitError>>,
    },
    /// Does something with one of the owner's sessions.
    OnSession {
        /// User that made the request.
        owner: Owner,
        /// Session.
        session: SessionId,
        /// Action.
        action: SessionAction,
        /// Channel for the answer.
        reply: oneshot::Sender<Result<SessionInfo, AdmitError>>,
    },
    /// Lists sessions.
    ListSessions {
        /// Owner of the sessions; without it, those of all users.
        owner: Option<Owner>,
        /// Channel for the answer.
        reply: oneshot::Sender<Vec<SessionInfo>>,
    },
    /// Closes a session and cancels what runs on it.
    CloseSession {
        /// Owner of the session.
        owner: Owner,
        /// Session.
        session: SessionId,
        /// Channel for the answer.
        reply: oneshot::Sender<Result<(), AdmitError>>,
    },
    /// Generates. Events go to `events`, ending with `Done` or `Refused`; a closed receiver
    /// cancels.
    Generate {
        /// Request to serve.
        request: Box<GenerateRequest>,
        /// Unbounded, because the engine must not wait; bounded in fact by `tokens_max`.
        events: mpsc::UnboundedSender<EngineEvent>,
    },
    /// Makes an embedding of each of some texts. A closed receiver cancels.
    Embed {
        /// Request to serve.
        request: Box<EmbedRequest>,
        /// Channel for the answer.
        reply: oneshot::Sender<Result<EmbedResult, AdmitError>>,
    },
    /// Asks what adapters are held against: to read one takes a while, and others do it.
    AdapterBase {
        /// Channel for the answer.
        reply: oneshot::Sender<AdapterBase>,
    },
    /// Puts an adapter beside the model.
    LoadAdapter {
        /// Adapter, read and validated with this engine's [`AdapterBase`].
        adapter: Box<OpenAdapter>,
        /// Channel for the answer.
        reply: oneshot::Sender<Result<AdapterInfo, AdapterError>>,
    },
    /// Takes an adapter away that no session uses.
    UnloadAdapter {
        /// Name.
        name: String,
        /// Channel for the answer.
        reply: oneshot::Sender<Result<(), AdapterError>>,
    },
    /// Lists the adapters.
    ListAdapters {
        /// Channel for the answer.
        reply: oneshot::Sender<Vec<AdapterInfo>>,
    },
    /// Reports the state.
    Status {
        /// Channel for the answer.
        reply: oneshot::Sender<EngineStatus>,
    },
}

impl EngineCommand {
    /// True if nobody waits for the answer, so that there is no point in serving it.
    pub(super) fn is_abandoned(&self) -> bool {
        match self {
            Self::CreateSession { reply, .. } | Self::ForkSession { reply, .. } => {
                reply.is_closed()
            }
            Self::OnSession { reply, .. } => reply.is_closed(),
            Self::ListSessions { reply, .. } => reply.is_closed(),
            Self::Generate { events, .. } => events.is_closed(),
            Self::Embed { reply, .. } => reply.is_closed(),
            Self::AdapterBase { reply } => reply.is_closed(),
            Self::LoadAdapter { reply, .. } => reply.is_closed(),
            Self::ListAdapters { reply } => reply.is_closed(),
            Self::Status { reply } => reply.is_closed(),
            // These free what others may want.
            Self::CloseSession { .. } | Self::UnloadAdapter { .. } => false,
        }
    }

    /// Tells the caller that the command is not served.
    pub(super) fn refuse(self, error: AdmitError) {
        // Whoever asked may have gone away; the other callers hear that the engine has stopped.
        match self {
            Self::CreateSession { reply, .. } | Self::ForkSession { reply, .. } => {
                drop(reply.send(Err(error)));
            }
            Self::OnSession { reply, .. } => drop(reply.send(Err(error))),
            Self::CloseSession { reply, .. } => drop(reply.send(Err(error))),
            Self::Generate { events, .. } => drop(events.send(EngineEvent::Refused(error))),
            Self::Embed { reply, .. } => drop(reply.send(Err(error))),
            _ => {}
        }
    }
}

/// What the daemon itself tells an engine: it comes before the commands of users.
#[derive(Debug)]
pub enum Control {
    /// Time has passed: looks at the device's memory, and closes sessions that were idle for too
    /// long.
    Tick,
    /// Closes a session that nobody owns any more, if it is still there.
    CloseSession {
        /// Owner of the session.
        owner: Owner,
        /// Session.
        session: SessionId,
    },
    /// Reports the state, and thereby that the engine gets on.
    Status {
        /// Channel for the answer.
        reply: oneshot::Sender<EngineStatus>,
    },
    /// Lists the sessions of all users.
    ListSessions {
        /// Channel for the answer.
        reply: oneshot::Sender<Vec<SessionInfo>>,
    },
    /// Takes the model off the device, unless requests run or wait.
    Unload {
        /// True if it is off now.
        reply: oneshot::Sender<bool>,
    },
    /// Puts the model on the device again, where it is not.
    Load {
        /// Channel for the answer.
        reply: oneshot::Sender<Result<(), LoadFailure>>,
    },
    /// The machine is about to sleep: frees the device. Requests rest until [`Self::Wake`].
    Sleep {
        /// Answer: the device is free.
        reply: oneshot::Sender<()>,
    },
    /// The machine is awake: the model comes back, and what rested goes on.
    Wake,
    /// Finishes: running requests are cancelled (`FinishReason::Cancelled`), then the thread ends.
    Shutdown,
}

/// Handle of a running engine; cheap to clone.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    /// The way in, where each user has a share.
    pub commands: CommandSender,
    /// Tokenizer of the loaded model, for any thread.
    pub tokenizer: Arc<Tokenizer>,
    /// Chat template of the loaded model, where the file has one.
    pub chat: Option<Arc<ChatTemplate>>,
    /// Compiles grammars for its texts.
    pub grammars: Arc<GrammarCompiler>,
    /// The loaded model.
    pub model: Arc<ModelInfo>,
    /// Whether the engine gets on.
    pub heartbeat: Heartbeat,
    /// True if the model is on the device now; the engine says so itself.
    pub on_device: Arc<AtomicBool>,
    /// What saves its sessions without it.
    pub saver: Saver,
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
    let (commands, receiver) = command_queue();
    let heartbeat = Heartbeat::default();
    let on_device = Arc::new(AtomicBool::new(true));
    let closer = Closer::of(&receiver);
    let (tokenizer, chat, model) =
        (Arc::clone(&opened.tokenizer), opened.chat.clone(), Arc::clone(&opened.info));
    let grammars = Arc::new(GrammarCompiler::new(Arc::clone(&tokenizer)));
    let device = Arc::clone(&on_device);
    let worker = worker::Worker::new(opened, options, heartbeat.clone(), device, closer)?;
    let saver = worker.files.as_ref().map(saving::Files::saver).unwrap_or_default();
    let handle =
        EngineHandle { commands, tokenizer, chat, grammars, model, heartbeat, on_device, saver };
    let clock = handle.commands.clock();
    let thread =
        std::thread::Builder::new().name("engine".into()).spawn(move || worker.run(receiver))?;
    std::thread::Builder::new().name("clock".into()).spawn(move || {
        // Ends with the engine, or the last handle.
        while clock.tick() {
            std::thread::sleep(TICK);
        }
    })?;
    Ok((handle, thread))
}

/// Time between two ticks, at which the engine looks at the clock and at the device's memory.
pub const TICK: Duration = Duration::from_secs(1);
