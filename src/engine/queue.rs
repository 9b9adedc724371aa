//! The way into the engine: control commands first, then one lane for each user, in turns.
//!
//! A lane has a limited number of places, and whoever finds them taken waits. Between two steps of
//! the device each lane is served for a limited number of commands and a limited time. A flood by
//! one user therefore delays that user's own commands, and nobody else's.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use thiserror::Error;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::types::Owner;
use super::{Control, EngineCommand};

/// Commands of one user that may wait in its lane.
const LANE_COMMANDS_MAX: usize = 64;

/// Commands of one user that are served between two steps.
const ROUND_COMMANDS: usize = 16;

/// Time for the commands of one user between two steps; the last one may exceed it.
const ROUND_TIME: Duration = Duration::from_millis(5);

/// The engine's thread has ended.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the engine has stopped")]
pub struct EngineGone;

/// The engine's side of a command's way.
#[derive(Debug)]
pub enum Received {
    /// Of the daemon itself.
    Control(Control),
    /// Of a user.
    Command(Owner, EngineCommand),
}

/// Nothing to serve now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NothingNow {
    /// No command waits that may be served in this round.
    Empty,
    /// No command can come any more.
    Closed,
}

#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    /// Told when the receiver goes.
    gone: Notify,
}

#[derive(Debug, Default)]
struct State {
    control: VecDeque<Control>,
    lanes: BTreeMap<u32, Lane>,
    /// Users whose lanes hold commands, in the order of their turns.
    turns: VecDeque<u32>,
    senders: usize,
    receiver_gone: bool,
    waker: Option<Waker>,
}

/// The commands of one user.
#[derive(Debug)]
struct Lane {
    commands: VecDeque<(EngineCommand, OwnedSemaphorePermit)>,
    /// One permit for each place that is free.
    places: Arc<Semaphore>,
    /// Commands served in this round.
    served: usize,
    /// Time that they took.
    spent: Duration,
}

impl Lane {
    fn new() -> Self {
        Self {
            commands: VecDeque::new(),
            places: Arc::new(Semaphore::new(LANE_COMMANDS_MAX)),
            served: 0,
            spent: Duration::ZERO,
        }
    }

    fn had_its_share(&self) -> bool {
        self.served >= ROUND_COMMANDS || self.spent >= ROUND_TIME
    }

    /// True if nothing waits in it and nobody waits for a place.
    fn is_unused(&self) -> bool {
        self.commands.is_empty() && Arc::strong_count(&self.places) == 1
    }
}

impl State {
    fn pop(&mut self) -> Option<Received> {
        if let Some(control) = self.control.pop_front() {
            return Some(Received::Control(control));
        }
        for _ in 0..self.turns.len() {
            let uid = self.turns.pop_front()?;
            let lane = self.lanes.get_mut(&uid)?;
            if lane.had_its_share() {
                self.turns.push_back(uid);
                continue;
            }
            let (command, place) = lane.commands.pop_front()?;
            drop(place);
            lane.served += 1;
            if !lane.commands.is_empty() {
                self.turns.push_back(uid);
            }
            return Some(Received::Command(Owner { uid }, command));
        }
        None
    }

    fn begin_round(&mut self) {
        self.lanes.retain(|_, lane| {
            (lane.served, lane.spent) = (0, Duration::ZERO);
            !lane.is_unused()
        });
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and wakes the engine.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state();
        let result = change(&mut state);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        result
    }

    /// Sends a control command: it never waits, and is never refused while the engine lives.
    pub(super) fn control(&self, command: Control) -> Result<(), EngineGone> {
        self.change(|state| match state.receiver_gone {
            true => Err(EngineGone),
            false => {
                state.control.push_back(command);
                Ok(())
            }
        })
    }

    fn places_of(&self, owner: Owner) -> Result<Arc<Semaphore>, EngineGone> {
        let mut state = self.state();
        if state.receiver_gone {
            return Err(EngineGone);
        }
        let lane = state.lanes.entry(owner.uid).or_insert_with(Lane::new);
        Ok(Arc::clone(&lane.places))
    }

    fn push(
        &self,
        owner: Owner,
        command: EngineCommand,
        place: OwnedSemaphorePermit,
    ) -> Result<(), EngineGone> {
        self.change(|state| {
            if state.receiver_gone {
                return Err(EngineGone);
            }
            // The place keeps the lane from being removed.
            let lane = state.lanes.get_mut(&owner.uid).ok_or(EngineGone)?;
            lane.commands.push_back((command, place));
            if lane.commands.len() == 1 {
                state.turns.push_back(owner.uid);
            }
            Ok(())
        })
    }
}

/// A new way into an engine, and its end.
#[must_use]
pub fn command_queue() -> (CommandSender, CommandReceiver) {
    let state = Mutex::new(State { senders: 1, ..State::default() });
    let shared = Arc::new(Shared { state, gone: Notify::new() });
    (CommandSender(Arc::clone(&shared)), CommandReceiver(shared))
}

/// Sends commands to an engine; cheap to clone. The engine ends with the last one.
#[derive(Debug)]
pub struct CommandSender(Arc<Shared>);

impl Clone for CommandSender {
    fn clone(&self) -> Self {
        self.0.state().senders += 1;
        Self(Arc::clone(&self.0))
    }
}

impl Drop for CommandSender {
    fn drop(&mut self) {
        self.0.change(|state| state.senders -= 1);
    }
}

impl CommandSender {
    /// Sends a user's command, once there is a place in the user's lane.
    ///
    /// # Errors
    /// If the engine has ended.
    pub async fn send(&self, owner: Owner, command: EngineCommand) -> Result<(), EngineGone> {
        let places = self.0.places_of(owner)?;
        let place = places.acquire_owned().await.map_err(|_| EngineGone)?;
        self.0.push(owner, command, place)
    }

    /// The same for a thread that may block.
    ///
    /// # Errors
    /// If the engine has ended.
    pub fn blocking_send(&self, owner: Owner, command: EngineCommand) -> Result<(), EngineGone> {
        super::receive::wait_for(std::pin::pin!(self.send(owner, command)))
    }

    /// Sends a command of the daemon itself: it comes before those of all users, never waits and is
    /// never refused.
    ///
    /// # Errors
    /// If the engine has ended.
    pub fn control(&self, command: Control) -> Result<(), EngineGone> {
        self.0.control(command)
    }

    /// True if both are ways into one engine.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// True if the engine has ended.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.state().receiver_gone
    }

    /// Waits until the engine has ended.
    pub async fn closed(&self) {
        let mut gone = std::pin::pin!(self.0.gone.notified());
        gone.as_mut().enable();
        if !self.is_closed() {
            gone.await;
        }
    }

    /// A clock for the engine, which does not keep it alive.
    pub(super) fn clock(&self) -> Clock {
        Clock(Arc::clone(&self.0))
    }
}

/// Tells the engine that time has passed.
#[derive(Debug)]
pub(super) struct Clock(Arc<Shared>);

impl Clock {
    /// Sends a tick, unless one waits already. False once nobody needs ticks any more.
    pub(super) fn tick(&self) -> bool {
        self.0.change(|state| {
            if !state.control.iter().any(|waiting| matches!(waiting, Control::Tick)) {
                state.control.push_back(Control::Tick);
            }
            state.senders > 0 && !state.receiver_gone
        })
    }
}

/// The engine's end of the way.
#[derive(Debug)]
pub struct CommandReceiver(Arc<Shared>);

impl CommandReceiver {
    /// The next command of this round.
    pub(super) fn try_next(&mut self) -> Result<Received, NothingNow> {
        let mut state = self.0.state();
        match state.pop() {
            Some(received) => Ok(received),
            None if state.senders == 0 && state.turns.is_empty() => Err(NothingNow::Closed),
            None => Err(NothingNow::Empty),
        }
    }

    /// Begins a round: each lane has its share again.
    pub(super) fn begin_round(&mut self) {
        self.0.state().begin_round();
    }

    /// Charges a user for the time that a command took.
    pub(super) fn note_spent(&mut self, owner: Owner, time: Duration) {
        if let Some(lane) = self.0.state().lanes.get_mut(&owner.uid) {
            lane.spent += time;
        }
    }

    /// The next command, of a new round where this one is over; `None` once none can come.
    pub(super) fn poll_next(&mut self, context: &Context<'_>) -> Poll<Option<Received>> {
        let mut state = self.0.state();
        let mut next = state.pop();
        if next.is_none() {
            state.begin_round();
            next = state.pop();
        }
        match next {
            Some(received) => Poll::Ready(Some(received)),
            None if state.senders == 0 => Poll::Ready(None),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Waits for the next command; `None` once none can come.
    pub async fn recv(&mut self) -> Option<Received> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// All commands of users that wait.
    pub(super) fn drain(&mut self) -> Vec<EngineCommand> {
        let mut state = self.0.state();
        state.turns.clear();
        let lanes = state.lanes.values_mut();
        lanes.flat_map(|lane| lane.commands.drain(..).map(|(command, _)| command)).collect()
    }

    pub(super) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.0)
    }
}

impl Drop for CommandReceiver {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.receiver_gone = true;
        state.turns.clear();
        let (control, lanes) =
            (std::mem::take(&mut state.control), std::mem::take(&mut state.lanes));
        drop(state);
        // Whoever waits for a place or an answer hears that there is none.
        lanes.values().for_each(|lane| lane.places.close());
        drop((control, lanes));
        self.0.gone.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    const ANNA: Owner = Owner { uid: 1000 };
    const BEN: Owner = Owner { uid: 1001 };

    fn status() -> EngineCommand {
        EngineCommand::Status { reply: oneshot::channel().0 }
    }

    /// Whose command is next.
    fn next(receiver: &mut CommandReceiver) -> Option<u32> {
        match receiver.try_next() {
            Ok(Received::Command(owner, _)) => Some(owner.uid),
            Ok(Received::Control(control)) => panic!("{control:?}"),
            Err(_) => None,
        }
    }

    async fn fill(sender: &CommandSender, owner: Owner, count: usize) {
        for _ in 0..count {
            sender.send(owner, status()).await.expect("the engine lives");
        }
    }

    #[tokio::test]
    async fn lanes_take_turns_and_each_has_its_share_of_a_round() {
        let (sender, mut receiver) = command_queue();
        fill(&sender, ANNA, LANE_COMMANDS_MAX).await;
        fill(&sender, BEN, 2).await;
        let first: Vec<_> = (0..5).filter_map(|_| next(&mut receiver)).collect();
        assert_eq!(first, [1000, 1001, 1000, 1001, 1000]);
        let rest = std::iter::from_fn(|| next(&mut receiver)).count();
        assert_eq!(rest, ROUND_COMMANDS - 3, "the rest of Anna's share");
        fill(&sender, BEN, 1).await;
        assert_eq!(next(&mut receiver), Some(1001), "Ben has some of his left");
        receiver.begin_round();
        assert_eq!(std::iter::from_fn(|| next(&mut receiver)).count(), ROUND_COMMANDS);
    }

    #[tokio::test]
    async fn whoever_has_taken_long_waits_for_the_next_round() {
        let (sender, mut receiver) = command_queue();
        fill(&sender, ANNA, 3).await;
        assert_eq!(next(&mut receiver), Some(1000));
        receiver.note_spent(ANNA, ROUND_TIME);
        assert_eq!(next(&mut receiver), None);
        fill(&sender, BEN, 1).await;
        assert_eq!(next(&mut receiver), Some(1001));
        receiver.begin_round();
        assert_eq!(next(&mut receiver), Some(1000));
        // An engine that has nothing else to do begins a round by itself.
        receiver.note_spent(ANNA, ROUND_TIME);
        assert!(matches!(receiver.recv().await, Some(Received::Command(ANNA, _))));
    }

    #[tokio::test]
    async fn a_full_lane_keeps_its_user_waiting_and_nobody_else() {
        let (sender, mut receiver) = command_queue();
        fill(&sender, ANNA, LANE_COMMANDS_MAX).await;
        let anna = sender.clone();
        let waiting = tokio::spawn(async move { anna.send(ANNA, status()).await });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        fill(&sender, BEN, LANE_COMMANDS_MAX).await;
        assert!(!waiting.is_finished());
        assert_eq!(next(&mut receiver), Some(1000));
        assert_eq!(waiting.await.expect("no panic"), Ok(()));
    }

    #[tokio::test]
    async fn control_comes_first_and_ticks_do_not_pile_up() {
        let (sender, mut receiver) = command_queue();
        fill(&sender, ANNA, LANE_COMMANDS_MAX).await;
        let clock = sender.clock();
        assert!(clock.tick() && clock.tick());
        sender.control(Control::Shutdown).expect("the engine lives");
        assert!(matches!(receiver.try_next(), Ok(Received::Control(Control::Tick))));
        assert!(matches!(receiver.try_next(), Ok(Received::Control(Control::Shutdown))));
        assert_eq!(next(&mut receiver), Some(1000));
        assert_eq!(receiver.drain().len(), LANE_COMMANDS_MAX - 1);
        drop(sender);
        assert_eq!(receiver.try_next().err(), Some(NothingNow::Closed));
        assert!(receiver.recv().await.is_none());
        assert!(!clock.tick(), "nobody needs it any more");
    }

    #[tokio::test]
    async fn an_engine_that_ends_is_told_to_all_who_wait() {
        let (sender, receiver) = command_queue();
        fill(&sender, ANNA, LANE_COMMANDS_MAX).await;
        let anna = sender.clone();
        let waiting = tokio::spawn(async move { anna.send(ANNA, status()).await });
        let other = sender.clone();
        let closed = tokio::spawn(async move { other.closed().await });
        tokio::task::yield_now().await;
        drop(receiver);
        assert_eq!(waiting.await.expect("no panic"), Err(EngineGone));
        closed.await.expect("no panic");
        assert!(sender.is_closed());
        assert_eq!(sender.send(BEN, status()).await, Err(EngineGone));
        assert_eq!(sender.control(Control::Tick), Err(EngineGone));
        sender.closed().await;
    }

    #[tokio::test]
    async fn lanes_that_nobody_uses_are_removed() {
        let (sender, mut receiver) = command_queue();
        for uid in 0..100 {
            fill(&sender, Owner { uid }, 1).await;
        }
        while next(&mut receiver).is_some() {}
        receiver.begin_round();
        assert_eq!(receiver.0.state().lanes.len(), 0);
    }
}
