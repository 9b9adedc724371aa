//! Whether this machine is quiet enough to measure anything.
//!
//! The kernel's load averages lag by a minute, and count what the last measurement did itself. So
//! processor time is counted, by `/proc/stat`, and that of this process taken off.

use std::fs;
use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A machine is busy when others use more than this part of all processors' time: on two
/// processors, a fifth of one.
const OTHERS_MAX: f64 = 0.1;

/// Time spent looking before measuring.
const LOOK: Duration = Duration::from_millis(500);

/// Ticks of `/proc/stat` in a second: `USER_HZ`, which is 100 wherever Linux runs today.
const TICKS_A_SECOND: f64 = 100.0;

/// Processor time so far, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Usage {
    /// Processor time of all processors, idle time included.
    all: f64,
    /// Bytes used by all processes.
    used: f64,
    /// Bytes used by this process.
    own: f64,
}

/// Watches what others use from some moment on.
#[derive(Debug)]
pub(super) struct Watch {
    start: Option<Usage>,
}

impl Watch {
    /// From now on.
    pub(super) fn start() -> Self {
        Self { start: usage() }
    }

    /// The part of all processors' time that others have used; `None` where the kernel does not
    /// tell.
    pub(super) fn others(&self) -> Option<f64> {
        Some(others(self.start?, usage()?))
    }
}

/// The part of the processors that others use now, if it is too much to measure anything.
pub(super) fn busy() -> Option<f64> {
    let watch = Watch::start();
    thread::sleep(LOOK);
    watch.others().filter(|others| is_too_much(*others))
}

/// True if others disturb measurements.
pub(super) fn is_too_much(others: f64) -> bool {
    others > OTHERS_MAX
}

fn others(start: Usage, end: Usage) -> f64 {
    let others = (end.used - start.used) - (end.own - start.own);
    (others / (end.all - start.all).max(f64::MIN_POSITIVE)).clamp(0.0, 1.0)
}

fn usage() -> Option<Usage> {
    let (all, used) = parse(&fs::read_to_string("/proc/stat").ok()?)?;
    let own = clock_gettime(ClockId::ProcessCPUTime);
    Some(Usage { all, used, own: own.tv_sec as f64 + own.tv_nsec as f64 / 1e9 })
}

/// All and used seconds, from the first line of `/proc/stat`: user, nice, system, idle, iowait,
/// irq, softirq, steal, and guests' time, which is in user's already.
fn parse(stat: &str) -> Option<(f64, f64)> {
    let fields = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    let ticks: Vec<f64> = fields.take(8).map(|field| field.parse().ok()).collect::<Option<_>>()?;
    let idle = ticks.get(3)? + ticks.get(4)?;
    let all: f64 = ticks.iter().sum();
    Some((all / TICKS_A_SECOND, (all - idle) / TICKS_A_SECOND))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_time_is_not_that_of_others() {
        let stat = |user, idle| format!("cpu  {user} 0 50 {idle} 50 0 0 0 7 0\ncpu0 1 2 3\n");
        let (all, used) = parse(&stat(100, 300)).expect("fields");
        assert_eq!((all, used), (5.0, 1.5));
        let start = Usage { all, used, own: 0.25 };
        let (all, used) = parse(&stat(300, 500)).expect("fields");
        let end = Usage { all, used, own: 1.25 };
        assert_eq!(others(start, end), (2.0 - 1.0) / 4.0);
        assert_eq!(others(start, start), 0.0);
        assert!(is_too_much(others(start, end)));
        assert_eq!(parse("intr 1 2 3\n"), None);
    }
}
