//! A raw HTTP/1.1 client over a Unix socket: it shows every byte.

// Each test program uses a part of this.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::server_support::PATIENCE;

/// A connection.
pub struct HttpClient {
    pub stream: BufReader<UnixStream>,
}

/// A reply, its body put together.
#[derive(Debug)]
pub struct HttpReply {
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl HttpReply {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| {
            panic!("no JSON, {error}: {:?}", String::from_utf8_lossy(&self.body))
        })
    }

    /// The data of the events of a stream: JSON, or a text that is none.
    pub fn events(&self) -> Vec<Value> {
        let text = self.text();
        assert!(text.ends_with("\n\n") || text.is_empty(), "a whole event at the end: {text:?}");
        let data = text.split("\n\n").filter_map(|event| {
            let line = event.lines().find(|line| line.starts_with("data: "))?;
            Some(line["data: ".len()..].to_owned())
        });
        data.map(|text| serde_json::from_str(&text).unwrap_or(Value::String(text))).collect()
    }

    /// Names of the events of a stream.
    pub fn event_names(&self) -> Vec<String> {
        let text = self.text();
        let names = text.lines().filter_map(|line| line.strip_prefix("event: "));
        names.map(str::to_owned).collect()
    }
}

/// A request with a body.
pub fn request(method: &str, path: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: hob\r\nContent-Length: {length}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

impl HttpClient {
    pub fn new(stream: UnixStream) -> Self {
        Self { stream: BufReader::new(stream) }
    }

    pub async fn send(&mut self, bytes: &[u8]) {
        timeout(PATIENCE, self.stream.get_mut().write_all(bytes)).await.unwrap().unwrap();
    }

    pub async fn get(&mut self, path: &str) -> HttpReply {
        self.send(&request("GET", path, b"")).await;
        self.reply().await
    }

    pub async fn post(&mut self, path: &str, body: Value) -> HttpReply {
        self.send(&request("POST", path, body.to_string().as_bytes())).await;
        self.reply().await
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        timeout(PATIENCE, self.stream.read_line(&mut line)).await.unwrap().unwrap();
        assert!(line.ends_with("\r\n"), "a line: {line:?}");
        line.trim_end().to_owned()
    }

    async fn exact(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        timeout(PATIENCE, self.stream.read_exact(&mut bytes)).await.unwrap().unwrap();
        bytes
    }

    /// The head of a reply.
    pub async fn head(&mut self) -> HttpReply {
        let status = self.line().await;
        let status = status.strip_prefix("HTTP/1.1 ").unwrap_or_else(|| panic!("{status:?}"));
        let status = status[..3].parse().unwrap();
        let mut headers = Vec::new();
        loop {
            let line = self.line().await;
            let Some((name, value)) = line.split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        HttpReply { status, headers, body: Vec::new() }
    }

    /// One chunk of a body in chunks; empty at its end.
    pub async fn chunk(&mut self) -> Vec<u8> {
        let length = usize::from_str_radix(&self.line().await, 16).unwrap();
        let bytes = self.exact(length).await;
        assert_eq!(self.line().await, "");
        bytes
    }

    /// A reply with its body.
    pub async fn reply(&mut self) -> HttpReply {
        let mut reply = self.head().await;
        if let Some(length) = reply.header("content-length") {
            let length = length.parse().unwrap();
            reply.body = self.exact(length).await;
        } else if reply.header("transfer-encoding").is_some() {
            loop {
                let mut chunk = self.chunk().await;
                if chunk.is_empty() {
                    break;
                }
                reply.body.append(&mut chunk);
            }
        }
        reply
    }

    /// All that comes until the connection is closed.
    pub async fn rest(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // A reset is an end as well.
        let _ = timeout(PATIENCE, self.stream.read_to_end(&mut bytes)).await.unwrap();
        bytes
    }
}
