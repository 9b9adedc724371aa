//! Framing: where one message ends and the next begins.
//!
//! A connection speaks one of two framings, told apart by its first byte: `C` or `c` opens the
//! `Content-Length` headers of LSP, anything else a line of JSON. The limit holds before memory
//! is taken: a frame is refused on its announced length, and a line as soon as it grows past it.

use std::io;

use thiserror::Error;
use tokio_util::bytes::{Buf, BytesMut};
use tokio_util::codec::Decoder;

/// Most bytes of the headers before a frame.
const HEADER_BYTES_MAX: usize = 4096;

/// Framing of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// One JSON text a line.
    Newline,
    /// `Content-Length: N`, an empty line, N bytes.
    ContentLength,
}

impl Framing {
    /// The framing of a connection, by the first byte that comes.
    #[must_use]
    pub fn of(first: u8) -> Self {
        match first {
            b'C' | b'c' => Self::ContentLength,
            _ => Self::Newline,
        }
    }
}

/// The stream of bytes can no longer be cut into frames; the connection must end.
#[derive(Debug, Error)]
pub enum FrameError {
    /// The peer announced or sent too much.
    #[error("frame too large: the limit is {limit} bytes, found {found}")]
    TooLarge {
        /// Limit that was reached.
        limit: usize,
        /// Bytes announced, or received without an end.
        found: u64,
    },
    /// Headers that cannot be read.
    #[error("frame header: wanted {wanted}, found {found:?}")]
    BadHeader {
        /// Expected value.
        wanted: &'static str,
        /// Value found, shortened.
        found: String,
    },
    /// The connection ended inside a frame.
    #[error("the connection ended inside a frame, after {bytes} bytes of it")]
    Truncated {
        /// Bytes that are left over.
        bytes: usize,
    },
    /// The socket failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Puts a message into a frame.
#[must_use]
pub fn encode_frame(framing: Framing, body: &[u8]) -> Vec<u8> {
    match framing {
        Framing::Newline => [body, b"\n"].concat(),
        Framing::ContentLength => {
            let header = format!("Content-Length: {}\r\n\r\n", body.len());
            [header.as_bytes(), body].concat()
        }
    }
}

/// Cuts a connection's bytes into frames.
#[derive(Debug)]
pub struct FrameDecoder {
    frame_bytes_max: usize,
    framing: Option<Framing>,
    /// Newline framing: bytes already searched. Else: length of the frame whose header was read.
    progress: Progress,
}

#[derive(Clone, Copy, Debug)]
enum Progress {
    Scanned(usize),
    Body(usize),
}

impl FrameDecoder {
    /// A decoder for a new connection.
    #[must_use]
    pub fn new(frame_bytes_max: usize) -> Self {
        Self { frame_bytes_max, framing: None, progress: Progress::Scanned(0) }
    }

    /// Most bytes of the frame that comes: as announced, or as many as may be.
    #[must_use]
    pub fn next_bytes_max(&self) -> usize {
        match self.progress {
            Progress::Body(bytes) => bytes,
            Progress::Scanned(_) => self.frame_bytes_max,
        }
    }

    /// The framing, once the first byte has come.
    #[must_use]
    pub fn framing(&self) -> Option<Framing> {
        self.framing
    }

    fn too_large(&self, found: u64) -> FrameError {
        FrameError::TooLarge { limit: self.frame_bytes_max, found }
    }

    fn decode_line(&mut self, buffer: &mut BytesMut) -> Result<Option<BytesMut>, FrameError> {
        loop {
            let scanned = match self.progress {
                Progress::Scanned(bytes) => bytes,
                Progress::Body(_) => 0,
            };
            let Some(end) = buffer[scanned..].iter().position(|byte| *byte == b'\n') else {
                if buffer.len() > self.frame_bytes_max {
                    return Err(self.too_large(buffer.len() as u64));
                }
                self.progress = Progress::Scanned(buffer.len());
                return Ok(None);
            };
            let end = scanned + end;
            if end > self.frame_bytes_max {
                return Err(self.too_large(end as u64));
            }
            self.progress = Progress::Scanned(0);
            let line = buffer.split_to(end);
            buffer.advance(1);
            if !line.trim_ascii().is_empty() {
                return Ok(Some(line));
            }
        }
    }

    fn decode_lsp(&mut self, buffer: &mut BytesMut) -> Result<Option<BytesMut>, FrameError> {
        let length = match self.progress {
            Progress::Body(length) => length,
            Progress::Scanned(_) => {
                let Some(end) = header_end(buffer)? else {
                    return Ok(None);
                };
                let length = content_length(&buffer[..end])?;
                let fits = usize::try_from(length).ok().filter(|l| *l <= self.frame_bytes_max);
                let length = fits.ok_or_else(|| self.too_large(length))?;
                buffer.advance(end);
                self.progress = Progress::Body(length);
                length
            }
        };
        if buffer.len() < length {
            return Ok(None);
        }
        self.progress = Progress::Scanned(0);
        Ok(Some(buffer.split_to(length)))
    }
}

impl Decoder for FrameDecoder {
    type Item = BytesMut;
    type Error = FrameError;

    fn decode(&mut self, buffer: &mut BytesMut) -> Result<Option<BytesMut>, FrameError> {
        let Some(first) = buffer.first() else {
            return Ok(None);
        };
        let framing = *self.framing.get_or_insert(Framing::of(*first));
        match framing {
            Framing::Newline => self.decode_line(buffer),
            Framing::ContentLength => self.decode_lsp(buffer),
        }
    }

    fn decode_eof(&mut self, buffer: &mut BytesMut) -> Result<Option<BytesMut>, FrameError> {
        if let Some(frame) = self.decode(buffer)? {
            return Ok(Some(frame));
        }
        let blank = buffer.trim_ascii().is_empty();
        match (self.framing, self.progress) {
            (_, Progress::Scanned(_)) if blank => Ok(None),
            // The last line need not end with a newline: `printf '{…}' | socat - UNIX:hob.sock`.
            (Some(Framing::Newline), _) => {
                self.progress = Progress::Scanned(0);
                Ok(Some(buffer.split()))
            }
            _ => Err(FrameError::Truncated { bytes: buffer.len() }),
        }
    }
}

/// Start of the body, after an empty line.
fn header_end(buffer: &[u8]) -> Result<Option<usize>, FrameError> {
    let window = &buffer[..buffer.len().min(HEADER_BYTES_MAX)];
    let crlf = window.windows(4).position(|w| w == b"\r\n\r\n").map(|at| at + 4);
    let lf = window.windows(2).position(|w| w == b"\n\n").map(|at| at + 2);
    let end = crlf.into_iter().chain(lf).min();
    if end.is_none() && buffer.len() >= HEADER_BYTES_MAX {
        return Err(bad_header("an empty line within 4096 bytes", window));
    }
    Ok(end)
}

fn content_length(header: &[u8]) -> Result<u64, FrameError> {
    const WANTED: &str = "\"Content-Length: N\"";
    let text = str::from_utf8(header).map_err(|_| bad_header("ASCII", header))?;
    let mut length = None;
    for line in text.lines().filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':').ok_or_else(|| bad_header(WANTED, header))?;
        if !name.trim().eq_ignore_ascii_case("content-length") {
            continue;
        }
        let value = value.trim();
        let digits = !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit());
        if !digits || length.is_some() {
            return Err(bad_header(WANTED, line.as_bytes()));
        }
        // More digits than a u64 holds is more than any limit.
        length = Some(value.parse().unwrap_or(u64::MAX));
    }
    length.ok_or_else(|| bad_header(WANTED, header))
}

fn bad_header(wanted: &'static str, found: &[u8]) -> FrameError {
    const FOUND_BYTES_MAX: usize = 60;
    let found = &found[..found.len().min(FOUND_BYTES_MAX)];
    FrameError::BadHeader { wanted, found: String::from_utf8_lossy(found).into_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 64;

    /// Feeds `bytes` in pieces of `step` and collects the frames.
    fn decode_all(bytes: &[u8], step: usize) -> Result<Vec<Vec<u8>>, FrameError> {
        let mut decoder = FrameDecoder::new(LIMIT);
        let mut buffer = BytesMut::new();
        let mut frames = Vec::new();
        for piece in bytes.chunks(step) {
            buffer.extend_from_slice(piece);
            while let Some(frame) = decoder.decode(&mut buffer)? {
                frames.push(frame.to_vec());
            }
        }
        while let Some(frame) = decoder.decode_eof(&mut buffer)? {
            frames.push(frame.to_vec());
        }
        Ok(frames)
    }

    #[test]
    fn both_framings_survive_any_cut() {
        let line = b"{\"a\":1}\n\n  \r\n{\"b\":2}\r\n{\"last\":3}";
        let lsp = [
            encode_frame(Framing::ContentLength, b"{\"a\":1}"),
            b"content-length: 7\nContent-Type: x\n\n{\"b\":2}".to_vec(),
        ]
        .concat();
        for step in 1..=line.len() {
            let frames = decode_all(line, step).expect("valid lines");
            assert_eq!(frames, [&b"{\"a\":1}"[..], b"{\"b\":2}\r", b"{\"last\":3}"]);
            let frames = decode_all(&lsp, step).expect("valid frames");
            assert_eq!(frames, [b"{\"a\":1}", b"{\"b\":2}"]);
        }
    }

    #[test]
    fn announced_gigabyte_is_refused_before_its_body() {
        let error = decode_all(b"Content-Length: 1073741824\r\n\r\n", 7).expect_err("too large");
        assert!(matches!(error, FrameError::TooLarge { limit: LIMIT, found: 1_073_741_824 }));
        let digits = [b"Content-Length: ", &[b'9'; 40][..], b"\r\n\r\n"].concat();
        let error = decode_all(&digits, 100).expect_err("too large");
        assert!(matches!(error, FrameError::TooLarge { found: u64::MAX, .. }));
    }

    #[test]
    fn line_past_the_limit_is_refused_with_and_without_its_end() {
        for bytes in [vec![b'x'; LIMIT + 1], [&[b'x'; LIMIT + 1][..], b"\n"].concat()] {
            let error = decode_all(&bytes, LIMIT + 8).expect_err("too large");
            assert!(matches!(error, FrameError::TooLarge { .. }));
        }
        let exact = [&[b'x'; LIMIT][..], b"\n"].concat();
        assert_eq!(decode_all(&exact, 9).expect("fits").len(), 1);
    }

    #[test]
    fn broken_headers_are_named() {
        for header in [
            "Content-Length: -1\r\n\r\n",
            "Content-Length: \r\n\r\n",
            "Content-Type: x\r\n\r\n",
            "Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
            "Content-Length\r\n\r\n",
        ] {
            let error = decode_all(header.as_bytes(), 5).expect_err(header);
            assert!(matches!(error, FrameError::BadHeader { .. }), "{header}: {error}");
        }
        let endless = [&b"C"[..], &[b'x'; HEADER_BYTES_MAX]].concat();
        assert!(matches!(decode_all(&endless, 512), Err(FrameError::BadHeader { .. })));
        let cut = decode_all(b"Content-Length: 5\r\n\r\n{}", 50);
        assert!(matches!(cut, Err(FrameError::Truncated { bytes: 2 })));
    }
}
