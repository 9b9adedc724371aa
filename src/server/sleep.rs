//! The machine's sleep: logind announces it on the system's bus, and waits for whoever asked to be
//! waited for. The device is free before the machine sleeps, and has its models again afterwards.
//!
//! Where there is no bus, or no logind, nothing happens.

use std::future::poll_fn;
use std::pin::pin;

use futures_core::Stream as _;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tracing::debug;
use zbus::OwnedFd;
use zbus::message::Type;
use zbus::{Connection, MatchRule, MessageStream, connection};

use super::models::Models;
use crate::engine::Control;

const LOGIND: &str = "org.freedesktop.login1";
const PATH: &str = "/org/freedesktop/login1";
const MANAGER: &str = "org.freedesktop.login1.Manager";

/// Frees the device before each sleep of the machine, until `stop`. `bus` is the address of a bus;
/// `None` is the system's.
pub async fn follow_sleep(bus: Option<String>, models: Models, stop: CancellationToken) {
    let ended = tokio::select! {
        biased;
        () = stop.cancelled() => return,
        ended = follow(bus, &models) => ended,
    };
    let why = ended.map_or_else(|error| error.to_string(), |()| "the bus is gone".to_owned());
    debug!(why, "the machine's sleep is not followed");
}

async fn follow(bus: Option<String>, models: &Models) -> zbus::Result<()> {
    let bus = match &bus {
        Some(address) => connection::Builder::address(address.as_str()),
        None => connection::Builder::system(),
    };
    let bus = bus.build().await?;
    let rule = MatchRule::builder()
        .msg_type(Type::Signal)
        .sender(LOGIND)
        .path(PATH)
        .interface(MANAGER)
        .member("PrepareForSleep")
        .build()?;
    let mut signals = pin!(MessageStream::for_match_rule(rule, &bus, None).await?);
    let mut delay = Some(inhibit(&bus).await?);
    // While the machine sleeps, no model is put on a device.
    let mut staying = None;
    while let Some(signal) = poll_fn(|context| signals.as_mut().poll_next(context)).await {
        let sleeps: bool = signal?.body().deserialize()?;
        if sleeps {
            staying = Some(models.stay().await);
            sleep(models).await;
            delay = None; // the machine may sleep
        } else {
            staying = None;
            wake(models);
            if delay.is_none() {
                delay = Some(inhibit(&bus).await?);
            }
        }
    }
    drop((staying, delay));
    Ok(())
}

/// Takes a delay inhibitor from logind; closing the returned descriptor lets the machine sleep.
async fn inhibit(bus: &Connection) -> zbus::Result<OwnedFd> {
    let what = ("sleep", "hobd", "moving models out of the device's memory", "delay");
    let reply = bus.call_method(Some(LOGIND), PATH, Some(MANAGER), "Inhibit", &what).await?;
    reply.body().deserialize()
}

async fn sleep(models: &Models) {
    let mut answers = Vec::new();
    for model in models.known() {
        let (reply, answer) = oneshot::channel();
        // An engine that is gone has no device.
        if model.commands.control(Control::Sleep { reply }).is_ok() {
            answers.push(answer);
        }
    }
    for answer in answers {
        let _ = answer.await;
    }
}

fn wake(models: &Models) {
    for model in models.known() {
        let _ = model.commands.control(Control::Wake); // as above
    }
}
