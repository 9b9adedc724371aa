//! Rows of a file's tensors, read and packed by all of the machine's processors.
//!
//! Each thread reads the rows of its groups itself, a little at a time, so that they are packed
//! while they are in its processor's cache.

use std::thread;

use super::ModelLoadError;
use crate::gguf::{GgufFile, TensorInfo};
use crate::tensor::{DType, Packing, first_not_finite};

/// Bytes of a part that a thread reads at once.
const READ_BYTES: u64 = 64 << 10;

/// More threads than this only wait for memory.
const THREADS_MAX: usize = 16;
/// Fewer bytes of rows than this are not worth a thread.
const THREAD_BYTES: u64 = 128 << 10;

/// Arrangement of rows from several tensors in one matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrangement {
    /// One tensor after the other.
    Stacked,
    /// Groups of `lanes` rows in turn from each tensor.
    Alternating,
}

/// Neighbouring rows of a tensor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part<'a> {
    pub tensor: &'a TensorInfo,
    pub first: u64,
    pub rows: u64,
}

impl<'a> Part<'a> {
    pub(super) fn whole(tensor: &'a TensorInfo) -> Self {
        Self { tensor, first: 0, rows: tensor.rows() }
    }
}

/// Source of a matrix's rows.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub file: &'a GgufFile,
    pub parts: &'a [Part<'a>],
    pub packing: Packing,
    pub arrangement: Arrangement,
}

impl Source<'_> {
    /// Packs groups from `first` on into as many as both planes have room for, and gives the bytes
    /// of the file that they are made of. The plane of quads may be a device's memory: each of its
    /// bytes is written once.
    ///
    /// # Errors
    /// The file cannot be read; the planes are then unspecified.
    pub(super) fn pack(
        &self,
        first: u64,
        quads: &mut [u8],
        words: &mut [u8],
    ) -> Result<u64, ModelLoadError> {
        let sizes = [self.packing.group_quad_bytes(), self.packing.group_word_bytes()];
        let [quad_bytes, word_bytes] = sizes.map(|bytes| bytes as usize);
        let groups = quads.len() / quad_bytes;
        let threads = thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
        let least = THREAD_BYTES.div_ceil(sizes[0] + sizes[1]) as usize;
        let share = groups.div_ceil(threads).max(least);
        thread::scope(|scope| {
            let (mut quads, mut words) = (quads, words);
            let (mut first, mut left, mut others) = (first, groups, Vec::new());
            loop {
                let count = share.min(left);
                let (own_quads, rest) = quads.split_at_mut(count * quad_bytes);
                let (own_words, other_rest) = words.split_at_mut(count * word_bytes);
                (quads, words) = (rest, other_rest);
                left -= count;
                if left == 0 {
                    // The last share is this thread's own.
                    let own = self.pack_share(first, own_quads, own_words);
                    let join = |bytes: Result<u64, _>, other: thread::ScopedJoinHandle<'_, _>| {
                        let other = other.join().expect("packing does not panic");
                        Ok(bytes? + other?)
                    };
                    return others.into_iter().fold(own, join);
                }
                others.push(scope.spawn(move || self.pack_share(first, own_quads, own_words)));
                first += count as u64;
            }
        })
    }

    /// Packs the groups of one thread.
    fn pack_share(
        &self,
        first: u64,
        quads: &mut [u8],
        words: &mut [u8],
    ) -> Result<u64, ModelLoadError> {
        let packing = &self.packing;
        let dtype = packing.layout.dtype;
        let mut readers: Vec<RowReader<'_>> =
            self.parts.iter().map(|part| RowReader::new(self.file, *part, dtype)).collect();
        let (quad_bytes, word_bytes) =
            (packing.group_quad_bytes() as usize, packing.group_word_bytes() as usize);
        // Device memory is slow to write in disorder; a tile is put together elsewhere anyway.
        let mut together = vec![0; if packing.sliced { 0 } else { quad_bytes }];
        let (mut rows, mut bytes) = (Vec::new(), 0);
        for (index, quads) in quads.chunks_exact_mut(quad_bytes).enumerate() {
            let words = &mut words[index * word_bytes..][..word_bytes];
            rows.clear();
            self.read_group(&mut readers, first + index as u64, &mut rows)?;
            if packing.sliced {
                packing.pack_group(&rows, quads, words);
            } else {
                packing.pack_group(&rows, &mut together, words);
                quads.copy_from_slice(&together);
            }
            bytes += rows.len() as u64;
        }
        Ok(bytes)
    }

    /// Adds the file's bytes of the rows of a group to `bytes`, `lanes` rows at a time.
    fn read_group(
        &self,
        readers: &mut [RowReader<'_>],
        group: u64,
        bytes: &mut Vec<u8>,
    ) -> Result<(), ModelLoadError> {
        let layout = &self.packing.layout;
        let pieces = self.packing.group_rows() / layout.lanes;
        let end = layout.rows.div_ceil(layout.lanes);
        for piece in (group * pieces..(group + 1) * pieces).filter(|piece| *piece < end) {
            let (part, row) = match self.arrangement {
                Arrangement::Alternating => {
                    let parts = readers.len() as u64;
                    ((piece % parts) as usize, piece / parts * layout.lanes)
                }
                Arrangement::Stacked => {
                    let mut row = piece * layout.lanes;
                    let mut part = 0;
                    while row >= readers[part].part.rows {
                        row -= readers[part].part.rows;
                        part += 1;
                    }
                    (part, row)
                }
            };
            bytes.extend_from_slice(readers[part].rows(row, layout.lanes)?);
        }
        Ok(())
    }
}

/// Reads rows of a tensor in order, a chunk ahead.
struct RowReader<'a> {
    file: &'a GgufFile,
    part: Part<'a>,
    dtype: DType,
    row_bytes: u64,
    chunk: Vec<u8>,
    chunk_first: u64,
}

impl<'a> RowReader<'a> {
    fn new(file: &'a GgufFile, part: Part<'a>, dtype: DType) -> Self {
        let row_bytes = dtype.row_bytes(part.tensor.row_len()).expect("checked by the reader");
        Self { file, part, dtype, row_bytes, chunk: Vec::new(), chunk_first: 0 }
    }

    /// Refuses a chunk, whose first row is row `first` of the tensor, with weights that are no
    /// numbers: what they spoil may look like an answer by the time it is one.
    fn check_finite(&self, first: u64) -> Result<(), ModelLoadError> {
        let Some(block) = first_not_finite(self.dtype, &self.chunk) else { return Ok(()) };
        let at = (block * self.dtype.block_bytes()) as u64;
        Err(ModelLoadError::Tensor {
            path: self.file.path().to_owned(),
            tensor: self.part.tensor.name.clone(),
            wanted: "finite weights".to_owned(),
            found: format!("an infinity or a NaN in row {}", first + at / self.row_bytes),
        })
    }

    /// The bytes of up to `count` rows of the part from `first` on.
    fn rows(&mut self, first: u64, count: u64) -> Result<&[u8], ModelLoadError> {
        let count = count.min(self.part.rows - first);
        let held = self.chunk.len() as u64 / self.row_bytes;
        if first < self.chunk_first || first + count > self.chunk_first + held {
            let ahead = (READ_BYTES / self.row_bytes).max(count).min(self.part.rows - first);
            self.chunk.resize((ahead * self.row_bytes) as usize, 0);
            let at = (self.part.first + first) * self.row_bytes;
            self.file.read_tensor(self.part.tensor, at, &mut self.chunk)?;
            self.check_finite(self.part.first + first)?;
            self.chunk_first = first;
        }
        let at = ((first - self.chunk_first) * self.row_bytes) as usize;
        Ok(&self.chunk[at..at + (count * self.row_bytes) as usize])
    }
}
