//! The engine's loop: commands, admission, one batch a step.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedSender;

use super::Control;
use super::activity::KvPages;
use super::adapters::{AdapterBase, Adapters};
use super::budget::Budget;
use super::embedding::Embedding;
use super::fetching::Fetches;
use super::flight::Flying;
use super::heartbeat::Heartbeat;
use super::new_session::Closer;
use super::open::{EngineOptions, Opened};
use super::placed::Placed;
use super::queue::{CommandReceiver, NothingNow, Received};
use super::quota::{Quota, UserLimits};
use super::receive::{Waited, receive};
use super::recovery::{EngineFailure, Losses};
use super::request::Generation;
use super::saving::Files;
use super::sleep::Asleep;
use super::steps::Slices;
use super::types::{
    AdmitError, EngineEvent, EngineStatus, FinishReason, GenerateRequest, ModelInfo,
};
use super::warm;
use crate::gpu::DeviceError;
use crate::kernels::PageLayout;
use crate::scheduler::{Fairness, Priority};
use crate::session::{SessionId, Sessions, Traits};
use crate::tokenizer::Tokenizer;

/// Commands of all users served between two steps, whose shares are smaller: a flood of them must
/// not stop those that generate.
const COMMANDS_A_STEP: usize = 256;

/// Polling interval for file reads while idle.
const FETCH_LOOK: Duration = Duration::from_millis(5);

/// Everything the engine's thread owns.
pub(super) struct Worker {
    pub(super) runner: Placed,
    pub(super) losses: Losses,
    /// A request whose logits are no numbers waits for a new device.
    pub(super) bad_logits: bool,
    pub(super) reopen_pause: Duration,
    pub(super) tokenizer: Arc<Tokenizer>,
    pub(super) info: Arc<ModelInfo>,
    /// LoRA adapters of the model, by their numbers.
    pub(super) adapters: Adapters,
    pub(super) adapter_base: AdapterBase,
    pub(super) sessions: Sessions,
    /// They have a place in the batch.
    pub(super) running: Vec<Generation>,
    /// Waiting for pages or for a place in the batch.
    pub(super) waiting: VecDeque<Generation>,
    /// The step that is on the device, if any; see `flight.rs`.
    pub(super) flying: Option<Flying>,
    /// Embedding requests, in order of arrival.
    pub(super) embeddings: Vec<Embedding>,
    /// Requests so far.
    pub(super) arrived: u64,
    pub(super) fair: Fairness,
    pub(super) slices: Slices,
    pub(super) host_cache_bytes: u64,
    pub(super) files: Option<Files>,
    pub(super) closer: Closer,
    pub(super) fetches: Fetches,
    pub(super) sessions_max: usize,
    pub(super) requests_queued_max: usize,
    pub(super) running_max: usize,
    pub(super) quotas: UserLimits,
    pub(super) budget: Budget,
    started: Instant,
    pub(super) heartbeat: Heartbeat,
    idle_unload: Option<Duration>,
    /// State of a machine that is suspended or about to be.
    pub(super) asleep: Option<Asleep>,
    /// When a request last waited or ran.
    pub(super) last_busy: Instant,
    /// When the tokens of those that run were last noted.
    pub(super) last_noted: Instant,
    pub(super) totals: EngineStatus,
}

impl Worker {
    /// # Errors
    /// If the system refuses the thread that writes files.
    pub(super) fn new(
        opened: Opened,
        options: &EngineOptions,
        heartbeat: Heartbeat,
        on_device: Arc<AtomicBool>,
        closer: Closer,
    ) -> io::Result<Self> {
        let files =
            options.state.as_ref().map(|state| Files::new(state, opened.made_by)).transpose()?;
        let limits = opened.runner.model().limits();
        let kv = opened.runner.kv().config();
        let all = Quota {
            sessions_max: Some(options.sessions_max),
            kv_bytes_max: Some(kv.bytes_of(kv.tokens_max) as u64),
            requests_queued_max: Some(options.requests_queued_max),
            requests_running_max: Some(limits.logit_rows_max),
        };
        let context_bytes = kv.bytes_of(kv.context_tokens) as u64;
        Ok(Self {
            slices: Slices::new(
                options.prefill_tokens_max.min(limits.tokens_max),
                options.inter_token,
            ),
            running_max: limits.logit_rows_max,
            quotas: UserLimits::new(options.quotas.clone(), all, context_bytes),
            budget: Budget::new(
                options.memory_reserve,
                opened.runner.kv().config(),
                Arc::clone(&options.memory_turn),
            ),
            runner: Placed::new(
                opened.runner,
                opened.reopen,
                if options.warm_up { &warm::STEPS } else { &[] },
                on_device,
            ),
            losses: Losses::default(),
            bad_logits: false,
            reopen_pause: options.reopen_pause,
            tokenizer: opened.tokenizer,
            info: opened.info,
            adapters: opened.adapters,
            adapter_base: opened.adapter_base,
            sessions: Sessions::numbered_by(Arc::clone(&options.session_numbers)),
            running: Vec::new(),
            waiting: VecDeque::new(),
            flying: None,
            embeddings: Vec::new(),
            arrived: 0,
            fair: Fairness::default(),
            host_cache_bytes: options.host_cache_bytes,
            files,
            closer,
            fetches: Fetches::default(),
            sessions_max: options.sessions_max,
            requests_queued_max: options.requests_queued_max,
            started: Instant::now(),
            heartbeat,
            idle_unload: options.idle_unload,
            asleep: None,
            last_busy: Instant::now(),
            last_noted: Instant::now(),
            totals: EngineStatus::default(),
        })
    }

    /// Runs until it is told to shut down, or the device fails too often.
    ///
    /// # Errors
    /// The failure that nothing could be done about; every caller has been told.
    pub(super) fn run(mut self, mut commands: CommandReceiver) -> Result<(), EngineFailure> {
        self.restore_sessions();
        let ended = self.serve_all(&mut commands);
        if let Err(failure) = &ended {
            tracing::error!(%failure, "giving up");
            self.fail_all(&failure.to_string());
        }
        ended
    }

    fn serve_all(&mut self, commands: &mut CommandReceiver) -> Result<(), EngineFailure> {
        let mut served = 0;
        loop {
            let next = if self.asleep.is_some() || self.is_idle() {
                self.rest(commands)?.ok_or(NothingNow::Closed)
            } else if served >= COMMANDS_A_STEP {
                Err(NothingNow::Empty) // the rest after the next step
            } else if self.only_waits_for_files() {
                self.wait_for_files(commands)
            } else {
                commands.try_next()
            };
            let done = match next {
                Ok(Received::Control(Control::Shutdown)) | Err(NothingNow::Closed) => {
                    self.shut_down(commands);
                    self.save_all();
                    return Ok(());
                }
                Ok(received) => {
                    served += 1;
                    if let Err(error) = self.land() {
                        self.recover(error)?;
                    }
                    // All that has arrived, within the users' shares, before the next step.
                    self.serve_next(received, commands)
                }
                Err(NothingNow::Empty) => {
                    served = 0;
                    commands.begin_round();
                    self.last_busy = Instant::now();
                    self.take_fetched().and_then(|()| self.go_on())
                }
            };
            if let Err(error) = done {
                self.recover(error)?;
            } else if std::mem::take(&mut self.bad_logits) {
                self.recover_from_bad_logits()?;
            }
        }
    }

    /// Takes a step, if there is one to take.
    fn go_on(&mut self) -> Result<(), DeviceError> {
        if self.has_no_requests() {
            return Ok(()); // the model may be off the device
        }
        self.admit()?;
        self.step()?;
        self.note_running();
        self.embed()
    }

    /// True if nobody waits for it.
    pub(super) fn is_idle(&self) -> bool {
        self.has_no_requests() && !self.fetches.any()
    }

    fn has_no_requests(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty() && self.embeddings.is_empty()
    }

    /// True if there is nothing to do until a file is read.
    fn only_waits_for_files(&self) -> bool {
        self.fetches.any() && self.running.is_empty() && self.embeddings.is_empty()
    }

    /// Waits for a command until it is time to look whether a file was read.
    fn wait_for_files(&self, commands: &mut CommandReceiver) -> Result<Received, NothingNow> {
        self.heartbeat.beat(); // it is the disk that takes its time
        match receive(commands, Some(FETCH_LOOK)) {
            Waited::Received(received) => Ok(received),
            Waited::Closed => Err(NothingNow::Closed),
            Waited::TimedOut => Err(NothingNow::Empty),
        }
    }

    /// Waits for a command while nobody waits for the engine; `None` when none can come.
    fn rest(&mut self, commands: &mut CommandReceiver) -> Result<Option<Received>, EngineFailure> {
        loop {
            if let Err(error) = self.clean() {
                self.recover(error)?;
            }
            let limit = self.idle_unload.filter(|_| self.can_unload());
            let idle = self.last_busy.elapsed();
            let unload_in = limit.map(|limit| limit.saturating_sub(idle));
            let tune_in = self.runner.tuning_due_in(idle);
            let tunes = tune_in.is_some() && (unload_in.is_none() || tune_in < unload_in);
            let warms = self.runner.is_cold();
            let rest = if tunes { tune_in } else { unload_in };
            match receive(commands, if warms { Some(Duration::ZERO) } else { rest }) {
                Waited::Received(received) => return Ok(Some(received)),
                Waited::Closed => return Ok(None),
                Waited::TimedOut => {
                    // Then it looks for commands again: nobody waits for more than one step.
                    let done = match tunes {
                        _ if warms => self.runner.warm_up(),
                        true => self.runner.tune(),
                        false => self.unload(),
                    };
                    if let Err(error) = done {
                        self.recover(error)?;
                    }
                    self.heartbeat.beat();
                }
            }
        }
    }

    /// Zeroes the pages that were given back, while nobody waits.
    fn clean(&mut self) -> Result<(), DeviceError> {
        if !self.runner.is_on_device() {
            return Ok(());
        }
        let (kv, executor) = self.runner.kv_mut();
        kv.clean(executor)
    }

    /// A new request: refused at once, or put with those that wait.
    pub(super) fn arrive(
        &mut self,
        request: GenerateRequest,
        events: UnboundedSender<EngineEvent>,
    ) {
        let answer = events.clone();
        let loaded = self.load().map_err(|failure| AdmitError::NotLoaded(failure.message));
        let checked = loaded
            .and_then(|()| Ok((self.check(&request)?, self.find_adapters(&request.adapters)?)))
            .and_then(|checked| self.find_place_to_wait(request.owner).map(|()| checked));
        let (tokens_max, adapters) = match checked {
            Ok(checked) => checked,
            Err(error) => {
                let _ = answer.send(EngineEvent::Refused(error)); // the caller may be gone
                return;
            }
        };
        let session = request.session.unwrap_or_else(|| {
            let traits = Traits {
                name: None,
                context_tokens: self.info.context_tokens as usize,
                priority: Priority::default(),
                ttl: None,
                ephemeral: true,
                adapters,
            };
            self.sessions.insert(request.owner, traits)
        });
        self.sessions.get_mut(session).busy = true;
        let priority = request.priority;
        let priority = priority.unwrap_or(self.sessions.get(session).traits.priority);
        self.arrived += 1;
        let who = (self.arrived, session, priority);
        match Generation::new(request, who, tokens_max, self.vocab(), events) {
            Ok(generation) => self.waiting.push_back(generation),
            Err(error) => {
                self.settle(session);
                let _ = answer.send(EngineEvent::Refused(AdmitError::Sampling(error)));
            }
        }
    }

    /// Logits beyond the tokenizer's vocabulary are padding of the table.
    pub(super) fn vocab(&self) -> usize {
        self.tokenizer.vocab_size().min(self.runner.model().vocab())
    }

    /// Ends a request and puts its session to rest.
    pub(super) fn end(
        &mut self,
        generation: Generation,
        reason: FinishReason,
        error: Option<String>,
    ) {
        self.totals.activity.note_end(reason);
        self.settle(generation.session);
        generation.finish(reason, error);
    }

    /// Ends a request that cannot be served: with an error, unless something was streamed already.
    pub(super) fn refuse(&mut self, generation: Generation, error: AdmitError) {
        self.settle(generation.session);
        if generation.has_started() {
            generation.finish(FinishReason::Error, Some(error.to_string()));
        } else {
            generation.refuse(error);
        }
    }

    /// Marks a session idle, with pages for its tokens only; one made for a single request goes.
    fn settle(&mut self, id: SessionId) {
        let session = self.sessions.get_mut(id);
        session.busy = false;
        session.last_used = Instant::now();
        if session.traits.ephemeral {
            self.drop_session(id);
        } else if let Some(lease) = &mut session.lease {
            self.runner.kv_mut().0.shrink(lease, session.tokens.len());
        } else {
            self.trim_host(); // it may have been read for nothing
        }
        if self.sessions.contains(id) {
            self.note_session(id);
        }
    }

    pub(super) fn status(&self) -> EngineStatus {
        let embedding = self.embeddings.iter().filter(|e| e.has_started()).count();
        let common = EngineStatus {
            loaded: self.runner.is_on_device(),
            users: self.user_counts(),
            sessions: self.sessions.count(),
            running: self.running.len() + embedding,
            queued: self.waiting.len() + self.embeddings.len() - embedding,
            host_cache_bytes: self.sessions.host_bytes(),
            disk_cache_bytes: self.sessions.disk_bytes(),
            uptime_seconds: self.started.elapsed().as_secs(),
            ..self.totals.clone()
        };
        if !common.loaded {
            return common;
        }
        let caps = self.runner.executor().capabilities();
        let memory = self.runner.executor().memory();
        let kv = self.runner.kv();
        let (free, soiled) = (kv.pages_free(), kv.pages_soiled());
        let leased = kv.config().pages() - free - soiled;
        let pool = (kv.config().pages() * PageLayout::TOKENS as usize) as u64;
        EngineStatus {
            device: caps.device_name.clone(),
            driver: caps.driver.clone(),
            kv_dtype: kv.config().layout.format.name().into(),
            kernel_faults: self.runner.faults().to_vec(),
            kv_tokens_max: pool,
            kv_tokens_used: pool - kv.tokens_free() as u64,
            kv_pages: KvPages { leased: leased as u64, free: free as u64, soiled: soiled as u64 },
            device_bytes: memory.used_bytes,
            device_budget_bytes: memory.budget_bytes,
            device_reserve_bytes: self.budget.reserve().bytes_of(memory.total_bytes),
            ..common
        }
    }

    fn fail_all(&mut self, error: &str) {
        for generation in self.running.drain(..).chain(self.waiting.drain(..)) {
            generation.finish(FinishReason::Error, Some(error.to_owned()));
        }
        for embedding in self.embeddings.drain(..) {
            embedding.refuse(AdmitError::Failed(error.to_owned()));
        }
    }

    fn shut_down(&mut self, commands: &mut CommandReceiver) {
        for command in commands.drain() {
            command.refuse(AdmitError::ShuttingDown);
        }
        self.end_embeddings(&AdmitError::ShuttingDown);
        for generation in self.running.drain(..) {
            let why = AdmitError::ShuttingDown.to_string();
            generation.finish(FinishReason::Cancelled, Some(why));
        }
        for generation in self.waiting.drain(..) {
            generation.refuse(AdmitError::ShuttingDown);
        }
    }
}
