//! The end of a daemon: all engines are told at once, each is joined on a thread of its own, and
//! what they could not save is told.

use std::io::Write as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tracing::{error, warn};

use super::models::Models;
use crate::engine::{Control, EngineFailure, EngineThread, Saver, Unsaved};
use crate::protocol::{Framing, NotSaved, RequestId, StopReport, encode_frame, encode_response};

/// How long engines with nothing to save may take: as much as a step of the device may.
const NOTHING_TO_SAVE_MAX: Duration = Duration::from_millis(4800);

/// How long an engine may take to notice that the time is over.
const GIVING_UP_MAX: Duration = Duration::from_secs(1);

/// How often the engines are looked at.
const LOOK: Duration = Duration::from_millis(250);

/// How long sessions may be saved for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaveLimits {
    /// Limit that was reached.
    pub patience: Duration,
    /// True where somebody is told of every extension: the limit then is one of standstill.
    pub while_it_moves: bool,
}

/// How the engines ended.
#[derive(Debug, Default)]
pub struct Ending {
    /// The failure of the default model's engine.
    pub failure: Option<EngineFailure>,
    /// True if an engine's thread panicked.
    pub panicked: bool,
    /// What is in no file as it is.
    pub report: StopReport,
}

impl Ending {
    /// Sessions whose tokens or settings are lost.
    #[must_use]
    pub fn lost(&self) -> usize {
        self.report.not_saved.iter().filter(|session| session.lost).count()
    }

    fn note(&mut self, ended: Ended, is_default: bool) {
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(failure)) if is_default => self.failure = Some(failure),
            Ok(Err(failure)) => warn!(%failure, "an engine failed while the daemon was stopping"),
            Err(_) => self.panicked = true,
        }
    }
}

/// What a thread of an engine ended with.
type Ended = thread::Result<Result<(), EngineFailure>>;

/// An engine that is to end.
#[derive(Debug)]
pub(super) struct EndingEngine {
    pub(super) model: String,
    pub(super) is_default: bool,
    pub(super) thread: Option<EngineThread>,
    pub(super) saver: Saver,
}

impl Models {
    /// Has tokens and settings of all changed sessions written, whatever the engines do meanwhile.
    pub(super) fn save_tokens(&self) {
        for model in self.known() {
            model.saver.end();
            model.saver.save_tokens();
        }
    }

    /// Ends all engines, which save their sessions. `moves` is called again and again meanwhile.
    pub async fn shut_down(&self, limits: SaveLimits, mut moves: impl FnMut()) -> Ending {
        let mut engines = self.take_engines();
        for model in self.known() {
            let _ = model.commands.control(Control::Shutdown); // it may be gone
        }
        let mut threads = JoinSet::new();
        for engine in &mut engines {
            let saver = engine.saver.clone();
            if let Some(ended) = engine.thread.take().and_then(|thread| join(thread, saver)) {
                let is_default = engine.is_default;
                threads.spawn(async move { (ended.await, is_default) });
            }
        }
        let mut ending = Ending::default();
        let mut clock = Clock::start(limits);
        loop {
            tokio::select! {
                biased;
                ended = threads.join_next() => match ended {
                    None => break,
                    Some(Ok((Ok(ended), is_default))) => {
                        clock.note_progress();
                        ending.note(ended, is_default);
                    }
                    Some(_) => {}
                },
                () = sleep(LOOK) => {
                    moves();
                    if clock.is_over(&engines) {
                        warn!("the engines did not finish in time");
                        engines.iter().for_each(|engine| engine.saver.give_up());
                        let all = async { while threads.join_next().await.is_some() {} };
                        let _ = timeout(GIVING_UP_MAX, all).await; // the rest is given up
                        break;
                    }
                }
            }
        }
        ending.report = report(&engines);
        ending
    }
}

/// Joins on a thread of its own, since any other may be busy for long. An engine that has failed
/// saves nothing by itself: what is being written for it is waited for.
fn join(engine: EngineThread, saver: Saver) -> Option<oneshot::Receiver<Ended>> {
    let (told, ended) = oneshot::channel();
    let join = move || {
        let engine = engine.join();
        saver.flush();
        drop(told.send(engine)); // nobody may wait for it any more
    };
    let spawned = thread::Builder::new().name("engine ends".into()).spawn(join);
    spawned.map(|_| ended).map_err(|error| warn!(%error, "an engine is not waited for")).ok()
}

/// How long it takes.
struct Clock {
    limits: SaveLimits,
    started: Instant,
    moved: Instant,
    bytes: u64,
}

impl Clock {
    fn start(limits: SaveLimits) -> Self {
        let now = Instant::now();
        Self { limits, started: now, moved: now, bytes: 0 }
    }

    fn note_progress(&mut self) {
        self.moved = Instant::now();
    }

    fn is_over(&mut self, engines: &[EndingEngine]) -> bool {
        let bytes = engines.iter().map(|engine| engine.saver.bytes_written()).sum();
        if bytes != self.bytes {
            self.bytes = bytes;
            self.note_progress();
        }
        let since = if self.limits.while_it_moves { self.moved } else { self.started };
        let nothing_to_save = engines.iter().all(|engine| engine.saver.unsaved().is_empty());
        let patience = match nothing_to_save {
            true => self.limits.patience.min(NOTHING_TO_SAVE_MAX),
            false => self.limits.patience,
        };
        since.elapsed() >= patience
    }
}

fn report(engines: &[EndingEngine]) -> StopReport {
    let mut not_saved = Vec::new();
    for engine in engines {
        for Unsaved { uid, session, name, is_lost, reason } in engine.saver.unsaved() {
            let (session, model) = (session.0, engine.model.clone());
            match is_lost {
                true => error!(uid, session, model, reason, "a session was not saved"),
                false => warn!(
                    uid,
                    session,
                    model,
                    reason,
                    "the cache of a session was not saved: it will be computed again"
                ),
            }
            not_saved.push(NotSaved { session, uid, name, model, lost: is_lost, reason });
        }
    }
    StopReport { not_saved }
}

/// Clients that wait to be told how the daemon ended.
#[derive(Clone, Debug, Default)]
pub struct Farewells(Arc<Mutex<Vec<Farewell>>>);

#[derive(Debug)]
struct Farewell {
    stream: std::os::unix::net::UnixStream,
    id: RequestId,
    framing: Framing,
}

impl Farewells {
    /// Keeps a connection that is done with all else.
    pub(super) fn keep(&self, stream: UnixStream, id: RequestId, framing: Framing) {
        if let Ok(stream) = stream.into_std() {
            let farewell = Farewell { stream, id, framing };
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(farewell);
        }
    }

    /// Tells all of them, and closes their connections.
    pub fn tell(&self, report: &StopReport) {
        let kept = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        for Farewell { mut stream, id, framing } in kept {
            if let Ok(body) = encode_response(Some(&id), &Ok(report)) {
                // Who has gone away, or does not read, hears it from the log.
                let _ = stream
                    .set_nonblocking(false)
                    .and_then(|()| stream.set_write_timeout(Some(GIVING_UP_MAX)))
                    .and_then(|()| stream.write_all(&encode_frame(framing, &body)));
            }
        }
    }
}
