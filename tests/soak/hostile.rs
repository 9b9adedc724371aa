//! A user who does what harms others most: floods, hangs up, holds connections, and sends huge
//! texts.

use std::time::{Duration, Instant};

use hob::engine::Owner;
use hob::server::Server;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

/// None of the well-behaved.
const OWNER: Owner = Owner { uid: 6666 };

/// Of each kind.
const CONNECTIONS: usize = 4;

/// Requests of a flood that are sent at once.
const PIPELINED: usize = 16;

/// As long as a frame may be.
const TEXT_BYTES: usize = 8_000_000;

/// Starts to do harm, until `end`. Refusals and lost connections are what it deserves.
pub(crate) fn harm(server: &Server, end: Instant) -> Vec<JoinHandle<()>> {
    let mut tasks = Vec::new();
    for _ in 0..CONNECTIONS {
        tasks.push(tokio::spawn(flood(server.clone(), end)));
        tasks.push(tokio::spawn(hang_up(server.clone(), end)));
        tasks.push(tokio::spawn(hold(server.clone(), end)));
    }
    tasks.push(tokio::spawn(send_texts(server.clone(), end)));
    tasks
}

fn connect(server: &Server) -> UnixStream {
    let (ours, theirs) = UnixStream::pair().unwrap();
    server.serve_stream(theirs, OWNER);
    ours
}

fn line(id: usize, method: &str, params: &serde_json::Value) -> String {
    format!("{}\n", json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
}

/// Short requests without end, and generations among them.
async fn flood(server: Server, end: Instant) {
    let mut buffer = vec![0; 64 << 10];
    while Instant::now() < end {
        let mut stream = connect(&server);
        let mut id = 0;
        while Instant::now() < end {
            let mut lines = String::new();
            for at in 0..PIPELINED {
                id += 1;
                let (method, params) = match at % 4 {
                    0 => ("session.list", json!({})),
                    1 => (
                        "generate",
                        json!({"tokens": [9, 8, 7], "max_tokens": 200,
                                             "priority": "interactive"}),
                    ),
                    _ => ("status", json!({})),
                };
                lines.push_str(&line(id, method, &params));
            }
            let sent = stream.write_all(lines.as_bytes()).await;
            let read = async { matches!(stream.read(&mut buffer).await, Ok(1..)) };
            if sent.is_err() || !read.await {
                break;
            }
        }
        pause().await;
    }
}

/// Makes sessions, and goes before it hears of them.
async fn hang_up(server: Server, end: Instant) {
    let mut round = 0;
    while Instant::now() < end {
        let mut stream = connect(&server);
        let generate = json!({"tokens": [9, 8, 7], "max_tokens": 100});
        let lines: String = (0..PIPELINED)
            .map(|id| line(id, "session.create", &json!({})))
            .chain([line(PIPELINED, "generate", &generate)])
            .collect();
        let _ = stream.write_all(lines.as_bytes()).await; // it may not be let in
        if round % 2 == 0 {
            pause().await;
        }
        round += 1;
        drop(stream);
        pause().await;
    }
}

/// Takes connections and says nothing.
async fn hold(server: Server, end: Instant) {
    let held: Vec<UnixStream> = (0..8).map(|_| connect(&server)).collect();
    tokio::time::sleep_until(end.into()).await;
    drop(held);
}

/// Texts as long as may be.
async fn send_texts(server: Server, end: Instant) {
    let lines = [("a ", 2), ("0123456789", 10)].map(|(word, length)| {
        line(1, "tokenize", &json!({"text": word.repeat(TEXT_BYTES / length)}))
    });
    let mut buffer = vec![0; 1 << 20];
    for text in lines.iter().cycle() {
        if Instant::now() >= end {
            return;
        }
        let mut stream = connect(&server);
        let _ = stream.write_all(text.as_bytes()).await; // it may not be let in
        let _ = stream.read(&mut buffer).await; // the beginning of the answer
        pause().await;
    }
}

/// Out of the way of the other tasks of this process.
async fn pause() {
    tokio::time::sleep(Duration::from_millis(5)).await;
}
