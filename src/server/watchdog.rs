//! Tells the service manager that the engine gets on, and what it does.
//!
//! The watchdog is fed by the engine's progress: by its answer to a question, or by steps and
//! loading that go on meanwhile. A timer alone would feed it also when the engine hangs.

use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use super::methods::control;
use crate::engine::{Control, EngineHandle, EngineStatus};

/// Interval of status updates if no watchdog asks for a shorter one.
const STATUS_PERIOD: Duration = Duration::from_secs(5);

/// Notification to the service manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The engine gets on.
    Alive,
    /// A line about what it does.
    Status(String),
}

/// Reports to `tell` until `stop`. `timeout` is the watchdog's, where there is one: it is fed
/// twice as often. Another engine may take the place of the one that is watched.
pub async fn watch(
    engine: impl Fn() -> EngineHandle,
    timeout: Option<Duration>,
    stop: CancellationToken,
    mut tell: impl FnMut(Notice),
) {
    let period = timeout.map_or(STATUS_PERIOD, |timeout| (timeout / 2).min(STATUS_PERIOD));
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut count = engine().heartbeat.count();
    let mut line = String::new();
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let engine = engine();
        let answer = tokio::select! {
            answer = ask(&engine) => answer,
            () = sleep(period) => None,
        };
        let new = engine.heartbeat.count();
        if answer.is_some() || new != count {
            tell(Notice::Alive);
        }
        count = new;
        if let Some(status) = answer {
            let now = describe(&engine.model.name, &status);
            if now != line {
                tell(Notice::Status(now.clone()));
                line = now;
            }
        }
    }
}

async fn ask(engine: &EngineHandle) -> Option<EngineStatus> {
    control(engine, |reply| Control::Status { reply }).await.ok()
}

fn describe(model: &str, status: &EngineStatus) -> String {
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    let EngineStatus { sessions, running, queued, .. } = *status;
    format!(
        "serving {model}: {sessions} session{}, {running} request{} running, {queued} waiting",
        plural(sessions),
        plural(running)
    )
}
