//! What a handler returns: a whole body, or one that is made while it is sent.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, SizeHint};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{Instant, Sleep, sleep};

/// What is waiting is joined up to this size for one write.
const WRITE_BYTES: usize = 64 * 1024;

const JSON: &str = "application/json; charset=utf-8";

/// A reply.
pub(super) struct Reply {
    status: StatusCode,
    headers: HeaderMap,
    body: Content,
}

enum Content {
    Whole(Bytes),
    Stream(StreamBody),
}

impl Reply {
    fn of(content_type: &'static str, body: Content) -> Self {
        let mut headers = HeaderMap::new();
        headers.insert("content-type", HeaderValue::from_static(content_type));
        Self { status: StatusCode::OK, headers, body }
    }

    /// A JSON text.
    pub(super) fn json<T: Serialize>(value: &T) -> Self {
        Self::of(JSON, Content::Whole(encode(value).into()))
    }

    /// Plain text.
    pub(super) fn text(text: impl Into<String>) -> Self {
        let body = Content::Whole(text.into().into_bytes().into());
        Self::of("text/plain; charset=utf-8", body)
    }

    /// Server-sent events, and a comment after each `silence`. `produce` runs in a task of its own,
    /// which ends with the connection.
    pub(super) fn events<F, P>(bytes_max: usize, silence: Duration, produce: P) -> Self
    where
        P: FnOnce(Sink) -> F,
        F: Future<Output = Result<(), Gone>> + Send + 'static,
    {
        let body = StreamBody::start(bytes_max, Some(silence), produce);
        Self::of("text/event-stream", Content::Stream(body))
            .header("cache-control", "no-cache")
            .header("x-accel-buffering", "no")
    }

    /// One JSON text a line, made as events are.
    pub(super) fn lines<F, P>(bytes_max: usize, produce: P) -> Self
    where
        P: FnOnce(Sink) -> F,
        F: Future<Output = Result<(), Gone>> + Send + 'static,
    {
        let body = StreamBody::start(bytes_max, None, produce);
        Self::of("application/x-ndjson", Content::Stream(body))
    }

    #[must_use]
    pub(super) fn status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// Sets a header. A value that no header can have is left out.
    #[must_use]
    pub(super) fn header(mut self, name: &'static str, value: &str) -> Self {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.insert(HeaderName::from_static(name), value);
        }
        self
    }

    pub(super) fn code(&self) -> StatusCode {
        self.status
    }

    /// For hyper. `kept` lives as long as the body does.
    pub(super) fn into_response<K: Send + 'static>(self, kept: K) -> Response<ReplyBody> {
        let mut response = Response::new(ReplyBody { content: self.body, _kept: Box::new(kept) });
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        response
    }
}

/// JSON of a reply.
pub(super) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("replies have text keys and finite numbers")
}

/// The body of a reply.
pub(super) struct ReplyBody {
    content: Content,
    _kept: Box<dyn Send>,
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match &mut self.content {
            Content::Whole(bytes) => {
                let bytes = std::mem::take(bytes);
                Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
            }
            Content::Stream(stream) => stream.poll_next(cx).map(|next| match next? {
                Ok(bytes) => Some(Ok(Frame::data(bytes))),
                Err(error) => Some(Err(error)),
            }),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(&self.content, Content::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Content::Stream(_) => SizeHint::default(),
        }
    }
}

/// The client is gone, or reads too slowly: nothing can be sent any more.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gone;

/// Where a stream's producer puts what is to be sent.
#[derive(Debug)]
pub(super) struct Sink {
    queue: mpsc::UnboundedSender<Chunk>,
    waiting: Arc<AtomicUsize>,
    bytes_max: usize,
}

#[derive(Debug)]
enum Chunk {
    Data(Vec<u8>),
    /// What waits is more than may.
    TooSlow,
    End,
}

impl Sink {
    /// Adds bytes behind what waits; never waits itself, since the engine does not either.
    pub(super) fn bytes(&mut self, bytes: Vec<u8>) -> Result<(), Gone> {
        let before = self.waiting.fetch_add(bytes.len(), Ordering::AcqRel);
        if before > 0 && before + bytes.len() > self.bytes_max {
            let _ = self.queue.send(Chunk::TooSlow); // the body may be gone by itself
            return Err(Gone);
        }
        self.queue.send(Chunk::Data(bytes)).map_err(|_| Gone)
    }

    /// An event without a name: `data: …`.
    pub(super) fn data<T: Serialize>(&mut self, value: &T) -> Result<(), Gone> {
        let mut bytes = b"data: ".to_vec();
        bytes.append(&mut encode(value));
        bytes.extend_from_slice(b"\n\n");
        self.bytes(bytes)
    }

    /// An event with a name.
    pub(super) fn event<T: Serialize>(&mut self, name: &str, value: &T) -> Result<(), Gone> {
        let mut bytes = format!("event: {name}\ndata: ").into_bytes();
        bytes.append(&mut encode(value));
        bytes.extend_from_slice(b"\n\n");
        self.bytes(bytes)
    }

    /// OpenAI's last event.
    pub(super) fn done(&mut self) -> Result<(), Gone> {
        self.bytes(b"data: [DONE]\n\n".to_vec())
    }

    /// A line of JSON.
    pub(super) fn line<T: Serialize>(&mut self, value: &T) -> Result<(), Gone> {
        let mut bytes = encode(value);
        bytes.push(b'\n');
        self.bytes(bytes)
    }
}

/// A body that a task makes.
struct StreamBody {
    queue: mpsc::UnboundedReceiver<Chunk>,
    waiting: Arc<AtomicUsize>,
    /// Taken from the queue already.
    next: VecDeque<Chunk>,
    producer: AbortHandle,
    /// Where comments are sent: how long a silence may be, and the end of this one.
    silence: Option<(Duration, Pin<Box<Sleep>>)>,
    ended: bool,
}

impl StreamBody {
    fn start<F, P>(bytes_max: usize, silence: Option<Duration>, produce: P) -> Self
    where
        P: FnOnce(Sink) -> F,
        F: Future<Output = Result<(), Gone>> + Send + 'static,
    {
        let (sender, queue) = mpsc::unbounded_channel();
        let waiting = Arc::<AtomicUsize>::default();
        let end = sender.clone();
        let sink = Sink { queue: sender, waiting: Arc::clone(&waiting), bytes_max };
        let producing = produce(sink);
        let task = tokio::spawn(async move {
            if producing.await.is_ok() {
                let _ = end.send(Chunk::End); // the body may be gone
            }
        });
        Self {
            queue,
            waiting,
            next: VecDeque::new(),
            producer: task.abort_handle(),
            silence: silence.map(|silence| (silence, Box::pin(sleep(silence)))),
            ended: false,
        }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let first = match self.next.pop_front() {
            Some(chunk) => Some(chunk),
            None => match self.queue.poll_recv(cx) {
                Poll::Ready(chunk) => chunk,
                Poll::Pending => return self.poll_silence(cx).map(|comment| Some(Ok(comment))),
            },
        };
        self.break_silence();
        match first {
            Some(Chunk::Data(bytes)) => Poll::Ready(Some(Ok(self.joined(bytes)))),
            Some(Chunk::End) => {
                self.ended = true;
                Poll::Ready(None)
            }
            // Not as if all had been said: the connection is cut off.
            Some(Chunk::TooSlow) => self.cut("the client does not read what waits for it"),
            None => self.cut("the stream's task has failed"),
        }
    }

    fn cut(&mut self, why: &'static str) -> Poll<Option<io::Result<Bytes>>> {
        self.ended = true;
        Poll::Ready(Some(Err(io::Error::other(why))))
    }

    /// `bytes`, and what waits behind them.
    fn joined(&mut self, mut bytes: Vec<u8>) -> Bytes {
        while bytes.len() < WRITE_BYTES {
            match self.queue.try_recv() {
                Ok(Chunk::Data(mut more)) => bytes.append(&mut more),
                Ok(other) => {
                    self.next.push_back(other);
                    break;
                }
                Err(_) => break,
            }
        }
        self.waiting.fetch_sub(bytes.len(), Ordering::AcqRel);
        bytes.into()
    }

    fn break_silence(&mut self) {
        if let Some((longest, end)) = &mut self.silence {
            end.as_mut().reset(Instant::now() + *longest);
        }
    }

    fn poll_silence(&mut self, cx: &mut Context<'_>) -> Poll<Bytes> {
        const COMMENT: &[u8] = b":\n\n";
        let Some((_, end)) = &mut self.silence else { return Poll::Pending };
        ready!(end.as_mut().poll(cx));
        self.break_silence();
        Poll::Ready(Bytes::from_static(COMMENT))
    }
}

impl Drop for StreamBody {
    fn drop(&mut self) {
        self.producer.abort();
    }
}

/// Handlers fail by [`Failure`](super::error::Failure) alone, which is a reply as well.
pub(super) type Outcome = Result<Response<ReplyBody>, Infallible>;
