//! The receiving side of a connection: its bytes, cut into frames.

use std::time::Duration;

use tokio::io::{AsyncReadExt, Interest};
use tokio::net::unix::OwnedReadHalf;
use tokio::time::sleep;
use tokio_util::bytes::BytesMut;
use tokio_util::codec::Decoder;

use super::byte_budget::Share;
use super::text_pool::SHORT_BYTES_MAX;
use crate::protocol::{FrameDecoder, FrameError, Framing};

/// Room for one read.
const READ_BYTES: usize = 16 * 1024;

/// A request is in memory as it came, and as it was read.
const COPIES: usize = 2;

/// An empty buffer larger than this is given back: a connection at rest costs little, whatever it
/// has sent before.
const BUFFER_KEPT_BYTES: usize = 64 * 1024;

/// Interval for checking whether a client that closed its sending side still reads.
const HANG_UP_POLL: Duration = Duration::from_millis(50);

/// The receiving side, cut into frames.
pub(super) struct FrameReader {
    half: OwnedReadHalf,
    buffer: BytesMut,
    decoder: FrameDecoder,
    ended: bool,
    /// Memory of the frame that comes, where it is a large one.
    share: Share,
}

impl FrameReader {
    /// The receiving half of the stream; what was read of it already is dropped.
    pub(super) fn into_half(self) -> OwnedReadHalf {
        self.half
    }

    pub(super) fn new(half: OwnedReadHalf, frame_bytes_max: usize, share: Share) -> Self {
        let decoder = FrameDecoder::new(frame_bytes_max);
        Self { half, buffer: BytesMut::new(), decoder, ended: false, share }
    }

    pub(super) fn framing(&self) -> Option<Framing> {
        self.decoder.framing()
    }

    /// The next frame; `None` at the end. Nothing is lost when the future is dropped.
    pub(super) async fn next(&mut self) -> Result<Option<(BytesMut, Share)>, FrameError> {
        loop {
            let frame = match self.ended {
                true => self.decoder.decode_eof(&mut self.buffer)?,
                false => self.decoder.decode(&mut self.buffer)?,
            };
            if let Some(frame) = frame {
                let bytes = if frame.len() > SHORT_BYTES_MAX { frame.len() * COPIES } else { 0 };
                self.share.take(bytes);
                let next = self.share.another();
                return Ok(Some((frame, std::mem::replace(&mut self.share, next))));
            }
            if self.ended {
                return Ok(None);
            }
            if self.buffer.len() + READ_BYTES > SHORT_BYTES_MAX {
                // All of the frame at once: of two that had a part each, none would go on.
                self.share.grow_to(self.decoder.next_bytes_max() * COPIES).await;
            }
            if self.buffer.is_empty() && self.buffer.capacity() > BUFFER_KEPT_BYTES {
                self.buffer = BytesMut::new();
            }
            self.buffer.reserve(READ_BYTES);
            self.ended = self.half.read_buf(&mut self.buffer).await? == 0;
        }
    }

    /// Waits until the client, whose sending side is closed, has closed the other one as well.
    pub(super) async fn hung_up(&self) {
        loop {
            match self.half.ready(Interest::WRITABLE).await {
                Ok(ready) if !ready.is_write_closed() => sleep(HANG_UP_POLL).await,
                _ => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::io::AsyncWriteExt;
    use tokio::net::UnixStream;
    use tokio::time::timeout;

    use super::super::byte_budget::ByteBudget;
    use super::*;

    #[tokio::test]
    async fn a_large_frame_leaves_no_large_buffer_behind() {
        const FRAME_BYTES: usize = 1 << 20;
        let budget = Arc::new(ByteBudget::new(FRAME_BYTES));
        let (mut peer, ours) = UnixStream::pair().expect("a pair of sockets");
        let mut frames = FrameReader::new(ours.into_split().0, FRAME_BYTES, budget.share(1));
        let sending = tokio::spawn(async move {
            let line = [&vec![b'x'; FRAME_BYTES][..], b"\n"].concat();
            peer.write_all(&line).await.expect("it is read");
            peer
        });
        let (frame, share) = frames.next().await.expect("within the limit").expect("a frame");
        assert_eq!(share.bytes(), FRAME_BYTES * COPIES);
        assert_eq!(frame.len(), FRAME_BYTES);
        drop(frame);
        let peer = sending.await.expect("it was sent");
        // Waits for more, as a connection at rest does.
        let waiting = timeout(Duration::from_millis(1), frames.next());
        assert!(waiting.await.is_err());
        assert!(frames.buffer.capacity() <= BUFFER_KEPT_BYTES, "{}", frames.buffer.capacity());
        drop(peer);
    }
}
