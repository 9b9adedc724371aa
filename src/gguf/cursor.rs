//! A buffered, bounded forward reader over a file's header.

use std::fmt;

use super::error::{GgufFault, plain};
use super::header::HEADER_BYTES_MAX;
use super::source::Source;

/// Bytes read ahead at a time.
const BUFFER_BYTES: usize = 64 << 10;

/// Place in the file being read, for messages.
#[derive(Clone, Copy)]
pub(super) enum Place<'a> {
    Header,
    Key(u64),
    Value(&'a str),
    Element(&'a str, u64),
    TensorName(u64),
    Tensor(&'a str),
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header => write!(f, "header"),
            Self::Key(index) => write!(f, "name of metadata key {index}"),
            Self::Value(key) => write!(f, "metadata key {}", plain(key)),
            Self::Element(key, index) => write!(f, "metadata key {}, element {index}", plain(key)),
            Self::TensorName(index) => write!(f, "name of tensor {index}"),
            Self::Tensor(name) => write!(f, "description of tensor {}", plain(name)),
        }
    }
}

/// Reads forward from the start of the file and never past its end or [`HEADER_BYTES_MAX`].
pub(super) struct Cursor<'a> {
    source: &'a Source,
    at: u64,
    end: u64,
    buffer: Vec<u8>,
    used: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(source: &'a Source) -> Self {
        let end = source.bytes().min(HEADER_BYTES_MAX);
        Self { source, at: 0, end, buffer: Vec::new(), used: 0 }
    }

    /// Position of the next byte.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Bytes from here to where reading must end.
    pub(super) fn left(&self) -> u64 {
        self.end - self.at
    }

    /// Makes sure that `count` items of `item_bytes` or more are there: to be called with every
    /// claimed length before anything is allocated for it.
    pub(super) fn need(&self, count: u64, item_bytes: u64, place: Place) -> Result<(), GgufFault> {
        let wanted = u128::from(count) * u128::from(item_bytes);
        if wanted <= u128::from(self.left()) {
            return Ok(());
        }
        let left = self.source.bytes() - self.at;
        let place = place.to_string();
        if wanted <= u128::from(left) {
            return Err(GgufFault::HeaderTooLarge { place });
        }
        Err(GgufFault::Truncated { place, offset: self.at, wanted, left })
    }

    /// The next `N` bytes.
    pub(super) fn array<const N: usize>(&mut self, place: Place) -> Result<[u8; N], GgufFault> {
        let mut out = [0; N];
        self.need(1, N as u64, place)?;
        self.fill(&mut out)?;
        Ok(out)
    }

    pub(super) fn u32(&mut self, place: Place) -> Result<u32, GgufFault> {
        Ok(u32::from_le_bytes(self.array(place)?))
    }

    pub(super) fn u64(&mut self, place: Place) -> Result<u64, GgufFault> {
        Ok(u64::from_le_bytes(self.array(place)?))
    }

    /// The next string of at most `limit` bytes, put into `scratch`.
    pub(super) fn string<'s>(
        &mut self,
        scratch: &'s mut Vec<u8>,
        limit: u64,
        place: Place,
    ) -> Result<&'s str, GgufFault> {
        let length = self.u64(place)?;
        self.need(length, 1, place)?;
        if length > limit {
            return Err(GgufFault::NameTooLong { place: place.to_string(), found: length, limit });
        }
        scratch.clear();
        scratch.resize(usize::try_from(length).expect("below HEADER_BYTES_MAX"), 0);
        self.fill(scratch)?;
        std::str::from_utf8(scratch).map_err(|_| GgufFault::NotUtf8 {
            place: place.to_string(),
            found: scratch[..scratch.len().min(32)].escape_ascii().to_string(),
        })
    }

    /// Fills `out`, whose length was found to be there.
    fn fill(&mut self, out: &mut [u8]) -> Result<(), GgufFault> {
        let mut done = 0;
        while done < out.len() {
            if self.used == self.buffer.len() {
                self.refill()?;
            }
            let part = (out.len() - done).min(self.buffer.len() - self.used);
            out[done..done + part].copy_from_slice(&self.buffer[self.used..][..part]);
            self.used += part;
            self.at += part as u64;
            done += part;
        }
        Ok(())
    }

    fn refill(&mut self) -> Result<(), GgufFault> {
        let wanted = self.left().min(BUFFER_BYTES as u64);
        assert!(wanted > 0, "read past what `need` allowed");
        self.buffer.resize(wanted as usize, 0);
        self.used = 0;
        self.source.read_exact_at(self.at, &mut self.buffer).map_err(|error| {
            self.buffer.clear();
            GgufFault::Read { offset: self.at, wanted, error }
        })
    }
}
