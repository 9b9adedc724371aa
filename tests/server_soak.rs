//! Many clients of several users do whatever they like for a while: nothing breaks, nothing leaks,
//! and every answer is what it would have been alone.
//!
//! `HOB_SOAK_SECONDS` says how long, 12 by default; `make soak` takes ten minutes. It runs on the
//! machine's Vulkan device.
#![allow(clippy::unwrap_used)]

#[path = "soak/hostile.rs"]
mod hostile;
#[path = "common/random.rs"]
mod random;
#[path = "idea/tiny.rs"]
mod tiny;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hob::config::Config;
use hob::engine::{self, Control, EngineOptions, Owner, StateOptions};
use hob::server::{Server, ServerOptions};
use hob::vulkan::{VulkanConfig, VulkanExecutor};
use random::Random;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio_util::sync::CancellationToken;

const CLIENTS: u32 = 16;
const UIDS: u32 = 4;
const CONTEXT: u32 = 192;

/// Longer than any answer takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A soak as long as this also measures: a shorter one would tell of the machine's other work.
const MEASURED_SECONDS: u64 = 60;

/// Beside twice the time without a hostile user.
const SLACK: Duration = Duration::from_millis(20);

/// Answers that are compared with a run alone.
const COMPARED_MAX: usize = 300;

/// What was asked, and what came of it.
#[derive(Clone, Debug)]
struct Answer {
    params: Value,
    result: Value,
}

/// As many answers as are compared, of all there were: what a test keeps must not look like a leak.
struct Answers {
    count: u32,
    kept: Vec<Answer>,
    random: Random,
}

impl Answers {
    fn new() -> Self {
        Self { count: 0, kept: Vec::new(), random: Random::new(3) }
    }

    /// Any answer is as likely to be kept as any other.
    fn note(&mut self, answer: Answer) {
        self.count += 1;
        let at = self.random.below(self.count) as usize;
        if self.kept.len() < COMPARED_MAX {
            self.kept.push(answer);
        } else if let Some(kept) = self.kept.get_mut(at) {
            *kept = answer;
        }
    }
}

struct Client {
    server: Server,
    uid: u32,
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    next_id: u64,
    random: Random,
    answers: Arc<Mutex<Answers>>,
}

impl Client {
    fn new(server: &Server, number: u32) -> Self {
        Self::noting(server, number, Arc::new(Mutex::new(Answers::new())))
    }

    fn noting(server: &Server, number: u32, answers: Arc<Mutex<Answers>>) -> Self {
        let uid = 1000 + number % UIDS;
        let (reader, writer) = connect(server, uid);
        let (server, random) = (server.clone(), Random::new(u64::from(number)));
        Self { server, uid, reader, writer, next_id: 0, random, answers }
    }

    async fn send(&mut self, method: &str, params: &Value) -> u64 {
        self.next_id += 1;
        let id = self.next_id;
        let line = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.writer.write_all(format!("{line}\n").as_bytes()).await.unwrap();
        id
    }

    /// The reply to a request; others, and notifications, are passed over.
    async fn reply(&mut self, id: u64) -> Value {
        loop {
            let mut line = String::new();
            let read = tokio::time::timeout(PATIENCE, self.reader.read_line(&mut line));
            assert!(read.await.expect("an answer in time").unwrap() > 0, "the server hung up");
            let message: Value = serde_json::from_str(&line).unwrap();
            if message["id"] == id {
                return message;
            }
        }
    }

    async fn call(&mut self, method: &str, params: Value) -> Value {
        let id = self.send(method, &params).await;
        self.reply(id).await
    }

    /// A session of this user; sometimes one that does not exist.
    fn session(&mut self) -> String {
        format!("{}-{}", self.uid, self.random.below(5))
    }

    fn generation(&mut self) -> Value {
        // Few beginnings, so that caches are of use.
        let (text, length) = (self.random.below(6), 1 + self.random.below(100));
        let tokens: Vec<u32> = (0..length).map(|at| (at * 5 + text * 11) % 80 + 4).collect();
        let priority = ["interactive", "normal", "background"][self.random.below(3) as usize];
        let mut params = json!({
            "tokens": tokens,
            "max_tokens": self.random.below(24),
            "temperature": self.random.below(2) as f32 * 0.8,
            "seed": self.random.below(1000),
            "stream": self.random.below(2) == 0,
            "priority": priority,
        });
        if self.random.below(3) > 0 {
            params["session"] = self.session().into();
        }
        if self.random.below(8) == 0 {
            params["deadline_ms"] = (1 + self.random.below(60)).into();
        }
        params
    }

    fn note(&self, params: Value, reply: &Value) {
        match reply["error"]["code"].as_i64() {
            // Busy or unknown, as it may be in a crowd.
            Some(-32004 | -32003) => {}
            Some(_) => panic!("{params}: {reply}"),
            None => self
                .answers
                .lock()
                .unwrap()
                .note(Answer { params, result: reply["result"].clone() }),
        }
    }

    async fn act(&mut self) {
        match self.random.below(16) {
            0..=6 => {
                let params = self.generation();
                let reply = self.call("generate", params.clone()).await;
                self.note(params, &reply);
            }
            7 => {
                let params = self.generation();
                let id = self.send("generate", &params).await;
                tokio::time::sleep(Duration::from_millis(u64::from(self.random.below(30)))).await;
                self.send("cancel", &json!({"id": id})).await;
                let reply = self.reply(id).await;
                self.note(params, &reply);
            }
            8 => {
                let params = self.generation();
                self.send("generate", &params).await;
                // As a client that is killed.
                (self.reader, self.writer) = connect(&self.server, self.uid);
            }
            9 | 10 => {
                let params = json!({"name": self.session(), "context_tokens": CONTEXT});
                self.call("session.create", params).await;
            }
            11 => {
                let (from, name) = (self.session(), self.session());
                let at = self.random.below(40);
                self.call("session.fork", json!({"session": from, "name": name, "at": at})).await;
            }
            12 => {
                let (session, tokens) = (self.session(), self.random.below(60));
                let params = json!({"session": session, "tokens": tokens});
                self.call("session.truncate", params).await;
            }
            13 => {
                let session = self.session();
                self.call("session.close", json!({"session": session})).await;
            }
            14 => {
                let listed = self.call("session.list", json!({})).await;
                for session in listed["result"]["sessions"].as_array().unwrap() {
                    let name = session["name"].as_str().unwrap();
                    assert!(name.starts_with(&self.uid.to_string()), "{name} of another user");
                }
            }
            _ => {
                let session = self.session();
                self.call("session.save", json!({"session": session})).await;
            }
        }
    }
}

fn connect(server: &Server, uid: u32) -> (BufReader<OwnedReadHalf>, OwnedWriteHalf) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    server.serve_stream(theirs, Owner { uid });
    let (reader, writer) = ours.into_split();
    (BufReader::new(reader), writer)
}

fn seconds() -> u64 {
    std::env::var("HOB_SOAK_SECONDS").map_or(12, |text| text.parse().unwrap())
}

/// Bytes of this process in memory.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

async fn status(server: &Server) -> Value {
    let mut client = Client::new(server, 0);
    // Root is told exact totals.
    (client.reader, client.writer) = connect(server, 0);
    client.call("status", json!({})).await["result"].clone()
}

async fn crowd(server: &Server, length: Duration, round: u32, answers: &Arc<Mutex<Answers>>) {
    let end = Instant::now() + length;
    let clients = (0..CLIENTS).map(|number| {
        let mut client = Client::noting(server, number, Arc::clone(answers));
        client.random = Random::new(u64::from(number + 100 * round));
        tokio::spawn(async move {
            while Instant::now() < end {
                client.act().await;
            }
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.unwrap();
    }
    for uid in 0..UIDS {
        let mut client = Client::new(server, uid);
        for at in 0..5 {
            let session = format!("{}-{at}", client.uid);
            client.call("session.close", json!({"session": session})).await;
        }
    }
}

/// Times from a short interactive prompt to its token, one after the other until `end`.
async fn waits(server: Server, end: Instant) -> Vec<Duration> {
    let mut client = Client::new(&server, 1);
    let mut times = Vec::new();
    while Instant::now() < end {
        let first = times.len() as u32 % 60 + 4;
        let params =
            json!({"tokens": [first, 5, 6, 7], "max_tokens": 1, "priority": "interactive"});
        let started = Instant::now();
        let reply = client.call("generate", params).await;
        times.push(started.elapsed());
        assert!(reply["error"].is_null(), "{reply}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    times.sort();
    times
}

/// A well-behaved crowd, with a hostile user beside it or not; how long others wait, at the 99th
/// percentile.
async fn crowd_beside(
    server: &Server,
    (length, round): (Duration, u32),
    answers: &Arc<Mutex<Answers>>,
    hostile: bool,
) -> Duration {
    let end = Instant::now() + length;
    let waiting = tokio::spawn(waits(server.clone(), end));
    let harm = if hostile { hostile::harm(server, end) } else { Vec::new() };
    crowd(server, length, round, answers).await;
    for task in harm {
        task.await.unwrap();
    }
    let times = waiting.await.unwrap();
    times[times.len() * 99 / 100]
}

/// No session of one user is lost, no request fails and nobody waits much longer, whatever another
/// user does.
async fn bear_a_hostile_user(server: &Server, length: Duration, answers: &Arc<Mutex<Answers>>) {
    let mut keeper = Client::new(server, 3);
    // One that the crowd, which has this user too, does not name.
    let name = format!("{}-kept", keeper.uid);
    let named = json!({"name": name, "context_tokens": CONTEXT});
    keeper.call("session.create", named).await["result"].as_object().expect("a session");
    let kept = json!({
        "session": name, "tokens": [9, 8, 7, 6], "max_tokens": 4, "temperature": 0, "ignore_eos": true,
    });
    let before = keeper.call("generate", kept.clone()).await["result"]["tokens"].take();
    let alone = crowd_beside(server, (length / 2, 2), answers, false).await;
    let beside = crowd_beside(server, (length / 2, 3), answers, true).await;
    println!("99 of 100 wait for at most {alone:?}, beside a hostile user {beside:?}");
    if seconds() >= MEASURED_SECONDS {
        assert!(beside <= 2 * alone + SLACK, "{beside:?} instead of {alone:?}");
    }
    let mut keeper = Client::new(server, 3); // one at rest may have given way
    let again = keeper.call("generate", kept).await["result"]["tokens"].take();
    assert_eq!(again, before, "its session is there");
    keeper.call("session.close", json!({"session": name})).await;
    // What hung up goes as soon as it is noticed.
    let deadline = Instant::now() + PATIENCE;
    let at_rest =
        |status: &Value| ["sessions", "running", "queued"].iter().all(|key| status[*key] == 0);
    loop {
        let status = status(server).await;
        if at_rest(&status) {
            return;
        }
        assert!(Instant::now() < deadline, "left behind: {status}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Runs what was asked once more with nobody else there.
async fn compare(server: &Server, answers: &[Answer]) {
    let mut client = Client::new(server, 0);
    for Answer { params, result } in answers {
        let mut alone = params.clone();
        let members = alone.as_object_mut().unwrap();
        for key in ["session", "deadline_ms", "stream", "priority"] {
            members.remove(key);
        }
        let reply = client.call("generate", alone).await;
        let (wanted, found) = (&reply["result"]["tokens"], &result["tokens"]);
        let (wanted, found) = (wanted.as_array().unwrap(), found.as_array().unwrap());
        match result["finish_reason"].as_str().unwrap() {
            "stop" | "length" => assert_eq!(found, wanted, "{params}"),
            "cancelled" | "deadline" => assert_eq!(found[..], wanted[..found.len()], "{params}"),
            other => panic!("{other}: {params}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_breaks_nothing_leaks_nothing_and_changes_no_answer() {
    let folder = tempfile::tempdir().unwrap();
    let [model, _] = tiny::write(folder.path());
    let options = EngineOptions {
        context_tokens: CONTEXT as usize,
        kv_tokens: 640,
        sessions_max: 16,
        // Room for a few caches: others go on to files, and the rest is given up.
        host_cache_bytes: 256 << 10,
        state: Some(StateOptions {
            folder: folder.path().into(),
            model: "soak".into(),
            disk_cache_bytes: 512 << 10,
        }),
        ..EngineOptions::default()
    };
    let executor = Box::new(VulkanExecutor::new(&VulkanConfig::default()).unwrap());
    let opened = engine::open(executor, &model, &options, &mut |_, _| {}).unwrap();
    let (handle, thread) = engine::start(opened, &options).unwrap();
    let commands = handle.commands.clone();
    let stop = CancellationToken::new();
    let server = Server::new(handle, ServerOptions::from(&Config::default()), stop);

    // The first half finds every shape of batch that there is; the second may add nothing.
    let half = Duration::from_secs(seconds()) / 2;
    let answers = Arc::new(Mutex::new(Answers::new()));
    crowd(&server, half, 0, &answers).await;
    let (resident_before, before) = (resident(), status(&server).await);
    crowd(&server, half, 1, &answers).await;
    let (resident_after, after) = (resident(), status(&server).await);
    bear_a_hostile_user(&server, half, &answers).await;

    let count = answers.lock().unwrap().count;
    println!("{count} answers; {after}");
    println!("resident {} MiB, then {} MiB", resident_before >> 20, resident_after >> 20);
    assert!(count > CLIENTS, "they were answered");
    assert!(after["evictions"].as_u64() > Some(0) && after["preemptions"].as_u64() > Some(0));
    for key in ["sessions", "running", "queued", "kv_tokens_used", "host_cache_bytes"] {
        assert_eq!(after[key], 0, "{key}");
    }
    assert_eq!(after["disk_cache_bytes"], 0);
    let device = |status: &Value| status["device_bytes"].as_f64().unwrap();
    assert!((device(&after) / device(&before) - 1.0).abs() <= 0.02, "device memory");
    // What the test itself keeps, and what allocators and drivers round up, is a few MiB.
    let slack = resident_before / 50 + (16 << 20);
    assert!(resident_after <= resident_before + slack, "host memory");
    let kept = std::mem::take(&mut answers.lock().unwrap().kept);
    compare(&server, &kept).await;
    server.drain().await;
    commands.control(Control::Shutdown).unwrap();
    tokio::task::spawn_blocking(|| thread.join().unwrap().unwrap()).await.unwrap();
}
