//! Log lines that clients can cause at will: one for each user and a while, with what was left out.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How often one user may cause a line.
const EVERY: Duration = Duration::from_secs(10);

/// Users that are remembered; beyond, all are told apart no more.
const USERS_MAX: usize = 1024;

#[derive(Debug)]
struct Said {
    at: Instant,
    left_out: u64,
}

/// Decides which lines are written.
#[derive(Debug, Default)]
pub(super) struct LogLimit {
    said: Mutex<HashMap<u32, Said>>,
}

impl LogLimit {
    /// Number of lines left out since the last one, where a line may be written.
    pub(super) fn admit(&self, uid: u32, now: Instant) -> Option<u64> {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = said.get_mut(&uid) {
            if now - last.at < EVERY {
                last.left_out += 1;
                return None;
            }
            let left_out = std::mem::take(&mut last.left_out);
            last.at = now;
            return Some(left_out);
        }
        if said.len() >= USERS_MAX {
            said.retain(|_, last| now - last.at < EVERY);
        }
        (said.len() < USERS_MAX).then(|| {
            said.insert(uid, Said { at: now, left_out: 0 });
            0
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_one_user_writes_one_line_and_hides_no_other() {
        let (limit, now) = (LogLimit::default(), Instant::now());
        assert_eq!(limit.admit(1, now), Some(0));
        assert!((0..500).all(|_| limit.admit(1, now).is_none()));
        assert_eq!(limit.admit(2, now), Some(0));
        assert_eq!(limit.admit(1, now + EVERY), Some(500));
        assert_eq!(limit.admit(1, now + EVERY * 2), Some(0));
    }
}
