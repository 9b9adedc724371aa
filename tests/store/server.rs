//! An HTTP server that answers from a script, one request a connection.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Request {
    pub path: String,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Where the range that was asked for begins.
    pub fn range_start(&self) -> Option<usize> {
        self.header("range")?.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
    }
}

/// What is sent.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
    /// Bytes of the body that are announced, where it is not its length.
    pub announced: Option<usize>,
    /// How long the connection stays open, silent, after the body.
    pub stall: Duration,
}

impl Reply {
    pub fn new(status: u16, body: &[u8]) -> Self {
        Self { status, body: body.to_vec(), ..Self::default() }
    }

    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// The whole of `file`, or what of it was asked for.
    pub fn file(request: &Request, file: &[u8]) -> Self {
        match request.range_start() {
            Some(start) => Self::new(206, &file[start..]).header(
                "content-range",
                format!("bytes {start}-{}/{}", file.len() - 1, file.len()),
            ),
            None => Self::new(200, file),
        }
    }

    /// The same, the connection closed after so many bytes.
    pub fn cut_after(mut self, bytes: usize) -> Self {
        self.announced.get_or_insert(self.body.len());
        self.body.truncate(bytes);
        self
    }

    pub fn stalling(mut self, time: Duration) -> Self {
        self.stall = time;
        self
    }
}

/// A server that listens until the test ends.
pub struct Server {
    pub url: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    /// Answers the n-th request (from 0) by `script`.
    pub fn start(script: impl Fn(usize, &Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (log, script) = (Arc::clone(&requests), Arc::new(script));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (log, script) = (Arc::clone(&log), Arc::clone(&script));
                thread::spawn(move || {
                    let stream = stream.unwrap();
                    let Some(request) = read(&stream) else { return };
                    let index = {
                        let mut log = log.lock().unwrap();
                        log.push(request.clone());
                        log.len() - 1
                    };
                    // A client that has seen enough hangs up.
                    let _ = send(stream, &script(index, &request));
                });
            }
        });
        Self { url, requests }
    }

    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

fn read(stream: &TcpStream) -> Option<Request> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let path = lines.next()?.split(' ').nth(1)?.to_owned();
    let headers = lines
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_once(": ").map(|(n, v)| (n.to_lowercase(), v.to_owned())))
        .collect();
    Some(Request { path, headers })
}

fn send(mut stream: TcpStream, reply: &Reply) -> std::io::Result<()> {
    let length = reply.announced.unwrap_or(reply.body.len());
    let mut head = format!("HTTP/1.1 {} X\r\nconnection: close\r\n", reply.status);
    head += &format!("content-length: {length}\r\n");
    for (name, value) in &reply.headers {
        head += &format!("{name}: {value}\r\n");
    }
    stream.write_all(format!("{head}\r\n").as_bytes())?;
    stream.write_all(&reply.body)?;
    stream.flush()?;
    if !reply.stall.is_zero() {
        thread::sleep(reply.stall);
    }
    Ok(())
}
