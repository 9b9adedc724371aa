//! A server in front of an engine that answers from a script, and a client to hold against it.

// Each test program uses a part of this.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

mod client;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hob::chat::ChatTemplate;
use hob::config::Config;
use hob::engine::{
    AdapterInfo, AdmitError, CachePlace, Closer, CommandReceiver, Control, EmbedRequest,
    EmbedResult, EngineCommand, EngineEvent, EngineHandle, EngineStatus, FinishReason,
    GenerateRequest, GenerateResult, Heartbeat, ModelInfo, NewSession, Owner, Priority, Received,
    SamplingParams, Saver, SessionAction, SessionId, SessionInfo, SessionOptions, Timings,
    TokenLogprob, command_queue,
};
use hob::grammar::GrammarCompiler;
use hob::http::Http;
use hob::model::Pooling;
use hob::server::{Models, Server, ServerOptions};
use hob::tokenizer::{Tokenizer, VocabSource};
use serde_json::Value;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

pub use client::Client;

/// Longer than anything here takes.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The first of these tokens in a prompt tells the engine what to do. This one: wait to be
/// cancelled.
pub const HOLD: u32 = 4;
/// Emit tokens with long texts until cancelled.
pub const FLOOD: u32 = 5;
/// Drop the request without an answer, as an engine that dies.
pub const DIE: u32 = 6;
/// End by the first stop text after three tokens.
pub const STOP: u32 = 7;

/// Nobody who runs tests.
pub const ADA: Owner = Owner { uid: 71_000 };
pub const BOB: Owner = Owner { uid: 71_001 };
pub const EVE: Owner = Owner { uid: 71_002 };

/// A scripted engine.
pub struct Mock {
    pub handle: EngineHandle,
    /// Requests as they arrive.
    pub arrived: mpsc::UnboundedReceiver<GenerateRequest>,
    /// The same of those for embeddings.
    pub to_embed: mpsc::UnboundedReceiver<EmbedRequest>,
    /// How held and flooding requests ended: always by being cancelled.
    pub cancelled: mpsc::UnboundedReceiver<()>,
}

impl Mock {
    /// Must be called inside a runtime.
    pub fn start() -> Self {
        Self::named("mock", Arc::default())
    }

    /// One of several, which number their sessions together.
    pub fn named(name: &str, numbers: Arc<AtomicU64>) -> Self {
        let (mock, go) = Self::paused(name, numbers);
        go.send(()).unwrap();
        mock
    }

    /// The same; it serves nothing before it is told to.
    pub fn paused(name: &str, numbers: Arc<AtomicU64>) -> (Self, oneshot::Sender<()>) {
        let (commands, receiver) = command_queue();
        let (arrived_tx, arrived) = mpsc::unbounded_channel();
        let (to_embed_tx, to_embed) = mpsc::unbounded_channel();
        let (cancelled_tx, cancelled) = mpsc::unbounded_channel();
        let template = "{% if tools %}[tools]{{ tools | tojson }}{% endif %}\
                        {% for m in messages %}[{{ m.role }}]{{ m.content }}\
                        {% for call in m.tool_calls %}{{ call | tojson }}{% endfor %}\
                        {% endfor %}[answer]";
        let tokenizer = Arc::new(tokenizer());
        let handle = EngineHandle {
            commands,
            grammars: Arc::new(GrammarCompiler::new(Arc::clone(&tokenizer))),
            tokenizer,
            chat: Some(Arc::new(ChatTemplate::new(template, "<s>", "</s>").unwrap())),
            heartbeat: Heartbeat::default(),
            on_device: Arc::new(AtomicBool::new(true)),
            saver: Saver::default(),
            model: Arc::new(ModelInfo {
                name: name.to_owned(),
                architecture: "llama".to_owned(),
                context_tokens: 2048,
                vocab_size: 260,
                has_chat_template: true,
                generates: true,
                embedding_length: 2,
                sampling: SamplingParams { min_p: 0.25, ..SamplingParams::default() },
                ..ModelInfo::default()
            }),
        };
        let script = Script {
            arrived: arrived_tx,
            to_embed: to_embed_tx,
            cancelled: cancelled_tx,
            on_device: Arc::clone(&handle.on_device),
            sessions: Vec::new(),
            closer: Closer::of(&receiver),
            numbers,
        };
        let (go, told) = oneshot::channel();
        tokio::spawn(async move {
            let _ = told.await;
            script.run(receiver).await;
        });
        (Self { handle, arrived, to_embed, cancelled }, go)
    }
}

/// BOS, EOS, and the 256 bytes: a vocabulary for any text. Ids 4 to 6 are the bytes 1 to 3.
fn tokenizer() -> Tokenizer {
    let mut tokens = vec!["<unk>".to_owned(), "<s>".to_owned(), "</s>".to_owned()];
    tokens.extend((0..=u8::MAX).map(|byte| format!("<0x{byte:02X}>")));
    let mut token_types = vec![2, 3, 3];
    token_types.extend([6; 256]);
    Tokenizer::new(VocabSource {
        model: "llama".to_owned(),
        scores: vec![0.0; tokens.len()],
        tokens: tokens.iter().collect(),
        token_types,
        bos: Some(1),
        eos: Some(2),
        add_space_prefix: Some(false),
        ..VocabSource::default()
    })
    .unwrap()
}

struct Script {
    arrived: mpsc::UnboundedSender<GenerateRequest>,
    to_embed: mpsc::UnboundedSender<EmbedRequest>,
    cancelled: mpsc::UnboundedSender<()>,
    on_device: Arc<AtomicBool>,
    sessions: Vec<(Arc<()>, SessionInfo)>,
    closer: Closer,
    /// Sessions of all engines so far.
    numbers: Arc<AtomicU64>,
}

impl Script {
    async fn run(mut self, mut commands: CommandReceiver) {
        while let Some(received) = commands.recv().await {
            let command = match received {
                Received::Control(Control::Shutdown) => return,
                Received::Control(control) => {
                    self.obey(control);
                    continue;
                }
                Received::Command(_, command) => command,
            };
            match command {
                EngineCommand::CreateSession { owner, options, reply } => {
                    let SessionOptions { name, context_tokens, .. } = options;
                    let _ = reply.send(self.create(owner, name, context_tokens));
                }
                EngineCommand::OnSession { owner, session, action, reply } => {
                    let _ = reply.send(self.act(owner, session, action));
                }
                EngineCommand::ForkSession { owner, session, name, reply, .. } => {
                    let found = self.find(owner, session);
                    let _ = reply.send(found.and_then(|_| self.create(owner, name, None)));
                }
                EngineCommand::ListAdapters { reply } => {
                    let verse =
                        AdapterInfo { name: "verse".to_owned(), bytes: 9 << 20, sessions: 0 };
                    let _ = reply.send(vec![verse]);
                }
                EngineCommand::UnloadAdapter { reply, .. } => drop(reply.send(Ok(()))),
                // Only a real model can say what fits it.
                EngineCommand::AdapterBase { .. } | EngineCommand::LoadAdapter { .. } => {}
                EngineCommand::ListSessions { owner, reply } => {
                    let all = self.sessions.iter().map(|(_, session)| session);
                    let of_owner =
                        all.filter(|session| owner.is_none_or(|owner| session.owner == owner));
                    let _ = reply.send(of_owner.cloned().collect());
                }
                EngineCommand::CloseSession { owner, session, reply } => {
                    let found = self.find(owner, session);
                    let closed = found.map(|at| drop(self.sessions.remove(at)));
                    let _ = reply.send(closed);
                }
                EngineCommand::Generate { request, events } => {
                    let _ = self.arrived.send((*request).clone());
                    let found = request.session.map(|id| self.find(request.owner, id));
                    if let Some(Err(error)) = found {
                        let _ = events.send(EngineEvent::Refused(error));
                        continue;
                    }
                    tokio::spawn(generate(*request, events, self.cancelled.clone()));
                }
                EngineCommand::Embed { request, reply } => {
                    let _ = self.to_embed.send((*request).clone());
                    tokio::spawn(embed(*request, reply, self.cancelled.clone()));
                }
                EngineCommand::Status { reply } => drop(reply.send(self.status())),
            }
        }
    }

    fn obey(&mut self, control: Control) {
        match control {
            Control::Sleep { reply } => drop(reply.send(())),
            Control::Unload { reply } => {
                self.on_device.store(false, Ordering::Release);
                let _ = reply.send(true);
            }
            Control::Load { reply } => {
                self.on_device.store(true, Ordering::Release);
                let _ = reply.send(Ok(()));
            }
            Control::Status { reply } => drop(reply.send(self.status())),
            Control::CloseSession { owner, session } => {
                if let Ok(at) = self.find(owner, session) {
                    self.sessions.remove(at);
                }
            }
            Control::ListSessions { reply } => {
                let _ = reply.send(self.sessions.iter().map(|(_, found)| found.clone()).collect());
            }
            Control::Wake | Control::Tick => {}
            Control::Shutdown => unreachable!("ends the loop"),
        }
    }

    fn status(&self) -> EngineStatus {
        EngineStatus { sessions: self.sessions.len(), ..EngineStatus::default() }
    }

    fn create(
        &mut self,
        owner: Owner,
        name: Option<String>,
        context_tokens: Option<u32>,
    ) -> Result<NewSession, AdmitError> {
        let same = |(_, session): &(Arc<()>, SessionInfo)| {
            session.owner == owner && name.is_some() && session.name == name
        };
        if self.sessions.iter().any(same) {
            return Err(AdmitError::SessionExists(name.unwrap()));
        }
        let session = SessionInfo {
            id: SessionId(self.numbers.fetch_add(1, Ordering::Relaxed) + 1),
            owner,
            name,
            context_tokens: context_tokens.unwrap_or(2048),
            tokens: 0,
            cached_tokens: 0,
            place: CachePlace::None,
            priority: Priority::Normal,
            ttl_seconds: None,
            busy: false,
            idle_seconds: 0,
            adapters: Vec::new(),
        };
        let life = Arc::default();
        let made = self.closer.new_session(owner, session.clone(), &life);
        self.sessions.push((life, session));
        Ok(made)
    }

    fn act(
        &mut self,
        owner: Owner,
        id: SessionId,
        action: SessionAction,
    ) -> Result<SessionInfo, AdmitError> {
        let at = self.find(owner, id)?;
        match action {
            SessionAction::Info | SessionAction::Save | SessionAction::Restore => {}
            SessionAction::Truncate { tokens } => self.sessions[at].1.tokens = tokens,
        }
        Ok(self.sessions[at].1.clone())
    }

    fn find(&self, owner: Owner, id: SessionId) -> Result<usize, AdmitError> {
        let found = self.sessions.iter().position(|(_, s)| s.owner == owner && s.id == id);
        found.ok_or(AdmitError::UnknownSession(id.0))
    }
}

fn logprob(wanted: Option<u32>) -> Option<TokenLogprob> {
    wanted.map(|count| TokenLogprob {
        id: 100,
        logprob: -0.5,
        top: (0..count).map(|n| (100 + n, -0.5 - n as f32)).collect(),
    })
}

/// The vector of a text is its number of tokens, and its first.
async fn embed(
    request: EmbedRequest,
    reply: oneshot::Sender<Result<EmbedResult, AdmitError>>,
    cancelled: mpsc::UnboundedSender<()>,
) {
    if request.texts[0][1..].first() == Some(&HOLD) {
        while !request.cancel.is_raised() && !reply.is_closed() {
            sleep(Duration::from_millis(1)).await;
        }
        let _ = cancelled.send(());
        let _ = reply.send(Err(AdmitError::Cancelled));
        return;
    }
    let vector = |text: &Vec<u32>| vec![text.len() as f32, text[0] as f32];
    let result = EmbedResult {
        vectors: request.texts.iter().map(vector).collect(),
        pooling: request.pooling.unwrap_or(Pooling::Last),
        queue_ms: 0.1,
        compute_ms: 2.0,
        device_ms: 1.5,
        steps: 1,
    };
    let _ = reply.send(Ok(result));
}

async fn generate(
    request: GenerateRequest,
    events: mpsc::UnboundedSender<EngineEvent>,
    cancelled: mpsc::UnboundedSender<()>,
) {
    let is_order = |token: &u32| (HOLD..=STOP).contains(token);
    let first = request.tokens.iter().copied().find(is_order).unwrap_or(0);
    // The context has 2048 tokens.
    if request.tokens.len() >= 2048 {
        let prompt_tokens = request.tokens.len();
        let error = AdmitError::ContextFull { prompt_tokens, context_tokens: 2048 };
        return drop(events.send(EngineEvent::Refused(error)));
    }
    if request.report_start {
        let _ = events.send(EngineEvent::Started { cached_tokens: 0 });
    }
    let token =
        |text: String| EngineEvent::Token { text, token: 100, logprob: logprob(request.logprobs) };
    let gone = || request.cancel.is_raised() || events.is_closed();
    let mut finish_reason = FinishReason::Length;
    let mut count = (request.tokens_max as usize).min(2048 - request.tokens.len());
    let mut stop_text = None;
    if first == STOP {
        count = count.min(3);
        finish_reason = FinishReason::Stop;
        stop_text = request.stop.first().cloned();
    }
    match first {
        DIE => return,
        HOLD | FLOOD => {
            let text = if first == FLOOD { "~".repeat(4096) } else { "a".to_owned() };
            count = 1;
            let send = |text: &str| match request.stream {
                true => events.send(token(text.to_owned())).is_ok(),
                false => true,
            };
            send(&text);
            while !gone() {
                // A step of the engine.
                sleep(Duration::from_millis(1)).await;
                if first == FLOOD {
                    send(&text);
                }
            }
            let _ = cancelled.send(());
            finish_reason = FinishReason::Cancelled;
        }
        _ if request.stream => {
            for _ in 0..count {
                let _ = events.send(token("a".to_owned()));
            }
        }
        _ => {}
    }
    let done = GenerateResult {
        text: "a".repeat(count),
        tokens: vec![100; count],
        stop_text,
        finish_reason,
        error: None,
        prompt_tokens: request.tokens.len() as u32,
        cached_tokens: 0,
        logprobs: request.logprobs.map(|n| vec![logprob(Some(n)).unwrap(); count]),
        prompt_logprobs: request
            .prompt_logprobs
            .map(|n| vec![logprob(Some(n)).unwrap(); request.tokens.len() - 1]),
        timings: Timings::default(),
    };
    let _ = events.send(EngineEvent::Done(Box::new(done)));
}

/// A server, its engine, and the stop.
pub struct Bench {
    pub server: Server,
    pub mock: Mock,
    pub stop: CancellationToken,
}

impl Bench {
    pub fn start() -> Self {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut ServerOptions)) -> Self {
        Self::of(Mock::start(), Http::default(), change)
    }

    pub fn speaking(http: Http, change: impl FnOnce(&mut ServerOptions)) -> Self {
        Self::of(Mock::start(), http, change)
    }

    /// In front of an engine that serves nothing before it is told to.
    pub fn paused() -> (Self, oneshot::Sender<()>) {
        let (mock, go) = Mock::paused("mock", Arc::default());
        (Self::of(mock, Http::default(), |_| {}), go)
    }

    fn of(mock: Mock, http: Http, change: impl FnOnce(&mut ServerOptions)) -> Self {
        let stop = CancellationToken::new();
        let mut options = ServerOptions::from(&Config::default());
        change(&mut options);
        let models = Models::single(mock.handle.clone());
        let server = Server::speaking(Some(Arc::new(http)), models, options, stop.clone());
        Self { server, mock, stop }
    }

    pub fn connect(&self) -> Client {
        self.connect_as(ADA)
    }

    pub fn connect_as(&self, owner: Owner) -> Client {
        Client::new(self.raw_as(owner))
    }

    pub fn raw_as(&self, owner: Owner) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().unwrap();
        self.server.serve_stream(theirs, owner);
        ours
    }

    /// Waits until one request was seen cancelled by the engine.
    pub async fn cancelled(&mut self) {
        timeout(PATIENCE, self.mock.cancelled.recv()).await.expect("it is cancelled").unwrap();
    }

    pub async fn arrived(&mut self) -> GenerateRequest {
        timeout(PATIENCE, self.mock.arrived.recv()).await.expect("it arrives").unwrap()
    }
}

/// The code of an error reply.
pub fn code(reply: &Value) -> i64 {
    reply["error"]["code"].as_i64().unwrap_or_else(|| panic!("an error: {reply}"))
}
