//! Tests of the interpreter are those of chat templates, in `chat/tests.rs`, and those against
//! Jinja2 itself, in `tests/chat_templates.rs`. Here are the hostile ones that need a caller's eye.

#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::*;

#[test]
fn a_rendering_ends_when_its_caller_gives_up_or_its_time_is_over() {
    let source = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}";
    let program = Program::new(source).unwrap();
    let asked = AtomicUsize::new(0);
    let third = || asked.fetch_add(1, Ordering::Relaxed) == 2;
    let later = Instant::now() + Duration::from_secs(3600);
    let limits = Limits { steps: u64::MAX, bytes: 1 << 30, until: later, cancelled: &third };
    assert_eq!(program.run(&[], limits).unwrap_err().1, Fault::Cancelled);
    assert_eq!(asked.load(Ordering::Relaxed), 3);
    let limits = Limits { until: Instant::now() - Duration::from_secs(1), ..limits };
    assert_eq!(
        program.run(&[], Limits { cancelled: &|| false, ..limits }).unwrap_err().1,
        Fault::Time
    );
}
