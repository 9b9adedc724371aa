//! A client of the server under test.

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use super::PATIENCE;

/// A client of one JSON text a line.
pub struct Client {
    pub reader: BufReader<OwnedReadHalf>,
    pub writer: OwnedWriteHalf,
}

impl Client {
    pub fn new(stream: UnixStream) -> Self {
        let (reader, writer) = stream.into_split();
        Self { reader: BufReader::new(reader), writer }
    }

    pub async fn send_bytes(&mut self, bytes: &[u8]) {
        timeout(PATIENCE, self.writer.write_all(bytes)).await.expect("it is read").unwrap();
    }

    pub async fn send(&mut self, request: Value) {
        self.send_bytes(format!("{request}\n").as_bytes()).await;
    }

    /// Sends a request, in the given id's name.
    pub async fn ask(&mut self, id: impl Into<Value>, method: &str, params: Value) {
        let id = id.into();
        self.send(
            serde_json::json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}),
        )
        .await;
    }

    /// The next message; `None` at the end.
    pub async fn next(&mut self) -> Option<Value> {
        let mut line = String::new();
        let read = timeout(PATIENCE, self.reader.read_line(&mut line)).await.expect("an answer");
        match read {
            Ok(0) | Err(_) => None,
            Ok(_) => Some(serde_json::from_str(&line).unwrap()),
        }
    }

    /// Skips a line, whatever it holds; `false` at the end.
    pub async fn next_line(&mut self) -> bool {
        let mut line = String::new();
        let read = timeout(PATIENCE, self.reader.read_line(&mut line)).await.expect("an answer");
        read.is_ok_and(|bytes| bytes > 0)
    }

    pub async fn message(&mut self) -> Value {
        self.next().await.expect("the connection is open")
    }

    /// Asks and takes the next message as the reply.
    pub async fn call(&mut self, method: &str, params: Value) -> Value {
        self.ask("call", method, params).await;
        let reply = self.message().await;
        assert_eq!(reply["id"], "call", "{reply}");
        reply
    }
}
