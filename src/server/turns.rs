//! Who may take models off the device that others use: root and the daemon's own user at any time,
//! everybody else by turns.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::engine::Owner;

/// How long a user whose load took another user's model off the device waits for the next such
/// load. Two users whose models do not fit together then load at most once a minute each, whatever
/// they ask for, and neither is shut out.
const TURN: Duration = Duration::from_secs(60);

/// User that a model is loaded or unloaded for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Loader {
    /// Root, the daemon's own user, or the daemon itself.
    Operator,
    /// Another user.
    User(u32),
}

impl Loader {
    /// A user as the owner of requests.
    #[must_use]
    pub fn of(owner: Owner) -> Self {
        let own = rustix::process::geteuid().as_raw();
        let is_operator = owner.uid == 0 || owner.uid == own;
        if is_operator { Self::Operator } else { Self::User(owner.uid) }
    }
}

/// When users last took others' models off the device.
#[derive(Debug, Default)]
pub(super) struct Turns(BTreeMap<u32, Instant>);

impl Turns {
    /// Takes the caller's turn.
    ///
    /// # Errors
    /// The time until the caller's next one.
    pub(super) fn take(&mut self, caller: Loader, now: Instant) -> Result<(), Duration> {
        let Loader::User(uid) = caller else { return Ok(()) };
        self.0.retain(|_, taken| now.duration_since(*taken) < TURN);
        match self.0.get(&uid) {
            Some(taken) => Err(TURN - now.duration_since(*taken)),
            None => {
                self.0.insert(uid, now);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_takes_turns_and_an_operator_needs_none() {
        let (mut turns, start) = (Turns::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let (ada, bob) = (Loader::User(1), Loader::User(2));
        assert_eq!(turns.take(ada, at(0)), Ok(()));
        assert_eq!(turns.take(ada, at(20)), Err(Duration::from_secs(40)));
        assert_eq!(turns.take(bob, at(20)), Ok(()), "each has turns of its own");
        assert_eq!(turns.take(ada, at(60)), Ok(()));
        for _ in 0..3 {
            assert_eq!(turns.take(Loader::Operator, at(60)), Ok(()));
        }
    }
}
