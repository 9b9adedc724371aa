//! hobd killed while it saves sessions: it comes up again, and no session is half there.
#![allow(clippy::unwrap_used)]

mod hobd_support;
#[path = "common/random.rs"]
mod random;
#[path = "idea/tiny.rs"]
mod tiny;

use std::path::Path;
use std::time::Duration;

use hobd_support::Daemon;
use random::Random;
use serde_json::{Value, json};

/// Sessions that are saved again and again.
const SESSIONS: u32 = 4;
/// Tokens of a session: from and to.
const LENGTHS: std::ops::Range<u32> = 8..68;

/// The first tokens of what a session is given, whatever its length.
fn prompt(session: &str, tokens: u64) -> Vec<u32> {
    let seed = u32::from(*session.as_bytes().last().unwrap());
    (0..tokens as u32).map(|at| (at * 5 + seed * 11) % 80 + 4).collect()
}

fn generation(tokens: &[u32], session: Option<&str>, max_tokens: u32) -> Value {
    let mut params = json!({"tokens": tokens, "max_tokens": max_tokens, "temperature": 0});
    if let Some(session) = session {
        params["session"] = session.into();
    }
    params
}

/// Has sessions filled and saved until the daemon dies.
fn save_until_killed(daemon: &mut Daemon) {
    let mut id = 100;
    for length in LENGTHS.cycle() {
        for number in 0..SESSIONS {
            let name = format!("s{number}");
            let named = json!({"name": name});
            let filled = generation(&prompt(&name, length.into()), Some(&name), 0);
            let saved = json!({"session": name});
            let calls = [("session.create", named), ("generate", filled), ("session.save", saved)];
            for (method, params) in calls {
                id += 1;
                if daemon.try_send(id, method, params).is_err() || daemon.next().is_none() {
                    return;
                }
            }
        }
    }
}

/// Every session that came back has the cache of its own tokens. Returns how many did.
fn check(daemon: &mut Daemon, files: usize) -> u32 {
    let listed = daemon.result("session.list", json!({}))["sessions"].take();
    let listed = listed.as_array().unwrap();
    assert_eq!(listed.len(), files, "each file is a session: {listed:?}");
    for info in listed {
        let (name, tokens) = (info["name"].as_str().unwrap(), info["tokens"].as_u64().unwrap());
        assert!(tokens < LENGTHS.end.into(), "{info}");
        assert_eq!(info["cached_tokens"], tokens, "{info}");
        let text = prompt(name, tokens + 1);
        let found = daemon.result("generate", generation(&text, Some(name), 1));
        assert_eq!(found["usage"]["cached_tokens"], tokens, "its cache is that of its tokens");
        let alone = daemon.result("generate", generation(&text, None, 1));
        assert_eq!(found["tokens"], alone["tokens"]);
    }
    listed.len() as u32
}

fn session_files(folder: &Path) -> usize {
    let entries =
        std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
    entries
        .map(|path| match path.is_dir() {
            true => session_files(&path),
            false => usize::from(path.extension().is_some_and(|found| found == "session")),
        })
        .sum()
}

/// `HOB_KILLS` says how often, 4 times by default; `make soak` takes a hundred.
#[test]
fn kills_leave_whole_sessions() {
    let kills = std::env::var("HOB_KILLS").map_or(4, |text| text.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let [model, _] = tiny::write(folder.path());
    let mut random = Random::new(11);
    let mut seen = 0;
    for _ in 0..kills {
        let mut daemon = Daemon::start(&model, folder.path());
        seen += check(&mut daemon, session_files(folder.path()));
        let pid = rustix::process::Pid::from_child(&daemon.child);
        let (wait, ending) = (random.below(300), random.below(3) == 0);
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(wait.into()));
            if ending {
                // It saves what has a name before it ends, and is killed at that.
                rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
                std::thread::sleep(Duration::from_millis(u64::from(wait % 16)));
            }
            // It may have ended by itself; nobody waits for it yet, so the number is still its own.
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        });
        save_until_killed(&mut daemon);
        killer.join().unwrap();
        daemon.child.wait().unwrap();
    }
    let mut daemon = Daemon::start(&model, folder.path());
    seen += check(&mut daemon, session_files(folder.path()));
    assert!(seen >= kills, "{seen} sessions came back after {kills} kills");
    assert_eq!(daemon.stop().0, Some(0));
}
