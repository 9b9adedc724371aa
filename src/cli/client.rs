//! A blocking client of protocol 1 over a Unix socket.
//!
//! A thread reads the socket; whoever waits for an answer takes what it sends from one channel, on
//! which Ctrl-C arrives too. One request is in flight at a time, but for `cancel`.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use thiserror::Error;

use super::interrupt::Interrupts;
use super::peer::{CredentialReader, Writer, untrusted_user};
use crate::protocol::{
    CancelParams, ClientInfo, ErrorObject, GenerateParams, GenerateResult, GenerateToken,
    InitializeParams, InitializeResult, PROTOCOL_VERSION, RequestId, ServerMessage,
    decode_server_message, encode_request, method,
};

/// Longest line taken from a daemon.
const LINE_BYTES_MAX: u64 = 256 << 20;

/// Time to wait for a daemon's last message after it closed the connection.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);

/// Message to a waiting client.
#[derive(Debug)]
pub enum Incoming {
    /// The daemon sent something.
    Message(ServerMessage),
    /// The daemon sent something that is not of the protocol.
    Garbled(serde_json::Error),
    /// The connection is gone.
    Closed(Option<io::Error>),
    /// The user pressed Ctrl-C.
    Interrupted,
}

/// A request that got no result.
#[derive(Debug, Error)]
pub enum ClientError {
    /// No daemon listens.
    #[error(
        "no daemon answers on {}: {source}\n\
         Start one with `hobd --model FILE`; `hob run` and `hob chat` start one themselves. \
         Another daemon's socket is named with --socket PATH",
        .socket.display()
    )]
    Unreachable {
        /// The socket tried.
        socket: PathBuf,
        /// Reason.
        source: io::Error,
    },
    /// Another user listens.
    #[error(
        "uid {uid} serves {}, and could read prompts and forge answers: hob talks to a daemon of \
         its own user or of root, or to one of the user whose folder the socket is in, where \
         nobody else can have made that folder",
        .socket.display()
    )]
    Untrusted {
        /// Path of the socket.
        socket: PathBuf,
        /// Uid of the user.
        uid: u32,
    },
    /// The connection broke before the answer was complete.
    #[error("the connection to hobd was lost during {method}{}", reason(.source))]
    Lost {
        /// Request made.
        method: &'static str,
        /// Reason; `None` if the daemon closed the connection.
        source: Option<io::Error>,
    },
    /// An answer that is not of the protocol.
    #[error("hobd's answer to {method} is not understood: {source}")]
    BadAnswer {
        /// Request made.
        method: &'static str,
        /// Fault found in it.
        source: serde_json::Error,
    },
    /// A request that cannot be written as JSON.
    #[error("cannot write {method} as JSON: {source}")]
    Encode {
        /// Request that was to be made.
        method: &'static str,
        /// Reason.
        source: serde_json::Error,
    },
    /// Another protocol.
    #[error("hobd {version} speaks protocol {found}; this hob speaks {PROTOCOL_VERSION}")]
    Protocol {
        /// The daemon's version.
        version: String,
        /// Its protocol.
        found: u32,
    },
    /// The daemon refused.
    #[error("{error}")]
    Refused {
        /// Its code and words.
        error: ErrorObject,
    },
}

fn reason(source: &Option<io::Error>) -> String {
    source.as_ref().map_or_else(|| ": it closed the connection".into(), |e| format!(": {e}"))
}

/// A connection to a daemon.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    incoming: Receiver<Incoming>,
    sender: Sender<Incoming>,
    last_id: i64,
    /// Server that answered.
    writer: Writer,
}

impl Client {
    /// Connects to the daemon that listens on `socket`.
    ///
    /// # Errors
    /// [`ClientError::Unreachable`] if none does, and [`ClientError::Untrusted`] if it is the
    /// daemon of a user who is not to see prompts.
    pub fn connect(socket: &Path) -> Result<Self, ClientError> {
        let unreachable = |source| ClientError::Unreachable { socket: socket.to_owned(), source };
        let stream = UnixStream::connect(socket).map_err(unreachable)?;
        if let Some(uid) = untrusted_user(&stream, socket).map_err(unreachable)? {
            return Err(ClientError::Untrusted { socket: socket.to_owned(), uid });
        }
        let reader = stream.try_clone().map_err(unreachable)?;
        let (reader, writer) = CredentialReader::new(reader).map_err(unreachable)?;
        let (sender, incoming) = mpsc::channel();
        let to_client = sender.clone();
        thread::Builder::new()
            .name("reader".into())
            .spawn(move || read_messages(reader, &to_client))
            .map_err(unreachable)?;
        Ok(Self { stream, incoming, sender, last_id: 0, writer })
    }

    /// The process that answered last, by the kernel's word; `None` where it did not say.
    pub(super) fn daemon_pid(&self) -> Option<i32> {
        self.writer.pid()
    }

    /// Introduces this client and asks who answers.
    ///
    /// # Errors
    /// As [`Self::call`], and [`ClientError::Protocol`].
    pub fn initialize(&mut self) -> Result<InitializeResult, ClientError> {
        let client = ClientInfo { name: "hob".into(), version: env!("CARGO_PKG_VERSION").into() };
        let params = InitializeParams { client: Some(client), protocol: Some(PROTOCOL_VERSION) };
        let result: InitializeResult = self.call(method::INITIALIZE, &params)?;
        if result.protocol != PROTOCOL_VERSION {
            let (version, found) = (result.server.version, result.protocol);
            return Err(ClientError::Protocol { version, found });
        }
        Ok(result)
    }

    /// Asks one thing and waits for the answer.
    ///
    /// # Errors
    /// The daemon refused, the connection broke, or the answer is not of the protocol.
    pub fn call<P: Serialize, R: DeserializeOwned>(
        &mut self,
        method: &'static str,
        params: &P,
    ) -> Result<R, ClientError> {
        let id = self.begin(method, params)?;
        self.finish(method, &id)
    }

    /// Asks one thing whose answer is waited for later.
    pub(crate) fn begin<P: Serialize>(
        &mut self,
        method: &'static str,
        params: &P,
    ) -> Result<RequestId, ClientError> {
        self.send(method, params)
    }

    /// Waits for the answer to what was asked.
    pub(crate) fn finish<R: DeserializeOwned>(
        &mut self,
        method: &'static str,
        id: &RequestId,
    ) -> Result<R, ClientError> {
        loop {
            match self.receive(method)? {
                Received::Answer(answered, result) if answered.as_ref() == Some(id) => {
                    return read_result(method, &result?);
                }
                // A reply without an id answers a frame the daemon could not read: ours.
                Received::Answer(None, Err(error)) => return Err(error),
                _ => {}
            }
        }
    }

    /// Generates, handing each piece to `on_token` as it comes. A first Ctrl-C cancels; the result
    /// then says so.
    ///
    /// # Errors
    /// As [`Self::call`]. An error of `on_token` cancels too, and is returned without waiting.
    pub(crate) fn generate<E: From<ClientError>>(
        &mut self,
        params: &GenerateParams,
        interrupts: &Interrupts,
        mut on_token: impl FnMut(&GenerateToken) -> Result<(), E>,
    ) -> Result<GenerateResult, E> {
        let method = method::GENERATE;
        let _watch = interrupts.watch(self.sender.clone());
        let id = self.send(method, params)?;
        loop {
            match self.receive(method)? {
                Received::Answer(answered, result) if answered.as_ref() == Some(&id) => {
                    return Ok(read_result(method, &result?)?);
                }
                Received::Answer(None, Err(error)) => return Err(error.into()),
                Received::Token(token) if token.id == id => {
                    if let Err(error) = on_token(&token) {
                        self.cancel(&id)?;
                        return Err(error);
                    }
                }
                Received::Interrupted => self.cancel(&id)?,
                Received::Answer(..) | Received::Token(_) | Received::Other => {}
            }
        }
    }

    fn cancel(&mut self, id: &RequestId) -> Result<(), ClientError> {
        self.send(method::CANCEL, &CancelParams { id: id.clone() }).map(|_| ())
    }

    fn send<P: Serialize>(
        &mut self,
        method: &'static str,
        params: &P,
    ) -> Result<RequestId, ClientError> {
        self.last_id += 1;
        let id = RequestId::Number(self.last_id);
        let mut line = encode_request(&id, method, params)
            .map_err(|source| ClientError::Encode { method, source })?;
        line.push(b'\n');
        match self.stream.write_all(&line) {
            Ok(()) => Ok(id),
            Err(source) => {
                Err(self.refusal().unwrap_or(ClientError::Lost { method, source: Some(source) }))
            }
        }
    }

    /// Reason the daemon gave before closing the connection.
    fn refusal(&self) -> Option<ClientError> {
        loop {
            match self.incoming.recv_timeout(REFUSAL_TIMEOUT).ok()? {
                Incoming::Message(ServerMessage::Response { id: None, result: Err(error) }) => {
                    return Some(ClientError::Refused { error });
                }
                Incoming::Closed(_) => return None,
                _ => {}
            }
        }
    }

    fn receive(&self, method: &'static str) -> Result<Received, ClientError> {
        // This client holds a sender itself, so the channel cannot close.
        match self.incoming.recv().unwrap_or(Incoming::Closed(None)) {
            Incoming::Message(ServerMessage::Response { id, result }) => {
                let result = result.map_err(|error| ClientError::Refused { error });
                Ok(Received::Answer(id, result))
            }
            Incoming::Message(ServerMessage::Notification { method: name, params }) => {
                if name == method::GENERATE_TOKEN {
                    read_result(method, &params).map(Received::Token)
                } else {
                    Ok(Received::Other)
                }
            }
            Incoming::Garbled(source) => Err(ClientError::BadAnswer { method, source }),
            Incoming::Closed(source) => Err(ClientError::Lost { method, source }),
            Incoming::Interrupted => Ok(Received::Interrupted),
        }
    }
}

enum Received {
    Answer(Option<RequestId>, Result<Box<RawValue>, ClientError>),
    Token(GenerateToken),
    Interrupted,
    Other,
}

fn read_result<R: DeserializeOwned>(
    method: &'static str,
    raw: &RawValue,
) -> Result<R, ClientError> {
    serde_json::from_str(raw.get()).map_err(|source| ClientError::BadAnswer { method, source })
}

/// Sends on what arrives, until the connection ends or nobody listens.
fn read_messages(stream: CredentialReader, to_client: &Sender<Incoming>) {
    let mut reader = BufReader::new(stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = (&mut reader).take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
        let (incoming, last) = match read {
            Ok(_) if line.last() == Some(&b'\n') => match decode_server_message(&line) {
                Ok(message) => (Incoming::Message(message), false),
                Err(error) => (Incoming::Garbled(error), false),
            },
            // The end: what there is of a line was cut off.
            Ok(_) => (Incoming::Closed(None), true),
            Err(error) => (Incoming::Closed(Some(error)), true),
        };
        if to_client.send(incoming).is_err() || last {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn what_a_daemon_says_before_it_closes_is_heard_by_who_still_writes() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("s");
        let listener = UnixListener::bind(&socket).expect("a socket");
        let daemon = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut begun = [0; 64];
            stream.read_exact(&mut begun).expect("a frame begins");
            let refusal = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"no"}}"#;
            stream.write_all(format!("{refusal}\n").as_bytes()).expect("it is read");
        });
        let mut client = Client::connect(&socket).expect("connected");
        let prompt = "x".repeat(32 << 20);
        let sent = client.call::<_, serde_json::Value>(method::GENERATE, &prompt);
        assert!(matches!(&sent, Err(ClientError::Refused { error }) if error.message == "no"));
        daemon.join().expect("it ends");
    }
}
